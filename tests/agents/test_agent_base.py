"""An agent of a plug-in that writes nothing but what makes it an agent."""

from __future__ import annotations

from codex_proxy.agent_plugin import (
    Agent,
    AgentBase,
    AgentModel,
    Capability,
    Ended,
    ProcessCounts,
    SingleTurn,
    Step,
    ToolReply,
)
from codex_proxy.agents.agent import all_agents
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.turn import Turn
from tests.runs.actors import WordTransport

TURN = Turn(model="m", history=())


class Short(SingleTurn):
    def begin(self, turn: Turn) -> Step:
        return Step([])

    def receive(self, lines: object) -> Step:
        return Step([])

    def eof(self, ended: Ended) -> Step:
        self.ended = True
        return Step([])


class Small(AgentBase):
    name = "small"
    capabilities: frozenset[Capability] = frozenset()

    async def open(self, turn: Turn) -> AgentSession:
        return AgentSession(turn, Short(), WordTransport())

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        await session.transport.release(finished=finished)

    def models(self) -> tuple[AgentModel, ...]:
        return ()

    async def close(self) -> None: ...


async def test_an_agent_needs_only_sessions_models_and_an_end() -> None:
    agent: Agent = Small()
    await agent.start()
    await agent.ask_limits()
    agent.kill()
    assert agent.limits.newest() == ((), 0.0)
    assert agent.limits is not Small().limits
    assert (agent.version, agent.warning, agent.any_model, agent.trouble()) == ("", "", False, None)
    assert (agent.processes(), all_agents(agent), agent.missing_features) == (ProcessCounts(), (agent,), {})


def test_the_dialect_of_one_turn_needs_only_its_input_and_its_end() -> None:
    dialect = Short()
    dialect.begin(TURN)
    for step in (dialect.interrupt(), dialect.answer("1", ToolReply(())), dialect.resume(TURN, ())):
        assert (step.events, step.writes) == ([], b"")
    assert not dialect.can_resume
    assert not dialect.finished
    dialect.eof(Ended())
    assert dialect.finished
