"""The helper that holds readers to a linear cost sees what is not linear, in CPU time and in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.growth import assert_linear


def each_once(given: list[str]) -> list[str]:
    return [each.upper() for each in given]


def searched_again_for_each(given: list[str]) -> list[str]:
    seen: list[str] = []
    for each in given:
        if each not in seen:
            seen.append(each)
    return seen


def copied_for_each(given: list[str]) -> list[str]:
    return ["".join(given[:number]) for number in range(0, len(given), 8)]


def words(count: int) -> list[str]:
    return [f"word {number}" for number in range(count)]


def test_what_reads_each_piece_once_is_linear() -> None:
    assert_linear(words, each_once, 50_000)


@pytest.mark.parametrize(("read", "size"), [(searched_again_for_each, 1_200), (copied_for_each, 2_400)])
def test_what_grows_with_the_square_of_its_input_is_seen(
    read: Callable[[list[str]], object], size: int
) -> None:
    with pytest.raises(AssertionError, match=f"{size // 4} and {4 * size}"):
        assert_linear(words, read, size, tries=2)


def test_memory_that_grows_with_the_square_is_seen_where_its_time_is_not() -> None:
    def read(given: list[str]) -> list[bytes]:
        return [bytes(len(given)) for _ in range(len(given) // 8)]

    with pytest.raises(AssertionError, match="bytes"):
        assert_linear(words, read, 2_000, tries=50)
