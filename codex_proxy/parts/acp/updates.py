"""Converts `session/update` messages to events: text, reasoning, plans, and the agent's own tool calls (activities). A
message ends when another item begins: not every agent has message ids. Where they have, the messages of a turn are told
from those of earlier turns, whose text may come late; if a turn has only ids of earlier turns, the program gives them
again, and they tell nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from codex_proxy.agents.shared.failures import clean_text
from codex_proxy.agents.shared.history_items import raw_message
from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    ReasoningDelta,
    StepCompleted,
    TextDelta,
)
from codex_proxy.core.items import (
    MAX_STEP_CHARS,
    ActionDetails,
    Activity,
    ActivityKind,
    Message,
    Reasoning,
    plan_of,
)
from codex_proxy.core.json_values import object_at, objects_in, text_at, value_at
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.acp.content import is_text, text_of
from codex_proxy.parts.acp.failures import retry_event
from codex_proxy.parts.acp.messages import Update
from codex_proxy.parts.acp.own_tools import details_of
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.reported_calls import (
    ACTING_KINDS,
    END_STATUSES,
    ClientTools,
    OpenCall,
    ReportedCalls,
    is_unnamed,
    merge,
    without_content,
)

MAX_EARLIER: Final = 1000
"""Maximum ids of earlier messages."""
MAX_LATE: Final = 16_384
"""Maximum characters of late text; more is an answer."""


class MessageNames:
    """Tells by ids which chunks of messages belong to a turn. A chunk is doubtful while it may be late text of an
    earlier turn.
    """

    def __init__(self) -> None:
        self.own: set[str] = set()
        """The ids of this turn's messages."""
        self._earlier: dict[str, None] = {}
        self._given_again = False
        self._doubtful: list[Update] = []
        self._doubtful_size = 0

    def start_turn(self) -> None:
        for name in self.own:
            self.add_earlier(name)
        self.own.clear()
        self.drop_doubtful()

    def add_earlier(self, name: str) -> None:
        self._earlier[name] = None
        if len(self._earlier) > MAX_EARLIER:
            del self._earlier[next(iter(self._earlier))]

    def is_of_this_turn(self, name: str) -> bool:
        """Whether the message with the id `name` belongs to this turn; if so, notes it in `own`. False also if only
        later updates can tell.
        """
        if name in self._earlier and not self._given_again:
            return False
        self.own.add(name)
        return True

    def keep_doubtful(self, chunk: Update, size: int) -> Sequence[Update]:
        """Keeps a chunk that may be late text of an earlier turn. Once they are too many for that, they are the
        answer: then returns all.
        """
        self._doubtful.append(chunk)
        self._doubtful_size += 1 + size
        return self.take_doubtful() if self._doubtful_size > MAX_LATE else ()

    def take_doubtful(self) -> Sequence[Update]:
        """Returns the doubtful chunks as those of this turn, since it has no others."""
        chunks = self._doubtful[:]
        self._given_again = self._given_again or bool(chunks)
        self.own.update(chunk.message_id for chunk in chunks if chunk.message_id is not None)
        self.drop_doubtful()
        return chunks

    def drop_doubtful(self) -> bool:
        """Forgets the doubtful chunks: they were late text. Returns whether there were any."""
        dropped = bool(self._doubtful)
        self._doubtful.clear()
        self._doubtful_size = 0
        return dropped


KINDS: Final[dict[str, ActivityKind]] = {**ACTING_KINDS, "fetch": "web_search"}
"""Activities by ACP's kinds of tool calls; others are `other`."""

MAX_OUTPUT: Final = 8 << 20
"""Maximum characters of a call's output; the rest is dropped."""
MAX_TITLE: Final = 400
MAX_ERROR: Final = 16_384
"""Maximum characters of an error; a longer text is part of the answer."""
ERROR, INFO = "Error: ", "Info: "
RETRYING: Final = ("Retrying", "Reconnecting")
"""How the official adapters' texts about a retry begin."""
RETRIES: Final = ("Retrying...", "retrying...")
"""How other agents' texts about a retry end."""


class UpdateReader:
    """Converts updates, and appends the events to `events`, which the caller empties."""

    def __init__(self, new_id: Callable[[str], str], preset: AcpPreset) -> None:
        self.events: list[Event] = []
        self.held = ""
        """Text that may be an error; the turn's result shows whether it is."""
        self.tools = ClientTools()
        self.toolset: Toolset | None = None
        """That of the turn."""
        self.calls_model_again = False
        """Whether the client's request takes more than one model call."""
        self.ran_commands = False
        self._new_id = new_id
        self._preset = preset
        self._names = MessageNames()
        self._message = ""
        self._message_name: str | None = None
        self._message_texts: list[str] = []
        self._is_apart = False
        """Whether the message's text so far ends with a paragraph of its own."""
        self._reasoning = ""
        self._calls = ReportedCalls()
        self._step_called = False
        """Whether the latest model call has called tools."""
        self.spoke = False
        """Whether the model has said anything since the dialect set this to False."""

    @property
    def client_calls(self) -> dict[str, Update]:
        """The open calls of the client's tools by a key, each with all that was reported."""
        return self._calls.of_client

    def start_turn(self, tools: ClientTools) -> None:
        self.tools = tools
        self.held = ""
        self._names.start_turn()
        self.ran_commands = self._step_called = False
        self._calls.start_turn()
        self.start_request()

    def start_request(self) -> None:
        """Prepares for another request of the turn. Open calls and held text stay."""
        # The first text of the request does not count as a further model call.
        self.calls_model_again = False
        self._message_name = None

    def read(self, update: Update) -> None:
        match update.session_update:
            case "agent_message_chunk" | "agent_thought_chunk":
                name = update.message_id
                if name is None or name in self._names.own or self._is_of_this_turn(update, name):
                    self._add_chunk(update)
            case "tool_call" | "tool_call_update":
                self.add_call(update)
            case "plan":
                self._add_plan(update.entries)
            case "notice":
                self.events.append(Notice("agent_notice", clean_text(update.title or "", MAX_TITLE)))
            case "session_info_update":
                self._add_info(update.meta)

    # --- text -----------------------------------------------------------------------------------

    def note_late_text(self, update: Update) -> bool:
        """Reads an update that comes between two turns. Returns False if text that comes so cannot be told from the
        next answer.
        """
        is_text = update.session_update in ("agent_message_chunk", "agent_thought_chunk")
        if is_text and update.message_id is not None:
            self._names.add_earlier(update.message_id)
        return not is_text or update.message_id is not None or not text_of(update.content)

    def _is_of_this_turn(self, update: Update, name: str) -> bool:
        """Whether a chunk is of this turn. If that is not known yet, the chunk is kept."""
        if self._names.is_of_this_turn(name):
            if self._names.drop_doubtful():
                self.events.append(Notice("late_text"))
            return True
        for chunk in self._names.keep_doubtful(update, len(text_of(update.content))):
            self._add_chunk(chunk)
        return False

    def release_doubtful(self) -> None:
        """Adds the doubtful chunks (see `MessageNames`) to this turn."""
        for chunk in self._names.take_doubtful():
            self._add_chunk(chunk)

    def _add_chunk(self, update: Update) -> None:
        plain = is_text(update.content)  # nearly always, and for every delta
        text = update.content["text"] if plain else text_of(update.content)
        if update.session_update != "agent_message_chunk":
            self._add_thought(text)
        elif plain:
            self._add_text(text, update.message_id)
        elif text:
            self.release_held()
            self._add_message_text(text, update.message_id, apart=True)

    def _add_text(self, text: str, name: str | None) -> None:
        if not text:
            return
        if self.held or (self._preset.errors_as_text and text.startswith((ERROR, INFO))):
            if self.held.startswith(INFO) and not text.startswith((ERROR, INFO)):
                self.release_held()
            else:
                self._hold(text)
                return
        self._add_message_text(text, name)

    def _hold(self, text: str) -> None:
        if text.startswith(INFO) and text.rstrip().endswith(RETRIES):
            self.retry(text.removeprefix(INFO))
        elif text.startswith((ERROR, INFO)):
            self.release_held()
            self.held = text
        else:
            self.held += text
            if len(self.held) > MAX_ERROR:
                self.release_held()

    def release_held(self) -> None:
        if held := self.drop_held():
            self._add_message_text(held, None)

    def _add_message_text(self, text: str, name: str | None, *, apart: bool = False) -> None:
        """`apart`: the text is a paragraph of its own, such as a link."""
        if name != self._message_name and None not in (name, self._message_name):
            self.calls_model_again = True
            self.end_message()
        if not self._message:
            self._end_reasoning()
            self._begin_model_call()
            self._message, self._message_name = self._new_id("msg_"), name
            self.events.append(ItemStarted(Message(self._message)))
        elif (apart or self._is_apart) and not text.startswith("\n"):
            text = "\n\n" + text
        self._is_apart = apart
        self._message_texts.append(text)
        self.events.append(TextDelta(self._message, text))

    def end_message(self) -> None:
        """Ends the open message, if any, and adds it as a raw item for later turns."""
        if not self._message:
            return
        self.events += [ItemEnded(self._message), raw_message(self._message, "".join(self._message_texts))]
        self._message = ""
        self._message_texts.clear()

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

    def open_calls_with_id(self, request: Update) -> list[Update]:
        """Returns what was reported of the open calls with a request's id, the newest first."""
        return self._calls.with_id_of(request)

    def add_call(self, report: Update) -> Update:
        """Reads a report about a call, and returns the call with all that was reported."""
        if self._calls.is_old(report):
            return report
        call = self._calls.find(report, self.tools)
        if call is None:
            call = self._new_call(report)
        else:
            call.known = merge(call.known, without_content(report))
            if call.id == "" and not is_unnamed(call.known, report):
                call.id = self._begin_call(call.known)
        if call.id:
            self._add_output(call, report)
        elif call.id is None:
            self._calls.add_of_client(call)
        if report.status in END_STATUSES:
            self._calls.end(call)
            if call.id:
                self.events.append(ItemEnded(call.id, "failed" if report.status == "failed" else "completed"))
        return call.known

    def _new_call(self, report: Update) -> OpenCall:
        self.calls_model_again = True
        self.end_texts()
        self._step_called = True
        call, replaced = self._calls.begin(report)
        if replaced is not None and replaced.id:
            self.events.append(ItemEnded(replaced.id))
        if not is_unnamed(report, report) or self.tools.find_called_tool(report) is not None:
            call.id = self._begin_call(report)
        return call

    def _begin_call(self, call: Update) -> str | None:
        if self.tools.find_called_tool(call) is not None:
            return None
        kind = KINDS.get(call.kind or "", "other")
        self.ran_commands = self.ran_commands or kind == "command"
        id, toolset = self._new_id("act_"), self.toolset
        found = None if toolset is None else details_of(call, call.content, None, toolset)
        details = None if found is None or found.use is None else found
        self.events.append(ItemStarted(Activity(id, kind, _line_of(call), details=details)))
        return id

    def item_of(self, request: Update) -> str:
        """Returns the item of the open call that a request for permission is about; empty if it has none."""
        call = self._calls.find(request, self.tools)
        return "" if call is None else call.id or ""

    def _add_output(self, state: OpenCall, call: Update) -> None:
        """Adds output. An update has its next piece, or the whole, which is ignored if it does not begin with the
        earlier output.
        """
        delta = text_at(call.meta, "terminal_output_delta", "data")  # where Codex's adapter sends it
        if not delta:
            whole = _output_of(call)
            if len(whole) <= state.output_size or not whole.startswith("".join(state.output)):
                return
            delta = whole[state.output_size :]
        delta = delta[: MAX_OUTPUT - state.output_size]
        if not delta:
            return
        state.output.append(delta)
        state.output_size += len(delta)
        assert state.id
        self.events.append(OutputDelta(state.id, delta))

    def _add_plan(self, entries: Any) -> None:
        steps = [
            (clean_text(entry["content"], MAX_STEP_CHARS), text_at(entry, "status"))
            for entry in objects_in(entries)
            if isinstance(entry.get("content"), str)
        ]
        lines = [f"[{'x' if status == 'completed' else ' '}] {step}" for step, status in steps]
        if lines:
            self.end_texts()
            id = self._new_id("act_")
            text = clean_text("\n".join(lines), MAX_TITLE)
            details = ActionDetails(plan=plan_of(steps))
            self.events += [ItemStarted(Activity(id, "plan", text, details=details)), ItemEnded(id)]

    def _add_info(self, meta: Any) -> None:
        failure = session_failure(meta)
        if failure is not None and failure.get("severity") == "warning":
            text = clean_text(text_at(failure, "title"), MAX_TITLE)
            if text.startswith(RETRYING):
                self.retry(text)
            else:
                self.events.append(Notice("agent_warning", text))

    def retry(self, reason: str) -> None:
        """Adds `Retrying`, and forgets open and held text: the agent sends all since the last tool call again."""
        self._message = self._reasoning = self.held = ""
        self._message_texts.clear()
        self._names.drop_doubtful()
        self.events.append(retry_event(reason, self._preset))

    def _begin_model_call(self) -> None:
        """Adds `StepCompleted` for tool calls before this model call, so that a retry does not affect them."""
        self.spoke = True
        if self._step_called:
            self._step_called = False
            self.events.append(StepCompleted())

    def end_texts(self) -> None:
        self.release_held()
        self._end_reasoning()
        self.end_message()

    def drop_held(self) -> str:
        held, self.held = self.held, ""
        return held


def session_failure(meta: Any) -> dict[str, Any] | None:
    """Returns the `sessionFailure` of an official adapter in a `_meta`, if any."""
    return object_at(meta, "jetbrains", "air", "sessionFailure") or None


def _line_of(call: Update) -> str:
    command = value_at(call.raw_input, "command")
    if isinstance(command, list):
        command = " ".join(str(part) for part in command)
    return clean_text(command if isinstance(command, str) and command else call.title or "", MAX_TITLE)


def _output_of(call: Update) -> str:
    contents = (each for each in objects_in(call.content) if each.get("type") == "content")
    return "\n".join(text for each in contents if (text := text_of(each.get("content"))))
