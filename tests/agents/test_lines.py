"""The line framer: the same lines however the bytes are cut, and no line without a limit."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.sessions.session import LineFramer, LineTooLong
from tests.cpu_time import assert_cpu_time_below

# Few letters, so that line ends, empty lines and carriage returns are frequent.
TEXTS = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b"\xe2\x80\xa8", b"\xff"]), max_size=60).map(
    b"".join
)


def chunks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def expected_lines(data: bytes) -> tuple[list[bytes], bytes | None]:
    *lines, rest = (line[:-1] if line.endswith(b"\r") else line for line in data.split(b"\n"))
    return [line for line in lines if line], rest or None


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=20))
def test_any_chunking_of_any_bytes_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    framer = LineFramer()
    lines = [line for chunk in chunks_of(data, cuts) for line in framer.feed(chunk)]
    assert (lines, framer.close()) == expected_lines(data)


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 8))
def test_any_chunking_gives_the_same_lines_before_the_one_that_is_too_long(
    data: bytes, cuts: list[int], limit: int
) -> None:
    raw = data.split(b"\n")
    fault = next((n for n, line in enumerate(raw) if len(line) > limit), None)

    framer = LineFramer(limit)
    lines: list[bytes] = []
    refused = False
    for chunk in chunks_of(data, cuts):
        try:
            lines += framer.feed(chunk)
        except LineTooLong as too_long:
            lines += too_long.before
            refused = True

    assert refused == (fault is not None)
    known_good = raw[:-1] if fault is None else raw[:fault]
    assert lines == [line for line in (line.removesuffix(b"\r") for line in known_good) if line]


def test_only_a_newline_ends_a_line() -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce\x1cf\rg".encode()
    assert LineFramer().feed(text + b"\n") == [text]


def test_one_carriage_return_is_taken_away_also_when_it_came_in_another_chunk() -> None:
    framer = LineFramer()
    assert framer.feed(b"a\r") == []
    assert framer.feed(b"\nb\r\r\n\r\n\n") == [b"a", b"b\r"]


def test_the_unfinished_rest_is_given_at_the_close_and_only_once() -> None:
    framer = LineFramer()
    assert framer.feed(b"whole\nhal") == [b"whole"]
    assert framer.feed(b"f") == []
    assert framer.close() == b"half"
    assert framer.close() is None


def test_a_line_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert LineFramer(4).feed(b"1234\n1234\n") == [b"1234", b"1234"]
    with pytest.raises(LineTooLong, match="longer than 4 bytes"):
        LineFramer(4).feed(b"12345\n")


def test_an_endless_line_is_refused_before_its_end_and_its_bytes_are_let_go() -> None:
    framer = LineFramer(100)
    framer.feed(b"x" * 50)
    framer.feed(b"x" * 50)
    with pytest.raises(LineTooLong) as refusal:
        framer.feed(b"x" * 50)
    assert refusal.value.limit == 100
    with pytest.raises(LineTooLong):
        framer.feed(b"\nfine\n")
    assert framer.close() is None


def test_a_long_line_in_many_chunks_takes_linear_time() -> None:
    size = 128 * 1024 * 1024

    def feed() -> None:
        framer = LineFramer(max_line=size)
        chunk = b"x" * 4096
        for _ in range(size // len(chunk)):
            framer.feed(chunk)
        (line,) = framer.feed(b"\n")
        assert len(line) == size

    # 128 MiB in 4 KiB pieces: concatenation would copy 2 TiB, joining once copies 128 MiB
    assert_cpu_time_below(5, feed)


def test_many_short_lines_of_a_chunk_come_in_order() -> None:
    lines = [b'{"n":%d}' % n for n in range(10_000)]
    assert LineFramer().feed(b"\n".join(lines) + b"\n") == lines
