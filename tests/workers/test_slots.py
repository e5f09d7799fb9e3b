"""Waiting for a slot: who is let in, who gives up, and that no slot is lost on the way."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.workers.slots import Slots
from tests.runs.virtual import settle, virtual

STOP = Fault(Failure(kind=FaultKind.UNAVAILABLE, message="It stops."))


@virtual
async def test_a_slot_that_is_given_back_twice_is_free_once() -> None:
    slots = Slots(1, lambda: 1)
    first = await slots.take("a")
    first.give_back()
    first.give_back()
    second = slots.take_now("a")
    assert second is not None
    assert slots.take_now("a") is None
    assert slots.running == 1


@virtual
async def test_owners_are_let_in_by_turns() -> None:
    slots = Slots(1, lambda: 2)
    held = await slots.take("a")
    order: list[str] = []

    async def turn(name: str) -> None:
        slot = await slots.take(name[0])
        order.append(name)
        await asyncio.sleep(1)
        slot.give_back()

    tasks = [asyncio.ensure_future(turn(name)) for name in ("a1", "a2", "a3", "b1", "b2")]
    await settle()
    held.give_back()
    await asyncio.gather(*tasks)
    assert order == ["a1", "b1", "a2", "b2", "a3"]
    await slots.wait_until_idle()


@virtual
async def test_a_waiter_whose_time_is_up_leaves_the_queue() -> None:
    slots = Slots(1, lambda: 1)
    held = await slots.take("a")
    with pytest.raises(TimeoutError):
        await slots.take("a", within=5)
    assert slots.waiting == 0
    held.give_back()
    assert slots.running == 0


@virtual
async def test_a_waiter_that_is_cancelled_as_its_slot_comes_loses_none() -> None:
    slots = Slots(1, lambda: 1)
    held = await slots.take("a")
    waiting = [asyncio.ensure_future(slots.take("a")) for _ in range(3)]
    await settle()
    waiting[0].cancel()  # not run yet: it is still in the queue
    held.give_back()
    await settle()
    assert waiting[1].done()
    waiting[1].result().give_back()
    waiting[2].cancel()  # let in a moment ago, and not run yet
    await settle()
    assert slots.running == slots.waiting == 0
    await slots.wait_until_idle()


@virtual
async def test_waiters_get_an_error_when_no_slot_will_come() -> None:
    slots = Slots(1, lambda: 1)
    await slots.take("a")
    waiting = asyncio.ensure_future(slots.take("b"))
    await settle()
    slots.stop(STOP)
    with pytest.raises(Fault):
        await waiting
    assert slots.waiting == 0


@virtual
async def test_a_lent_slot_is_free_until_it_is_taken_again() -> None:
    slots = Slots(1, lambda: 1)
    lent = await slots.take("a")
    lent.lend()
    lent.lend()
    assert slots.running == 0
    other = slots.take_now("a")
    assert other is not None
    again = [asyncio.ensure_future(lent.take_again()) for _ in range(2)]
    await settle()
    assert not any(each.done() for each in again)
    other.give_back()
    await asyncio.gather(*again)
    assert slots.running == 1
    lent.give_back()
    assert slots.running == 0


@virtual
async def test_a_lent_slot_that_is_given_back_is_not_freed_twice_nor_taken_again() -> None:
    slots = Slots(2, lambda: 1)
    lent, other = await slots.take("a"), await slots.take("a")
    lent.lend()
    lent.give_back()
    await lent.take_again()
    assert slots.running == 1
    third = await slots.take("a")
    third.lend()
    held = await slots.take("a")
    waiting = asyncio.ensure_future(third.take_again())
    await settle()
    third.give_back()  # while it waits
    held.give_back()
    await waiting
    assert slots.running == 1
    other.give_back()
    assert slots.running == 0
