"""The pool performs its plan: whoever waits is placed or told why not, and no process is lost or left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from codex_proxy.agents.base import Ended
from codex_proxy.agents.codex_app_server.plan import PoolLimits
from codex_proxy.agents.codex_app_server.pool import ORPHAN_SECONDS, Pool
from codex_proxy.agents.codex_app_server.process import AppServerProcess, ThreadTransport
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Exit
from tests.runs.virtual import settled, virtual

NO_START = Failure(kind=FaultKind.SPAWN_FAILED, message="It will not start.")


class PaperChild:
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
        super().__init__("test", "0")
        self.ends = 0
        self.killed = False
        self.orphans = False
        self.held = 0
        self.weighed = 0
        self.looks = 0

    def run(self) -> None:
        self._child = PaperChild(self)  # type: ignore[assignment]

    def die(self) -> None:
        if self.exit is None and self._child is not None:
            self.ended(Exit(None, 9, ""))

    @property
    def has_orphans(self) -> bool:
        self.looks += 1
        return self.orphans

    @property
    def memory(self) -> int:
        self.weighed += 1
        return self.held

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


class Clock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def epoch(self) -> float:
        return 0.0


class Yard:
    """A pool with processes that start when they are told to, or as `outcomes` says."""

    def __init__(self, **limits: float) -> None:
        self.processes: list[FakeProcess] = []
        self.starting: dict[FakeProcess, asyncio.Future[None]] = {}
        self.by_hand = False
        self.fault: Exception | None = None
        given = PoolLimits(**{"max_processes": 2, "max_age": 1e9, "max_turns_served": 10**9, **limits})  # type: ignore[arg-type]
        self.pool = Pool(self._new, self._start, given, Clock())

    def _new(self) -> AppServerProcess:
        self.processes.append(FakeProcess())
        return self.processes[-1]

    async def _start(self, process: AppServerProcess) -> None:
        assert isinstance(process, FakeProcess)
        if self.by_hand:
            self.starting[process] = asyncio.get_running_loop().create_future()
            process.run()
            try:
                await self.starting[process]
            except asyncio.CancelledError:
                process.kill()
                raise
            except Fault:
                await process.end()
                raise
        if self.fault is not None:
            await process.end()
            raise self.fault
        process.run()

    async def asked(self) -> asyncio.Task[ThreadTransport]:
        task = asyncio.create_task(self.pool.transport())
        await settled()
        return task

    async def close(self) -> None:
        await self.pool.close()
        assert not any(process.left for process in self.processes), "a process is left"
        assert all(process.ends or process.exit or process._child is None for process in self.processes), (
            "an end nobody awaited"
        )


async def fault_of(asking: asyncio.Task[ThreadTransport]) -> Failure:
    with pytest.raises(Fault) as caught:
        await asking
    return caught.value.failure


@virtual
async def test_a_turn_waits_for_the_first_process_and_gets_a_lane_on_it() -> None:
    yard = Yard()
    lane = await yard.pool.transport()
    assert [lane.process] == yard.pool.processes == yard.processes
    assert lane.process.turns == 1, "counted from its opening, not from its first reader"
    await yard.pool.release(lane, finished=True)
    assert lane.process.turns == 0
    await yard.close()


@virtual
async def test_a_failed_start_fails_everybody_who_waits_with_its_reason() -> None:
    yard = Yard(max_processes=1)
    yard.fault = Fault(NO_START)
    first, second = await yard.asked(), await yard.asked()
    assert await fault_of(first) == await fault_of(second) == NO_START
    assert yard.pool.last_failure == yard.pool.trouble() == NO_START
    yard.fault = None
    await asyncio.sleep(1.1)
    assert yard.pool.trouble() is None
    lane = await yard.pool.transport()
    assert yard.pool.last_failure is None
    await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_a_fault_of_ours_in_a_start_leaves_nobody_waiting() -> None:
    yard = Yard(max_processes=1)
    yard.fault = ZeroDivisionError("ours")
    asking = await yard.asked()
    await asyncio.sleep(1)
    assert (await fault_of(asking)).kind is FaultKind.INTERNAL
    assert yard.processes[0].killed
    await yard.close()


@virtual
async def test_who_waits_is_not_failed_while_another_process_is_starting() -> None:
    yard = Yard(max_processes=2, busy_from=1)
    yard.by_hand = True
    first, second = await yard.asked(), await yard.asked()
    assert len(yard.starting) == 2
    bad, good = yard.processes
    yard.starting[bad].set_exception(Fault(NO_START))
    await asyncio.sleep(1)
    assert not first.done()
    yard.starting[good].set_result(None)
    for asking in (first, second):
        assert (await asking).process is good
    await yard.close()


@virtual
async def test_a_process_that_dies_is_replaced_and_who_waits_is_placed_on_the_next() -> None:
    yard = Yard(max_processes=1, max_turns_running=1)
    lane = await yard.pool.transport()
    waiting = await yard.asked()
    assert not waiting.done()
    assert isinstance(lane.process, FakeProcess)
    lane.process.die()
    successor = (await waiting).process
    assert successor is not lane.process
    assert yard.pool.restarts == 1
    await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_a_process_that_dies_between_the_opening_of_a_lane_and_its_first_reader_tells_that_reader() -> (
    None
):
    class Reader:
        ended_with: Ended | None = None

        def received(self, messages: object, size: int) -> None:
            raise AssertionError

        def ended(self, ended: Ended) -> None:
            self.ended_with = ended

        def fail(self, failure: Failure) -> None:
            raise AssertionError

    yard, reader = Yard(), Reader()
    lane = await yard.pool.transport()
    assert isinstance(lane.process, FakeProcess)
    lane.process.die()
    lane.attach(reader)
    lane.send(b"")
    assert reader.ended_with is None, "not in the middle of its beginning"
    await settled()
    assert reader.ended_with == Ended(None, 9, "")
    await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
@pytest.mark.parametrize("why", ["not settled", "orphans"])
async def test_a_suspect_process_takes_no_turn_and_goes_when_it_is_idle(why: str) -> None:
    yard = Yard()
    lane, other = await yard.pool.transport(), await yard.pool.transport()
    process = lane.process
    assert isinstance(process, FakeProcess)
    assert other.process is process
    process.orphans = why == "orphans"
    await yard.pool.release(lane, finished=why != "not settled")
    if why == "orphans":
        await asyncio.sleep(ORPHAN_SECONDS)
    next_lane = await yard.pool.transport()
    assert next_lane.process is not process
    assert process.alive, "a turn is still running there"
    await yard.pool.release(other, finished=True)
    await asyncio.sleep(1)
    assert not process.alive
    assert process.ends == 1
    await yard.pool.release(next_lane, finished=True)
    await yard.close()


@virtual
async def test_what_is_left_behind_only_after_the_turn_is_found_by_itself() -> None:
    yard = Yard()
    lane = await yard.pool.transport()
    process = lane.process
    assert isinstance(process, FakeProcess)
    await yard.pool.release(lane, finished=True)
    process.orphans = True
    await asyncio.sleep(1.5)
    assert not process.alive
    assert len(yard.pool.processes) == 1, "the next one is warm already"
    await yard.close()


@virtual
async def test_what_is_left_behind_is_looked_for_once_a_second_however_many_turns_end() -> None:
    yard = Yard()
    for _ in range(40):  # two seconds of them
        await yard.pool.release(await yard.pool.transport(), finished=True)
        await asyncio.sleep(0.05)
    [process] = yard.processes
    assert 1 <= process.looks <= 3
    await yard.close()


@virtual
async def test_the_turn_that_ended_just_before_a_look_gets_one_of_its_own() -> None:
    yard = Yard()
    first, second = await yard.pool.transport(), await yard.pool.transport()
    await yard.pool.release(first, finished=True)
    await asyncio.sleep(0.9 * ORPHAN_SECONDS)
    await yard.pool.release(second, finished=True)
    await asyncio.sleep(0.5 * ORPHAN_SECONDS)
    [process] = yard.processes
    assert process.looks == 1
    process.orphans = True  # the agent took so long to fail to end it
    await asyncio.sleep(ORPHAN_SECONDS)
    assert not process.alive
    await yard.close()


@virtual
async def test_an_ending_process_is_ended_once_however_often_the_pool_looks() -> None:
    yard = Yard()
    lane = await yard.pool.transport()
    process = lane.process
    assert isinstance(process, FakeProcess)
    yard.pool.retire(process)
    await yard.pool.release(lane, finished=True)
    for _ in range(5):
        other = await yard.pool.transport()
        await yard.pool.release(other, finished=True)
    await asyncio.sleep(1)
    assert process.ends == 1
    await yard.close()


@virtual
async def test_a_thread_that_rests_is_told_when_its_process_takes_no_more_turns() -> None:
    told: list[Ended] = []

    class Reader:
        def received(self, messages: object, size: int) -> None:
            raise AssertionError

        def ended(self, ended: Ended) -> None:
            told.append(ended)

        def fail(self, failure: Failure) -> None:
            raise AssertionError

    yard = Yard()
    resting, busy = await yard.pool.transport(), await yard.pool.transport()
    resting.attach(Reader())
    resting.set_idle(True)
    assert resting.process.turns == 1
    yard.pool.retire(resting.process)
    assert len(told) == 1
    for lane in (resting, busy):
        await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    yard = Yard(max_processes=1)
    yard.by_hand = True
    leaving, staying = await yard.asked(), await yard.asked()
    leaving.cancel()
    await settled()
    yard.starting[yard.processes[0]].set_result(None)
    lane = await staying
    assert lane.process.turns == 1
    await yard.close()


@virtual
async def test_a_client_that_leaves_in_the_moment_of_its_placing_gives_the_lane_back() -> None:
    yard = Yard(max_processes=1)
    yard.by_hand = True
    leaving = await yard.asked()
    yard.starting[yard.processes[0]].set_result(None)
    while not yard.pool.processes:
        await asyncio.sleep(0)
    assert yard.pool.processes[0].turns == 1
    leaving.cancel()
    await settled()
    assert leaving.cancelled()
    assert yard.pool.processes[0].turns == 0
    await yard.close()


@virtual
@pytest.mark.parametrize("moment", [lambda: None, settled], ids=["before its first step", "in the middle"])
async def test_a_close_while_a_process_starts_leaves_none_and_tells_who_waits(
    moment: Callable[[], object],
) -> None:
    yard = Yard()
    yard.by_hand = True
    asking = asyncio.create_task(yard.pool.transport())
    await asyncio.sleep(0)
    if moment is settled:
        await settled()
        assert yard.starting
    await yard.close()
    assert (await fault_of(asking)).kind is FaultKind.STOPPING
    with pytest.raises(Fault):
        await yard.pool.transport()
    assert yard.pool.last_failure is None, "a start that was broken off is no failure"


@virtual
async def test_a_close_while_a_process_ends_waits_for_it() -> None:
    yard = Yard()
    lane = await yard.pool.transport()
    yard.pool.retire(lane.process)
    await yard.pool.release(lane, finished=True)
    await yard.close()
    await yard.pool.close()


@virtual
async def test_more_turns_than_one_process_should_have_start_another_ahead() -> None:
    yard = Yard(busy_from=2)
    lanes = [await yard.pool.transport() for _ in range(3)]
    await settled()
    assert len(yard.pool.processes) == 2
    lanes.append(await yard.pool.transport())
    assert sorted(process.turns for process in yard.pool.processes) == [1, 3]
    for lane in lanes:
        await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_many_that_wait_are_spread_over_what_there_is() -> None:
    """Each is counted before the next is placed."""
    yard = Yard(max_processes=2, max_turns_running=2, busy_from=1)
    yard.by_hand = True
    asking = [await yard.asked() for _ in range(4)]
    for process in list(yard.starting):
        yard.starting[process].set_result(None)
    await settled()
    for task in asking:
        await task
    assert [process.turns for process in yard.pool.processes] == [2, 2]
    await yard.close()
