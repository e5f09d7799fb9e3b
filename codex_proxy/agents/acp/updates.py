"""Converts an agent's updates to events: text, reasoning, the agent's own activities, and plans.

A message ends when another item begins, since not every agent gives its messages ids. A tool call becomes an item
when it is first reported, in an update or in a request for permission. Source: recordings of eight agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.agents.acp.client_tools import ClientTools
from codex_proxy.agents.acp.failures import retry_event
from codex_proxy.agents.acp.messages import Update
from codex_proxy.agents.acp.presets import AcpPreset
from codex_proxy.agents.failures import cleaned
from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    StepCompleted,
    TextDelta,
)
from codex_proxy.core.items import Activity, Message, Reasoning

ActivityKind: TypeAlias = Literal["command", "file_change", "web_search", "mcp_call", "plan", "other"]

KINDS: Final[dict[str, ActivityKind]] = {
    "execute": "command",
    "edit": "file_change",
    "delete": "file_change",
    "move": "file_change",
    "fetch": "web_search",
}
"""The kind of activity for each of ACP's kinds of tool calls; all others are `other`."""

ENDED: Final = ("completed", "failed")
MAX_TITLE: Final = 400
"""The maximum length of an activity's description, in characters."""
ERROR, INFO = "Error: ", "Info: "
RETRYING: Final = ("Retrying", "Reconnecting")
"""The beginnings of the official adapters' texts about a retried model call."""
RETRIES: Final = ("Retrying...", "retrying...")
"""The ends of other agents' texts about a retried model call."""


class OpenCall(msgspec.Struct):
    """A tool call of the agent that has not ended. `id` is that of the item that shows the call; empty if the item
    has not begun, because the call is not described yet. It is None for a call of a client's tool, which is shown
    as a function call, by other code.
    """

    id: str | None
    known: Update
    """Everything reported about the call so far; later fields replace earlier ones."""
    output: str = ""
    """The output that has been reported so far."""


class UpdateReader:
    """Converts the `session/update` messages of a session to events, which are appended to `events`."""

    def __init__(self, new_id: Callable[[str], str], preset: AcpPreset) -> None:
        """`new_id` returns a new id with the given prefix. `preset`: the agent's."""
        self.events: list[Event] = []
        self.held = ""
        """Text that is held back because it may be an error message. The result of the turn shows whether it is."""
        self.tools = ClientTools()
        self.calls_model_again = False
        """Whether the client's request takes more than one model call: a tool was called, or another message begun."""
        self.ran_commands = False
        self._new_id = new_id
        self._preset = preset
        self._message = ""
        self._message_name: str | None = None
        """The agent's id of the open message."""
        self._said: list[str] = []
        self._reasoning = ""
        self._calls: dict[str, OpenCall] = {}
        self._ended_calls: set[str] = set()
        self._step_called = False
        """Whether the latest model call has called tools."""

    @property
    def open_client_calls(self) -> int:
        """The number of calls of client tools that the agent has reported and that have not ended."""
        return sum(1 for call in self._calls.values() if call.id is None)

    def start_turn(self, tools: ClientTools) -> None:
        """Resets the reader for another turn, in which the client offers `tools`."""
        self.tools = tools
        self.held = ""
        self.ran_commands = self._step_called = False
        self._calls.clear()
        self._ended_calls.clear()
        self.start_request()

    def start_request(self) -> None:
        """Prepares for the client's next request within the same turn of the agent: sets `calls_model_again` to
        False and forgets which of the agent's messages was the latest, so that the request's first text does not
        count as a further model call. Open calls and held text stay.
        """
        self.calls_model_again = False
        self._message_name = None

    def read(self, update: Update) -> None:
        """Appends the events of an update. Updates of other types add none."""
        match update.session_update:
            case "agent_message_chunk":
                self._add_text(_text_of(update.content), update.message_id)
            case "agent_thought_chunk":
                self._add_thought(_text_of(update.content))
            case "tool_call" | "tool_call_update":
                self.add_call(update)
            case "plan":
                self._add_plan(update.entries)
            case "notice":
                self.events.append(Notice("agent_notice", cleaned(update.title or "", MAX_TITLE)))
            case "session_info_update":
                self._add_info(update.meta)

    # --- text -----------------------------------------------------------------------------------

    def _add_text(self, text: str, name: str | None) -> None:
        if not text:
            return
        if self.held or (self._preset.errors_as_text and text.startswith((ERROR, INFO))):
            if self.held.startswith(INFO) and not text.startswith((ERROR, INFO)):
                self.release_held()
            else:
                self._hold(text)
                return
        self._say(text, name)

    def _hold(self, text: str) -> None:
        if text.startswith(INFO) and text.rstrip().endswith(RETRIES):
            self.retry(text.removeprefix(INFO))
        elif text.startswith((ERROR, INFO)):
            self.release_held()
            self.held = text
        else:
            self.held += text

    def release_held(self) -> None:
        """Adds the text that was held because it might have been an error message."""
        held, self.held = self.held, ""
        if held:
            self._say(held, None)

    def _say(self, text: str, name: str | None) -> None:
        if name != self._message_name and None not in (name, self._message_name):
            self.calls_model_again = True
            self.end_message()
        if not self._message:
            self._end_reasoning()
            self._begin_model_call()
            self._message, self._message_name = self._new_id("msg_"), name
            self.events.append(ItemStarted(Message(self._message)))
        self._said.append(text)
        self.events.append(TextDelta(self._message, text))

    def end_message(self) -> None:
        """Ends the open message, and adds its raw item for the history of later turns."""
        if not self._message:
            return
        content = [{"type": "output_text", "text": "".join(self._said), "annotations": []}]
        item = {"type": "message", "role": "assistant", "id": self._message, "content": content}
        self.events += [ItemEnded(self._message), RawItem("message", msgspec.json.encode(item))]
        self._message = ""
        self._said.clear()

    def _add_thought(self, text: str) -> None:
        if not text:
            return
        if not self._reasoning:
            self.end_message()
            self._begin_model_call()
            self._reasoning = self._new_id("rs_")
            self.events.append(ItemStarted(Reasoning(self._reasoning)))
        self.events.append(ReasoningDelta(self._reasoning, text))

    def _end_reasoning(self) -> None:
        if self._reasoning:
            self.events.append(ItemEnded(self._reasoning))
            self._reasoning = ""

    # --- what the agent does --------------------------------------------------------------------

    def add_call(self, call: Update) -> Update:
        """Adds a report of a tool call, from an update or a request for permission. Returns everything reported about
        that call so far."""
        name = call.tool_call_id
        if not name or name in self._ended_calls:
            return call
        state = self._calls.get(name)
        if state is None:
            self.calls_model_again = True
            self.end_texts()
            self._step_called = True
            waits = _is_unnamed(call, call) and not self.tools.is_called_by(call)
            state = self._calls[name] = OpenCall("" if waits else self._begin_call(call), call)
        else:
            state.known = _merged(state.known, call)
            if state.id == "" and not _is_unnamed(state.known, call):
                state.id = self._begin_call(state.known)
        if state.id:
            self._add_output(state, call)
        if call.status in ENDED:
            del self._calls[name]
            self._ended_calls.add(name)
            if state.id:
                self.events.append(ItemEnded(state.id, "failed" if call.status == "failed" else "completed"))
        return state.known

    def _begin_call(self, call: Update) -> str | None:
        if self.tools.is_called_by(call):
            return None
        kind = KINDS.get(call.kind or "", "other")
        self.ran_commands = self.ran_commands or kind == "command"
        id = self._new_id("act_")
        self.events.append(ItemStarted(Activity(id, kind, _line_of(call))))
        return id

    def _add_output(self, state: OpenCall, call: Update) -> None:
        """Appends the new part of the output that the update `call` contains, as an event and in `state`. An update
        contains either a piece of the output or all of it so far. In the second case it is ignored if it does not
        begin with the output so far.
        """
        delta = _terminal_delta(call.meta)
        if delta:
            state.output += delta
        else:
            whole = _output_of(call)
            if not whole.startswith(state.output) or len(whole) == len(state.output):
                return
            delta, state.output = whole[len(state.output) :], whole
        assert state.id
        self.events.append(OutputDelta(state.id, delta))

    def _add_plan(self, entries: Any) -> None:
        lines = [
            f"[{'x' if entry.get('status') == 'completed' else ' '}] {entry['content']}"
            for entry in (entries if isinstance(entries, list) else ())
            if isinstance(entry, dict) and isinstance(entry.get("content"), str)
        ]
        if lines:
            self.end_texts()
            id = self._new_id("act_")
            text = cleaned("\n".join(lines), MAX_TITLE)
            self.events += [ItemStarted(Activity(id, "plan", text)), ItemEnded(id)]

    def _add_info(self, meta: Any) -> None:
        """Adds an adapter's `sessionFailure` in `_meta`, if its severity is `warning`, as a retry of the model call
        or as a notice.
        """
        failure = session_failure(meta)
        if failure is not None and failure.get("severity") == "warning":
            title = failure.get("title")
            text = cleaned(title if isinstance(title, str) else "", MAX_TITLE)
            if text.startswith(RETRYING):
                self.retry(text)
            else:
                self.events.append(Notice("agent_warning", text))

    def retry(self, reason: str) -> None:
        """Adds `Retrying` and drops the open texts: the agent repeats its model call, and with it all text since
        the last tool call. `reason`: the agent's message about that.
        """
        self._message = self._reasoning = self.held = ""
        self._said.clear()
        self.events.append(retry_event(reason, self._preset))

    def _begin_model_call(self) -> None:
        """Ends the step of the last model call if that had tool calls. A retry of the next model call repeats
        nothing of it.
        """
        if self._step_called:
            self._step_called = False
            self.events.append(StepCompleted())

    def end_texts(self) -> None:
        """Ends the open message and the open reasoning, because another item follows."""
        self.release_held()
        self._end_reasoning()
        self.end_message()

    def drop_held(self) -> str:
        """Returns the held text, which was an error message, and clears it."""
        held, self.held = self.held, ""
        return held


def session_failure(meta: Any) -> dict[str, Any] | None:
    """Returns the `sessionFailure` in a `_meta`; None if there is none."""
    for name in ("jetbrains", "air", "sessionFailure"):
        meta = meta.get(name) if isinstance(meta, dict) else None
    return meta if isinstance(meta, dict) else None


def _text_of(content: Any) -> str:
    """Returns the text of a content block; empty for other types of blocks."""
    text = content.get("text") if isinstance(content, dict) and content.get("type") == "text" else None
    return text if isinstance(text, str) else ""


def _merged(before: Update, call: Update) -> Update:
    """Returns the state of a call before an update (`before`) with the fields of the update (`call`) replaced."""
    fields = {name: value for name in Update.__struct_fields__ if (value := getattr(call, name)) is not None}
    if isinstance(before.meta, dict) and isinstance(call.meta, dict):
        fields["meta"] = {**before.meta, **call.meta}
    if before.raw_input and not call.raw_input:
        fields.pop("raw_input", None)
    return msgspec.structs.replace(before, **fields)


def _is_unnamed(known: Update, newest: Update) -> bool:
    """`known` is the state of a call, `newest` its last update. Returns whether the call is a command whose
    description has not come yet. It comes in the command's text, in a request for permission, or when the command
    runs.
    """
    named = isinstance(known.raw_input, dict) and known.raw_input.get("command")
    return known.kind == "execute" and known.status == "pending" and newest.session_update != "" and not named


def _line_of(call: Update) -> str:
    """Returns one line that describes the call: its command, or its title if there is no command."""
    command = call.raw_input.get("command") if isinstance(call.raw_input, dict) else None
    if isinstance(command, list):
        command = " ".join(str(part) for part in command)
    return cleaned(command if isinstance(command, str) and command else call.title or "", MAX_TITLE)


def _terminal_delta(meta: Any) -> str:
    """Returns the piece of a command's output in the `_meta` of an update of Codex's adapter; empty if there is
    none.
    """
    delta = meta.get("terminal_output_delta") if isinstance(meta, dict) else None
    data = delta.get("data") if isinstance(delta, dict) else None
    return data if isinstance(data, str) else ""


def _output_of(call: Update) -> str:
    """Returns the text in the call's content, one line per block; empty if there is none."""
    texts = [
        _text_of(each.get("content"))
        for each in (call.content if isinstance(call.content, list) else ())
        if isinstance(each, dict) and each.get("type") == "content"
    ]
    return "\n".join(text for text in texts if text)
