"""Who gets a place: any sequence of owners that come, leave and give up is served in turn and within the limits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.workers.slots import FairQueue, share_of

OWNERS = "abcd"

steps = st.lists(
    st.tuples(st.sampled_from(["come", "leave", "give up"]), st.sampled_from(OWNERS), st.integers(0, 50)),
    max_size=120,
)


class Hall:
    """A queue, and what its caller knows of it."""

    def __init__(self, places: int, owners: int) -> None:
        self.places = places
        self.share = share_of(places, owners)
        self.queue: FairQueue[int] = FairQueue(places, lambda: owners)
        self.inside: Counter[str] = Counter()
        self.waiting: list[tuple[str, int]] = []
        self.served: list[str] = []
        self._next = 0

    def come(self, owner: str) -> bool:
        if self.queue.enter(owner):
            self.inside[owner] += 1
            return True
        self._next += 1
        self.queue.wait(owner, self._next)
        self.waiting.append((owner, self._next))
        return False

    def leave(self, owner: str) -> list[tuple[str, int]]:
        if not self.inside[owner]:
            return []
        self.inside[owner] -= 1
        let_in = self.queue.leave(owner)
        for each in let_in:
            self.waiting.remove(each)
            self.inside[each[0]] += 1
            self.served.append(each[0])
        return let_in

    def give_up(self, number: int) -> None:
        if self.waiting:
            owner, waiter = self.waiting.pop(number % len(self.waiting))
            self.queue.withdraw(owner, waiter)

    def do(self, step: tuple[str, str, int]) -> None:
        what, owner, number = step
        if what == "come":
            self.come(owner)
        elif what == "leave":
            self.leave(owner)
        else:
            self.give_up(number)

    def check(self) -> None:
        """What holds at any time."""
        assert self.queue.running == self.inside.total() <= self.places
        assert max(self.inside.values(), default=0) <= self.share
        assert self.queue.waiting == len(self.waiting)
        for owner in OWNERS:
            assert self.queue.waiting_of(owner) == sum(each == owner for each, _ in self.waiting)
        if self.queue.running < self.places:  # nobody waits for a place that it could have
            assert all(self.inside[owner] >= self.share for owner, _ in self.waiting)


@given(steps, st.integers(1, 8), st.integers(1, 4))
def test_no_slot_is_given_twice_kept_back_or_beyond_a_share(
    steps: list[tuple[str, str, int]], places: int, owners: int
) -> None:
    hall = Hall(places, owners)
    for step in steps:
        hall.do(step)
        hall.check()


@given(steps, st.integers(1, 8))
def test_an_owner_that_waits_is_served_before_any_other_is_twice(
    steps: list[tuple[str, str, int]], places: int
) -> None:
    hall = Hall(places, len(OWNERS))
    since = dict.fromkeys(OWNERS, 0)
    """By owner, how many had been served when it began to wait for its next place."""
    for step in steps:
        before = len(hall.served)
        hall.do(step)
        waiting = {owner for owner, _ in hall.waiting}
        for owner in OWNERS:
            waits = owner in waiting and hall.inside[owner] < hall.share
            if not waits or owner in hall.served[before:]:
                since[owner] = len(hall.served)
            assert max(Counter(hall.served[since[owner] :]).values(), default=0) <= 1


@given(steps, st.integers(1, 8))
def test_everybody_who_waits_is_let_in_in_the_end_in_the_order_of_its_owner(
    steps: list[tuple[str, str, int]], places: int
) -> None:
    hall = Hall(places, len(OWNERS))
    for step in steps:
        hall.do(step)
    order = {owner: [waiter for each, waiter in hall.waiting if each == owner] for owner in OWNERS}
    let_in: list[tuple[str, int]] = []
    while +hall.inside:
        let_in += hall.leave(next(iter(+hall.inside)))
    assert not hall.waiting
    assert {owner: [waiter for each, waiter in let_in if each == owner] for owner in OWNERS} == order


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8))
def test_a_single_owner_gets_every_slot_in_the_order_of_arrival(coming: list[bool], places: int) -> None:
    hall = Hall(places, owners=1)
    for comes in coming:
        if comes:
            assert hall.come("a") == (hall.inside["a"] <= places and not hall.waiting)
        else:
            first = hall.waiting[0] if hall.waiting else None
            was_inside = bool(hall.inside["a"])
            assert hall.leave("a") == ([first] if first and was_inside else [])
        hall.check()


@given(st.integers(2, 200), st.integers(1, 500))
def test_the_first_turn_of_another_owner_has_a_slot_whatever_one_owner_does(places: int, turns: int) -> None:
    hall = Hall(places, owners=2)
    for _ in range(turns):
        hall.come("a")
    assert hall.come("b")


@pytest.mark.parametrize(("places", "share"), [(1, 1), (2, 1), (3, 2), (4, 3), (16, 12), (1000, 750)])
def test_of_several_owners_each_leaves_a_quarter_to_the_others(places: int, share: int) -> None:
    assert share_of(places, 2) == share
    assert share_of(places, 1) == places


def test_clear_returns_all_waiters_at_once() -> None:
    hall = Hall(1, owners=1)
    for _ in range(3):
        hall.come("a")
    assert hall.queue.clear() == [1, 2]
    assert hall.queue.waiting == 0
    assert hall.queue.leave("a") == []
