"""Entries of several owners: which goes first, after any changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.caches import OwnedEntries

KEYS = st.tuples(st.sampled_from("abc"), st.integers(0, 3))
"""An owner and a number."""


@given(st.lists(st.tuples(KEYS, st.integers(0, 5) | st.none())))
def test_the_owner_with_most_loses_its_oldest(changes: list[tuple[tuple[str, int], int | None]]) -> None:
    entries: OwnedEntries[tuple[str, int], int] = OwnedEntries(lambda key, _: key[0], lambda size: size)
    expected: dict[tuple[str, int], int] = {}
    for key, size in changes:
        if size is None:
            assert entries.pop(key, None) == expected.pop(key, None)
        else:
            entries[key] = expected[key] = size
        assert (list(entries.items()), entries.size) == (list(expected.items()), sum(expected.values()))
        if expected:
            for found, measure in (
                (entries.oldest_of_most(), lambda _: 1),
                (entries.oldest_of_largest(), lambda size: size),
            ):
                total = {
                    owner: sum(measure(expected[each]) for each in expected if each[0] == owner)
                    for owner in {each[0] for each in expected}
                }
                assert total[found[0]] == max(total.values())
                assert found == next(each for each in expected if each[0] == found[0])
