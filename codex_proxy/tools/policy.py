"""Decides who answers a call: the client, a tool that this server runs, or this server with an error.

The calls of a step (one model call) are decided together at its end. If one is for the client, the turn ends with it
once this server's calls have run. `tool_choice`: only the allowed tools are offered, a message says what must be
called, and the answer is checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.events import (
    OF_SUBAGENTS,
    AccountLimitsReported,
    ApprovalRequested,
    Event,
    FullArguments,
    InputRequested,
    InputTaken,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    RequestClosed,
    Retrying,
    ServedBy,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Item,
    McpApproval,
    McpCall,
    Part,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.turn import NamedTools, Turn
from codex_proxy.tools.schemas import TextCheck, Verdict, is_quick, unchecked_failure, violation


class ServerCall(msgspec.Struct, frozen=True):
    request: ToolCallRequested
    tool: Tool


class ToolOutput(msgspec.Struct, frozen=True):
    """A tool's output: `parts` for the model, `text` for the client or, if the call `failed`, the error."""

    parts: tuple[Part, ...]
    text: str
    failed: bool = False


def call_events(
    request: ToolCallRequested, tool: Tool | None, *, approved_by: str | None = None
) -> list[Event]:
    """Returns a call's first events: a `ToolCall` if the tool is None or the client's, an `McpApproval` if the client
    must approve it, else an `McpCall`.
    """
    id = request.item_id or request.call_id
    return [ItemStarted(_item(id, request, tool, approved_by)), FullArguments(id, request.arguments)]


def output_events(request: ToolCallRequested, output: ToolOutput) -> list[Event]:
    """Returns the output and the end of a call that ran here."""
    id = request.item_id or request.call_id
    return [OutputDelta(id, output.text), ItemEnded(id, "failed" if output.failed else "completed")]


def output_of(request: ToolCallRequested, output: ToolOutput) -> HistoryOutput:
    return HistoryOutput(request.call_id, output.parts, request.kind, by_server=True)


def _item(id: str, request: ToolCallRequested, tool: Tool | None, approved_by: str | None) -> Item:
    origin = None if tool is None else tool.mcp
    if origin is None:
        return ToolCall(
            *(id, request.call_id, request.name, request.kind),
            old_form=request.old_form,
            provider_fields=request.provider_fields,
        )
    if origin.needs_approval and approved_by is None:
        return McpApproval(id, request.call_id, origin.server_label, origin.name)
    place = (origin.server_label, origin.name)
    return McpCall(id, request.call_id, *place, approved_by, old_form=request.old_form)


def may_be_called(turn: Turn) -> tuple[Tool, ...]:
    if turn.tool_choice == "none":
        return ()
    if isinstance(turn.tool_choice, NamedTools):
        return tuple(tool for tool in turn.tools if tool.name in turn.tool_choice.names)
    return turn.tools


def with_tool_choice(turn: Turn, *, again: bool = False, in_words: bool = True) -> Turn:
    """Returns the turn with only the allowed tools and, if a call is required, a message about that (`in_words=False`:
    none, the agent enforces it). `again`: this is the second attempt.
    """
    if turn.tool_choice == "auto":
        return turn
    tools = may_be_called(turn)
    tell = turn.must_call and in_words
    if tools is turn.tools and not tell:
        return turn
    history: tuple[HistoryItem, ...] = turn.history
    if tell:
        names = ", ".join(f"`{tool.name}`" for tool in tools)
        words = f"Call one of these tools now: {names}." if len(tools) > 1 else f"Call the tool {names} now."
        words += " Do not answer with text."
        if again:
            words = "Your last answer had no tool call, and was thrown away. " + words
        named = tuple(tool.name for tool in tools)
        history = (*history, HistoryMessage("developer", (TextPart(words),), named_tools=named))
    return msgspec.structs.replace(turn, tools=tools, history=history)


MAX_FAULTS = 2
"""Number of times that the model gets errors about invalid calls; then the turn fails."""

LIMIT_REACHED = "The limit of tool calls is reached, and this one was not made. Answer with what you have."
"""The output of a call beyond the turn's limit."""

DEFERRED_CALL = "Deferred: one call at a time. Make this call again if you still need it."

MODEL_FAULTS = frozenset({"unoffered_call", "unreadable_arguments"})
"""Codes of notices that the agent has answered an invalid call with an error."""

NEVER_HELD = OF_SUBAGENTS | frozenset(
    {
        TurnStarted,
        UsageReported,
        AccountLimitsReported,
        ServedBy,
        Notice,
        ApprovalRequested,
        InputRequested,
        RequestClosed,
        InputTaken,
    }
)
"""Events that pass while an answer is held: questions wait for an answer, usage and input always count."""

DECISIVE_EVENTS: frozenset[type[Event]] = frozenset(
    {ToolCallRequested, TurnEnded, StepCompleted, Retrying, Notice}
)
"""Events on which the policy decides; all others pass, or are held."""

NOT_HONOURED = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The model answered with text twice although a tool call was required. Try again, or ask with "
    "tool_choice auto.",
    code="tool_choice_not_honoured",
)
CALLS_AFTER_LIMIT = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The model kept calling tools after their limit was reached and it was told to answer. Allow more "
    "(`max_tool_calls`, MAX_TOOL_CALL_ITERATIONS), or ask for less.",
    code="tool_call_limit",
)
REPEATED_BAD_CALLS = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The model kept calling tools that were not offered, or with arguments that are not valid JSON.",
    code="invalid_tool_calls",
)


class HiddenOutput(msgspec.Struct, frozen=True):
    """The output for a call that the client does not see."""

    request_id: str
    output: HistoryOutput


class PolicyResult(msgspec.Struct):
    """What the caller has to do: pass `events` on, give `answers` to the agent, run `calls` and `checks`, start a
    second attempt if `again`.
    """

    events: list[Event] = []
    answers: list[HiddenOutput] = []
    calls: list[ServerCall] = []
    """Calls to run; `on_tool_output` takes the output of each."""
    checks: list[TextCheck] = []
    """Until `with_verdicts` has their results, the policy keeps all later events."""
    again: bool = False
    """Whether a second attempt follows: nothing of this answer was passed on."""


class ToolPolicy:
    """Decides about the calls of one attempt. `second_try`: a missing required call fails the turn. Events after a
    `TurnEnded` or `again` are dropped.
    """

    def __init__(self, turn: Turn, *, second_try: bool = False) -> None:
        self._checked: dict[str, Tool] = {tool.name: tool for tool in turn.tools if tool.is_checked}
        self._server_tools: dict[str, Tool] = {tool.name: tool for tool in turn.tools if tool.mcp is not None}
        self._steps_left = turn.max_server_steps
        self._calls_left = turn.max_server_calls
        self._running: dict[str, ToolCallRequested] = {}
        """This server's running calls, by the agent's request id."""
        self._parallel = turn.parallel_tool_calls
        self._waits_for_call = turn.tool_choice != "auto" and turn.must_call
        """Whether a required call has not come yet; the answer is held."""
        self._second_try = second_try
        self._requests: list[ToolCallRequested] = []
        self._judging: list[ToolCallRequested] = []
        """Calls whose arguments are being checked."""
        self._verdicts: dict[str, Verdict] = {}
        """The results of these checks, by the agent's request id."""
        self._later: list[Event] = []
        """Events that came while calls were being checked."""
        self._waiting: list[ToolCallRequested] = []
        """The client's calls of the step, until this server's have run."""
        self._bad_call = False
        """Whether the agent has answered an invalid call of this step with an error."""
        self._faults = 0
        self._held: list[Event] = []
        self._over = False
        self.visible: list[ToolCallRequested] = []
        """The calls that the client has to answer, after the turn's end."""
        self.hidden: list[HiddenOutput] = []
        """The outputs of the last step's other calls, for the agent together with the client's."""
        self.ran_calls: set[str] = set()

    @property
    def awaited_events(self) -> frozenset[type[Event]] | None:
        """The types of events that `feed` needs; a batch without them may be passed on. None: every batch. Valid until
        the next call.
        """
        return None if self._judging or self._over or self._waits_for_call else DECISIVE_EVENTS

    def feed(self, events: Sequence[Event]) -> PolicyResult:
        """Handles events. At a step's end the result has its calls, or checks to run first."""
        result = PolicyResult()
        self._feed(events, result)
        return result

    def _feed(self, events: Sequence[Event], result: PolicyResult) -> None:
        if DECISIVE_EVENTS.isdisjoint(map(type, events)) and self.awaited_events is not None:
            result.events += events
            return
        for place, event in enumerate(events):
            kind = type(event)
            if self._over:
                break
            if self._judging:
                self._later += events[place:]
                break
            if kind not in DECISIVE_EVENTS and not self._waits_for_call:
                result.events.append(event)  # most events
            elif kind is ToolCallRequested:
                self._requests.append(event)  # type: ignore[arg-type]
            elif kind is TurnEnded:
                self._on_turn_ended(event, result)  # type: ignore[arg-type]
            elif kind is InputTaken:
                # What was said before it is passed on: only what follows is asked for again.
                result.events += [*self._held, event]
                self._held.clear()
            else:
                if not self._waits_for_call or kind in NEVER_HELD:
                    result.events.append(event)
                else:
                    self._hold(event, result)
                if kind is StepCompleted:
                    self._on_step_completed(result)
                elif kind is Retrying:  # the step comes anew, and its calls with it
                    self._requests.clear()
                    self._bad_call = False
                elif kind is Notice and event.code in MODEL_FAULTS:  # type: ignore[union-attr]
                    self._bad_call = True

    def with_verdicts(self, verdicts: Sequence[Verdict]) -> PolicyResult:
        """Takes the results of `checks`, decides the step's calls, and handles what came meanwhile. A check that was
        not made fails the turn.
        """
        judging, self._judging = self._judging, []
        self._verdicts.update(zip((request.request_id for request in judging), verdicts, strict=True))
        result = PolicyResult()
        unchecked = next((each.unchecked for each in verdicts if each.unchecked is not None), None)
        if unchecked is None:
            self._decide(result)
        else:
            self._over = True
            self._held.clear()
            failure = unchecked_failure("The arguments of a strict tool", unchecked)
            result.events.append(TurnEnded.with_failure(failure))
        later, self._later = self._later, []
        self._feed(later, result)
        return result

    def _hold(self, event: Event, result: PolicyResult) -> None:
        self._held.append(event)
        if type(event) is ItemStarted and isinstance(event.item, ToolCall):
            self._release_held(result)  # of a dialect that says its calls itself and waits for no output

    def _release_held(self, result: PolicyResult) -> None:
        result.events += self._held
        self._held.clear()
        self._waits_for_call = False

    def on_tool_output(self, request_id: str, output: ToolOutput) -> PolicyResult:
        """Takes the output of a call that ran here. If the step has calls for the client too, the agent gets nothing,
        and the last output brings these and the end of the turn. Empty for an unknown id.
        """
        result = PolicyResult()
        if self._over or request_id not in self._running:
            return result
        request = self._running.pop(request_id)
        result.events += output_events(request, output)
        answered = HiddenOutput(request_id, output_of(request, output))
        if not self._waiting:
            result.answers.append(answered)
            return result
        self.hidden.append(answered)
        if not self._running:
            self._end_with_calls(result)
        return result

    def _on_step_completed(self, result: PolicyResult) -> None:
        if not (self._requests or self._bad_call):
            self._waiting = []
            return  # of most steps
        slow = [(request, check) for request in self._requests if (check := self._slow_check(request))]
        if slow:
            self._judging = [request for request, _ in slow]
            result.checks = [check for _, check in slow]
        else:
            self._decide(result)

    def _decide(self, result: PolicyResult) -> None:
        """Decides a step's calls. The client gets none if all are answered with errors."""
        requests, self._requests = self._requests, []
        bad_call, self._bad_call = self._bad_call, False
        # Only now is it known whether the client gets a call: one of a step with errors only is never shown.
        good, hidden = self._split_valid(requests)
        if not self._parallel:
            hidden += [_hidden_output(request, DEFERRED_CALL) for request in good[1:]]
            good = good[:1]
        ours, enough = self._server_calls_of(good)
        self._waiting = [request for request in good if self._is_for_client(request)]
        if self._waiting or ours:
            self._release_held(result)
        if ours:
            self._begin(ours, result)
        if self._waiting:
            self.hidden = hidden + enough
            if not ours:
                self._end_with_calls(result)
        elif enough or ((hidden or bad_call) and not ours):
            self._answer_faults(hidden + enough, CALLS_AFTER_LIMIT if enough else REPEATED_BAD_CALLS, result)
        else:
            result.answers += hidden

    def _answer_faults(self, hidden: list[HiddenOutput], too_often: Failure, result: PolicyResult) -> None:
        self._faults += 1
        if self._faults <= MAX_FAULTS:
            result.answers += hidden
            return
        self._over = True
        self._held.clear()
        result.events.append(TurnEnded.with_failure(too_often))

    def _split_valid(
        self, requests: list[ToolCallRequested]
    ) -> tuple[list[ToolCallRequested], list[HiddenOutput]]:
        """Returns valid calls, and errors for arguments that break a strict schema. Not checked: calls already passed
        on, and those after `MAX_FAULTS`.
        """
        good: list[ToolCallRequested] = []
        hidden: list[HiddenOutput] = []
        for request in requests:
            wrong = None if request.item_reported or self._faults >= MAX_FAULTS else self._violation(request)
            if wrong is None:
                good.append(request)
            else:
                text = f"The arguments break the tool's schema: {wrong}. Call it again."
                hidden.append(_hidden_output(request, text))
        return good, hidden

    def _is_for_client(self, request: ToolCallRequested) -> bool:
        tool = self._server_tools.get(request.name)
        return tool is None or (tool.mcp is not None and tool.mcp.needs_approval)

    def _server_calls_of(self, good: list[ToolCallRequested]) -> tuple[list[ServerCall], list[HiddenOutput]]:
        for_servers = [request for request in good if not self._is_for_client(request)]
        if not for_servers:
            return [], []
        room = len(for_servers) if self._calls_left is None else self._calls_left
        if self._steps_left <= 0:
            room = 0
        self._steps_left -= 1
        if self._calls_left is not None:
            self._calls_left -= min(room, len(for_servers))
        ours = [ServerCall(request, self._server_tools[request.name]) for request in for_servers[:room]]
        return ours, [_hidden_output(request, LIMIT_REACHED) for request in for_servers[room:]]

    def _begin(self, ours: list[ServerCall], result: PolicyResult) -> None:
        self._running = {call.request.request_id: call.request for call in ours}
        self.ran_calls.update(call.request.call_id for call in ours)
        result.calls += ours
        for call in ours:
            result.events += call_events(call.request, call.tool)

    def _end_with_calls(self, result: PolicyResult) -> None:
        self._over = True
        self.visible = self._waiting
        for request in self.visible:
            if request.item_reported:
                continue
            if self._faults >= MAX_FAULTS and self._violation(request) is not None:
                result.events.append(Notice("strict_violation", request.name))
            result.events += call_events(request, self._server_tools.get(request.name))
            result.events.append(ItemEnded(request.item_id or request.call_id))
        result.events.append(TurnEnded(Stop.TOOL_CALLS, "token_count"))

    def _violation(self, request: ToolCallRequested) -> str | None:
        check = self._check_of(request)
        if check is None:
            return None
        known = self._verdicts.get(request.request_id)
        if known is not None:
            return known.wrong
        return violation(check.schema, check.text)

    def _slow_check(self, request: ToolCallRequested) -> TextCheck | None:
        check = self._check_of(request)
        if check is None:
            return None
        return None if is_quick(check.schema, check.text) else check

    def _check_of(self, request: ToolCallRequested) -> TextCheck | None:
        tool = self._checked.get(request.name)
        if tool is None or tool.parameters is None or request.kind == "custom":
            return None
        # A call without arguments is one with none: agents and clients take the empty text so.
        return TextCheck(bytes(tool.parameters), request.arguments if request.arguments.strip() else "{}")

    def _on_turn_ended(self, event: TurnEnded, result: PolicyResult) -> None:
        if self._requests and event.stop == Stop.TOOL_CALLS:
            # The agent has ended its turn with calls. No error about them would reach it, so the client gets them.
            self._faults = MAX_FAULTS
            self._on_step_completed(result)
            if self._judging:
                self._later.append(event)
            if self._judging or self._over:
                return
        self._over = True
        if self._waits_for_call and event.stop == Stop.STOP:
            if not self._second_try:
                result.again = True
                return
            event = TurnEnded(Stop.FAILED, event.trigger, NOT_HONOURED)
        if self._waits_for_call and event.stop != Stop.FAILED:
            self._release_held(result)
        result.events.append(event)


def _hidden_output(request: ToolCallRequested, text: str) -> HiddenOutput:
    return HiddenOutput(request.request_id, HistoryOutput(request.call_id, (TextPart(text),), request.kind))
