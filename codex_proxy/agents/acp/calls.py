"""The calls of the client's tools within one turn of a session: from the agent's call at the session's tool server to
the client's output. Without IO.

A program with several sessions may make the call of one session's model at the tool server of another. So the client
gets only calls that the agent has also reported for its session (in an update or a request for permission); all others
are refused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from codex_proxy.agents.acp.client_tools import ClientTools, agent_name, arguments_in, call_result
from codex_proxy.agents.acp.messages import ToolCalled, ToolsSettled, tool_output
from codex_proxy.agents.acp.updates import UpdateReader
from codex_proxy.agents.dialect import ToolReply
from codex_proxy.agents.dialects.conversions import custom_input
from codex_proxy.agents.dialects.response_items import raw_call
from codex_proxy.core.events import StepCompleted, ToolCallRequested
from codex_proxy.core.items import TextPart

REFUSED = (
    "This call was refused: the client does not offer the tool, or the model of this session did not call it."
)
"""The output of a call that the client does not get."""
_ZERO: Final = re.compile(rb"\.0(?=[],}]|$)")


class ClientCalls:
    """The calls of one session's turn. Events are appended to those of the `reader`; what is written to the tool server
    is appended to `writes`.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        reader: UpdateReader,
        writes: list[bytes],
        *,
        one_at_a_time: bool,
        alone: bool,
    ) -> None:
        """`new_id` returns a new id with a prefix. `one_at_a_time`: see `AcpPreset.one_call_at_a_time`. `alone`: the
        session has its process to itself, so calls that the agent does not report are passed on, too.
        """
        self.tools = ClientTools()
        self.broken = False
        """Whether the agent has stopped waiting for the output of a call in this turn and gone on without it."""
        self._new_id = new_id
        self._reader = reader
        self._writes = writes
        self._one_at_a_time = one_at_a_time
        self._alone = alone
        self._new: list[ToolCalled] = []
        """Calls that have not been passed on to the client yet."""
        self._made: dict[str, bytes] = {}
        """Their arguments in the form of `_comparable`, by the tool server's key."""
        self._reports: dict[str, _Report] = {}
        """The agent's reports that were read last, by its ids of the calls."""
        self._settled = False
        """Whether the time to wait for further calls is over, although the agent has not reported all calls that
        were made."""
        self._passed_on: set[str] = set()
        """The agent's ids of the reported calls that the client was asked for."""
        self._waiting: dict[str, str] = {}
        """The calls whose outputs the client was asked for: the tool server's key of each, by call id."""

    @property
    def unasked(self) -> bool:
        """Whether the agent has made calls that the client was not asked for yet."""
        return bool(self._new)

    @property
    def waiting(self) -> bool:
        """Whether the client was asked for outputs that it has not given."""
        return bool(self._waiting)

    def clear(self) -> None:
        """Forgets all calls, because the turn is over, and refuses those that the client was not asked for."""
        for call in self._new:
            self.refuse(call)
        self._waiting.clear()
        self._new.clear()
        self._made.clear()
        self._reports.clear()
        self._passed_on.clear()

    def add(self, call: ToolCalled) -> None:
        """Adds a call of the agent that has arrived at the tool server."""
        self._new.append(call)
        self._made[call.key] = _comparable(msgspec.json.decode(call.arguments))
        self._settled = False

    def refuse(self, call: ToolCalled) -> None:
        """Gives the agent a failed output for the call."""
        self._writes.append(tool_output(call.key, call_result((TextPart(REFUSED),), success=False)))

    def settle(self, message: ToolsSettled) -> None:
        """Called when no further call has come for a while: asks the client for the outputs if this step is complete.
        When the time is over, asks for the calls that the agent has reported, and refuses the others.
        """
        if not message.last:
            self._settled = True
            self.on_update()
            return
        if not self._alone:
            reported = self._reported()
            for call in [call for call in self._new if call.key not in reported]:
                self._new.remove(call)
                self.refuse(call)
        self._settled = True
        if not self._waiting:
            self._ask_client(self._new)

    def on_update(self) -> None:
        """Asks the client for the outputs if the agent has reported the last call that was made."""
        if self._settled and self._new and not self._waiting and self._all_arrived():
            self._ask_client(self._new)

    def _reported(self) -> dict[str, str]:
        """Returns the agent's id of the reported call for each new call, by the key of the tool server. No report
        counts for two calls; reports whose arguments are known are taken first.
        """
        reports = self._open_reports()
        free: dict[tuple[str, bytes], deque[str]] = {}
        """The ids of the reports, by the tool and the arguments; empty arguments are not known."""
        for id, report in reports.items():
            if report.tool:
                free.setdefault((report.tool, report.arguments), deque()).append(id)
        found: dict[str, str] = {}
        taken: set[str] = set()
        for call in self._new:
            candidates: tuple[deque[str], ...]
            if call.call_id:
                own = reports.get(call.call_id)
                candidates = (deque([call.call_id] if own is not None and own.tool == call.name else []),)
            else:
                candidates = tuple(free.get((call.name, key), deque()) for key in (self._made[call.key], b""))
            for ids in candidates:
                while ids and call.key not in found:
                    id = ids.popleft()
                    if id not in taken:
                        taken.add(id)
                        found[call.key] = id
        return found

    def _open_reports(self) -> dict[str, _Report]:
        """Returns the agent's reports of open calls that the client was not asked for, by the agent's ids. Only new
        arguments are read.
        """
        reports: dict[str, _Report] = {}
        for update in self._reader.open_client_calls():
            id = update.tool_call_id or ""
            if id in self._passed_on:
                continue
            tool, given, known = self.tools.called_in(update), arguments_in(update), self._reports.get(id)
            if known is not None and known.given is given:
                arguments = known.arguments
            else:
                arguments = _comparable(given) if given else b""
            reports[id] = _Report("" if tool is None else agent_name(tool.name), given, arguments)
        self._reports = reports
        return reports

    def _all_arrived(self) -> bool:
        """Returns whether exactly those calls have arrived that the agent has reported (for an agent that makes one
        call after the other: whether all that have arrived were reported). Then this step (one call of the model) is
        complete.
        """
        found = self._reported()
        return len(found) == len(self._new) and (self._one_at_a_time or len(found) == len(self._reports))

    def ask_client(self) -> None:
        """Asks the client for the outputs of the new calls that the agent has reported, because it has given all
        that it was asked for before."""
        reported = self._reported()
        self._ask_client([call for call in self._new if self._alone or call.key in reported])

    def _ask_client(self, calls: list[ToolCalled]) -> None:
        """Adds a `ToolCallRequested` event for each call, and then the end of the step. For a tool that the client does
        not offer, the agent gets a failed output instead.
        """
        if not calls:
            return
        self._passed_on.update(self._reported().values())
        self._new = [call for call in self._new if call not in calls]
        self._settled = False
        self._reader.end_texts()
        events = self._reader.events
        for call in calls:
            tool = self.tools.find(call.name)
            if tool is None:
                self.refuse(call)
                continue
            known = call.call_id and call.call_id not in self._waiting
            call_id = call.call_id if known else self._new_id("call_")
            self._waiting[call_id] = call.key
            text = custom_input(call.arguments) if tool.kind == "custom" else call.arguments
            asked = ToolCallRequested(call_id, call_id, tool.name, text, "", tool.kind)
            events += [raw_call(asked), asked]
        events.append(StepCompleted())

    def give_output(self, call_id: str, reply: ToolReply) -> None:
        """Gives the agent the output of a call, if the call waits for one. After the last output, the client is asked
        for the calls that were made meanwhile.
        """
        key = self._waiting.pop(call_id, None)
        if key is not None:
            self._writes.append(tool_output(key, call_result(reply.parts, success=reply.success)))
            if not self._waiting:
                self.ask_client()

    def drop(self, key: str) -> None:
        """Forgets the call `key`, because the agent no longer waits for its output. If the client was asked for it, the
        turn cannot be resumed with outputs any more (`broken`).
        """
        self._new = [call for call in self._new if call.key != key]
        self._made.pop(key, None)
        if key in self._waiting.values():
            self.broken = True


class _Report(msgspec.Struct, frozen=True):
    """What an agent has reported about a call: its name of the client's `tool` (empty for another one), the arguments
    as `given`, and in the form of `_comparable` (empty: not known yet).
    """

    tool: str
    given: Any
    arguments: bytes


def _comparable(arguments: Any) -> bytes:
    """Returns JSON that is the same for equal arguments: 1.0 is 1, and the order of fields has no meaning."""
    return _ZERO.sub(b"", msgspec.json.encode(arguments, order="deterministic"))
