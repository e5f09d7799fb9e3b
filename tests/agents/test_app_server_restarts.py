"""The pauses between starts: none after a first failure, then twice as long each time, up to a limit."""

import pytest

from codex_proxy.agents.codex_app_server.plan import (
    FIRST_PAUSE,
    LOOP,
    MAX_PAUSE,
    STEADY_SECONDS,
    Restarts,
)


def after(times: int, now: float = 0.0) -> Restarts:
    """When so many processes in a row have failed, all at this moment."""
    failed = Restarts()
    for _ in range(times):
        failed = failed.failed(now)
    return failed


def test_nothing_has_to_wait_before_anything_has_failed() -> None:
    assert Restarts().pause(0.0) == 0.0
    assert not Restarts().looping


def test_the_first_restart_comes_at_once_and_the_next_ones_after_pauses_that_double() -> None:
    pauses = [after(times, 100.0).pause(100.0) for times in range(1, 9)]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE, MAX_PAUSE]
    assert after(10_000).pause(0.0) == MAX_PAUSE


def test_a_pause_passes() -> None:
    failed = after(3, 100.0)
    assert failed.pause(100.5) == pytest.approx(2 * FIRST_PAUSE - 0.5)
    assert failed.pause(103.0) == 0.0


def test_a_process_that_was_steady_ends_as_the_first_one() -> None:
    assert after(5).failed(100.0, lived=STEADY_SECONDS) == Restarts(1, 100.0, 1)
    assert after(5).failed(100.0, lived=STEADY_SECONDS - 0.1) == Restarts(6, 100.0, 6)


def test_a_turn_that_went_well_counts_for_a_process_that_was_started_since_the_last_failure() -> None:
    failed = after(5, 100.0)
    assert failed.served(born=99.0) == failed
    assert failed.served(born=100.0) == Restarts()


def test_a_loop_is_more_than_a_client_brings_about_that_tries_again_twice() -> None:
    assert LOOP > 3
    assert not after(LOOP - 1).looping
    assert after(LOOP).looping


def test_processes_that_end_at_work_make_nobody_wait_longer_than_the_first_pause() -> None:
    """It may be one client's turn that ends them, and everybody else waits too."""
    failed = Restarts()
    for _ in range(50):
        failed = failed.failed(100.0, at_work=True)
    assert failed.pause(100.0) == FIRST_PAUSE
    assert failed.looping, "it is told all the same"


def test_only_failures_that_were_no_turns_make_the_pause_grow() -> None:
    mixed = Restarts()
    for at_work in (True, False, True, False, True, False, False):
        mixed = mixed.failed(100.0, at_work=at_work)
    assert mixed.pause(100.0) == after(4, 100.0).pause(100.0)


def test_a_process_that_was_steady_and_ended_at_work_is_the_first_failure_and_no_idle_one() -> None:
    assert after(5).failed(100.0, lived=STEADY_SECONDS, at_work=True) == Restarts(1, 100.0, 0)
