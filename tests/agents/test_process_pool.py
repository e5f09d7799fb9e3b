"""The pool performs its plan: whoever waits is placed or told why not, and no process is lost or left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerProcess, ThreadTransport
from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.process_pool.plan import PoolLimits
from codex_proxy.agents.process_pool.pool import ORPHAN_SECONDS, ProcessPool
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Exit
from tests.runs.virtual import close_after_test, settle, virtual

NO_START = Failure(kind=FaultKind.SPAWN_FAILED, message="It will not start.")


class ChildStub:
    """A child that exists on paper."""

    pid = 1 << 30

    def __init__(self, process: FakeProcess) -> None:
        self._process = process

    def write(self, data: bytes) -> None:
        """Nobody reads."""

    def clear_stderr(self) -> None:
        """It has said nothing."""


class FakeProcess(AppServerProcess):
    """A process without a process: alive between its start and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = 0
        self.killed = False
        self.orphans = False
        self.memory_held = 0
        self.memory_reads = 0
        self.orphan_checks = 0

    def run(self) -> None:
        self._child = ChildStub(self)  # type: ignore[assignment]

    def die(self) -> None:
        if self.exit is None and self._child is not None:
            self.on_end(Exit(None, 9, ""))

    @property
    def has_orphans(self) -> bool:
        self.orphan_checks += 1
        return self.orphans

    @property
    def memory(self) -> int:
        self.memory_reads += 1
        return self.memory_held

    async def end(self) -> None:
        self.ends += 1
        await asyncio.sleep(0.01)
        self.die()

    def kill(self) -> None:
        self.killed = True

    @property
    def left(self) -> bool:
        """A process is there that nobody ends."""
        return self.alive and not self.killed


class PoolHarness:
    """A pool with processes that start when they are told to, or as `outcomes` says."""

    def __init__(self, **limits: float) -> None:
        self.processes: list[FakeProcess] = []
        self.starting: dict[FakeProcess, asyncio.Future[None]] = {}
        self.starts_manually = False
        self.fault: Exception | None = None
        given = PoolLimits(**{"max_processes": 2, "max_age": 1e9, "max_turns_served": 10**9, **limits})  # type: ignore[arg-type]
        self.pool = ProcessPool[str, FakeProcess]("test", self._new, self._start, lambda key: given)
        close_after_test(self.close)

    def _new(self, key: str) -> FakeProcess:
        self.processes.append(FakeProcess())
        return self.processes[-1]

    async def _start(self, process: FakeProcess, key: str) -> None:
        if self.starts_manually:
            self.starting[process] = asyncio.get_running_loop().create_future()
            process.run()
            try:
                await self.starting[process]
            except Fault:
                await process.end()
                raise
        if self.fault is not None:
            await process.end()
            raise self.fault
        process.run()

    async def acquire(self) -> ThreadTransport:
        return await self.pool.acquire("", FakeProcess.open_channel)

    async def release(self, transport: ThreadTransport, *, finished: bool) -> None:
        await transport.release(finished=finished)

    def drain(self, process: FakeProcess) -> None:
        process.unhealthy = True
        process._note_change()

    async def acquire_later(self) -> asyncio.Task[ThreadTransport]:
        task = asyncio.create_task(self.acquire())
        await settle()
        return task

    async def close(self) -> None:
        await self.pool.close()
        assert not any(process.left for process in self.processes), "a process is left"
        assert all(process.ends or process.exit or process._child is None for process in self.processes), (
            "an end nobody awaited"
        )


def fake_process_of(transport: ThreadTransport) -> FakeProcess:
    assert isinstance(transport.process, FakeProcess)
    return transport.process


async def fault_of(asking: asyncio.Task[ThreadTransport]) -> Failure:
    with pytest.raises(Fault) as caught:
        await asking
    return caught.value.failure


@virtual
async def test_a_turn_waits_for_the_first_process_and_gets_a_channel_on_it() -> None:
    harness = PoolHarness()
    transport = await harness.acquire()
    assert [transport.process] == harness.pool.processes == harness.processes
    assert transport.process.turns_running == 1, "counted from its opening, not from its first reader"
    await harness.release(transport, finished=True)
    assert transport.process.turns_running == 0


@virtual
async def test_a_failed_start_fails_everybody_who_waits_with_its_reason() -> None:
    harness = PoolHarness(max_processes=1)
    harness.fault = Fault(NO_START)
    first, second = await harness.acquire_later(), await harness.acquire_later()
    assert await fault_of(first) == await fault_of(second) == NO_START
    assert harness.pool.readiness_failure("") == NO_START
    harness.fault = None
    await asyncio.sleep(1.1)
    assert harness.pool.readiness_failure("") is None
    transport = await harness.acquire()
    await harness.release(transport, finished=True)


@virtual
async def test_a_fault_of_the_proxys_in_a_start_leaves_nobody_waiting() -> None:
    harness = PoolHarness(max_processes=1)
    harness.fault = ZeroDivisionError("ours")
    asking = await harness.acquire_later()
    await asyncio.sleep(1)
    assert (await fault_of(asking)).kind is FaultKind.INTERNAL
    assert harness.processes[0].killed


@virtual
async def test_who_waits_is_not_failed_while_another_process_is_starting() -> None:
    harness = PoolHarness(max_processes=2, busy_from=1)
    harness.starts_manually = True
    first, second = await harness.acquire_later(), await harness.acquire_later()
    assert len(harness.starting) == 2
    bad, good = harness.processes
    harness.starting[bad].set_exception(Fault(NO_START))
    await asyncio.sleep(1)
    assert not first.done()
    harness.starting[good].set_result(None)
    for asking in (first, second):
        assert (await asking).process is good


@virtual
async def test_a_process_that_dies_is_replaced_and_who_waits_is_assigned_to_the_next() -> None:
    harness = PoolHarness(max_processes=1, max_turns_running=1)
    transport = await harness.acquire()
    waiting = await harness.acquire_later()
    assert not waiting.done()
    assert isinstance(transport.process, FakeProcess)
    transport.process.die()
    successor = (await waiting).process
    assert successor is not transport.process
    assert harness.pool.restarts == 1
    await harness.release(transport, finished=True)


@virtual
async def test_a_process_that_dies_before_the_first_reader_of_a_channel_is_reported_to_that_reader() -> None:
    class Reader:
        ended_with: Ended | None = None

        def on_messages(self, messages: object, size: int) -> None:
            raise AssertionError

        def on_end(self, ended: Ended) -> None:
            self.ended_with = ended

        def fail(self, failure: Failure) -> None:
            raise AssertionError

        def on_long_line(self, fault: object) -> None:
            raise AssertionError

    harness, reader = PoolHarness(), Reader()
    transport = await harness.acquire()
    assert isinstance(transport.process, FakeProcess)
    transport.process.die()
    transport.attach(reader)
    transport.send(b"")
    assert reader.ended_with is None, "not in the middle of its beginning"
    await settle()
    assert reader.ended_with == Ended(None, 9, "")
    await harness.release(transport, finished=True)


@virtual
@pytest.mark.parametrize("why", ["not settled", "orphans"])
async def test_an_unhealthy_process_takes_no_turn_and_goes_when_it_is_idle(why: str) -> None:
    harness = PoolHarness()
    transport, other = await harness.acquire(), await harness.acquire()
    process = transport.process
    assert isinstance(process, FakeProcess)
    assert other.process is process
    process.orphans = why == "orphans"
    await harness.release(transport, finished=why != "not settled")
    if why == "orphans":
        await asyncio.sleep(ORPHAN_SECONDS)
    next_lane = await harness.acquire()
    assert next_lane.process is not process
    assert process.alive, "a turn is still running there"
    await harness.release(other, finished=True)
    await asyncio.sleep(1)
    assert not process.alive
    assert process.ends == 1
    await harness.release(next_lane, finished=True)


@virtual
async def test_an_orphan_that_appears_only_after_the_turn_is_found() -> None:
    harness = PoolHarness()
    transport = await harness.acquire()
    process = transport.process
    assert isinstance(process, FakeProcess)
    await harness.release(transport, finished=True)
    process.orphans = True
    await asyncio.sleep(1.5)
    assert not process.alive
    assert len(harness.pool.processes) == 1, "the next one is warm already"


@virtual
async def test_orphans_are_looked_for_once_a_second_however_many_turns_end() -> None:
    harness = PoolHarness()
    for _ in range(40):  # two seconds of them
        await harness.release(await harness.acquire(), finished=True)
        await asyncio.sleep(0.05)
    [process] = harness.processes
    assert 1 <= process.orphan_checks <= 3


@virtual
async def test_the_turn_that_ended_just_before_a_check_for_orphans_gets_another() -> None:
    harness = PoolHarness()
    first, second = await harness.acquire(), await harness.acquire()
    await harness.release(first, finished=True)
    await asyncio.sleep(0.9 * ORPHAN_SECONDS)
    await harness.release(second, finished=True)
    await asyncio.sleep(0.5 * ORPHAN_SECONDS)
    [process] = harness.processes
    assert process.orphan_checks == 1
    process.orphans = True  # the agent took so long to fail to end it
    await asyncio.sleep(ORPHAN_SECONDS)
    assert not process.alive


@virtual
async def test_a_process_is_ended_once_however_often_the_pool_maintains_itself() -> None:
    harness = PoolHarness()
    transport = await harness.acquire()
    process = transport.process
    assert isinstance(process, FakeProcess)
    harness.drain(process)
    await harness.release(transport, finished=True)
    for _ in range(5):
        other = await harness.acquire()
        await harness.release(other, finished=True)
    await asyncio.sleep(1)
    assert process.ends == 1


@virtual
async def test_an_idle_thread_is_ended_when_its_process_takes_no_more_turns() -> None:
    told: list[Ended] = []

    class Reader:
        def on_messages(self, messages: object, size: int) -> None:
            raise AssertionError

        def on_end(self, ended: Ended) -> None:
            told.append(ended)

        def fail(self, failure: Failure) -> None:
            raise AssertionError

        def on_long_line(self, fault: object) -> None:
            raise AssertionError

    harness = PoolHarness()
    resting, busy = await harness.acquire(), await harness.acquire()
    resting.attach(Reader())
    resting.set_idle(True)
    assert resting.process.turns_running == 1
    harness.drain(fake_process_of(resting))
    assert len(told) == 1
    for transport in (resting, busy):
        await harness.release(transport, finished=True)


@virtual
async def test_a_client_that_leaves_while_it_waits_is_dropped() -> None:
    harness = PoolHarness(max_processes=1)
    harness.starts_manually = True
    leaving, staying = await harness.acquire_later(), await harness.acquire_later()
    leaving.cancel()
    await settle()
    harness.starting[harness.processes[0]].set_result(None)
    transport = await staying
    assert transport.process.turns_running == 1


@virtual
async def test_a_turn_is_refused_when_too_many_wait() -> None:
    harness = PoolHarness(max_processes=1, max_waiting=1)
    harness.starts_manually = True
    waiting = await harness.acquire_later()
    refused = await fault_of(await harness.acquire_later())
    assert (refused.message, refused.retry_after) == ("1 turns are already waiting for the agent", 1)
    harness.starting[harness.processes[0]].set_result(None)
    await waiting


@virtual
async def test_a_client_that_leaves_at_the_moment_of_its_assignment_gives_the_channel_back() -> None:
    harness = PoolHarness(max_processes=1)
    harness.starts_manually = True
    leaving = await harness.acquire_later()
    harness.starting[harness.processes[0]].set_result(None)
    while not harness.pool.processes:
        await asyncio.sleep(0)
    assert harness.pool.processes[0].turns_running == 1
    leaving.cancel()
    await settle()
    assert leaving.cancelled()
    assert harness.pool.processes[0].turns_running == 0


@virtual
@pytest.mark.parametrize("moment", [lambda: None, settle], ids=["before its first step", "in the middle"])
async def test_a_close_while_a_process_starts_leaves_none_and_fails_who_waits(
    moment: Callable[[], object],
) -> None:
    harness = PoolHarness()
    harness.starts_manually = True
    asking = asyncio.create_task(harness.acquire())
    await asyncio.sleep(0)
    if moment is settle:
        await settle()
        assert harness.starting
    await harness.close()
    assert (await fault_of(asking)).kind is FaultKind.STOPPING
    with pytest.raises(Fault):
        await harness.acquire()
    assert harness.pool.readiness_failure("") is None, "a start that was broken off is no failure"
    assert all(process.killed for process in harness.starting), "it serves nobody, and is not waited for"


@virtual
async def test_a_close_while_a_process_ends_waits_for_it() -> None:
    harness = PoolHarness()
    transport = await harness.acquire()
    harness.drain(fake_process_of(transport))
    await harness.release(transport, finished=True)
    await harness.close()
    await harness.pool.close()


@virtual
async def test_more_turns_than_one_process_should_have_start_another_ahead() -> None:
    harness = PoolHarness(busy_from=2)
    transports = [await harness.acquire() for _ in range(3)]
    await settle()
    assert len(harness.pool.processes) == 2
    transports.append(await harness.acquire())
    assert sorted(process.turns_running for process in harness.pool.processes) == [1, 3]
    for transport in transports:
        await harness.release(transport, finished=True)


@virtual
async def test_many_that_wait_are_spread_over_what_there_is() -> None:
    """Each is counted before the next is placed."""
    harness = PoolHarness(max_processes=2, max_turns_running=2, busy_from=1)
    harness.starts_manually = True
    asking = [await harness.acquire_later() for _ in range(4)]
    for process in list(harness.starting):
        harness.starting[process].set_result(None)
    await settle()
    for task in asking:
        await task
    assert [process.turns_running for process in harness.pool.processes] == [2, 2]
