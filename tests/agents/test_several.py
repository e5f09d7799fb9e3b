"""Several agents by name: the breaker and the attempts by themselves, and what of one is kept from the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.agent import Agent, agent_for, all_agents
from codex_proxy.agents.attempts import FIRST_WAIT, MAX_WAIT, AttemptPlan, UpstreamTarget
from codex_proxy.agents.breaker import Breaker
from codex_proxy.agents.dialect import NOTHING, Step
from codex_proxy.agents.member import RETRY_START_SECONDS, Member, UpstreamNotAskedError, UpstreamRules
from codex_proxy.agents.origin_marks import OriginMarks
from codex_proxy.agents.session import AgentSession
from codex_proxy.agents.several import SeveralAgents
from codex_proxy.core.account import AgentModel
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
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryMessage, Message, RawHistoryItem, TextPart
from codex_proxy.core.turn import Turn
from tests.http.serving import Hands
from tests.runs.actors import WordAgent
from tests.waiting import eventually

K = FaultKind
DOWN = Failure(kind=K.UPSTREAM_UNREACHABLE, message="Nobody is there.")
LIMITED = Failure(kind=K.AGENT_RATE_LIMITED, message="Too many.", retry_after=2.0)
BAD = Failure(kind=K.REJECTED_BY_PROVIDER, message="No.")


def reasoning(text: str) -> bytes:
    return json.dumps({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": text}).encode()


class Listener:
    """Takes what a session says."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.released = asyncio.Event()

    def session_received(self, session: AgentSession, events: list[Event], size: int) -> None:
        self.events += events

    def session_failed(self, session: AgentSession, failure: Failure) -> None:
        raise AssertionError(failure)

    def session_broke(self, session: AgentSession) -> None:
        raise AssertionError("it broke")


def maker(agent: WordAgent, faults: list[Exception] | None = None) -> Callable[[], Awaitable[Agent]]:
    """Makes this agent, after as many faults as there are."""

    async def make() -> Agent:
        if faults:
            raise faults.pop(0)
        return agent

    return make


class Scene:
    """Two agents, `a` and `b`, on a clock whose hands are turned; both are upstreams where there are rules."""

    def __init__(self, rules: UpstreamRules | None = None, others: UpstreamRules | None = None) -> None:
        self.clock = Hands()
        self.a, self.b = WordAgent(exclusive=True), WordAgent(exclusive=True)
        self.waits: list[float] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.members = {
            "a": Member("a", maker(self.a), self.clock, rules=rules),
            "b": Member("b", maker(self.b), self.clock, rules=others or (rules and UpstreamRules())),
        }
        self.several = SeveralAgents(self.members, lambda: 1.0, sleep=self._sleep)
        self.listener = Listener()

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.may_go_on.wait()

    async def begun(self, turn: Turn) -> AgentSession:
        """A session that has begun with this turn."""
        session = await self.several.open(turn)
        loop = asyncio.get_running_loop()
        session.claim(self.listener, loop, lambda session, finished: None)
        session.begin()
        return session


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.several.start()
    return made


# --- which agent ------------------------------------------------------------------------------------


async def test_a_turn_goes_to_the_agent_of_its_model_which_sees_its_own_name_of_it(scene: Scene) -> None:
    for model, agent, own in (
        ("a/x", scene.a, "x"),
        ("b/v/y", scene.b, "v/y"),
        ("", scene.a, ""),
        ("b/", scene.b, ""),
    ):
        session = await scene.several.open(Turn(model=model, history=()))
        assert session.turn.model == own
        assert agent.held == 1
        await scene.several.release(session, finished=True)
        assert scene.a.held == scene.b.held == 0


async def test_the_agent_of_a_model_is_asked_what_it_can_do(scene: Scene) -> None:
    scene.b.capabilities = frozenset({"images"})
    assert agent_for(scene.several, "b/x").capabilities == {"images"}
    assert agent_for(scene.several, "a/x").capabilities == frozenset()
    assert agent_for(scene.several, "").name == "a"
    assert agent_for(scene.a, "b/x") is scene.a
    assert [agent.name for agent in all_agents(scene.several)] == ["a", "b"]


async def test_a_kept_session_goes_on_with_the_agents_own_name_of_the_model(scene: Scene) -> None:
    session = await scene.begun(Turn(model="b/x", history=()))
    turns: list[Any] = []
    dialect: Any = session._dialect

    def resume(turn: Turn, new_items: Any) -> Step:
        turns.append((turn.model, new_items))
        return NOTHING

    dialect.resume = resume
    session.resume(
        Turn(model="b/x", history=()), [RawHistoryItem(reasoning("a:1")), RawHistoryItem(reasoning("b:2"))]
    )
    [(model, new)] = turns
    assert (model, [json.loads(item.json)["encrypted_content"] for item in new]) == ("x", ["2"])


# --- what only one can read -------------------------------------------------------------------------


async def test_encrypted_reasoning_of_one_agent_is_given_to_no_other(scene: Scene) -> None:
    await scene.begun(Turn(model="a/x", history=()))
    scene.a.transports[0].say(
        TurnStarted(), RawItem("reasoning", reasoning("secret")), RawItem("message", b"{}")
    )
    raw = [event for event in scene.listener.events if isinstance(event, RawItem)]
    asked = HistoryMessage("user", (TextPart("Hi"),))
    history: tuple[HistoryItem, ...] = (asked, *(RawHistoryItem(each.json) for each in raw))
    mine = await scene.several.open(Turn(model="a/x", history=history))
    assert mine.turn.history == (
        history[0],
        RawHistoryItem(reasoning_as_sent("secret")),
        RawHistoryItem(b"{}"),
    )
    others = await scene.several.open(Turn(model="b/x", history=history))
    assert others.turn.history == (history[0], RawHistoryItem(b"{}"))


async def test_what_nobody_here_has_marked_is_given_to_nobody(scene: Scene) -> None:
    session = await scene.several.open(Turn(model="a/x", history=(RawHistoryItem(reasoning("old")),)))
    assert session.turn.history == ()


def reasoning_as_sent(text: str) -> bytes:
    return json.dumps(json.loads(reasoning(text)), separators=(",", ":")).encode()


@given(text=st.text(min_size=1), names=st.sampled_from([("a", "b"), ("a", "a.b"), ("ab", "a")]))
def test_marks_are_taken_off_by_their_own_agent_and_by_no_other(text: str, names: tuple[str, str]) -> None:
    own, other = (OriginMarks(name) for name in names)
    [marked] = own.mark([RawItem("reasoning", reasoning(text))])
    assert isinstance(marked, RawItem)
    [back] = own.unmark([RawHistoryItem(marked.json)])
    assert isinstance(back, RawHistoryItem)
    assert json.loads(back.json) == json.loads(reasoning(text))
    assert other.unmark([RawHistoryItem(marked.json)]) == ()


@given(st.binary())
def test_what_is_no_item_passes_unchanged(raw: bytes) -> None:
    assert OriginMarks("a").unmark([RawHistoryItem(raw)]) == (RawHistoryItem(raw),)


# --- one that is not there --------------------------------------------------------------------------


async def test_an_agent_that_cannot_start_is_tried_again_by_a_turn_for_it_after_a_while() -> None:
    clock, agent = Hands(), WordAgent()
    missing = Fault(Failure(kind=K.AGENT_MISCONFIGURED, message="Sign in first."))
    broken = Member(
        "broken", maker(agent, [missing, ValueError("a defect")]), clock, capabilities=frozenset({"images"})
    )
    well = Member("well", maker(WordAgent()), clock)
    several = SeveralAgents({"well": well, "broken": broken}, lambda: 0.5)
    await several.start()
    assert several.trouble() is None
    assert agent_for(several, "broken/x").capabilities == {"images"}
    for after, words in (
        (RETRY_START_SECONDS - 1, "Sign in first."),
        (RETRY_START_SECONDS, "cannot start (ValueError)"),
    ):
        clock.now += after
        with pytest.raises(UpstreamNotAskedError, match="The agent broken could not be started") as refusal:
            await several.open(Turn(model="broken/x", history=()))
        assert words in refusal.value.failure.message
        assert (trouble := broken.trouble()) is not None
        assert words in trouble.message
    clock.now += RETRY_START_SECONDS
    await several.open(Turn(model="broken/x", history=()))
    assert broken.trouble() is None


async def test_no_agent_at_all_is_a_fault_that_names_each() -> None:
    wrong = Fault(Failure(kind=K.AGENT_MISCONFIGURED, message="No key."))
    several = SeveralAgents({"x": Member("x", maker(WordAgent(), [wrong]), Hands())}, lambda: 0.5)
    with pytest.raises(Fault, match="x: No key"):
        await several.start()


# --- the breaker ------------------------------------------------------------------------------------


def test_a_breaker_opens_after_its_failures_in_a_row_and_lets_one_try_after_its_time() -> None:
    breaker = Breaker(3, 10.0)
    for now in (0.0, 1.0):
        assert breaker.admits(now)
        breaker.failed(now)
    breaker.succeeded()
    for now in (2.0, 3.0, 4.0):
        assert breaker.admits(now)
        breaker.failed(now)
    assert (breaker.state(4.0), breaker.admits(13.9), breaker.seconds_left(13.0)) == ("open", False, 1.0)
    assert breaker.state(14.0) == "half-open"
    assert [breaker.admits(14.0), breaker.admits(14.0)] == [True, False]
    breaker.gave_up()  # its client left: the next one tries
    assert breaker.admits(15.0)
    breaker.failed(15.0)
    assert (breaker.state(24.9), breaker.state(25.0)) == ("open", "half-open")
    assert breaker.admits(25.0)
    breaker.succeeded()
    assert (breaker.state(25.0), breaker.admits(25.0)) == ("closed", True)


def test_a_breaker_of_no_failures_never_opens() -> None:
    breaker = Breaker(0, 10.0)
    for _ in range(100):
        breaker.failed(0.0)
    assert breaker.admits(0.0)


async def test_a_failing_upstream_is_left_alone_and_tried_again_by_the_clock() -> None:
    scene = Scene(UpstreamRules(breaker_failures=2, breaker_seconds=10.0))
    await scene.several.start()
    for number in (1, 2):
        await scene.begun(Turn(model="a/x", history=()))
        scene.a.transports[-1].say(TurnEnded(Stop.FAILED, "provider", DOWN))
        await eventually(lambda: scene.members["a"].attempts["failed"] == number)  # noqa: B023
    with pytest.raises(UpstreamNotAskedError) as refusal:
        await scene.several.open(Turn(model="a/x", history=()))
    assert refusal.value.failure.retry_after == 10.0
    assert (trouble := scene.members["a"].trouble()) is not None
    assert trouble.kind is K.UNAVAILABLE
    scene.clock.now += 10.0
    await scene.begun(Turn(model="a/x", history=()))
    with pytest.raises(UpstreamNotAskedError):
        await scene.several.open(Turn(model="a/x", history=()))
    scene.a.transports[-1].say(TurnStarted(), ItemStarted(Message("m")), TextDelta("m", "Hi"))
    assert scene.members["a"].breaker_state == "closed"


# --- attempts ---------------------------------------------------------------------------------------


def plan_of(*targets: UpstreamTarget, chance: float = 1.0) -> AttemptPlan:
    return AttemptPlan(targets, lambda: chance)


def waits(plan: AttemptPlan, *failures: Failure) -> list[Any]:
    """The upstream and the wait after each failure; None where there is no further attempt."""
    found = [plan.after(failure) for failure in failures]
    return [None if each is None else (each.target.name, each.wait) for each in found]


def test_an_upstream_is_asked_again_after_ever_longer_waits_of_which_chance_takes_a_half() -> None:
    plan = plan_of(UpstreamTarget("a", "x", retries=7))
    expected = [("a", min(FIRST_WAIT * 2**index, MAX_WAIT)) for index in range(7)]
    assert waits(plan, *[DOWN] * 8) == [*expected, None]
    assert waits(plan_of(UpstreamTarget("a", "x", retries=1), chance=0.0), DOWN) == [("a", FIRST_WAIT / 2)]


def test_a_limit_is_waited_for_as_long_as_it_asks_within_a_bound() -> None:
    longer = msgspec.structs.replace(LIMITED, retry_after=31.0)
    assert waits(plan_of(UpstreamTarget("a", "x", retries=1)), LIMITED) == [("a", 2.0)]
    assert waits(plan_of(UpstreamTarget("a", "x", retries=1, max_retry_after=30.0)), longer) == [None]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (DOWN, [("a", FIRST_WAIT), ("b", 0.0), None]),
        (LIMITED, [("b", 0.0), None]),
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


async def test_what_an_attempt_said_before_it_failed_is_not_told() -> None:
    scene = Scene(UpstreamRules(retries=1, fallback=(("b", "y"),)))
    await scene.several.start()
    session = await scene.begun(Turn(model="a/x", history=()))
    scene.a.transports[0].say(TurnStarted(), RawItem("reasoning", reasoning("1")))
    assert scene.listener.events == []
    scene.a.transports[0].say(TurnEnded(Stop.FAILED, "provider", DOWN))
    await eventually(lambda: len(scene.a.transports) == 2)
    assert scene.waits == [FIRST_WAIT]
    scene.a.transports[1].say(ItemStarted(Message("late")), TurnEnded(Stop.FAILED, "provider", DOWN))
    await eventually(lambda: len(scene.b.transports) == 1)
    scene.a.transports[1].say(TextDelta("late", "nobody's"))
    scene.b.transports[0].say(TurnStarted(), ItemStarted(Message("m")), RawItem("reasoning", reasoning("2")))
    assert scene.listener.events[:3] == [TurnStarted(), ServedBy("b", 3), ItemStarted(Message("m"))]
    assert isinstance(marked := scene.listener.events[3], RawItem)
    assert b'"b:2"' in marked.json
    scene.b.transports[0].say(TurnEnded(Stop.FAILED, "provider", DOWN))
    assert isinstance(scene.listener.events[-1], TurnEnded)
    await scene.several.release(session, finished=True)
    assert scene.a.held == scene.b.held == 0
    assert scene.members["a"].attempts == {"answered": 0, "failed": 2, "left": 0}
    assert scene.members["b"].attempts == {"answered": 1, "failed": 0, "left": 0}


async def test_whoever_leaves_during_a_wait_makes_no_further_attempt() -> None:
    scene = Scene(UpstreamRules(retries=1))
    await scene.several.start()
    scene.may_go_on.clear()
    session = await scene.begun(Turn(model="a/x", history=()))
    scene.a.transports[0].say(TurnEnded(Stop.FAILED, "provider", DOWN))
    await eventually(lambda: bool(scene.waits))
    session.close()
    await scene.several.release(session, finished=True)
    scene.may_go_on.set()
    assert scene.a.opening == scene.a.held == 0
    assert len(scene.a.transports) == 1


async def test_an_upstream_that_cannot_be_opened_is_followed_by_the_next() -> None:
    scene = Scene(UpstreamRules(fallback=(("b", ""),)))
    await scene.several.start()
    scene.a.fault = Fault(DOWN)
    session = await scene.several.open(Turn(model="a/x", history=()))
    assert session.turn.model == "x"
    assert (scene.a.held, scene.b.held) == (0, 1)
    scene.b.fault = Fault(BAD)
    with pytest.raises(Fault, match="No"):
        await scene.several.open(Turn(model="a/x", history=()))


async def test_models_are_listed_by_their_full_names_and_as_one_object_while_they_are_the_same(
    scene: Scene,
) -> None:
    listed = (AgentModel(id="x", is_default=True), AgentModel(id="v/y"))
    scene.a.models = scene.b.models = lambda: listed  # type: ignore[method-assign]
    models = scene.several.models()
    assert [(each.id, each.agent, each.is_default) for each in models] == [
        ("a/x", "a", True), ("a/v/y", "a", False), ("b/x", "b", False), ("b/v/y", "b", False),
    ]  # fmt: skip
    assert scene.several.models() is models
