"""Wrong keys: how long their answers are held back, with the hands of the clock turned by the test."""

from __future__ import annotations

import contextlib

import pytest

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.middleware.rate_limit import (
    FORGET_SECONDS,
    FREE_ATTEMPTS,
    MAX_ADDRESSES,
    MAX_SECONDS,
    FailedAttempts,
    WrongKeys,
    network_of,
)
from tests.http.test_request_limits import Hands

ADDRESS = "192.0.2.1"


def one_after_another(
    attempts: FailedAttempts, clock: Hands, count: int, address: str = ADDRESS
) -> list[float]:
    """The delays of somebody who waits for each answer."""
    delays = []
    for _ in range(count):
        delays.append(attempts.delay(address))
        clock.now += delays[-1]
    return delays


def test_the_first_ones_wait_for_nothing_then_each_waits_longer_and_none_for_ever() -> None:
    clock = Hands()
    delays = one_after_another(FailedAttempts(clock), clock, 100)
    assert delays[:FREE_ATTEMPTS] == [0.0] * FREE_ATTEMPTS
    assert delays[FREE_ATTEMPTS : FREE_ATTEMPTS + 4] == [0.25, 0.5, 1.0, 2.0]
    assert delays[-1] == max(delays) == MAX_SECONDS


def test_many_at_once_are_answered_one_after_the_other() -> None:
    clock = Hands()
    attempts = FailedAttempts(clock)
    one_after_another(attempts, clock, FREE_ATTEMPTS)
    assert [attempts.delay(ADDRESS) for _ in range(4)] == [0.25, 0.75, 1.75, 3.75]


def test_trying_many_at_once_is_no_faster_than_one_after_the_other() -> None:
    """Both for an hour: the one waits for each, the other has more of them waiting than there may be."""
    clock, end = Hands(), Hands().now + 3600
    attempts, one_by_one = FailedAttempts(clock), 0
    while clock.now < end:
        clock.now += attempts.delay(ADDRESS)
        one_by_one += 1
    clock = Hands()
    attempts, at_once = FailedAttempts(clock), 0
    while clock.now < end:
        with contextlib.suppress(Fault):
            while True:
                at_once += clock.now + attempts.delay(ADDRESS) < end
        clock.now += 1
    assert at_once <= one_by_one


def test_a_key_that_was_right_is_no_failure() -> None:
    attempts = FailedAttempts(Hands())
    for _ in range(20):
        assert attempts.delay(ADDRESS) == 0.0
        attempts.uncount(ADDRESS)


async def check(keys: WrongKeys, address: str, digest: str, *, right: bool = True) -> None:
    with contextlib.suppress(Fault):
        async with keys.delay_guess(address, digest):
            if not right:
                raise Fault(Failure(FaultKind.INVALID_API_KEY, "It is wrong."))


async def test_a_key_that_was_right_waits_no_more_at_its_address_until_it_is_wrong() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    keys = WrongKeys(Hands(), sleep)
    await check(keys, ADDRESS, "right")
    for _ in range(FREE_ATTEMPTS):
        for address in (ADDRESS, "192.0.2.2"):
            await check(keys, address, "wrong", right=False)
    await check(keys, ADDRESS, "right")
    assert slept == []
    await check(keys, "192.0.2.2", "right")
    assert len(slept) == 1
    await check(keys, ADDRESS, "right", right=False)
    await check(keys, ADDRESS, "right")
    assert len(slept) == 2


def test_other_addresses_are_not_held_back() -> None:
    clock = Hands()
    attempts = FailedAttempts(clock)
    one_after_another(attempts, clock, 20)
    assert attempts.delay("192.0.2.2") == 0.0


def test_an_address_that_was_quiet_long_enough_begins_anew() -> None:
    clock = Hands()
    attempts = FailedAttempts(clock)
    one_after_another(attempts, clock, 20)
    clock.now += FORGET_SECONDS
    assert attempts.delay(ADDRESS) == 0.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::2%eth1"),
    ],
)
def test_addresses_that_one_machine_can_choose_among_count_as_one(one: str, other: str) -> None:
    clock = Hands()
    attempts = FailedAttempts(clock)
    one_after_another(attempts, clock, 10, network_of(one))
    assert attempts.delay(network_of(other)) > 0


def test_any_number_of_addresses_takes_bounded_memory_and_those_that_go_on_are_remembered() -> None:
    clock = Hands()
    attempts = FailedAttempts(clock)
    one_after_another(attempts, clock, 10)
    for number in range(3 * MAX_ADDRESSES):
        attempts.delay(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        if number % 1000 == 0:
            clock.now += attempts.delay(ADDRESS)
    assert len(attempts) == MAX_ADDRESSES
    assert attempts.delay(ADDRESS) > 0
    one_after_another(attempts, clock, 10, "192.0.2.2")
    assert attempts.delay("192.0.2.2") > 0
