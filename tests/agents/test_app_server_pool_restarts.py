"""A pool whose processes fail: they are started again after pauses, the trouble is told, and it passes by itself."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from codex_proxy.agents.codex_app_server.plan import FIRST_PAUSE, LOOP, MAX_PAUSE, STEADY_SECONDS
from codex_proxy.agents.codex_app_server.pool import MEMORY_SECONDS
from codex_proxy.agents.codex_app_server.process import ThreadTransport
from codex_proxy.core.faults import Fault, FaultKind
from tests.agents.test_app_server_pool import NO_START, FakeProcess, Yard
from tests.runs.virtual import settled, virtual


def paper(lane: ThreadTransport) -> FakeProcess:
    assert isinstance(lane.process, FakeProcess)
    return lane.process


async def warm(**limits: float) -> Yard:
    yard = Yard(**limits)
    await yard.pool.warm()
    return yard


async def crash(yard: Yard, times: int = 1) -> None:
    """Ends the newest process, as soon as it is there."""
    for _ in range(times):
        while not yard.pool.processes:
            await asyncio.sleep(0.1)
        process = yard.pool.processes[-1]
        assert isinstance(process, FakeProcess)
        process.die()
        await settled()


@virtual
async def test_a_process_that_ends_is_replaced_at_once_and_nobody_has_to_ask_for_it() -> None:
    yard = await warm()
    await crash(yard)
    assert [process.alive for process in yard.pool.processes] == [True]
    assert yard.pool.trouble() is None
    await yard.close()


@virtual
async def test_a_process_takes_only_its_own_turns_along() -> None:
    yard = await warm(busy_from=1)
    lane = await yard.pool.transport()
    await settled()
    other = await yard.pool.transport()
    assert other.process is not lane.process
    paper(lane).die()
    await settled()
    assert other.process.alive
    assert other.process.turns == 1
    for each in (lane, other):
        await yard.pool.release(each, finished=True)
    await yard.close()


@virtual
async def test_processes_that_keep_ending_are_started_after_pauses_that_grow_up_to_a_limit() -> None:
    yard = await warm()
    loop = asyncio.get_running_loop()
    pauses: list[float] = []
    for _ in range(9):
        began = loop.time()
        await crash(yard)
        while not yard.pool.processes:
            await asyncio.sleep(0.1)
        pauses.append(round(loop.time() - began, 1))
    assert pauses == pytest.approx([0, 1, 2, 4, 8, 16, MAX_PAUSE, MAX_PAUSE, MAX_PAUSE], abs=0.3)
    assert yard.pool.restarts == 9
    await yard.close()


@virtual
async def test_who_comes_in_a_pause_is_told_why_and_when_to_come_back() -> None:
    yard = await warm()
    await crash(yard, 3)
    with pytest.raises(Fault, match=r"keeps ending by itself.*\(signal 9\)") as caught:
        await yard.pool.transport()
    failure = caught.value.failure
    assert failure.kind is FaultKind.UNAVAILABLE
    assert failure.retry_after == pytest.approx(2.0, abs=0.2)
    assert yard.pool.trouble() is not None, "a turn would not work just now"
    await asyncio.sleep(failure.retry_after or 0)
    lane = await yard.pool.transport()
    await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_who_waits_when_the_pause_begins_is_told_too() -> None:
    yard = await warm(max_processes=1, max_turns_running=1)
    await crash(yard, 2)
    await asyncio.sleep(1.1)
    lane = await yard.pool.transport()
    waiting = await yard.asked()
    paper(lane).die()
    with pytest.raises(Fault, match="keeps ending"):
        await waiting
    await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_a_pause_of_the_pool_does_not_stop_a_process_that_serves() -> None:
    yard = await warm(busy_from=1)
    first = await yard.pool.transport()
    await settled()
    for _ in range(3):
        flapping = yard.pool.processes[-1]
        assert flapping is not first.process
        assert isinstance(flapping, FakeProcess)
        flapping.die()
        while len(yard.pool.processes) < 2:
            await asyncio.sleep(0.1)
    await crash(yard)
    second = await yard.pool.transport()
    assert second.process is first.process
    for each in (first, second):
        await yard.pool.release(each, finished=True)
    await yard.close()


@virtual
async def test_a_loop_of_crashes_is_trouble_until_a_process_has_been_steady() -> None:
    yard = await warm()
    await crash(yard, LOOP)
    while not yard.pool.processes:
        await asyncio.sleep(0.1)
    trouble = yard.pool.trouble()
    assert trouble is not None, "it is up, but so were those before it"
    assert "keeps ending" in trouble.message
    await asyncio.sleep(STEADY_SECONDS)
    assert yard.pool.trouble() is None
    await crash(yard)
    assert yard.pool.processes, "the first failure again: the next is started at once"
    await yard.close()


@virtual
async def test_a_turn_that_ends_well_ends_the_loop() -> None:
    yard = await warm()
    await crash(yard, LOOP)
    while not yard.pool.processes:
        await asyncio.sleep(0.1)
    lane = await yard.pool.transport()
    lane.used = True
    await yard.pool.release(lane, finished=True)
    assert yard.pool.trouble() is None
    await yard.close()


@virtual
@pytest.mark.parametrize("how", ["unused", "unsettled", "dead"])
async def test_a_place_that_was_not_put_to_use_ends_no_loop(how: str) -> None:
    yard = await warm()
    await crash(yard, LOOP)
    while not yard.pool.processes:
        await asyncio.sleep(0.1)
    lane = await yard.pool.transport()
    lane.used = how != "unused"
    if how == "dead":
        paper(lane).die()
    await yard.pool.release(lane, finished=how != "unsettled")
    assert yard.pool.trouble() is not None
    await yard.close()


@virtual
async def test_starts_that_fail_are_tried_again_without_being_asked_for() -> None:
    yard = Yard()
    yard.fault = Fault(NO_START)
    with pytest.raises(Fault):
        await yard.pool.transport()
    await settled()
    tried = len(yard.processes)
    assert tried == 2, "the second at once"
    await asyncio.sleep(60)
    assert 4 < len(yard.processes) < 10
    with pytest.raises(Fault, match="will not start") as caught:
        await yard.pool.transport()
    assert caught.value.failure.kind is FaultKind.SPAWN_FAILED
    assert (caught.value.failure.retry_after or 0) > 0
    yard.fault = None
    await asyncio.sleep(MAX_PAUSE)
    assert yard.pool.trouble() is None
    await yard.close()


@virtual
async def test_a_process_that_has_grown_too_large_gets_a_successor_before_it_goes() -> None:
    yard = await warm(max_memory=1000)
    lane = await yard.pool.transport()
    old = paper(lane)
    old.held = 1000
    yard.by_hand = True
    await asyncio.sleep(MEMORY_SECONDS + 1)
    await settled()
    assert yard.pool.processes == [old], "it serves until the next one is ready"
    yard.starting[yard.processes[-1]].set_result(None)
    await settled()
    successor = await yard.pool.transport()
    assert successor.process is yard.processes[-1]
    assert old.alive, "its turn goes on"
    await yard.pool.release(lane, finished=True)
    await asyncio.sleep(1)
    assert not old.alive
    assert yard.pool.restarts == 0, "it was asked to"
    await yard.pool.release(successor, finished=True)
    await yard.close()


@virtual
async def test_memory_is_looked_at_seldom_however_many_turns_there_are() -> None:
    yard = await warm()
    for _ in range(200):
        lane = await yard.pool.transport()
        await yard.pool.release(lane, finished=True)
        await asyncio.sleep(0.5)
    assert yard.processes[0].weighed <= 100 / MEMORY_SECONDS + 1
    await yard.close()


@virtual
async def test_a_thread_that_is_kept_after_its_turn_has_ended_well_too() -> None:
    yard = await warm()
    await crash(yard, LOOP)
    while not yard.pool.processes:
        await asyncio.sleep(0.1)
    lane = await yard.pool.transport()
    lane.attach(Nobody())
    lane.set_idle(True)
    assert yard.pool.trouble() is None
    await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_a_process_that_is_ended_on_purpose_is_no_failure() -> None:
    yard = await warm()
    for _ in range(LOOP):
        yard.pool.retire(yard.pool.processes[-1])
        await asyncio.sleep(0.1)
    assert len(yard.processes) == LOOP + 1, "each of them was replaced at once"
    assert yard.pool.trouble() is None
    await yard.close()


@virtual
async def test_a_process_that_may_never_answer_again_gives_up_the_turns_that_it_has_said_nothing_on() -> None:
    yard = await warm()
    lanes = [await yard.pool.transport() for _ in range(4)]
    readers = [Nobody() for _ in lanes]
    for lane, reader in zip(lanes[:3], readers, strict=False):
        lane.attach(reader)
    heard, unheard, stuck, late = lanes
    process = paper(heard)
    process.received(b'{"id":"%d.1","result":{}}\n' % heard.number)
    await yard.pool.release(stuck, finished=False)
    assert [reader.ends for reader in readers] == [0, 1, 0, 0]
    late.attach(readers[3])
    await settled()
    assert [reader.ends for reader in readers] == [0, 1, 0, 1]
    assert process.alive, "it ends when the turn is over that it has begun"
    successor = await yard.pool.transport()
    assert successor.process is not process
    for lane in (heard, unheard, late, successor):
        await yard.pool.release(lane, finished=True)
    await yard.close()


@virtual
async def test_processes_that_end_with_the_pool_have_not_failed() -> None:
    yard = await warm()
    with structlog.testing.capture_logs() as logged:
        await yard.close()
    assert logged == []
    assert yard.pool.restarts == 0


class Nobody:
    """A reader who only counts how often it is told the end."""

    def __init__(self) -> None:
        self.ends = 0

    def received(self, messages: object, size: int) -> None: ...

    def ended(self, ended: object) -> None:
        self.ends += 1

    def fail(self, failure: object) -> None: ...


async def lane_after_pauses(yard: Yard) -> tuple[ThreadTransport, list[float]]:
    """A lane, as soon as there is one, and the pauses that were told before."""
    pauses: list[float] = []
    while True:
        try:
            return await yard.pool.transport(), pauses
        except Fault as fault:
            pauses.append(fault.failure.retry_after or 0.0)
        await asyncio.sleep(pauses[-1])


@virtual
async def test_one_clients_turns_that_end_processes_stop_nobody_else_for_longer_than_a_second() -> None:
    yard = await warm()
    told: list[float] = []
    for _ in range(7):
        lane, pauses = await lane_after_pauses(yard)
        told += pauses
        paper(lane).die()
        await yard.pool.release(lane, finished=True)
        await settled()
    other, pauses = await lane_after_pauses(yard)
    assert max(told + pauses) <= FIRST_PAUSE
    await yard.pool.release(other, finished=True)
    await yard.close()
