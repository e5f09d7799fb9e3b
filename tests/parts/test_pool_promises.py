"""What the pool promises holds for the processes of every agent that has one: the agent's own keys, limits and
sessions, on processes that exist on paper.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.process_pool.pool import MEMORY_SECONDS, ORPHAN_SECONDS, ProcessPool
from codex_proxy.agents.process_pool.processes import PooledProcess
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.agent import AcpAgent, AcpLaunch
from codex_proxy.parts.acp.messages import Message
from codex_proxy.parts.acp.presets import AcpPreset, DeclaredFeatures
from codex_proxy.parts.claude_code.agent import ClaudeCodeAgent, ClaudeProcesses
from codex_proxy.parts.claude_code.launch import LaunchKey
from codex_proxy.process.child import Exit, SpawnError
from tests.agents.app_servers import COMMAND, app_server
from tests.runs.virtual import close_after_test, settle, virtual

FIRST = Turn(model="", history=(), mode="agent", workdir="/a")
OTHER = Turn(model="", history=(), mode="model", workdir="/b", owner="bob")
"""A turn that must not share a process with the first one."""


class PaperChild:
    """A child that exists on paper."""

    pid = 1 << 30
    alive = True

    def __init__(self, process: Any) -> None:
        self._process = process

    def write(self, data: bytes) -> None: ...
    def clear_stderr(self) -> None: ...
    def resume(self) -> None: ...

    async def end(self, *, grace: float | None = None) -> None:
        self.kill()

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._process.on_end(Exit(None, 9, ""))


class Reader:
    """A reader that only counts how often it is told the end."""

    def __init__(self) -> None:
        self.ends = 0

    def on_messages(self, messages: object, size: int) -> None: ...

    def on_end(self, ended: Ended) -> None:
        self.ends += 1

    def fail(self, failure: Failure) -> None: ...

    def on_long_line(self, fault: object) -> None: ...


def acp() -> AcpAgent:
    preset = AcpPreset(name="acp", title="It", argv=("agent",), apart="processes")
    return AcpAgent(AcpLaunch(preset=preset, command=COMMAND, workdir="/a"))


def claude_code() -> ClaudeCodeAgent:
    processes = ClaudeProcesses(
        name="claude-code",
        version="",
        command=lambda key: COMMAND,
        confinement=PlainConfinement("It", None),
        empty_folder="/empty",
        warm=LaunchKey("agent", "/a"),
    )
    return ClaudeCodeAgent(processes, SystemClock())


def child_per_turn() -> ChildPerTurnAgent:
    return ChildPerTurnAgent(
        ChildSpec(
            name="child",
            version="",
            command=lambda turn: msgspec.structs.replace(COMMAND, cwd=turn.workdir or "/"),
            dialect=CodexProto,
            capabilities=frozenset(),
            models=(),
            any_model=True,
            ahead=True,
        )
    )


class Rig:
    """An agent whose processes exist on paper. If `fault` is set, none can be started."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.agent = make()
        self.pool: ProcessPool[Any, Any] = self.agent.pool
        self.pool._start_process = self._start
        self.starts = 0
        self.dies = False
        """Whether each process has ended by the time it is ready."""
        self.fault: Fault | None = None
        close_after_test(self.agent.close)

    async def _start(self, process: Any, key: object) -> None:
        self.starts += 1
        if self.fault is not None:
            raise self.fault
        process._child = PaperChild(process)
        if self.dies:
            process.kill()
        if hasattr(process, "session_failure"):
            process.connection.declared = DeclaredFeatures()
            process.connection.probe = Message(result={})

    async def open(self, turn: Turn = FIRST) -> AgentSession:
        session: AgentSession = await self.agent.open(turn)
        return session

    async def waiting_process(self) -> PooledProcess:
        """The process that waits for the next turn, once there is one."""
        for _ in range(4):  # one that serves once waits only if it is used often
            await self.agent.release(await self.open(), finished=True)
        await asyncio.sleep(0.5)
        [process] = [each for each in self.pool.processes if not each.is_taken]
        assert isinstance(process, PooledProcess)
        return process


def process_of(session: AgentSession) -> PooledProcess:
    process = getattr(session.transport, "process", session.transport)
    assert isinstance(process, PooledProcess)
    return process


@pytest.fixture(autouse=True)
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes on paper have none; without CONFIG_PROC_CHILDREN each look for them reads all processes."""
    monkeypatch.setattr("codex_proxy.agents.process_pool.processes.children_of", lambda pid: {})


every_agent = pytest.mark.parametrize("make", [app_server, acp, claude_code, child_per_turn])


@virtual
@every_agent
async def test_turns_with_different_keys_share_no_process(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    sessions = [await rig.open(turn) for turn in (FIRST, OTHER, FIRST, OTHER)]
    first = {process_of(session) for session in sessions[::2]}
    assert first.isdisjoint(process_of(session) for session in sessions[1::2])


@virtual
@pytest.mark.parametrize(
    "fault",
    [
        Fault(Failure(kind=FaultKind.SPAWN_FAILED, message="It will not start.")),
        SpawnError("agent", "it will not start"),
    ],
    ids=["refuses", "missing"],
)
@every_agent
async def test_starts_that_fail_are_repeated_only_after_pauses(make: Callable[[], Any], fault: Fault) -> None:
    rig = Rig(make)
    rig.fault = fault
    for _ in range(3):
        with pytest.raises(Fault, match="will not start"):
            await rig.open()
    asked = rig.starts
    await asyncio.sleep(20)
    assert rig.starts - asked <= 6
    rig.fault = None
    await asyncio.sleep(30)
    session = await rig.open()
    assert process_of(session).alive


@virtual
@pytest.mark.parametrize("make", [claude_code, child_per_turn])
async def test_a_turn_whose_own_process_ends_in_its_start_learns_how_it_ended(
    make: Callable[[], Any],
) -> None:
    rig, reader = Rig(make), Reader()
    rig.dies = True
    session = await rig.open()
    session.transport.attach(reader)
    await settle()
    assert (rig.starts, reader.ends) == (1, 1)


@virtual
@every_agent
async def test_a_process_that_keeps_dying_is_replaced_after_pauses(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    await rig.waiting_process()
    before, end = rig.starts, asyncio.get_running_loop().time() + 20
    while asyncio.get_running_loop().time() < end:
        for process in rig.pool.processes:
            process.kill()
        await asyncio.sleep(0.1)
    assert 3 <= rig.starts - before <= 7
    assert rig.agent.processes().restarts >= 3


@virtual
@every_agent
async def test_a_process_that_dies_while_it_waits_leaves_the_pool_at_once(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    process = await rig.waiting_process()
    process.kill()
    assert process not in rig.pool.processes
    assert process_of(await rig.open()) is not process


@pytest.mark.sampled(every=3)
@virtual
@every_agent
async def test_a_process_that_waits_too_long_is_not_used(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    process = await rig.waiting_process()
    [limits] = {group.limits for group in rig.pool._groups.values()}
    await asyncio.sleep(limits.max_age + 60)
    assert not process.alive
    assert process_of(await rig.open()) is not process


@pytest.mark.sampled(every=3)
@virtual
@every_agent
async def test_a_process_serves_a_limited_number_of_sessions(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    served: Counter[PooledProcess] = Counter()
    limit = 1100
    for _ in range(limit):
        session = await rig.open()
        served[process_of(session)] += 1
        [most] = {group.limits.max_turns_served for group in rig.pool._groups.values()}
        await rig.agent.release(session, finished=True)
        await settle()
    assert len(served) > 1
    assert max(served.values()) <= most + 1


@virtual
@every_agent
async def test_a_process_that_is_too_large_ends_with_the_sessions_that_it_keeps(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, reader = Rig(make), Reader()
    session = await rig.open()
    process = process_of(session)
    session.transport.attach(reader)
    session.set_idle(True)
    monkeypatch.setattr(type(process), "memory", 1 << 40)
    await asyncio.sleep(2 * MEMORY_SECONDS + 2)
    assert reader.ends >= 1
    assert not process.alive


@virtual
@every_agent
async def test_a_process_that_did_not_end_a_turn_gets_no_other(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    stuck = await rig.open()
    await rig.agent.release(stuck, finished=False)
    assert process_of(await rig.open()) is not process_of(stuck)
    await asyncio.sleep(1)
    assert not process_of(stuck).alive


@virtual
@every_agent
async def test_what_a_turn_leaves_running_ends_with_its_process(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(make)
    session = await rig.open()
    process = process_of(session)
    await rig.agent.release(session, finished=True)
    monkeypatch.setattr(type(process), "has_orphans", property(lambda each: each is process))
    await asyncio.sleep(ORPHAN_SECONDS + 0.5)
    assert not process.alive


@virtual
@every_agent
async def test_no_process_is_left_when_the_agent_is_closed(make: Callable[[], Any]) -> None:
    rig = Rig(make)
    waiting = await rig.waiting_process()
    sessions = [await rig.open(turn) for turn in (FIRST, OTHER)]
    await rig.agent.close()
    assert not any(process.alive for process in (waiting, *map(process_of, sessions)))
    with pytest.raises(Fault):
        await rig.open()
