"""The attempts of a turn at upstreams: when none is made, who is asked next, and what the client does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Step
from codex_proxy.core.events import (
    Event,
    ItemStarted,
    RawItem,
    ServedBy,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Message
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.attempts import (
    FIRST_WAIT,
    MAX_WAIT,
    AttemptedTurn,
    AttemptPlan,
    Breaker,
    NoAttempt,
    UpstreamAttempt,
    UpstreamTarget,
)
from tests.agents.test_router import reasoning_item
from tests.runs.actors import WordDialect

K = FaultKind
DOWN = Failure(kind=K.UPSTREAM_UNREACHABLE, message="Nobody is there.")
RATE_LIMIT = Failure(kind=K.AGENT_RATE_LIMITED, message="Too many.", retry_after=2.0)
BAD = Failure(kind=K.REJECTED_BY_PROVIDER, message="No.")


# --- the breaker ------------------------------------------------------------------------------------


def test_a_breaker_opens_after_its_failures_in_a_row_and_admits_one_attempt_after_its_time() -> None:
    breaker = Breaker(3, 10.0)
    for now in (0.0, 1.0):
        assert breaker.admits(now)
        breaker.note_failure(now)
    breaker.note_success()
    for now in (2.0, 3.0, 4.0):
        assert breaker.admits(now)
        breaker.note_failure(now)
    assert (breaker.state(4.0), breaker.admits(13.9), breaker.seconds_left(13.0)) == ("open", False, 1.0)
    assert breaker.state(14.0) == "half-open"
    assert [breaker.admits(14.0), breaker.admits(14.0)] == [True, False]
    breaker.note_no_result()  # its client left: the next one tries
    assert breaker.admits(15.0)
    breaker.note_failure(15.0)
    assert (breaker.state(24.9), breaker.state(25.0)) == ("open", "half-open")
    assert breaker.admits(25.0)
    breaker.note_success()
    assert (breaker.state(25.0), breaker.admits(25.0)) == ("closed", True)


def test_a_breaker_of_no_failures_never_opens() -> None:
    breaker = Breaker(0, 10.0)
    for _ in range(100):
        breaker.note_failure(0.0)
    assert breaker.admits(0.0)


# --- attempts ---------------------------------------------------------------------------------------


def plan_of(*targets: UpstreamTarget, chance: float = 1.0) -> AttemptPlan:
    return AttemptPlan(targets, lambda: chance)


def waits(plan: AttemptPlan, *failures: Failure) -> list[Any]:
    """The upstream and the wait after each failure; None where there is no further attempt."""
    found = [(plan.choose_next(failure), plan.target.name) for failure in failures]
    return [None if wait is None else (name, wait) for wait, name in found]


def test_an_upstream_is_asked_again_after_ever_longer_waits_of_which_chance_takes_a_half() -> None:
    plan = plan_of(UpstreamTarget("a", "x", retries=7))
    expected = [("a", min(FIRST_WAIT * 2**index, MAX_WAIT)) for index in range(7)]
    assert waits(plan, *[DOWN] * 8) == [*expected, None]
    assert waits(plan_of(UpstreamTarget("a", "x", retries=1), chance=0.0), DOWN) == [("a", FIRST_WAIT / 2)]


def test_a_limit_is_waited_for_as_long_as_it_asks_within_a_bound() -> None:
    longer = msgspec.structs.replace(RATE_LIMIT, retry_after=31.0)
    assert waits(plan_of(UpstreamTarget("a", "x", retries=1)), RATE_LIMIT) == [("a", 2.0)]
    assert waits(plan_of(UpstreamTarget("a", "x", retries=1, max_retry_after=30.0)), longer) == [None]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (DOWN, [("a", FIRST_WAIT), ("b", 0.0), None]),
        (RATE_LIMIT, [("b", 0.0), None]),
        (Failure(kind=K.UPSTREAM_TIMEOUT, message=""), [("b", 0.0), None]),
        (Failure(kind=K.UPSTREAM_UNAUTHORIZED, message=""), [("b", 0.0), None]),
        (BAD, [None]),
        (Failure(kind=K.CONTEXT_LENGTH_EXCEEDED, message=""), [None]),
        (Failure(kind=K.MODEL_NOT_FOUND, message=""), [None]),
        (Failure(kind=K.INVALID_API_KEY, message=""), [None]),
    ],
)
def test_the_kind_of_a_failure_says_who_is_asked_next(failure: Failure, expected: Sequence[Any]) -> None:
    plan = plan_of(UpstreamTarget("a", "x", retries=1), UpstreamTarget("b", "x"))
    assert waits(plan, *[failure] * len(expected)) == expected


# --- the turn over its attempts ---------------------------------------------------------------------

FAILED_END = TurnEnded(Stop.FAILED, "provider", DOWN)
HI: list[Event] = [ItemStarted(Message("m")), TextDelta("m", "Hi")]


class Scene:
    """A turn whose first attempt, at `a`, has begun. `others`: whether more attempts may follow."""

    def __init__(self, name: str = "a", *, others: bool = True) -> None:
        self.others = others
        self.failures: list[Failure] = []
        self.answers = 0
        self.dialects: list[WordDialect] = []
        self.turn = AttemptedTurn(self.attempt(name), self._failed, self._answered)
        assert self.turn.begin(Turn(model="x", history=())).writes == b"begin"

    def attempt(self, name: str) -> UpstreamAttempt:
        self.dialects.append(dialect := WordDialect())
        turn = Turn(model="x", history=())
        return UpstreamAttempt(name, turn, dialect, dialect.begin(turn))

    def _failed(self, failure: Failure) -> bool:
        self.failures.append(failure)
        return self.others

    def _answered(self) -> int:
        self.answers += 1
        return len(self.failures) + 1

    def say(self, *events: Event) -> Step:
        """What the session gets if the current attempt's upstream says this."""
        return self.turn.receive(events)  # type: ignore[arg-type]


def test_the_output_of_an_attempt_that_failed_is_not_sent() -> None:
    scene = Scene()
    assert scene.say(TurnStarted(), RawItem("reasoning", reasoning_item("1"))).events == []
    assert scene.say(FAILED_END).events == []
    assert scene.say(*HI).events == [], "it has failed"
    assert scene.turn.receive([scene.attempt("b")]).writes == b"begin"
    assert scene.say(TurnStarted(), RawItem("reasoning", reasoning_item("2"))).events == []
    start, served_by, marked, *rest = scene.say(*HI).events
    assert (start, served_by, rest) == (TurnStarted(), ServedBy("b", 2), HI)
    assert isinstance(marked, RawItem)
    assert b'"b:2"' in marked.json
    assert (scene.failures, scene.answers) == ([DOWN], 1)


def test_after_the_first_word_no_other_attempt_is_made() -> None:
    scene = Scene()
    scene.say(TurnStarted(), *HI)
    assert scene.say(FAILED_END).events == [FAILED_END]
    assert scene.failures == []
    assert scene.turn.finished


def test_the_last_failure_is_reported_if_no_attempt_follows() -> None:
    scene = Scene(others=False)
    assert scene.say(TurnStarted(), FAILED_END).events == [TurnStarted(), ServedBy("a", 2), FAILED_END]
    waiting = Scene()
    waiting.say(FAILED_END)
    step = waiting.turn.receive([NoAttempt()])
    assert (step.events, step.close_stdin) == ([ServedBy("a", 2), FAILED_END], True)


def test_an_attempt_that_could_not_be_opened_says_why_the_turn_fails() -> None:
    scene = Scene()
    scene.say(FAILED_END)
    last = scene.turn.receive([NoAttempt(BAD)]).events[-1]
    assert isinstance(last, TurnEnded)
    assert last.failure == BAD


def test_a_single_upstream_has_no_name_and_marks_nothing() -> None:
    scene = Scene("")
    raw = RawItem("reasoning", reasoning_item("1"))
    assert scene.say(raw, *HI).events == [ServedBy("", 1), raw, *HI]


def test_bytes_for_the_upstream_are_not_held_back() -> None:
    scene = Scene()
    step = scene.say(TurnStarted())
    assert (step.events, step.writes) == ([], b"receive")
