"""Bytes that are held for owners: within both limits, whatever comes and goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.http.body import ByteBudget

steps = st.lists(
    st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(1, 40)),
    max_size=80,
)


@given(steps, st.integers(1, 100), st.integers(1, 100))
def test_held_bytes_stay_within_both_limits_but_for_a_body_that_is_larger_alone(
    steps: list[tuple[bool, str, int]], total: int, each: int
) -> None:
    budget = ByteBudget(total, each)
    held: list[tuple[str, int]] = []
    for takes, owner, size in steps:
        if not takes:
            if held:
                budget.give_back(*held.pop(size % len(held)))
        elif budget.take(owner, size) is None:
            held.append((owner, size))
        sums = Counter[str]()
        for name, bytes in held:
            sums[name] += bytes
        assert budget.held == sums.total()
        assert budget.held <= total or len(held) == 1
        for name, bytes in sums.items():
            assert bytes <= each or [owner for owner, _ in held].count(name) == 1
    for each_held in held:
        budget.give_back(*each_held)
    assert budget.held == 0
    assert budget.take("a", 1) is None


def test_the_budget_says_whose_limit_has_no_room() -> None:
    budget = ByteBudget(total=10, each=6)
    assert budget.take("a", 6) is None
    assert budget.take("a", 1) == "owner"
    assert budget.take("b", 5) == "total"
    assert budget.take("b", 4) is None
