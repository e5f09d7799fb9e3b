"""The pool's decisions: small cases by hand, every limit by exhaustion, and a whole pool played through."""

from itertools import combinations_with_replacement, product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from codex_proxy.agents.process_pool.plan import (
    PoolLimits,
    PoolMaintenance,
    ProcessInfo,
    ProcessState,
    assign,
    is_due_for_renewal,
    maintain,
)

LIMITS = PoolLimits(
    min_processes=1,
    max_processes=3,
    max_turns_running=4,
    busy_from=2,
    max_turns_served=10,
    max_age=100.0,
    max_waiting=3,
)
NO_MAINTENANCE = PoolMaintenance(start=False, drain=(), retire=())


def ready(key: int, running: int = 0, *, served: int = 0, age: float = 0.0) -> ProcessInfo:
    return ProcessInfo(key, ProcessState.READY, running, served, age)


def starting_process(key: int) -> ProcessInfo:
    return ProcessInfo(key, ProcessState.STARTING, 0, 0, 0.0)


def draining_process(key: int, running: int = 0) -> ProcessInfo:
    return ProcessInfo(key, ProcessState.DRAINING, running, 0, 0.0)


def test_a_turn_goes_to_the_least_busy_process() -> None:
    assert assign((ready(1, 2), ready(2, 1), ready(3, 3)), LIMITS) == 2


def test_a_burst_of_turns_is_spread_over_the_processes() -> None:
    seats = {1: ready(1), 2: ready(2), 3: ready(3)}
    for _ in range(9):
        key = assign(tuple(seats.values()), LIMITS)
        assert key is not None
        seat = seats[key]
        seats[key] = replace(seat, turns_running=seat.turns_running + 1)
    assert [seat.turns_running for seat in seats.values()] == [3, 3, 3]


def test_of_equally_busy_processes_the_one_that_served_less_is_used() -> None:
    assert assign((ready(1, served=5), ready(2, served=3)), LIMITS) == 2


def test_a_process_due_for_renewal_is_used_only_when_there_is_no_other() -> None:
    assert assign((ready(1, age=100), ready(2, 3)), LIMITS) == 2
    assert assign((ready(1, served=10), ready(2, 4)), LIMITS) == 1


def test_a_turn_waits_for_room() -> None:
    full = (ready(1, 4), starting_process(2), draining_process(3))
    assert assign(full, LIMITS) is None
    assert assign((), LIMITS) is None


def test_an_empty_pool_is_warmed_to_its_minimum_and_no_further() -> None:
    assert maintain((), LIMITS, 0) == PoolMaintenance(start=True, drain=(), retire=())
    assert maintain((starting_process(1),), LIMITS, 0) == NO_MAINTENANCE
    assert maintain((ready(1),), LIMITS, 0) == NO_MAINTENANCE
    assert maintain((ready(1),), replace(LIMITS, min_processes=2), 0).start


def test_a_pool_without_a_minimum_starts_its_first_process_for_the_first_turn() -> None:
    lazy = replace(LIMITS, min_processes=0)
    assert maintain((), lazy, 0) == NO_MAINTENANCE
    assert maintain((), lazy, 1).start
    assert maintain((starting_process(1),), lazy, 1) == NO_MAINTENANCE


def test_another_process_is_started_ahead_when_all_are_busy_and_one_at_a_time() -> None:
    assert maintain((ready(1, 1),), LIMITS, 0) == NO_MAINTENANCE
    assert maintain((ready(1, 2),), LIMITS, 0).start
    assert maintain((ready(1, 2), ready(2, 1)), LIMITS, 0) == NO_MAINTENANCE
    assert maintain((ready(1, 2), starting_process(2)), LIMITS, 0) == NO_MAINTENANCE
    assert not maintain((ready(1, 2), ready(2, 2), ready(3, 2)), LIMITS, 0).start, "there may be three"


def test_more_turns_wait_than_a_starting_process_takes_easily_so_a_second_is_started() -> None:
    assert not maintain((starting_process(1),), LIMITS, 2).start
    assert maintain((starting_process(1),), LIMITS, 3).start
    assert not maintain((starting_process(1), starting_process(2)), LIMITS, 4).start


def test_a_draining_process_is_retired_when_idle_and_counts_until_it_is_gone() -> None:
    seats = (draining_process(1), draining_process(2, 1), draining_process(3))
    assert maintain(seats, LIMITS, 1) == PoolMaintenance(start=False, drain=(), retire=(1, 3))


def test_processes_due_for_renewal_end_as_soon_as_a_fresh_one_serves() -> None:
    seats = (ready(1, age=100), ready(2, 1, served=10), ready(3))
    assert maintain(seats, LIMITS, 0) == PoolMaintenance(start=False, drain=(2,), retire=(1,))


def test_a_process_due_for_renewal_serves_until_its_successor_is_ready() -> None:
    assert maintain((ready(1, 1, age=100),), LIMITS, 0) == PoolMaintenance(start=True, drain=(), retire=())
    assert maintain((ready(1, age=100),), LIMITS, 0) == PoolMaintenance(start=True, drain=(), retire=())
    assert maintain((ready(1, 1, age=100), starting_process(2)), LIMITS, 0) == NO_MAINTENANCE
    assert maintain((ready(1, age=100), starting_process(2)), LIMITS, 0) == NO_MAINTENANCE
    assert maintain((ready(1, 1, age=100), ready(2)), LIMITS, 0) == PoolMaintenance(
        start=False, drain=(1,), retire=()
    )


def test_a_process_due_for_renewal_serves_on_while_the_fresh_ones_are_full() -> None:
    assert maintain((ready(1, 1, age=100), ready(2, 4)), LIMITS, 0) == PoolMaintenance(
        start=True, drain=(), retire=()
    )
    assert maintain((ready(1, 1, age=100), ready(2, 1, age=100), ready(3, 4)), LIMITS, 0) == NO_MAINTENANCE


def test_without_room_for_a_successor_one_process_due_for_renewal_at_a_time_is_given_up() -> None:
    worn = (ready(1, 2, age=100), ready(2, 1, age=100), ready(3, 1, age=200))
    assert maintain(worn, LIMITS, 0) == PoolMaintenance(start=False, drain=(3,), retire=())


def test_a_pool_of_one_is_renewed_when_it_is_idle() -> None:
    alone = replace(LIMITS, max_processes=1)
    assert maintain((ready(1, 1, age=100),), alone, 0) == NO_MAINTENANCE
    assert maintain((ready(1, 0, age=100),), alone, 0) == PoolMaintenance(start=False, drain=(), retire=(1,))


def test_an_idle_process_due_for_renewal_that_is_not_needed_goes_without_a_successor() -> None:
    lazy = replace(LIMITS, min_processes=0)
    assert maintain((ready(1, age=100),), lazy, 0) == PoolMaintenance(start=False, drain=(), retire=(1,))


def test_no_plan_for_a_pool_of_up_to_three_processes_breaks_a_limit() -> None:
    kinds = [
        (state, running, age)
        for state, running, age in product(ProcessState, (0, 1, 2, 4), (0.0, 100.0))
        if not (state is ProcessState.STARTING and (running or age))
    ]
    pools = [
        tuple(ProcessInfo(key, state, running, 0, age) for key, (state, running, age) in enumerate(some))
        for count in range(4)
        for some in combinations_with_replacement(kinds, count)
    ]
    assert len(pools) == 1 + 17 + 153 + 969
    for seats, waiting, fewest, most in product(pools, (0, 1, 3), (0, 1, 2), (1, 2, 3)):
        if len(seats) > most:
            continue
        limits = replace(LIMITS, min_processes=fewest, max_processes=most)
        by_key = {seat.key: seat for seat in seats}
        key = assign(seats, limits)
        if key is not None:
            assert by_key[key].state is ProcessState.READY
            assert by_key[key].turns_running < limits.max_turns_running

        upkeep = maintain(seats, limits, waiting)
        assert not (upkeep.start and len(seats) >= most)
        assert all(
            by_key[key].state is ProcessState.READY
            and by_key[key].turns_running
            and is_due_for_renewal(by_key[key], limits)
            for key in upkeep.drain
        )
        assert all(
            not by_key[key].turns_running
            and (by_key[key].state is ProcessState.DRAINING or is_due_for_renewal(by_key[key], limits))
            for key in upkeep.retire
        )
        leaves = {*upkeep.drain, *upkeep.retire}
        serves = [s for s in seats if s.state is not ProcessState.DRAINING and s.key not in leaves]
        if any(s.turns_running and s.state is ProcessState.READY for s in seats):
            assert serves, "a pool in use is never left without a process to serve"


class PoolPlay(RuleBasedStateMachine):
    """A pool that does what it is told, with turns and time that come as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.seats: dict[int, ProcessInfo] = {}
        self.ending: set[int] = set()
        self.waiting = 0
        self.last_key = 0
        self.limits = replace(LIMITS, max_turns_served=4)
        self.settle()

    def change(self, key: int, **changes: object) -> None:
        self.seats[key] = replace(self.seats[key], **changes)

    def settle(self) -> None:
        """What a pool does after every change; it must come to rest."""
        while self.waiting and (key := assign(tuple(self.seats.values()), self.limits)) is not None:
            self.waiting -= 1
            self.take(key)
        for _ in range(20):
            upkeep = maintain(tuple(self.seats.values()), self.limits, self.waiting)
            for key in upkeep.drain:
                self.change(key, state=ProcessState.DRAINING)
            for key in upkeep.retire:
                self.change(key, state=ProcessState.DRAINING)
                self.ending.add(key)
            if not upkeep.start:
                return
            self.last_key += 1
            self.seats[self.last_key] = starting_process(self.last_key)
        raise AssertionError("the pool does not come to rest")

    def take(self, key: int) -> None:
        seat = self.seats[key]
        assert seat.state is ProcessState.READY
        self.change(key, turns_running=seat.turns_running + 1, turns_served=seat.turns_served + 1)

    @rule()
    def a_turn_comes(self) -> None:
        key = assign(tuple(self.seats.values()), self.limits)
        if key is not None:
            assert not self.waiting, "nobody is overtaken"
            self.take(key)
        elif self.waiting < self.limits.max_waiting:
            self.waiting += 1
        self.settle()

    @precondition(lambda self: any(seat.turns_running for seat in self.seats.values()))
    @rule(data=st.data())
    def a_turn_ends(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([k for k, seat in self.seats.items() if seat.turns_running]))
        self.change(key, turns_running=self.seats[key].turns_running - 1)
        self.settle()

    @precondition(lambda self: any(seat.state is ProcessState.STARTING for seat in self.seats.values()))
    @rule(data=st.data())
    def a_process_is_ready(self, data: st.DataObject) -> None:
        some = [k for k, seat in self.seats.items() if seat.state is ProcessState.STARTING]
        self.change(data.draw(st.sampled_from(some)), state=ProcessState.READY)
        self.settle()

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def a_process_is_gone(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.ending) or list(self.seats)))
        del self.seats[key]
        self.ending.discard(key)
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        for key, seat in self.seats.items():
            if seat.state is not ProcessState.STARTING:
                self.change(key, age=seat.age + seconds)
        self.settle()

    @invariant()
    def the_limits_hold(self) -> None:
        assert len(self.seats) <= self.limits.max_processes
        assert all(seat.turns_running <= self.limits.max_turns_running for seat in self.seats.values())
        assert self.waiting <= self.limits.max_waiting
        assert not any(self.seats[key].turns_running for key in self.ending)

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        assert not self.waiting or self.seats, "a process is on its way, serves, or makes room by ending"

    @invariant()
    def the_pool_stays_warm(self) -> None:
        full = len(self.seats) == self.limits.max_processes
        assert full or any(seat.state is not ProcessState.DRAINING for seat in self.seats.values())


PoolPlay.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestPoolPlay = PoolPlay.TestCase
