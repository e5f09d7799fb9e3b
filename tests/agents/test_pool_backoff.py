"""The pauses between starts: none after a first failure, then twice as long each time, up to a limit."""

import pytest

from codex_proxy.agents.process_pool.plan import (
    FIRST_PAUSE_SECONDS,
    LOOP_FAILURES,
    MAX_PAUSE_SECONDS,
    STABLE_SECONDS,
    RestartBackoff,
)


def after(times: int, now: float = 0.0) -> RestartBackoff:
    """When so many processes in a row have failed, all at this moment."""
    failed = RestartBackoff()
    for _ in range(times):
        failed = failed.after_failure(now)
    return failed


def test_no_start_waits_before_anything_has_failed() -> None:
    assert RestartBackoff().pause_seconds(0.0) == 0.0
    assert not RestartBackoff().is_looping


def test_the_first_restart_comes_at_once_and_the_next_ones_after_pauses_that_double() -> None:
    pauses = [after(times, 100.0).pause_seconds(100.0) for times in range(1, 9)]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS]
    assert after(10_000).pause_seconds(0.0) == MAX_PAUSE_SECONDS


def test_the_pause_before_a_restart_gets_shorter_with_time_and_ends() -> None:
    failed = after(3, 100.0)
    assert failed.pause_seconds(100.5) == pytest.approx(2 * FIRST_PAUSE_SECONDS - 0.5)
    assert failed.pause_seconds(103.0) == 0.0


def test_a_process_that_was_stable_ends_as_the_first_one() -> None:
    assert after(5).after_failure(100.0, lived_seconds=STABLE_SECONDS) == RestartBackoff(1, 100.0, 1)
    assert after(5).after_failure(100.0, lived_seconds=STABLE_SECONDS - 0.1) == RestartBackoff(6, 100.0, 6)


def test_a_turn_that_went_well_counts_for_a_process_that_was_started_since_the_last_failure() -> None:
    failed = after(5, 100.0)
    assert failed.after_success(started_at=99.0) == failed
    assert failed.after_success(started_at=100.0) == RestartBackoff()


def test_a_loop_is_more_than_a_client_brings_about_that_tries_again_twice() -> None:
    assert LOOP_FAILURES > 3
    assert not after(LOOP_FAILURES - 1).is_looping
    assert after(LOOP_FAILURES).is_looping


def test_processes_that_end_during_turns_make_nobody_wait_longer_than_the_first_pause() -> None:
    """It may be one client's turn that ends them, and everybody else waits too."""
    failed = RestartBackoff()
    for _ in range(50):
        failed = failed.after_failure(100.0, during_turn=True)
    assert failed.pause_seconds(100.0) == FIRST_PAUSE_SECONDS
    assert failed.is_looping, "it is told all the same"


def test_only_failures_outside_turns_make_the_pause_grow() -> None:
    mixed = RestartBackoff()
    for during_turn in (True, False, True, False, True, False, False):
        mixed = mixed.after_failure(100.0, during_turn=during_turn)
    assert mixed.pause_seconds(100.0) == after(4, 100.0).pause_seconds(100.0)


def test_a_process_that_was_stable_and_ended_during_a_turn_is_the_first_failure() -> None:
    assert after(5).after_failure(100.0, lived_seconds=STABLE_SECONDS, during_turn=True) == RestartBackoff(
        1, 100.0, 0
    )
