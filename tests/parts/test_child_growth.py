"""Whatever a child prints: to read twice as much costs twice as much, and no line holds up the other clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from codex_proxy.agents.sessions.session import MAX_LINE_BYTES
from codex_proxy.core.json_values import LONG_JSON, is_too_costly
from codex_proxy.process.pipes import READ_BYTES
from tests.cpu_time import assert_cpu_time_below, cpu_seconds, slowness
from tests.every_agent import OF_MODEL_SERVERS, OF_TESTS, with_every_agent
from tests.growth import assert_linear
from tests.parts.child_readers import READERS, ChildReader, as_lines
from tests.parts.child_shapes import CLAUDE_CODE_STRUCTURED, LONG_LINES, SHAPES, Shape

SIZE = 1500
HELD_SECONDS = 0.15
"""What one read of the pipe may cost: 0.1 s were measured for the longest lines of all kinds."""


def assert_reading_is_linear(start: Callable[[], ChildReader], shape: Shape) -> None:
    def read(data: bytes) -> ChildReader:
        reader = start()
        reader.read(data)
        return reader

    assert_linear(lambda size: as_lines(shape(size)), read, SIZE)


@pytest.mark.sampled(every=31)
@pytest.mark.parametrize(
    ("child", "shape"),
    [
        (child, shape)
        for child in with_every_agent(SHAPES, but=OF_TESTS | OF_MODEL_SERVERS)
        for shape in SHAPES[child]
    ],
)
def test_reading_twice_as_much_of_a_child_costs_twice_as_much(child: str, shape: str) -> None:
    assert_reading_is_linear(READERS[child], SHAPES[child][shape])


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("shape", CLAUDE_CODE_STRUCTURED)
def test_text_that_is_held_back_for_a_structured_answer_takes_time_proportional_to_its_size(
    shape: str,
) -> None:
    def start() -> ChildReader:
        return READERS["claude-code"](output_schema=b'{"type":"object"}')

    assert_reading_is_linear(start, CLAUDE_CODE_STRUCTURED[shape])


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize(
    ("child", "line"), [(child, line) for child in LONG_LINES for line in LONG_LINES[child]]
)
def test_a_line_of_16_mib_holds_the_event_loop_for_a_moment_only(child: str, line: str) -> None:
    data = as_lines([LONG_LINES[child][line](16 << 20)])
    assert len(data) < MAX_LINE_BYTES

    def longest_read() -> float:
        reader = READERS[child]()
        longest = 0.0
        for start in range(0, len(data), READ_BYTES):
            began = cpu_seconds()
            reader.read(data[start : start + READ_BYTES])
            longest = max(longest, cpu_seconds() - began)
        return longest / slowness()

    taken: list[float] = []
    while not any(each < HELD_SECONDS for each in taken):
        assert len(taken) < 3, taken
        taken.append(longest_read())


VALUES: dict[str, Callable[[int], Any]] = {
    "a text": lambda size: "words " * (size // 6),
    "an image": lambda size: "A" * size,
    "code": lambda size: 'if a["b"] == {}:\n    return [1, {"c": "\\\\"}]\n' * (size // 45),
    "paths that end in a backslash": lambda size: ["C:\\", "[1, 2], " * (size // 8)],
}


@pytest.mark.parametrize("value", VALUES)
def test_what_agents_send_in_long_lines_is_decoded(value: str) -> None:
    data = as_lines([{"type": "x", "item": VALUES[value](2 * LONG_JSON)}])
    assert len(data) > LONG_JSON
    assert not is_too_costly(data)


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("value", ["{}", "[1]", "1", '""', '{"a":"b"}', "null"])
def test_very_many_small_values_are_not_decoded(value: str) -> None:
    data = b'{"x":[' + b",".join([value.encode()] * (5 * LONG_JSON // len(value))) + b"]}"
    assert is_too_costly(data)
    assert_cpu_time_below(0.05, lambda: is_too_costly(data))
    assert not is_too_costly(data[:LONG_JSON])
