"""Recording a turn costs what it weighs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from codex_proxy.core.events import ArgumentsDelta, Event, RawItem, TextDelta
from codex_proxy.parts.cassettes import recorder
from tests.growth import assert_linear
from tests.parts.cassettes.talking import record_steps


def raw(**fields: Any) -> Event:
    return RawItem("message", msgspec.json.encode({"type": "message", **fields}))


SHAPES: Final[dict[str, tuple[int, Callable[[int], list[Event]]]]] = {
    "deltas of one text": (2000, lambda count: [TextDelta("a", f"word {number}") for number in range(count)]),
    "two texts by turns": (1000, lambda count: [TextDelta(f"a{each % 2}", "word") for each in range(count)]),
    "pairs of deltas": (
        1000,
        lambda count: [TextDelta(f"a{each // 2 % 2}", f"w{each}") for each in range(count)],
    ),
    "new ids": (500, lambda count: [TextDelta(str(UUID(int=each)), "word") for each in range(count)]),
    "arguments": (
        500,
        lambda count: [
            RawItem("x", b'{"type":"x","arguments":{"a":' + b'{"b":' * each + b"1" + b"}" * (each + 2))
            for each in [count]
        ],
    ),
    "lists of ids": (500, lambda count: [raw(Ids=[str(UUID(int=each)) for each in range(count)])]),
    "secrets": (500, lambda count: [TextDelta(str(each), "ghp_" + "a" * 30) for each in range(count)]),
    "secrets in pieces": (
        500,
        lambda count: [TextDelta("a", text) for text in ("ghp_aaaaaaa", "aaaaaaaa ") * count],
    ),
    "long texts": (1 << 18, lambda size: [ArgumentsDelta("a", "w" * size), ArgumentsDelta("a", "v" * size)]),
    "escaped quotes": (1 << 16, lambda size: [TextDelta("a", '"' * size), TextDelta("a", "\\" * size)]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_recording_a_turn_costs_what_it_weighs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.setattr(recorder, "MAX_AT_ONCE", 1 << 30)

    def record(events: list[Event]) -> None:
        record_steps(tmp_path, [[event] for event in events], list(map(msgspec.json.encode, events)))

    size, make = SHAPES[shape]
    assert_linear(make, record, size)
    assert list(tmp_path.iterdir())
