"""What the lines of one `codex proto` child mean in our vocabulary. Sans-IO; one object per turn.

In come the lines of stdout, out go events and the lines for stdin. The state is a table: an event's name
leads to its handler, and what the table does not know is ignored, since later versions say more. The source
is the real 0.42 (its recordings are in `tests/golden`), plus the fake agent's extensions for what the real
one has no words for: calls of the client's tools, choices, finish reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from codex_proxy.agents.base import NOTHING, Decision, Ended, Reply, Step
from codex_proxy.agents.codex_proto import phrases, submissions
from codex_proxy.agents.codex_proto.activities import ACTIVITY_EVENTS, Activities, ActivityEvent
from codex_proxy.agents.codex_proto.open_items import LEGACY, Calls, Messages, ReasoningItems
from codex_proxy.agents.codex_proto.usage import Tally
from codex_proxy.agents.codex_proto.wire import Function, Line, Msg, decode, plain_delta, spellings
from codex_proxy.agents.failures import (
    cleaned,
    failure_from_exit,
    failure_from_text,
    status_in,
    stop_from_text,
)
from codex_proxy.core.events import (
    AccountLimitsReported,
    ApprovalRequested,
    Event,
    Notice,
    RequestClosed,
    Retrying,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryCall, HistoryItem
from codex_proxy.core.turn import Turn

SUBMISSION = "1"
"""The id of the turn's op; its events carry it. Each child gets one turn."""

DELTA = "agent_message_delta"

NO_FUNCTION = Function()

ENDS = frozenset({"task_complete", "turn_aborted", "error"})
"""What must be understood even if a field is damaged: without it the turn would hang."""


class CodexProto:
    """One turn of a `codex proto` child. `extended`: the child is the fake agent, which takes more fields."""

    def __init__(self, *, extended: bool = False) -> None:
        self._extended = extended
        self._turn: Turn | None = None
        self._messages = Messages()
        self._thoughts = ReasoningItems()
        self._calls = Calls()
        self._activities = Activities()
        self._tally = Tally()
        self._spellings: dict[str, str] = {}
        self._asks: dict[str, tuple[str, str]] = {}
        self._asked = 0
        self._ops = 1
        self._writes = b""
        self._unwritten = False
        self._started = False
        self._ended = False
        self._said = False
        """Whether something came since the last step ended."""
        self._error: str | None = None
        self._interrupted = False
        self._finish: tuple[str, str] | None = None
        self._limits = b""

    @property
    def finished(self) -> bool:
        """With the turn's end everything is said: the child serves one turn, and may be ended."""
        return self._ended

    @property
    def can_resume(self) -> bool:
        """Never: the child serves one turn."""
        return False

    def resume(self, turn: Turn, fresh: Sequence[HistoryItem]) -> Step:
        """Nothing."""
        return NOTHING

    def begin(self, turn: Turn) -> Step:
        """Writes the turn at once; only a turn that needs the child's own model's name waits for it."""
        self._turn = turn
        self._activities.workdir = turn.workdir
        self._calls = Calls(serial=sum(isinstance(item, HistoryCall) for item in turn.history))
        if submissions.needs_model(turn):
            self._unwritten = True
            return NOTHING
        return Step([], self._turn_lines(turn, turn.model))

    def receive(self, lines: Sequence[bytes]) -> Step:
        """The events of these lines; a line that is no event of ours is at most noticed."""
        out: list[Event] = []
        speaker: str | None = None
        for raw in lines:
            # Most lines are deltas of the message that the last one spoke of: then all but the text is known.
            if speaker is not None and (text := plain_delta(raw)):
                out.append(TextDelta(speaker, text))
                continue
            if self._ended:
                break
            line = decode(raw)
            if line is not None:
                self._take(line, out)
            elif raw.strip():
                out.append(Notice("bad_line", f"{len(raw)} bytes that are not an event"))
            speaker = self._speaker
        writes, self._writes = self._writes, b""
        return Step(out, writes) if out or writes else NOTHING

    def answer(self, ask_id: str, reply: Reply) -> Step:
        """The decision on an approval; anything but a yes is a no."""
        asked = self._asks.pop(ask_id, None)
        if asked is None or self._ended:
            return NOTHING
        op, event_id = asked
        decision = "approved" if isinstance(reply, Decision) and reply.approve else "denied"
        return Step([RequestClosed(ask_id)], self._op({"type": op, "id": event_id, "decision": decision}))

    def interrupt(self) -> Step:
        """Asks the child to stop; it answers with `turn_aborted`."""
        if self._ended or self._interrupted:
            return NOTHING
        self._interrupted = True
        return Step([], self._op({"type": "interrupt"}))

    def eof(self, ended: Ended) -> Step:
        """A child that is gone without having ended the turn crashed, unless it was told to stop."""
        if self._ended:
            return NOTHING
        if self._interrupted:
            return Step([self._end(Stop.INTERRUPTED, "eof")])
        if self._error is not None:
            return Step([self._end_by_error(self._error)])
        return Step([self._end(Stop.FAILED, "eof", failure_from_exit(ended))])

    # --- one line -----------------------------------------------------------------------------

    def _take(self, line: Line, out: list[Event]) -> None:
        msg = line.msg
        route = ROUTES.get(msg.type)
        if route is None:
            return
        name, handler = route
        # A line without an id is of an older spelling; one with an empty id is about the session.
        if line.id not in (SUBMISSION, None) and name != "session_configured":
            if line.id == "" and name == "error":
                out.append(Notice("agent_warning", cleaned(msg.message or "")))
            return
        # Some versions say everything twice, under two names: the first spelling of each name is the one.
        spelling = "/" + msg.type if line.flat else msg.type
        if self._spellings.setdefault(name, spelling) != spelling:
            return
        if line.damaged:
            out.append(Notice("bad_event", name))
            if name not in ENDS:
                return
        handler(self, msg, out)

    @property
    def _speaker(self) -> str | None:
        """The message that a plain delta goes on with, where it does nothing else."""
        if self._ended or self._thoughts or not self._said:
            return None
        return self._messages.speaker if self._spellings.get(DELTA) == DELTA else None

    # --- session ------------------------------------------------------------------------------

    def _session_configured(self, msg: Msg, out: list[Event]) -> None:
        asked = self._turn.model if self._turn else ""
        self._start(msg.session_id or "", asked or msg.model or "", out)
        if self._unwritten and self._turn is not None:
            self._unwritten = False
            self._writes += self._turn_lines(self._turn, msg.model or "")

    def _task_started(self, msg: Msg, out: list[Event]) -> None:
        self._start("", self._turn.model if self._turn else "", out)

    def _start(self, thread: str, model: str, out: list[Event]) -> None:
        if not self._started:
            self._started = True
            out.append(TurnStarted(thread, model))

    # --- what the model says ------------------------------------------------------------------

    def _agent_message_delta(self, msg: Msg, out: list[Event]) -> None:
        if msg.delta:
            self._speak(out)
            self._messages.delta(msg.choice_index, msg.delta, out)

    def _agent_message(self, msg: Msg, out: list[Event]) -> None:
        has_calls = bool(msg.tool_calls or msg.function_call)
        if msg.message or (msg.message is not None and not has_calls):
            self._speak(out)
            self._messages.whole(msg.choice_index, msg.message, out)
        if msg.refusal:
            self._speak(out)
            self._messages.refusal(msg.choice_index, msg.refusal, out)
        if has_calls:
            self._speak(out)
            self._each_call(self._calls.whole, msg, out)
        if (said := msg.function_call) is not None:
            key = (self._choice_of_calls(msg), LEGACY)
            self._calls.whole(key, None, said.name, said.arguments or "", "legacy", out)

    def _tool_calls_delta(self, msg: Msg, out: list[Event]) -> None:
        self._speak(out)
        self._each_call(self._calls.piece, msg, out)

    def _each_call(self, take: Callable[..., None], msg: Msg, out: list[Event]) -> None:
        choice = self._choice_of_calls(msg)
        for position, call in enumerate(msg.tool_calls or ()):
            key = (choice, position if call.index is None else call.index)
            said = call.function or NO_FUNCTION
            kind = "custom" if call.type == "custom" else "function"
            take(key, call.id, said.name, said.arguments or "", kind, out)

    def _choice_of_calls(self, msg: Msg) -> int | None:
        """Calls always carry a choice; its 0 means the one answer for all, unless messages told choices."""
        return msg.choice_index if msg.choice_index or self._messages.by_choice else None

    def _function_call_delta(self, msg: Msg, out: list[Event]) -> None:
        if (said := msg.function_call) is not None:
            self._speak(out)
            key = (self._choice_of_calls(msg), LEGACY)
            self._calls.piece(key, None, said.name, said.arguments or "", "legacy", out)

    def _speak(self, out: list[Event]) -> None:
        """Whatever is not reasoning ends the reasoning."""
        self._said = True
        if self._thoughts:
            self._thoughts.end(out)

    def _reasoning_break(self, msg: Msg, out: list[Event]) -> None:
        self._thoughts.section_break(out)

    def _reasoning_delta(self, msg: Msg, out: list[Event]) -> None:
        if msg.delta:
            self._said = True
            self._thoughts.delta(msg.delta, "summary", out)

    def _reasoning_whole(self, msg: Msg, out: list[Event]) -> None:
        if msg.text:
            self._said = True
            self._thoughts.whole(msg.text, "summary", out)

    def _raw_delta(self, msg: Msg, out: list[Event]) -> None:
        if msg.delta:
            self._said = True
            self._thoughts.delta(msg.delta, "raw", out)

    def _raw_whole(self, msg: Msg, out: list[Event]) -> None:
        if msg.text:
            self._said = True
            self._thoughts.whole(msg.text, "raw", out)

    # --- what the agent asks ------------------------------------------------------------------

    def _exec_approval(self, msg: Msg, out: list[Event]) -> None:
        text = phrases.with_reason(phrases.command_line(msg), msg.reason)
        self._ask("exec_approval", "command", text, out)

    def _patch_approval(self, msg: Msg, out: list[Event]) -> None:
        text = phrases.with_reason(phrases.file_changes(msg, self._activities.workdir), msg.reason)
        self._ask("patch_approval", "file_change", text, out)

    # --- usage, retries, ends -----------------------------------------------------------------

    def _token_count(self, msg: Msg, out: list[Event]) -> None:
        limits = bytes(msg.rate_limits)
        if limits != self._limits and limits.count(b"{") > 1:
            self._limits = limits
            out.append(AccountLimitsReported(limits))
        used = self._tally.count(msg, said=self._said)
        # Without new tokens it is the count that comes with a response's headers, unless all was said.
        if used is not None or (self._said and not self._messages):
            self._close_all(out)
            out.append(StepCompleted(used))
            if used is not None:
                out.append(UsageReported(self._tally.turn))
            self._said = False
        if msg.finish_reason:
            self._finish = (msg.finish_reason, "token_count")

    def _stream_error(self, msg: Msg, out: list[Event]) -> None:
        text = msg.message or ""
        out.append(Retrying(failure_from_text(text).message, status_in(text)))
        self._messages.forget()
        self._thoughts.forget()
        self._calls.forget()
        self._said = False

    def _error_said(self, msg: Msg, out: list[Event]) -> None:
        """Fatal for the turn, and `task_complete` follows; the first error is the cause."""
        if self._error is None:
            self._error = msg.message or ""

    def _task_complete(self, msg: Msg, out: list[Event]) -> None:
        if self._error is not None:
            out.append(self._end_by_error(self._error))
            return
        if msg.last_agent_message and not self._messages.count and self._calls.seen is None:
            self._messages.whole(None, msg.last_agent_message, out)
        self._close_all(out)
        by_choice = msg.choice_finish_reasons or {}
        reason, history_entries = self._finish or (by_choice.get(0) or self._calls.stop, "task_complete")
        if msg.finish_reason:
            reason, history_entries = msg.finish_reason, "task_complete"
        others = {choice: stop for choice, stop in by_choice.items() if stop != reason}
        self._ended = True
        out.append(TurnEnded(reason, history_entries, choice_stops=others or None))

    def _turn_aborted(self, msg: Msg, out: list[Event]) -> None:
        out.append(self._end(Stop.INTERRUPTED, "turn_aborted"))

    # --- parts of the above -------------------------------------------------------------------

    def _close_all(self, out: list[Event]) -> None:
        self._thoughts.end(out)
        self._messages.end(out)
        self._calls.end(out)

    def _end(self, stop: str, trigger: str, failure: Failure | None = None) -> Event:
        self._ended = True
        return TurnEnded(stop, trigger, failure)

    def _end_by_error(self, text: str) -> Event:
        """An error that only says that the answer was cut is no failure: what was streamed is good."""
        cut = stop_from_text(text)
        if cut is not None:
            return self._end(cut, "error")
        return self._end(Stop.FAILED, "error", failure_from_text(text))

    def _ask(self, op: str, kind: Literal["command", "file_change"], text: str, out: list[Event]) -> None:
        self._speak(out)
        ask_id = f"ask{self._asked}"
        self._asked += 1
        # The answer names the id of the turn, not that of the call.
        self._asks[ask_id] = (op, SUBMISSION)
        out.append(ApprovalRequested(ask_id, kind, text))

    def _turn_lines(self, turn: Turn, model: str) -> bytes:
        return submissions.turn_lines(turn, SUBMISSION, model, extended=self._extended)

    def _op(self, op: dict[str, Any]) -> bytes:
        self._ops += 1
        return submissions.line(str(self._ops), op)


Handler: TypeAlias = Callable[[CodexProto, Msg, list[Event]], None]


def _doing(deed: ActivityEvent) -> Handler:
    def handler(dialect: CodexProto, msg: Msg, out: list[Event]) -> None:
        dialect._speak(out)
        deed(dialect._activities, msg, out)

    return handler


HANDLERS: dict[str, Handler] = {
    "session_configured": CodexProto._session_configured,
    "task_started": CodexProto._task_started,
    "agent_message_delta": CodexProto._agent_message_delta,
    "agent_message": CodexProto._agent_message,
    "tool_calls_delta": CodexProto._tool_calls_delta,
    "function_call_delta": CodexProto._function_call_delta,
    "agent_reasoning_section_break": CodexProto._reasoning_break,
    "agent_reasoning_delta": CodexProto._reasoning_delta,
    "agent_reasoning": CodexProto._reasoning_whole,
    "agent_reasoning_raw_content_delta": CodexProto._raw_delta,
    "agent_reasoning_raw_content": CodexProto._raw_whole,
    "exec_approval_request": CodexProto._exec_approval,
    "apply_patch_approval_request": CodexProto._patch_approval,
    "token_count": CodexProto._token_count,
    "stream_error": CodexProto._stream_error,
    "error": CodexProto._error_said,
    "task_complete": CodexProto._task_complete,
    "turn_aborted": CodexProto._turn_aborted,
    **{name: _doing(deed) for name, deed in ACTIVITY_EVENTS.items()},
}
"""What each event does. `shutdown_complete`, `turn_diff` and the like say nothing that we need."""


ROUTES = {spelling: (name, HANDLERS[name]) for spelling, name in spellings(HANDLERS).items()}
