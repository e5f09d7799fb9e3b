"""Three deadlines, one timer. A scheduler of the test's turns the hands."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.runs.time_and_tokens import Deadlines, DeadlineWatch

LIMITS = Deadlines(first=10.0, idle=30.0, total=100.0)


class Hands:
    """A scheduler that a test moves."""

    class Timer:
        def __init__(self) -> None:
            self.cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    def __init__(self) -> None:
        self.now = 0.0
        self._count = itertools.count()
        self._timers: list[tuple[float, int, Hands.Timer, Callable[..., Any], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Hands.Timer:
        timer = Hands.Timer()
        heapq.heappush(self._timers, (when, next(self._count), timer, callback, args))
        return timer

    def move_to(self, when: float) -> None:
        while self._timers and self._timers[0][0] <= when:
            self.now, _, timer, callback, args = heapq.heappop(self._timers)
            if not timer.cancelled:
                callback(*args)
        self.now = when

    @property
    def waiting(self) -> int:
        return sum(not timer.cancelled for _, _, timer, _, _ in self._timers)


def deadline_watch(limits: Deadlines = LIMITS) -> tuple[Hands, DeadlineWatch, list[tuple[float, Failure]]]:
    hands, expired = Hands(), list[tuple[float, Failure]]()
    watch = DeadlineWatch(limits, hands, lambda failure: expired.append((hands.now, failure)))
    watch.start()
    return hands, watch, expired


def test_nothing_visible_in_time_expires_though_there_are_signs_of_life() -> None:
    hands, watch, expired = deadline_watch()
    hands.move_to(9.0)
    watch.note_event(visible=False)
    hands.move_to(50.0)
    [(when, failure)] = expired
    assert when == 10.0
    assert failure.kind is FaultKind.TIMED_OUT
    assert "10 s" in failure.message
    assert "first word" in failure.message


def test_silence_expires_counted_from_the_last_sign_of_life() -> None:
    hands, watch, expired = deadline_watch()
    for second in (5.0, 25.0, 50.0):
        hands.move_to(second)
        watch.note_event(visible=True)
    hands.move_to(99.0)
    assert [when for when, _ in expired] == [80.0]
    assert "30 s" in expired[0][1].message


def test_the_whole_answer_has_its_time_and_no_more() -> None:
    hands, watch, expired = deadline_watch()
    for second in range(0, 200, 5):
        hands.move_to(float(second))
        watch.note_event(visible=True)
    assert [when for when, _ in expired] == [100.0]


def test_a_deadline_expires_once_and_leaves_no_timer() -> None:
    hands, _, expired = deadline_watch()
    hands.move_to(1000.0)
    assert len(expired) == 1
    assert hands.waiting == 0


def test_a_stopped_watch_does_nothing() -> None:
    hands, watch, expired = deadline_watch()
    watch.stop()
    watch.stop()
    hands.move_to(1000.0)
    assert expired == []
    assert hands.waiting == 0


def test_an_agent_that_is_made_to_wait_is_not_idle() -> None:
    hands, watch, expired = deadline_watch()
    watch.note_event(visible=True)
    hands.move_to(5.0)
    watch.pause()
    hands.move_to(90.0)
    assert expired == []
    watch.resume()
    hands.move_to(200.0)
    assert [when for when, _ in expired] == [100.0]


def test_an_agent_that_was_made_to_wait_has_its_time_anew() -> None:
    hands, watch, expired = deadline_watch(Deadlines(first=10.0, idle=30.0, total=1000.0))
    watch.note_event(visible=True)
    watch.pause()
    hands.move_to(200.0)
    watch.resume()
    hands.move_to(500.0)
    assert [when for when, _ in expired] == [230.0]


def test_a_sign_of_life_makes_no_timer() -> None:
    hands, watch, _ = deadline_watch()
    for _ in range(1000):
        watch.note_event(visible=True)
    assert hands.waiting == 1


def test_time_that_is_held_counts_for_no_deadline() -> None:
    hands, watch, expired = deadline_watch()
    hands.move_to(9.0)
    watch.hold()
    watch.hold()
    hands.move_to(100_000.0)
    watch.note_event(visible=False)
    assert not expired
    watch.go_on()
    hands.move_to(100_000.9)
    assert not expired
    hands.move_to(100_001.1)  # of the ten seconds for the first word nine had passed
    assert "first word" in expired[0][1].message


def test_a_watch_that_was_stopped_while_held_stays_so() -> None:
    hands, watch, expired = deadline_watch()
    watch.hold()
    watch.stop()
    watch.go_on()
    hands.move_to(100_000.0)
    assert not expired
    assert not hands.waiting
