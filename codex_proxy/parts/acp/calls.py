"""The calls of the client's tools in one turn, from the session's tool server to the client's output. Without IO. A
program may call at the tool server of another session, so the client gets only calls that the agent has reported for
its own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import ToolReply
from codex_proxy.agents.shared.conversions import custom_input
from codex_proxy.agents.shared.history_items import raw_call
from codex_proxy.core.events import StepCompleted, ToolCallRequested
from codex_proxy.core.items import TextPart
from codex_proxy.core.json_values import encode_json
from codex_proxy.parts.acp.messages import ToolCalled, ToolsSettled, tool_output
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.reported_calls import (
    ClientTools,
    agent_name,
    arguments_in,
    call_result,
    without_arguments,
)
from codex_proxy.parts.acp.updates import UpdateReader

REFUSED = (
    "This call was refused: the client does not offer the tool, or the model of this session did not call it."
)
_ZERO: Final = re.compile(rb"\.0(?=[],}]|$)")


class ClientCalls:
    """The calls of one turn. Appends events to the events of `reader`, and lines for the tool server to `writes`."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        reader: UpdateReader,
        writes: list[bytes],
        *,
        preset: AcpPreset,
        alone: bool,
    ) -> None:
        """`alone`: the session has its process to itself, so calls without a report are passed on, too."""
        self.tools = ClientTools()
        self.is_broken = False
        """Whether the agent no longer waits for an output in this turn."""
        self._new_id = new_id
        self._reader = reader
        self._writes = writes
        self._one_at_a_time = preset.one_call_at_a_time
        self._added_arguments = preset.added_arguments
        self._alone = alone
        self._new: list[ToolCalled] = []
        """Calls whose outputs the client was not asked for yet."""
        self._made: dict[str, bytes] = {}
        """Arguments of calls (`_canonical_json`), by the tool server's key."""
        self._reports: dict[str, _Report] = {}
        self._settled = False
        self._passed_on: set[str] = set()
        """The keys of reported calls whose outputs the client was asked for."""
        self.known_ids: set[str] = set()
        """The ids of the conversation's calls, so that each is given once."""
        self._waiting: dict[str, str] = {}
        """The tool server's key, by call id."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def clear(self) -> None:
        """Forgets all calls, and refuses those that the client was not asked for."""
        for call in self._new:
            self.refuse(call)
        self._waiting.clear()
        self._new.clear()
        self._made.clear()
        self._reports.clear()
        self._passed_on.clear()

    def add(self, call: ToolCalled) -> None:
        self._new.append(call)
        self._made[call.key] = _canonical_json(msgspec.json.decode(call.arguments))
        self._settled = False

    def refuse(self, call: ToolCalled) -> None:
        self._writes.append(tool_output(call.key, call_result((TextPart(REFUSED),), success=False)))

    def on_tools_settled(self, message: ToolsSettled) -> None:
        """Handles the end of the wait for further calls: asks the client if the step is complete. At the last limit it
        does so anyway, and refuses calls without a report.
        """
        if not message.last:
            self._settled = True
            self.on_update()
            return
        if not self._alone:
            reported = self._match_reports()
            for call in [call for call in self._new if call.key not in reported]:
                self._new.remove(call)
                self.refuse(call)
        self._settled = True
        if not self._waiting:
            self._ask_client(self._new)

    def on_update(self) -> None:
        if self._settled and self._new and not self._waiting and self._all_arrived():
            self._ask_client(self._new)

    def _match_reports(self) -> dict[str, str]:
        """Returns the key of the agent's report for each new call that has one, by the tool server's key. Uses each
        report once.
        """
        free: dict[tuple[str, bytes], deque[str]] = {}
        """The keys of open reports by tool and arguments; empty arguments are not yet known."""
        named: dict[tuple[str, str], deque[str]] = {}
        """The keys of open reports by tool and the agent's id, which may be missing."""
        for key, report in self._open_reports().items():
            if report.tool:
                free.setdefault((report.tool, report.arguments), deque()).append(key)
                named.setdefault((report.tool, report.call_id), deque()).append(key)
        found: dict[str, str] = {}
        taken: set[str] = set()
        for call in self._new:
            ids = (call.call_id, "")
            by_arguments = ((call.name, self._made[call.key]), (call.name, b""))
            candidates = (
                [named.get((call.name, id), deque()) for id in ids]
                if call.call_id
                else [free.get(each, deque()) for each in by_arguments]
            )
            for keys in candidates:
                while keys and call.key not in found:
                    key = keys.popleft()
                    if key not in taken:
                        taken.add(key)
                        found[call.key] = key
        return found

    def _open_reports(self) -> dict[str, _Report]:
        reports: dict[str, _Report] = {}
        for key, update in self._reader.client_calls.items():
            if key in self._passed_on:
                continue
            tool, given, known = (
                self.tools.find_called_tool(update),
                arguments_in(update),
                self._reports.get(key),
            )
            if known is not None and known.given is given:
                arguments = known.arguments
            else:
                arguments = _canonical_json(given) if given else b""
            name = "" if tool is None else agent_name(tool.name)
            reports[key] = _Report(name, update.tool_call_id or "", given, arguments)
        self._reports = reports
        return reports

    def _all_arrived(self) -> bool:
        found = self._match_reports()
        return len(found) == len(self._new) and (self._one_at_a_time or len(found) == len(self._reports))

    def ask_client(self) -> None:
        """Asks for the outputs of the new calls that the agent has reported."""
        reported = self._match_reports()
        self._ask_client([call for call in self._new if self._alone or call.key in reported])

    def _ask_client(self, calls: list[ToolCalled]) -> None:
        if not calls:
            return
        self._passed_on.update(self._match_reports().values())
        self._new = [call for call in self._new if call not in calls]
        self._settled = False
        self._reader.release_doubtful()
        self._reader.end_texts()
        events = self._reader.events
        for call in calls:
            tool = self.tools.by_agent_name.get(call.name)
            if tool is None:
                self.refuse(call)
                continue
            is_new = call.call_id and call.call_id not in self.known_ids
            call_id = call.call_id if is_new else self._new_id("call_")
            self.known_ids.add(call_id)
            self._waiting[call_id] = call.key
            text = without_arguments(call.arguments, self._added_arguments, tool)
            text = custom_input(text) if tool.kind == "custom" else text
            asked = ToolCallRequested(call_id, call_id, tool.name, text, "", tool.kind)
            events += [raw_call(asked), asked]
        events.append(StepCompleted())

    def give_output(self, call_id: str, reply: ToolReply) -> None:
        """Writes a call's output. After the last, asks for calls made meanwhile."""
        key = self._waiting.pop(call_id, None)
        if key is not None:
            self._writes.append(tool_output(key, call_result(reply.parts, success=reply.success)))
            if not self._waiting:
                self.ask_client()

    def drop(self, key: str) -> None:
        """Forgets a call for which the agent no longer waits. If the client was asked for it, sets `is_broken`."""
        self._new = [call for call in self._new if call.key != key]
        self._made.pop(key, None)
        if key in self._waiting.values():
            self.is_broken = True


class _Report(msgspec.Struct, frozen=True):
    """A call in the agent's reports. `tool`: the agent's name of the client's tool, or empty. `call_id`: the agent's
    id, or empty. `arguments`: those of `given`, as `_canonical_json` returns them; empty if not known yet.
    """

    tool: str
    call_id: str
    given: Any
    arguments: bytes


def _canonical_json(arguments: Any) -> bytes:
    """Returns JSON that is equal for equal arguments: 1.0 is 1, fields have no order."""
    return _ZERO.sub(b"", encode_json(arguments, "deterministic"))
