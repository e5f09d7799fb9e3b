"""What a request costs that differs from every cassette: no more than its bytes and those of the cassettes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from codex_proxy.parts.cassettes.content import MAX_COUNTED, MAX_SHOWN, Content, differences
from tests.growth import assert_linear

FIELDS = ("messages", "tools")


def content(text: str = "", arguments: Any = None) -> Content:
    call = {"call": 1, "tool": "t", "arguments": arguments}
    return {"messages": [{"role": "user", "text": text}, call], "tools": []}


def under_a_long_name(asked: int, recorded: int) -> Callable[[int], tuple[Content, Content]]:
    def make(size: int) -> tuple[Content, Content]:
        return (
            content(arguments={"k" * size: [0] * (size * asked)}),
            content(arguments={"k" * size: [0] * (size * recorded)}),
        )

    return make


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(under_a_long_name(1, 1), id="equal values under a long name"),
        pytest.param(under_a_long_name(1, 0), id="values that only the request has"),
        pytest.param(under_a_long_name(0, 1), id="values that only the cassette has"),
        pytest.param(
            lambda size: (content("x" * 50 * size + "a"), content("x" * 50 * size + "b")), id="a text"
        ),
    ],
)
def test_a_request_that_differs_costs_no_more_than_its_bytes(
    make: Callable[[int], tuple[Content, Content]],
) -> None:
    assert_linear(make, lambda pair: [*map(str, differences(*pair, FIELDS)[:8])], 20_000)


def test_the_differences_of_very_different_requests_are_counted_up_to_a_limit() -> None:
    found = differences(content(arguments=[1] * 9_999), content(arguments=[]), FIELDS)
    assert len(found) == MAX_COUNTED


@pytest.mark.parametrize("common", [0, 1, 19, 20, 21, 1000])
def test_a_difference_of_texts_is_shown_where_it_begins(common: int) -> None:
    [found] = differences(content("ä" * common + "one"), content("ä" * common + "two"), FIELDS)
    lead = "..." + "ä" * 20 if common > 20 else "ä" * common
    assert str(found) == f'messages[0].text: the request has "{lead}one", the cassette "{lead}two"'
    assert len(str(found)) < 4 * MAX_SHOWN
