"""What may become of a child's lines on their way: bytes and values that are lost, doubled, moved or changed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

STRANGE: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, "", "x", "completed", "failed", [], [1], {}, {"id": "x"}),
    *([None], {"type": "agentMessage"}, {"type": None}, {"total": None}, {"message": 5}, "\x00\u2028"),
]


def change_value(value: Any, chance: random.Random, rate: float) -> Any:
    """The same JSON with some of its values replaced by strange ones, or dropped."""
    if chance.random() < rate:
        return chance.choice(STRANGE)
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if chance.random() > rate / 2}
        return {key: change_value(each, chance, rate) for key, each in kept.items()}
    if isinstance(value, list):
        return [change_value(each, chance, rate) for each in value]
    return value


def each_change(value: Any) -> Iterator[Any]:
    """The same JSON with one of its values replaced: every value in it, by each strange one."""
    yield from STRANGE
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: strange} for strange in each_change(inner))
    if isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], strange, *value[place + 1 :]] for strange in each_change(inner))


def change_line(line: bytes, chance: random.Random, rate: float) -> bytes:
    """A line of JSON with some of its values changed; one that is no JSON stays as it is."""
    try:
        value = json.loads(line)
    except ValueError:
        return line
    return json.dumps(change_value(value, chance, rate)).encode()


def break_line(line: bytes, chance: random.Random) -> bytes:
    """The line, perhaps with some of its bytes as others."""
    data = bytearray(line)
    if data and chance.random() < 0.3:
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def move_lines(lines: Sequence[T], chance: random.Random) -> list[T]:
    """The lines, some of which changed places with their neighbours, came again, or are missing."""
    out = list(lines)
    for n in range(len(out) - 1):
        if chance.random() < 0.2:
            out[n], out[n + 1] = out[n + 1], out[n]
    for line in chance.choices(out, k=3 if out else 0):
        out.insert(chance.randrange(len(out) + 1), line)
    return [line for line in out if chance.random() > 0.05]


def in_pieces(data: bytes, chance: random.Random) -> list[bytes]:
    """The bytes as a pipe might give them."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randint(0, 30)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
