"""Several agents by name: which agent gets a turn, what one agent alone can read, and an agent that cannot start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.agent import Agent, agent_for, all_agents
from codex_proxy.agents.configured.router import RETRY_START_SECONDS, AgentRouter, AgentSlot
from codex_proxy.agents.dialect import NOTHING, Step
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.agents.shared.history_items import OriginMarks
from codex_proxy.core.account import AgentModel
from codex_proxy.core.events import Event, RawItem, TurnStarted
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryMessage, RawHistoryItem, TextPart
from codex_proxy.core.turn import Turn
from tests.http.serving import Hands
from tests.runs.actors import WordAgent

K = FaultKind


def reasoning_item(text: str) -> bytes:
    return json.dumps({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": text}).encode()


class Listener:
    """Takes what a session says."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.released = asyncio.Event()

    def on_session_output(self, session: AgentSession, events: list[Event], size: int) -> None:
        self.events += events

    def on_session_failure(self, session: AgentSession, failure: Failure) -> None:
        raise AssertionError(failure)

    def on_session_error(self, session: AgentSession) -> None:
        raise AssertionError("it broke")


def maker(agent: WordAgent, faults: list[Exception] | None = None) -> Callable[[], Awaitable[Agent]]:
    """Makes this agent, after as many faults as there are."""

    async def make() -> Agent:
        if faults:
            raise faults.pop(0)
        return agent

    return make


class Scene:
    """Two agents, `a` and `b`, behind a router."""

    def __init__(self) -> None:
        self.a, self.b = WordAgent(exclusive=True), WordAgent(exclusive=True)
        clock = Hands()
        self.router = AgentRouter(
            {"a": AgentSlot("a", maker(self.a), clock), "b": AgentSlot("b", maker(self.b), clock)}
        )
        self.listener = Listener()

    async def begun(self, turn: Turn) -> AgentSession:
        """A session that has begun with this turn."""
        session = await self.router.open(turn)
        loop = asyncio.get_running_loop()
        session.claim(self.listener, loop, lambda session, finished: None)
        session.begin()
        return session


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.router.start()
    return made


# --- which agent ------------------------------------------------------------------------------------


async def test_a_turn_goes_to_the_agent_of_its_model_which_sees_its_own_name_of_it(scene: Scene) -> None:
    for model, agent, own in (
        ("a/x", scene.a, "x"),
        ("b/v/y", scene.b, "v/y"),
        ("", scene.a, ""),
        ("b/", scene.b, ""),
    ):
        session = await scene.router.open(Turn(model=model, history=()))
        assert opened_for(session).model == own
        assert agent.held == 1
        await scene.router.release(session, finished=True)
        assert scene.a.held == scene.b.held == 0


async def test_the_agent_of_a_model_is_asked_what_it_can_do(scene: Scene) -> None:
    scene.b.capabilities = frozenset({"images"})
    assert agent_for(scene.router, "b/x").capabilities == {"images"}
    assert agent_for(scene.router, "a/x").capabilities == frozenset()
    assert agent_for(scene.router, "").name == "a"
    assert agent_for(scene.a, "b/x") is scene.a
    assert [agent.name for agent in all_agents(scene.router)] == ["a", "b"]


async def test_an_idle_session_goes_on_with_the_agents_own_name_of_the_model(scene: Scene) -> None:
    session = await scene.begun(Turn(model="b/x", history=()))
    turns: list[Any] = []
    dialect: Any = session._dialect

    def resume(turn: Turn, new_items: Any) -> Step:
        turns.append((turn.model, new_items))
        return NOTHING

    dialect.resume = resume
    session.resume(
        Turn(model="b/x", history=()),
        [RawHistoryItem(reasoning_item("a:1")), RawHistoryItem(reasoning_item("b:2"))],
    )
    [(model, new)] = turns
    assert (model, [json.loads(item.json)["encrypted_content"] for item in new]) == ("x", ["2"])


# --- what only one can read -------------------------------------------------------------------------


async def test_encrypted_reasoning_of_one_agent_is_given_to_no_other(scene: Scene) -> None:
    await scene.begun(Turn(model="a/x", history=()))
    scene.a.transports[0].say(
        TurnStarted(), RawItem("reasoning", reasoning_item("secret")), RawItem("message", b"{}")
    )
    raw = [event for event in scene.listener.events if isinstance(event, RawItem)]
    asked = HistoryMessage("user", (TextPart("Hi"),))
    history: tuple[HistoryItem, ...] = (asked, *(RawHistoryItem(each.json) for each in raw))
    mine = await scene.router.open(Turn(model="a/x", history=history))
    assert opened_for(mine).history == (
        history[0],
        RawHistoryItem(reasoning_as_sent("secret")),
        RawHistoryItem(b"{}"),
    )
    others = await scene.router.open(Turn(model="b/x", history=history))
    assert opened_for(others).history == (history[0], RawHistoryItem(b"{}"))


async def test_what_nobody_here_has_marked_is_given_to_nobody(scene: Scene) -> None:
    session = await scene.router.open(Turn(model="a/x", history=(RawHistoryItem(reasoning_item("old")),)))
    assert opened_for(session).history == ()


def reasoning_as_sent(text: str) -> bytes:
    return json.dumps(json.loads(reasoning_item(text)), separators=(",", ":")).encode()


@given(text=st.text(min_size=1), names=st.sampled_from([("a", "b"), ("a", "a.b"), ("ab", "a")]))
def test_marks_are_taken_off_by_their_own_agent_and_by_no_other(text: str, names: tuple[str, str]) -> None:
    own, other = (OriginMarks(name) for name in names)
    [marked] = own.mark([RawItem("reasoning", reasoning_item(text))])
    assert isinstance(marked, RawItem)
    [back] = own.unmark([RawHistoryItem(marked.json)])
    assert isinstance(back, RawHistoryItem)
    assert json.loads(back.json) == json.loads(reasoning_item(text))
    assert other.unmark([RawHistoryItem(marked.json)]) == ()


@given(st.binary())
def test_raw_json_that_is_no_item_passes_unchanged(raw: bytes) -> None:
    assert OriginMarks("a").unmark([RawHistoryItem(raw)]) == (RawHistoryItem(raw),)


# --- one that is not there --------------------------------------------------------------------------


async def test_an_agent_that_cannot_start_is_tried_again_by_a_turn_for_it_after_a_while() -> None:
    clock, agent = Hands(), WordAgent()
    missing = Fault(Failure(kind=K.AGENT_MISCONFIGURED, message="Sign in first."))
    broken = AgentSlot(
        "broken", maker(agent, [missing, ValueError("a defect")]), clock, capabilities=frozenset({"images"})
    )
    well = AgentSlot("well", maker(WordAgent()), clock)
    router = AgentRouter({"well": well, "broken": broken})
    await router.start()
    assert router.trouble() is None
    assert agent_for(router, "broken/x").capabilities == {"images"}
    for after, words in (
        (RETRY_START_SECONDS - 1, "Sign in first."),
        (RETRY_START_SECONDS, "cannot start (ValueError)"),
    ):
        clock.now += after
        with pytest.raises(Fault, match="The agent broken could not be started") as refusal:
            await router.open(Turn(model="broken/x", history=()))
        assert words in refusal.value.failure.message
        assert (trouble := broken.trouble()) is not None
        assert words in trouble.message
    clock.now += RETRY_START_SECONDS
    await router.open(Turn(model="broken/x", history=()))
    assert broken.trouble() is None


async def test_no_agent_at_all_is_a_fault_that_names_each() -> None:
    wrong = Fault(Failure(kind=K.AGENT_MISCONFIGURED, message="No key."))
    router = AgentRouter({"x": AgentSlot("x", maker(WordAgent(), [wrong]), Hands())})
    with pytest.raises(Fault, match="x: No key"):
        await router.start()


async def test_models_are_listed_by_their_full_names_and_as_one_object_while_they_are_the_same(
    scene: Scene,
) -> None:
    listed = (AgentModel(id="x", is_default=True), AgentModel(id="v/y"))
    scene.a.models = scene.b.models = lambda: listed  # type: ignore[method-assign]
    models = scene.router.models()
    assert [(each.id, each.agent, each.is_default) for each in models] == [
        ("a/x", "a", True), ("a/v/y", "a", False), ("b/x", "b", False), ("b/v/y", "b", False),
    ]  # fmt: skip
    assert scene.router.models() is models


def opened_for(session: AgentSession) -> Turn:
    assert session.turn is not None, "it has not begun"
    return session.turn
