"""JSON that costs too much to decode, or to follow with functions that call themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.json_values import MAX_DEPTH, is_too_costly

TEXTS = st.text('[]{}"\\\\ a', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.booleans())
def test_json_is_too_costly_from_one_level_above_the_maximum_on(value: Any, in_objects: bool) -> None:
    for _ in range(MAX_DEPTH - depth(value)):
        value = {"}": value} if in_objects else ["[", value]
    assert not is_too_costly(json.dumps(value).encode())
    assert is_too_costly(json.dumps([value]).encode())


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 1_000_000])
def test_levels_are_counted_however_many_there_are(levels: int) -> None:
    assert is_too_costly(b"[" * levels + b"]" * levels)
    assert is_too_costly(b'{"a":' * levels + b"1" + b"}" * levels)
