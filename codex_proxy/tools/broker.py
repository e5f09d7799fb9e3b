"""Who answers a call of the model: the client, or we, so that the client never sees it.

In: the events of a turn as its dialect says them. Out: what may go on to the rules, the outputs to give to the
agent at once, and whether the turn has to be tried again. The calls of one step are decided together, when the
step is complete: with a visible one among them the client's turn ends with its calls, and what we answered to
the hidden ones reaches the model beside the client's outputs; without one they are answered at once, and the
same turn goes on. It knows no wire and no dialect.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from codex_proxy.core.events import (
    ArgumentsWhole,
    Event,
    ItemEnded,
    ItemStarted,
    Noticed,
    StepCompleted,
    Stop,
    ToolAsked,
    TurnEnded,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import PastOutput, TextPart, Tool, ToolCall
from codex_proxy.core.turn import Turn
from codex_proxy.tools.choice import must_call
from codex_proxy.tools.schemas import violation

MAX_FAULTS = 2
"""How often a model is told what is wrong with its calls; one that does not learn then never does."""

DEFERRED = "Deferred: one call at a time. Make this call again if you still need it."

MODEL_FAULTS = frozenset({"unoffered_call", "unreadable_arguments"})
"""What a dialect notices where the agent has answered a bad call by itself."""

NOT_HONOURED = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    code="tool_choice_not_honoured",
    message="The model answered with text twice although a tool call was required. Try again, or ask with "
    "tool_choice auto.",
)
NEVER_LEARNED = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    code="invalid_tool_calls",
    message="The model kept calling tools that were not offered, or with arguments that are no JSON.",
)


class Answered(msgspec.Struct, frozen=True):
    """An output that we give to the agent ourselves."""

    ask_id: str
    output: PastOutput


class Brokered(msgspec.Struct):
    """What the broker makes of a batch: events that go on, and outputs to give at once."""

    events: list[Event]
    answers: list[Answered]
    again: bool = False
    """The turn is to be tried once more, with a reminder; nothing of this try was let through."""


class Broker:
    """The tools of one client turn. `second_try`: it was told of the tool choice once already."""

    def __init__(self, turn: Turn, *, second_try: bool = False) -> None:
        self._strict: dict[str, Tool] = {tool.name: tool for tool in turn.tools if tool.strict}
        self._parallel = turn.parallel_tool_calls
        self._must_call = must_call(turn)
        self._second_try = second_try
        self._asks: list[ToolAsked] = []
        self._faults = 0
        self._held: list[Event] = []
        self.visible: list[ToolAsked] = []
        """The calls that the client is to answer, once the turn has ended with them."""
        self.hidden: list[Answered] = []
        """What we answered to the other calls of that same step; the agent has not been told yet."""

    def feed(self, events: Iterable[Event]) -> Brokered:
        """The events that go on; empty of calls until their step is complete."""
        done = Brokered([], [])
        for event in events:
            kind = type(event)
            if kind is ToolAsked:
                self._asks.append(event)  # type: ignore[arg-type]
            elif kind is StepCompleted:
                self._pass(event, done)
                if self._asks:
                    self._decide(done)
            elif kind is TurnEnded:
                self._ended(event, done)  # type: ignore[arg-type]
            elif kind is Noticed and event.code in MODEL_FAULTS:  # type: ignore[union-attr]
                self._pass(event, done)
                self._bad_call(done)
            else:
                self._pass(event, done)
        return done

    def _pass(self, event: Event, done: Brokered) -> None:
        """Where a call is required, nothing is said before it: words without a call would be thrown away."""
        if self._must_call:
            self._held.append(event)
        else:
            done.events.append(event)

    def _decide(self, done: Brokered) -> None:
        asks, self._asks = self._asks, []
        good: list[ToolAsked] = []
        hidden: list[Answered] = []
        for ask in asks:
            wrong = self._violation(ask)
            if wrong is None:
                good.append(ask)
            elif self._faults >= MAX_FAULTS:
                self._pass(Noticed("strict_violation", ask.name), done)
                good.append(ask)
            else:
                hidden.append(
                    _answered(ask, f"The arguments break the tool's schema: {wrong}. Call it again.")
                )
        if not self._parallel:
            hidden += [_answered(ask, DEFERRED) for ask in good[1:]]
            good = good[:1]
        if not good:
            self._faults += 1
            done.answers += hidden
            return
        self.visible, self.hidden = good, hidden
        done.events += self._held
        self._held.clear()
        for ask in good:
            done.events += _call_events(ask)
        done.events.append(TurnEnded(Stop.TOOL_CALLS, "token_count"))

    def _violation(self, ask: ToolAsked) -> str | None:
        tool = self._strict.get(ask.name)
        if tool is None or tool.parameters is None or ask.kind == "custom":
            return None
        return violation(bytes(tool.parameters), ask.arguments)

    def _bad_call(self, done: Brokered) -> None:
        self._faults += 1
        if self._faults > MAX_FAULTS:
            done.events.append(TurnEnded(Stop.FAILED, "provider", NEVER_LEARNED))

    def _ended(self, event: TurnEnded, done: Brokered) -> None:
        if self._must_call and event.stop == Stop.STOP and not self._called():
            if self._second_try:
                event = TurnEnded(Stop.FAILED, event.trigger, NOT_HONOURED)
                self._held.clear()
            else:
                done.again = True
                return
        if event.stop != Stop.FAILED:
            done.events += self._held
        self._held.clear()
        done.events.append(event)

    def _called(self) -> bool:
        """Whether the dialect itself has let a call through (one that never asks, as the proto dialect)."""
        return any(type(event) is ItemStarted and isinstance(event.item, ToolCall) for event in self._held)


def _answered(ask: ToolAsked, text: str) -> Answered:
    return Answered(ask.ask_id, PastOutput(ask.call_id, (TextPart(text),), ask.kind))


def _call_events(ask: ToolAsked) -> list[Event]:
    id = ask.item_id or ask.call_id
    return [
        ItemStarted(ToolCall(id, ask.call_id, ask.name, ask.kind)),
        ArgumentsWhole(id, ask.arguments),
        ItemEnded(id),
    ]
