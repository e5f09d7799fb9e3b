"""Requests a minute and at once: the hands of the clock are turned by the test."""

from __future__ import annotations

import pytest

from codex_proxy.http.middleware.rate_limit import MAX_BUCKETS, RateLimits, RunningRequests


class Hands:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return self.now


def test_a_full_bucket_gives_a_minutes_worth_at_once_and_no_more() -> None:
    limits = RateLimits(Hands())
    assert [limits.take("a", 3).allowed for _ in range(4)] == [True, True, True, False]


def test_a_request_that_was_turned_away_costs_nothing() -> None:
    clock = Hands()
    limits = RateLimits(clock)
    for _ in range(100):
        limits.take("a", 60)
    clock.now += 1
    assert limits.take("a", 60).allowed
    assert not limits.take("a", 60).allowed


def test_the_next_request_is_allowed_after_the_reported_wait_and_not_before() -> None:
    clock = Hands()
    limits = RateLimits(clock)
    while (told := limits.take("a", 30)).allowed:
        pass
    assert told.wait == pytest.approx(2.0)
    clock.now += told.wait * 0.99
    assert not limits.take("a", 30).allowed
    clock.now += told.wait * 0.02
    assert limits.take("a", 30).allowed


def test_the_bucket_is_full_again_after_the_time_that_was_reported() -> None:
    clock = Hands()
    limits = RateLimits(clock)
    limits.take("a", 10)
    told = limits.take("a", 10)
    assert (told.limit, told.remaining) == (10, 8)
    assert told.full_after == pytest.approx(12.0)
    clock.now += told.full_after
    assert limits.take("a", 10).remaining == 9


def test_a_key_that_rested_long_has_no_more_than_a_full_bucket() -> None:
    clock = Hands()
    limits = RateLimits(clock)
    limits.take("a", 2)
    clock.now += 3600
    assert [limits.take("a", 2).allowed for _ in range(3)] == [True, True, False]


def test_keys_do_not_pay_for_each_other_and_each_has_its_own_limit() -> None:
    limits = RateLimits(Hands())
    assert limits.take("a", 1).allowed
    assert [limits.take("b", 2).allowed for _ in range(3)] == [True, True, False]
    assert not limits.take("a", 1).allowed


def test_a_limit_that_is_raised_gives_back_nothing_that_was_used_up() -> None:
    clock = Hands()
    limits = RateLimits(clock)
    limits.take("a", 1)
    assert not limits.take("a", 60).allowed
    clock.now += 1
    assert limits.take("a", 60).allowed


def test_keys_that_are_not_used_any_more_take_no_memory() -> None:
    clock = Hands()
    limits = RateLimits(clock)
    for number in range(MAX_BUCKETS):
        limits.take(f"old {number}", 1)
    clock.now += 120
    limits.take("new", 1)
    assert list(limits._buckets) == ["new"]


def test_a_key_has_only_so_many_requests_at_once_until_one_is_over() -> None:
    running = RunningRequests()
    assert [running.enter("a", 2) for _ in range(3)] == [True, True, False]
    assert running.enter("b", 1)
    running.leave("a")
    assert running.enter("a", 2)


def test_requests_that_are_over_leave_nothing_behind() -> None:
    running = RunningRequests()
    assert all(running.enter("a", 0) for _ in range(5))
    for _ in range(5):
        running.leave("a")
    assert (running.of("a"), running._running) == (0, {})
