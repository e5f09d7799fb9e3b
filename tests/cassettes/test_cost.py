"""Recording a turn costs what its lines weigh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from codex_proxy.cassettes import recorder
from codex_proxy.cassettes.recorder import RecordedExchange, Recorder
from codex_proxy.cassettes.scrubbing import Scrubber
from codex_proxy.core.events import TurnEnded
from codex_proxy.core.turn import Turn
from tests.growth import assert_linear


def delta(text: str, item: str = "item-1") -> bytes:
    return msgspec.json.encode({"method": "delta", "params": {"itemId": item, "delta": text}})


SHAPES: Final[dict[str, tuple[int, Callable[[int], list[bytes]]]]] = {
    "deltas of one text": (2000, lambda count: [delta(f"word {number}") for number in range(count)]),
    "two texts by turns": (1000, lambda count: [delta("word", f"item-{each % 2}") for each in range(count)]),
    "pairs of deltas": (
        1000,
        lambda count: [delta(f"w{each}", f"item-{each // 2 % 2}") for each in range(count)],
    ),
    "new ids": (500, lambda count: [delta("word", str(UUID(int=each))) for each in range(count)]),
    "arguments": (
        500,
        lambda count: [
            b'{"id":"a","arguments":{"a":' + b'{"b":' * each + b"1" + b"}" * (each + 2) for each in [count]
        ],
    ),
    "lists of ids": (
        500,
        lambda count: [msgspec.json.encode({"Ids": [str(UUID(int=each)) for each in range(count)]})],
    ),
    "secrets": (500, lambda count: [delta("ghp_" + "a" * 30, str(each)) for each in range(count)]),
    "secrets in pieces": (500, lambda count: [delta(text) for text in ("ghp_aaaaaaa", "aaaaaaaa ") * count]),
    "long texts": (1 << 18, lambda size: [delta("w" * size), delta("v" * size)]),
    "escaped quotes": (1 << 16, lambda size: [delta('"' * size), delta("\\" * size)]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_recording_a_turn_costs_what_its_lines_weigh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.setattr(recorder, "MAX_AT_ONCE", 1 << 30)
    folder = Recorder(tmp_path, Scrubber({"<user>": ["jplanted"]}), {})
    agent: Any = SimpleNamespace(name="fake", version="", capabilities=())
    written = list[Path]()

    def record(lines: list[bytes]) -> None:
        exchange = RecordedExchange(folder, "POST /v1/chat/completions", {}, ())
        exchange.add_content("request", b"{}")
        session: Any = SimpleNamespace(recorder=None, origin=None)
        turn = exchange.turn(Turn(model="m", history=()), agent, ())
        turn.on_written = written.append
        turn.on_session(session)
        session.recorder.on_lines(lines)
        exchange.add_content("answer", b"".join(b"data: %b\n\n" % line for line in lines))
        turn.on_end(TurnEnded(stop="completed"))
        exchange.end(200)

    size, make = SHAPES[shape]
    assert_linear(make, record, size)
    assert written
