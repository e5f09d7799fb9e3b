"""Requests a minute: a bucket for each key, with the hands of the clock turned by the test."""

from __future__ import annotations

import pytest

from codex_proxy.core.rate import MOST_BUCKETS, RateLimits


class Hands:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return self.now


def test_a_full_bucket_gives_a_minutes_worth_at_once_and_no_more() -> None:
    limits = RateLimits(3, Hands())
    assert [limits.take("a").allowed for _ in range(4)] == [True, True, True, False]


def test_a_request_that_was_turned_away_costs_nothing() -> None:
    clock = Hands()
    limits = RateLimits(60, clock)
    for _ in range(100):
        limits.take("a")
    clock.now += 1
    assert limits.take("a").allowed
    assert not limits.take("a").allowed


def test_what_is_told_is_true_the_next_request_passes_after_the_wait_and_not_before() -> None:
    clock = Hands()
    limits = RateLimits(30, clock)
    while (told := limits.take("a")).allowed:
        pass
    assert told.wait == pytest.approx(2.0)
    clock.now += told.wait * 0.99
    assert not limits.take("a").allowed
    clock.now += told.wait * 0.02
    assert limits.take("a").allowed


def test_the_bucket_is_full_again_after_the_time_that_was_told() -> None:
    clock = Hands()
    limits = RateLimits(10, clock)
    limits.take("a")
    told = limits.take("a")
    assert (told.limit, told.remaining) == (10, 8)
    assert told.full_after == pytest.approx(12.0)
    clock.now += told.full_after
    assert limits.take("a").remaining == 9


def test_a_key_that_rested_long_has_no_more_than_a_full_bucket() -> None:
    clock = Hands()
    limits = RateLimits(2, clock)
    limits.take("a")
    clock.now += 3600
    assert [limits.take("a").allowed for _ in range(3)] == [True, True, False]


def test_keys_do_not_pay_for_each_other() -> None:
    limits = RateLimits(1, Hands())
    assert limits.take("a").allowed
    assert limits.take("b").allowed
    assert not limits.take("a").allowed


def test_keys_that_are_not_used_any_more_take_no_memory() -> None:
    clock = Hands()
    limits = RateLimits(1, clock)
    for number in range(MOST_BUCKETS):
        limits.take(f"old {number}")
    clock.now += 120
    limits.take("new")
    assert list(limits._buckets) == ["new"]
