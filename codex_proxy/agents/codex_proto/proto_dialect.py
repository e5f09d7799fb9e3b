"""The dialect of `codex proto`. Unknown events are ignored. Source: recordings of release 0.42
(`tests/golden/recordings/proto`). The fake agent also has calls of the client's tools, choices and finish reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from codex_proxy.agents.codex_proto.proto_items import (
    ACTIVITY_EVENTS,
    LEGACY_INDEX,
    Activities,
    Calls,
    Messages,
    ReasoningItems,
    command_line,
    file_changes,
    with_reason,
)
from codex_proxy.agents.codex_proto.proto_lines import (
    Function,
    Line,
    Msg,
    TurnUsage,
    decode,
    plain_delta,
    spellings,
    submission_line,
    turn_lines,
)
from codex_proxy.agents.dialect import NOTHING, Decision, Ended, Reply, SingleTurn, Step
from codex_proxy.agents.shared.failures import (
    BAD_ANSWER,
    clean_text,
    failure_from_exit,
    failure_from_text,
    retrying_event,
    status_in,
    stop_from_text,
)
from codex_proxy.agents.shared.json_lines import divided
from codex_proxy.core.damaged_json import is_torn
from codex_proxy.core.events import (
    AccountLimitsReported,
    ApprovalKind,
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    FullArguments,
    FullText,
    Notice,
    ReasoningKind,
    RefusalDelta,
    RequestClosed,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    UsageReported,
    stop_of,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import CallKind, HistoryCall
from codex_proxy.core.turn import Turn

SUBMISSION_ID = "1"
"""The id of the operation that starts the turn, and of the turn's events."""

DELTA = "agent_message_delta"

NO_FUNCTION = Function()

NEEDED_EVENTS = frozenset({
    "task_complete", "turn_aborted", "error", "stream_error",
    "exec_approval_request", "apply_patch_approval_request",
})  # fmt: skip
"""Events that count even if nothing else of them can be read: else the turn would hang, or its answer come twice."""
TEXT_EVENTS = frozenset({"agent_message_delta", "agent_message"})
"""Events with the answer's text, which is lost if they cannot be read. The turn fails then."""
NOT_IF_DAMAGED = frozenset({"token_count"})
"""Events that do not count if a field has an unexpected type."""


class CodexProto(SingleTurn):
    """The turn of a process that serves only this one. If the process ends first, the turn fails with its
    `_error_text`. `extended`: the process is the fake agent, which accepts more fields.
    """

    def __init__(self, *, extended: bool = False) -> None:
        self._extended = extended
        self._events: list[Event] = []
        """The next step's events; the readers of messages, calls and others append to the same list."""
        self._started = False
        self._interrupted = False
        self._error_text: str | None = None
        self._turn: Turn | None = None
        self._messages = Messages(self._events)
        self._reasoning = ReasoningItems(self._events)
        self._calls = Calls(self._events)
        self._activities = Activities(self._events)
        self._usage = TurnUsage()
        self._spellings: dict[str, str] = {}
        self._open_approvals: dict[str, str] = {}
        self._approval_count = 0
        self._op_count = 1
        self._pending_writes = b""
        self._waits_for_model = False
        self._step_has_output = False
        """Whether the model has put out something since the last step."""
        self._finish_reason: tuple[str, str] | None = None
        self._last_limits = b""
        self._message_id: str | None = None
        """The message of the last line, if it was a delta that names no choice: `plain_delta`s after it belong to it.
        """

    def begin(self, turn: Turn) -> Step:
        """Starts the turn. If the model's name is needed and missing, `receive` writes the turn when the child has
        named one.
        """
        self._turn = turn
        self._activities.workdir = turn.workdir
        self._calls.earlier_calls = sum([isinstance(item, HistoryCall) for item in turn.history])
        if (
            turn.output_schema is not None and not turn.model
        ):  # the operation for a schema requires a model's name
            self._waits_for_model = True
            return NOTHING
        return Step([], self._turn_lines(turn, turn.model))

    def receive(self, lines: Sequence[bytes]) -> Step:
        """A line that is no event becomes a `Notice`."""
        for raw in divided(lines):
            # Most lines are deltas of the message that the line before belonged to: only their text is decoded.
            if self._message_id is not None and (text := plain_delta(raw)):
                self._events.append(TextDelta(self._message_id, text))
                continue
            if self.ended:
                break
            self._message_id = None
            line = decode(raw)
            if (line is None or not (line.msg.type or line.whole)) and is_torn(
                raw
            ):  # it may be the turn's end
                self._end(Stop.FAILED, "bad_line", BAD_ANSWER)
            elif line is not None:
                self._handle_line(line)
            elif raw.strip():
                self._events.append(Notice("bad_line", f"{len(raw)} bytes that are not an event"))
        writes, self._pending_writes = self._pending_writes, b""
        return self._take_step(writes)

    def answer(self, request_id: str, reply: Reply) -> Step:
        op = self._open_approvals.pop(request_id, None)
        if op is None or self.ended:
            return NOTHING
        decision = "approved" if isinstance(reply, Decision) and reply.approve else "denied"
        # The answer must name the id of the turn, not of the call.
        answer = {"type": op, "id": SUBMISSION_ID, "decision": decision}
        return Step([RequestClosed(request_id)], self._submission_line(answer))

    def interrupt(self) -> Step:
        """Asks the child to end the turn by `turn_aborted`."""
        if self.ended or self._interrupted:
            return NOTHING
        self._interrupted = True
        return Step([], self._submission_line({"type": "interrupt"}))

    # --- one line -----------------------------------------------------------------------------

    def _handle_line(self, line: Line) -> None:
        msg = line.msg
        route = ROUTES.get(msg.type)
        if route is None:
            if line.id == SUBMISSION_ID and not msg.type:
                self._end(Stop.FAILED, "bad_event", BAD_ANSWER)
            return
        name, handler = route
        # A line without an id is in an older spelling; one with an empty id is about the session.
        if line.id not in (SUBMISSION_ID, None) and name != "session_configured":
            if line.id == "" and name == "error":
                self._events.append(Notice("agent_warning", clean_text(msg.message or "")))
            return
        # Some releases write each event in two spellings: only the first spelling seen counts.
        spelling = "/" + msg.type if line.flat else msg.type
        if self._spellings.setdefault(name, spelling) != spelling:
            return
        if line.damaged:
            self._events.append(Notice("bad_event", name))
            if not line.whole and name in TEXT_EVENTS:
                self._end(Stop.FAILED, "bad_event", BAD_ANSWER)
            if name in NOT_IF_DAMAGED or (not line.whole and name not in NEEDED_EVENTS):
                return
        handler(self, msg)

    # --- session ------------------------------------------------------------------------------

    def _on_session_configured(self, msg: Msg) -> None:
        requested = self._turn.model if self._turn else ""
        self._start(msg.session_id or "", requested or msg.model or "")
        if self._waits_for_model and self._turn is not None:
            self._waits_for_model = False
            self._pending_writes += self._turn_lines(self._turn, msg.model or "")

    def _on_task_started(self, msg: Msg) -> None:
        self._start("", self._turn.model if self._turn else "")

    # --- what the model puts out --------------------------------------------------------------

    def _on_agent_message_delta(self, msg: Msg) -> None:
        if msg.delta:
            self._begin_output()
            item = self._messages.add_delta(msg.choice_index, msg.delta)
            if msg.choice_index is None and self._spellings.get(DELTA) == DELTA:
                self._message_id = item
        elif msg.delta is None:
            self._end(Stop.FAILED, "bad_event", BAD_ANSWER)

    def _on_agent_message(self, msg: Msg) -> None:
        has_calls = bool(msg.tool_calls or msg.function_call)
        if msg.message or (msg.message is not None and not has_calls):
            self._begin_output()
            self._messages.finish(msg.choice_index, FullText, msg.message)
        if msg.refusal:
            self._begin_output()
            self._messages.finish(msg.choice_index, RefusalDelta, msg.refusal)
        if has_calls:
            self._add_calls(msg, FullArguments)

    def _add_calls(self, msg: Msg, event: type[ArgumentsDelta | FullArguments] = ArgumentsDelta) -> None:
        self._begin_output()
        # The child also writes choice 0 for a turn without choices.
        choice = msg.choice_index if msg.choice_index or self._messages.by_choice else None
        for position, call in enumerate(msg.tool_calls or ()):
            key = (choice, position if call.index is None else call.index)
            function = call.function or NO_FUNCTION
            kind: CallKind = "custom" if call.type == "custom" else "function"
            self._calls.add(key, call.id, function.name, kind, event, function.arguments or "")
        if (legacy := msg.function_call) is not None:
            only = (choice, LEGACY_INDEX)
            self._calls.add(only, None, legacy.name, "legacy", event, legacy.arguments or "")

    def _begin_output(self) -> None:
        self._step_has_output = True
        if self._reasoning.item:
            self._reasoning.end()

    def _on_reasoning_break(self, msg: Msg) -> None:
        self._reasoning.section_break()

    def _add_reasoning(self, msg: Msg, kind: ReasoningKind = "summary") -> None:
        if msg.delta:
            self._step_has_output = True
            self._reasoning.add_delta(msg.delta, kind)
        elif msg.text:
            self._step_has_output = True
            self._reasoning.add_full_text(msg.text, kind)

    # --- approval requests --------------------------------------------------------------------

    def _on_exec_approval(self, msg: Msg) -> None:
        text = with_reason(command_line(msg), msg.reason)
        self._request_approval("exec_approval", "command", text)

    def _on_patch_approval(self, msg: Msg) -> None:
        text = with_reason(file_changes(msg, self._activities.workdir), msg.reason)
        self._request_approval("patch_approval", "file_change", text)

    # --- usage, retries, ends -----------------------------------------------------------------

    def _on_token_count(self, msg: Msg) -> None:
        limits = bytes(msg.rate_limits)
        if limits != self._last_limits and limits.count(b"{") > 1:
            self._last_limits = limits
            self._events.append(AccountLimitsReported(limits))
        used = self._usage.add_count(msg, has_output=self._step_has_output)
        # A count without new tokens comes with a response's headers, unless all messages are complete.
        if used is not None or (self._step_has_output and not self._messages.open):
            self._end_items()
            self._events.append(StepCompleted(used))
            if used is not None:
                self._events.append(UsageReported(self._usage.so_far))
            self._step_has_output = False
        if msg.finish_reason:
            self._finish_reason = (stop_of(msg.finish_reason), "token_count")

    def _on_stream_error(self, msg: Msg) -> None:
        text = msg.message or ""
        self._events.append(retrying_event(failure_from_text(text), status_in(text)))
        self._messages.drop_open()
        self._reasoning.drop_open()
        self._calls.drop_open()
        self._step_has_output = False

    def _on_error_reported(self, msg: Msg) -> None:
        if self._error_text is None:
            self._error_text = msg.message or ""

    def _on_task_complete(self, msg: Msg) -> None:
        if self._error_text is not None:
            self._end_by_error(self._error_text)
            return
        if msg.last_agent_message and not self._messages.count and self._calls.last_kind is None:
            self._messages.finish(None, FullText, msg.last_agent_message)
        self._end_items()
        by_choice = {choice: stop_of(word) for choice, word in (msg.choice_finish_reasons or {}).items()}
        reason, trigger = self._finish_reason or (by_choice.get(0) or self._calls.stop, "task_complete")
        if msg.finish_reason:
            reason, trigger = stop_of(msg.finish_reason), "task_complete"
        others = {choice: stop for choice, stop in by_choice.items() if stop != reason}
        self.ended = True
        self._events.append(TurnEnded(reason, trigger, choice_stops=others or None))

    def _on_turn_aborted(self, msg: Msg) -> None:
        self._end(Stop.INTERRUPTED, "turn_aborted")

    def eof(self, ended: Ended) -> Step:
        """Ends an open turn: interrupted, or failed by the child's error or exit."""
        if self.ended:
            return NOTHING
        if self._interrupted:
            self._end(Stop.INTERRUPTED, "eof")
        elif self._error_text is not None:
            self._end_by_error(self._error_text)
        else:
            self._end(Stop.FAILED, "eof", failure_from_exit(ended))
        return self._take_step()

    # --- helpers ------------------------------------------------------------------------------

    def _take_step(self, writes: bytes = b"") -> Step:
        if not self._events and not writes:
            return NOTHING
        step = Step(self._events[:], writes)
        self._events.clear()
        return step

    def _start(self, thread: str, model: str) -> None:
        if not self._started:
            self._started = True
            self._events.append(TurnStarted(thread, model))

    def _end(self, stop: str, trigger: str, failure: Failure | None = None) -> None:
        self.ended = True
        self._events.append(TurnEnded(stop, trigger, failure))

    def _end_by_error(self, text: str) -> None:
        if (stop := stop_from_text(text)) is not None:
            self._end(stop, "error")
        else:
            self._end(Stop.FAILED, "error", failure_from_text(text))

    def _end_items(self) -> None:
        if self._reasoning.item:
            self._reasoning.end()
        if self._messages.open:
            self._messages.end_all()
        if self._calls.open:
            self._calls.end_all()

    def _request_approval(self, op: str, kind: ApprovalKind, text: str) -> None:
        self._begin_output()
        request_id = f"ask{self._approval_count}"
        self._approval_count += 1
        self._open_approvals[request_id] = op
        self._events.append(ApprovalRequested(request_id, kind, text))

    def _turn_lines(self, turn: Turn, model: str) -> bytes:
        return turn_lines(turn, SUBMISSION_ID, model, extended=self._extended)

    def _submission_line(self, op: dict[str, Any]) -> bytes:
        self._op_count += 1
        return submission_line(str(self._op_count), op)


Handler: TypeAlias = Callable[[CodexProto, Msg], None]


def _activity_handler(event: str) -> Handler:
    def handler(dialect: CodexProto, msg: Msg) -> None:
        dialect._begin_output()
        dialect._activities.handle(event, msg)

    return handler


HANDLERS: dict[str, Handler] = {
    "session_configured": CodexProto._on_session_configured,
    "task_started": CodexProto._on_task_started,
    "agent_message_delta": CodexProto._on_agent_message_delta,
    "agent_message": CodexProto._on_agent_message,
    "tool_calls_delta": CodexProto._add_calls,
    "function_call_delta": CodexProto._add_calls,
    "agent_reasoning_section_break": CodexProto._on_reasoning_break,
    "agent_reasoning_delta": CodexProto._add_reasoning,
    "agent_reasoning": CodexProto._add_reasoning,
    "agent_reasoning_raw_content_delta": partial(CodexProto._add_reasoning, kind="raw"),
    "agent_reasoning_raw_content": partial(CodexProto._add_reasoning, kind="raw"),
    "exec_approval_request": CodexProto._on_exec_approval,
    "apply_patch_approval_request": CodexProto._on_patch_approval,
    "token_count": CodexProto._on_token_count,
    "stream_error": CodexProto._on_stream_error,
    "error": CodexProto._on_error_reported,
    "task_complete": CodexProto._on_task_complete,
    "turn_aborted": CodexProto._on_turn_aborted,
    **{name: _activity_handler(name) for name in ACTIVITY_EVENTS},
}


ROUTES = {spelling: (name, HANDLERS[name]) for spelling, name in spellings(HANDLERS).items()}
