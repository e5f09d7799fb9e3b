"""A pool whose processes fail: they are started again after pauses, the trouble is told, and it passes by itself."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from codex_proxy.agents.codex_app_server.agent import ThreadTransport
from codex_proxy.agents.process_pool import pool
from codex_proxy.agents.process_pool.plan import (
    FIRST_PAUSE_SECONDS,
    LOOP_FAILURES,
    MAX_PAUSE_SECONDS,
    STABLE_SECONDS,
)
from codex_proxy.agents.process_pool.pool import MAINTENANCE_SECONDS, MEMORY_SECONDS
from codex_proxy.core.faults import Fault, FaultKind
from tests.agents.test_process_pool import NO_START, FakeProcess, PoolHarness, fake_process_of
from tests.runs.virtual import settle, virtual


async def warm(**limits: float) -> PoolHarness:
    harness = PoolHarness(**limits)
    await harness.pool.warm("")
    return harness


async def crash(harness: PoolHarness, times: int = 1) -> None:
    """Ends the newest process, as soon as it is there."""
    for _ in range(times):
        while not harness.pool.processes:
            await asyncio.sleep(0.1)
        process = harness.pool.processes[-1]
        assert isinstance(process, FakeProcess)
        process.die()
        await settle()


@virtual
async def test_a_process_that_ends_is_replaced_at_once_and_nobody_has_to_ask_for_it() -> None:
    harness = await warm()
    await crash(harness)
    assert [process.alive for process in harness.pool.processes] == [True]
    assert harness.pool.readiness_failure("") is None


@virtual
async def test_the_end_of_a_process_fails_only_its_own_turns() -> None:
    harness = await warm(busy_from=1)
    transport = await harness.acquire()
    await settle()
    other = await harness.acquire()
    assert other.process is not transport.process
    fake_process_of(transport).die()
    await settle()
    assert other.process.alive
    assert other.process.turns_running == 1
    for each in (transport, other):
        await harness.release(each, finished=True)


@virtual
async def test_processes_that_keep_ending_are_started_after_pauses_that_grow_up_to_a_limit() -> None:
    harness = await warm()
    loop = asyncio.get_running_loop()
    pauses: list[float] = []
    for _ in range(9):
        began = loop.time()
        await crash(harness)
        while not harness.pool.processes:
            await asyncio.sleep(0.1)
        pauses.append(round(loop.time() - began, 1))
    assert pauses == pytest.approx(
        [0, 1, 2, 4, 8, 16, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS], abs=0.3
    )
    assert harness.pool.restarts == 9


@virtual
async def test_who_comes_in_a_pause_gets_the_reason_and_when_to_come_back() -> None:
    harness = await warm()
    await crash(harness, 3)
    with pytest.raises(
        Fault, match=r"keeps exiting.*\(signal 9: killed, perhaps for lack of memory\)"
    ) as caught:
        await harness.acquire()
    failure = caught.value.failure
    assert failure.kind is FaultKind.UNAVAILABLE
    assert failure.retry_after == pytest.approx(2.0, abs=0.2)
    assert harness.pool.readiness_failure("") is not None, "a turn would not work just now"
    await asyncio.sleep(failure.retry_after or 0)
    transport = await harness.acquire()
    await harness.release(transport, finished=True)


@virtual
async def test_who_waits_when_the_pause_begins_gets_the_reason_too() -> None:
    harness = await warm(max_processes=1, max_turns_running=1)
    await crash(harness, 2)
    await asyncio.sleep(1.1)
    transport = await harness.acquire()
    waiting = await harness.acquire_later()
    fake_process_of(transport).die()
    with pytest.raises(Fault, match="keeps exiting"):
        await waiting
    await harness.release(transport, finished=True)


@virtual
async def test_a_pause_of_the_pool_does_not_stop_a_process_that_serves() -> None:
    harness = await warm(busy_from=1)
    first = await harness.acquire()
    await settle()
    for _ in range(3):
        flapping = harness.pool.processes[-1]
        assert flapping is not first.process
        assert isinstance(flapping, FakeProcess)
        flapping.die()
        while len(harness.pool.processes) < 2:
            await asyncio.sleep(0.1)
    await crash(harness)
    second = await harness.acquire()
    assert second.process is first.process
    for each in (first, second):
        await harness.release(each, finished=True)


@virtual
async def test_a_loop_of_crashes_is_trouble_until_a_process_has_been_stable() -> None:
    harness = await warm()
    await crash(harness, LOOP_FAILURES)
    while not harness.pool.processes:
        await asyncio.sleep(0.1)
    trouble = harness.pool.readiness_failure("")
    assert trouble is not None, "it is up, but so were those before it"
    assert "keeps exiting" in trouble.message
    await asyncio.sleep(STABLE_SECONDS)
    assert harness.pool.readiness_failure("") is None
    await crash(harness)
    assert harness.pool.processes, "the first failure again: the next is started at once"


@virtual
async def test_a_turn_that_ends_well_ends_the_loop() -> None:
    harness = await warm()
    await crash(harness, LOOP_FAILURES)
    while not harness.pool.processes:
        await asyncio.sleep(0.1)
    transport = await harness.acquire()
    transport.has_begun = True
    await harness.release(transport, finished=True)
    assert harness.pool.readiness_failure("") is None


@virtual
@pytest.mark.parametrize("how", ["unused", "unsettled", "dead"])
async def test_a_channel_that_was_not_used_ends_no_loop(how: str) -> None:
    harness = await warm()
    await crash(harness, LOOP_FAILURES)
    while not harness.pool.processes:
        await asyncio.sleep(0.1)
    transport = await harness.acquire()
    transport.has_begun = how != "unused"
    if how == "dead":
        fake_process_of(transport).die()
    await harness.release(transport, finished=how != "unsettled")
    assert harness.pool.readiness_failure("") is not None


@virtual
async def test_starts_that_fail_are_tried_again_without_being_asked_for() -> None:
    harness = PoolHarness()
    harness.fault = Fault(NO_START)
    with pytest.raises(Fault):
        await harness.acquire()
    await settle()
    tried = len(harness.processes)
    assert tried == 2, "the second at once"
    await asyncio.sleep(60)
    assert 4 < len(harness.processes) < 10
    with pytest.raises(Fault, match="will not start") as caught:
        await harness.acquire()
    assert caught.value.failure.kind is FaultKind.SPAWN_FAILED
    assert (caught.value.failure.retry_after or 0) > 0
    harness.fault = None
    await asyncio.sleep(MAX_PAUSE_SECONDS)
    assert harness.pool.readiness_failure("") is None


@virtual
async def test_a_process_that_has_grown_too_large_gets_a_successor_before_it_goes() -> None:
    harness = await warm(max_memory=1000)
    transport = await harness.acquire()
    old = fake_process_of(transport)
    old.memory_held = 1000
    harness.starts_manually = True
    await asyncio.sleep(MEMORY_SECONDS + 1)
    await settle()
    assert harness.pool.processes == [old], "it serves until the next one is ready"
    harness.starting[harness.processes[-1]].set_result(None)
    await settle()
    successor = await harness.acquire()
    assert successor.process is harness.processes[-1]
    assert old.alive, "its turn goes on"
    await harness.release(transport, finished=True)
    await asyncio.sleep(1)
    assert not old.alive
    assert harness.pool.restarts == 0, "it was asked to"
    await harness.release(successor, finished=True)


@virtual
async def test_memory_is_measured_seldom_however_many_turns_there_are() -> None:
    harness = await warm()
    for _ in range(200):
        transport = await harness.acquire()
        await harness.release(transport, finished=True)
        await asyncio.sleep(0.5)
    assert harness.processes[0].memory_reads <= 100 / MEMORY_SECONDS + 1


@virtual
async def test_a_thread_that_is_kept_after_its_turn_has_ended_well_too() -> None:
    harness = await warm()
    await crash(harness, LOOP_FAILURES)
    while not harness.pool.processes:
        await asyncio.sleep(0.1)
    transport = await harness.acquire()
    transport.attach(Nobody())
    transport.set_idle(True)
    assert harness.pool.readiness_failure("") is None
    await harness.release(transport, finished=True)


@virtual
async def test_a_process_that_is_ended_on_purpose_is_no_failure() -> None:
    harness = await warm()
    for _ in range(LOOP_FAILURES):
        harness.drain(harness.pool.processes[-1])
        await asyncio.sleep(0.1)
    assert len(harness.processes) == LOOP_FAILURES + 1, "each of them was replaced at once"
    assert harness.pool.readiness_failure("") is None


@virtual
async def test_a_process_that_may_never_answer_again_gives_up_the_turns_on_which_it_has_sent_nothing() -> (
    None
):
    harness = await warm()
    transports = [await harness.acquire() for _ in range(4)]
    readers = [Nobody() for _ in transports]
    for transport, reader in zip(transports[:3], readers, strict=False):
        transport.attach(reader)
    heard, unheard, stuck, late = transports
    process = fake_process_of(heard)
    process.on_output(b'{"id":"%d.1","result":{}}\n' % heard.channel)
    await harness.release(stuck, finished=False)
    assert [reader.ends for reader in readers] == [0, 1, 0, 0]
    late.attach(readers[3])
    await settle()
    assert [reader.ends for reader in readers] == [0, 1, 0, 1]
    assert process.alive, "it ends when the turn is over that it has begun"
    successor = await harness.acquire()
    assert successor.process is not process
    for transport in (heard, unheard, late, successor):
        await harness.release(transport, finished=True)


@virtual
async def test_processes_that_end_with_the_pool_have_not_failed() -> None:
    harness = await warm()
    with structlog.testing.capture_logs() as logged:
        await harness.close()
    assert logged == []
    assert harness.pool.restarts == 0


class Nobody:
    """A reader who only counts how often it is told the end."""

    def __init__(self) -> None:
        self.ends = 0

    def on_messages(self, messages: object, size: int) -> None: ...

    def on_end(self, ended: object) -> None:
        self.ends += 1

    def fail(self, failure: object) -> None: ...

    def on_long_line(self, fault: object) -> None: ...


async def lane_after_pauses(harness: PoolHarness) -> tuple[ThreadTransport, list[float]]:
    """A lane, as soon as there is one, and the pauses that were told before."""
    pauses: list[float] = []
    while True:
        try:
            return await harness.acquire(), pauses
        except Fault as fault:
            pauses.append(fault.failure.retry_after or 0.0)
        await asyncio.sleep(pauses[-1])


@virtual
async def test_one_clients_turns_that_end_processes_stop_nobody_else_for_longer_than_a_second() -> None:
    harness = await warm()
    told: list[float] = []
    for _ in range(7):
        transport, pauses = await lane_after_pauses(harness)
        told += pauses
        fake_process_of(transport).die()
        await harness.release(transport, finished=True)
        await settle()
    other, pauses = await lane_after_pauses(harness)
    assert max(told + pauses) <= FIRST_PAUSE_SECONDS
    await harness.release(other, finished=True)


@virtual
async def test_an_exception_in_one_look_at_the_processes_leaves_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await warm()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    looks: list[float] = []

    def fail(*_: object) -> None:
        looks.append(loop.time())
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(pool, "maintain", fail)
        await asyncio.sleep(2.5 * MAINTENANCE_SECONDS)
    assert len(looks) == 2
    (process,) = harness.pool.processes
    assert isinstance(process, FakeProcess)
    process.on_change = None  # nobody tells of its end
    process.die()
    await asyncio.sleep(2 * MAINTENANCE_SECONDS)
    assert [each.alive for each in harness.pool.processes] == [True]
