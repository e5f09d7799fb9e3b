"""Every reader of children under every damage: no text is lost silently, and no turn is left without an end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.agents.damage import STRANGE
from tests.every_agent import OF_MODEL_SERVERS, OF_TESTS, with_every_agent
from tests.parts.reader_damage import (
    ADDRESSES,
    GONE,
    HARMLESS,
    READERS,
    Outcome,
    Reader,
    asks,
    each_value,
    framed,
    rewritten,
    with_half,
    with_other_address,
)

KIND_OF = {
    "codex proto": "proto",
    "codex app-server": "app-server",
    "claude code": "claude-code",
    "acp": "acp",
}
"""The kind of agents that a reader is of."""
SOME = 5
"""The recordings of a reader that the default run plays under a damage; all are played with `--all`."""
ALL_OF_THEM = pytest.mark.exhaustive


def plays(reader: Reader, turn: Any, parts: Sequence[Any], *, dies: bool = False) -> Outcome:
    return reader.play(turn, framed(parts), dies=dies)


ENDING: dict[str, Sequence[Any]] = {}


def ending_turns(name: str) -> Sequence[Any]:
    """The recordings of a reader whose turn ends by itself."""
    if name not in ENDING:
        reader = READERS[name]
        ends = [turn for turn in reader.turns if plays(reader, turn, reader.parts_of(turn)).stop is not None]
        assert len(ends) > len(reader.turns) / 2
        ENDING[name] = ends
    return ENDING[name]


def some_turns(name: str, seed: str, *, all_of_them: bool) -> Sequence[Any]:
    turns = ending_turns(name)
    return turns if all_of_them else random.Random(seed).sample(turns, SOME)


with_every_agent([KIND_OF[reader] for reader in READERS], but=OF_TESTS | OF_MODEL_SERVERS)
EACH_READER = pytest.mark.parametrize("reader", READERS)
HOW_MANY = pytest.mark.parametrize(
    "all_of_them", [pytest.param(False, id="some"), pytest.param(True, id="all", marks=ALL_OF_THEM)]
)


@EACH_READER
@pytest.mark.parametrize("damage", HARMLESS)
@HOW_MANY
def test_a_turn_comes_out_the_same_under_a_damage_that_concerns_none_of_its_words(
    reader: str, damage: str, all_of_them: bool
) -> None:
    how = READERS[reader]
    for turn in some_turns(reader, damage, all_of_them=all_of_them):
        parts = how.parts_of(turn)
        damaged = plays(how, turn, HARMLESS[damage](parts))
        assert damaged[:2] == plays(how, turn, parts)[:2], turn


@EACH_READER
@HOW_MANY
def test_half_a_pair_behind_every_piece_of_text_costs_no_other_character(
    reader: str, all_of_them: bool
) -> None:
    how = READERS[reader]
    for turn in some_turns(reader, "halves", all_of_them=all_of_them):
        parts = how.parts_of(turn)
        whole, damaged = plays(how, turn, parts), plays(how, turn, each_value(with_half)(parts))
        if "agent_retry" in whole.told:
            continue  # what is repeated whole differs from its pieces now
        assert (damaged.text.replace("\ufffd", ""), damaged.stop) == whole[:2], turn


def assert_ended(whole: Outcome, damaged: Outcome, about: object) -> None:
    """The turn has an end, and what is missing of its text was told, or it has failed."""
    assert damaged.stop is not None, about
    assert damaged.stop == "failed" or damaged.text == whole.text or damaged.told, about


def damaged_once(parts: Sequence[Any], change: Any, chance: random.Random) -> tuple[Sequence[Any], Any]:
    """The parts with one value of one line changed, which is no address; and the line."""
    places = [n for n, part in enumerate(parts) if isinstance(part, bytes) and part.startswith(b"{")]
    place = chance.choice(places)
    count = 0

    def counts(name: str, value: Any) -> Any:
        nonlocal count
        count += name not in ADDRESSES
        return value

    each_value(counts)([parts[place]])
    chosen, count = chance.randrange(max(1, count)), 0

    def changed(name: str, value: Any) -> Any:
        nonlocal count
        if name in ADDRESSES:
            return value
        count += 1
        return change(value) if count == chosen + 1 else value

    [line] = each_value(changed)([parts[place]])
    return [*parts[:place], line, *parts[place + 1 :]], line


@EACH_READER
@pytest.mark.parametrize("kind", ["strange", "missing"])
@pytest.mark.parametrize(
    "times", [pytest.param(60, id="some"), pytest.param(1500, id="many", marks=ALL_OF_THEM)]
)
def test_a_value_of_another_type_or_none_leaves_no_turn_without_an_end(
    reader: str, kind: str, times: int
) -> None:
    how, chance = READERS[reader], random.Random(f"{reader} {kind}")
    for _ in range(times):
        turn = chance.choice(ending_turns(reader))
        parts = how.parts_of(turn)
        change = (lambda _: GONE) if kind == "missing" else (lambda _: chance.choice(STRANGE))
        damaged, line = damaged_once(parts, change, chance)
        assert_ended(plays(how, turn, parts), plays(how, turn, damaged), (turn, line))


@EACH_READER
@pytest.mark.parametrize(
    "times", [pytest.param(60, id="some"), pytest.param(1500, id="many", marks=ALL_OF_THEM)]
)
def test_a_line_that_does_not_say_what_or_whose_it_is_leaves_no_turn_without_an_end(
    reader: str, times: int
) -> None:
    how, chance = READERS[reader], random.Random(reader)
    for _ in range(times):
        turn = chance.choice(ending_turns(reader))
        parts = list(rewritten(how.parts_of(turn)))
        whole = plays(how, turn, parts)
        place = chance.choice([n for n, part in enumerate(parts) if isinstance(part, bytes)])
        if asks(parts[place]) or not parts[place].startswith(b"{"):
            continue  # what is asked is refused then, and the agent goes on without
        parts[place] = with_other_address(parts[place], chance)
        assert_ended(whole, plays(how, turn, parts), (turn, parts[place]))


@EACH_READER
@pytest.mark.parametrize(
    "times", [pytest.param(60, id="some"), pytest.param(3000, id="many", marks=ALL_OF_THEM)]
)
def test_a_line_may_break_off_at_any_byte(reader: str, times: int) -> None:
    how, chance = READERS[reader], random.Random(reader)
    for _ in range(times):
        turn = chance.choice(ending_turns(reader))
        parts = list(how.parts_of(turn))
        places = [n for n, part in enumerate(parts) if isinstance(part, bytes) and part.startswith(b'{"')]
        place = chance.choice(places)
        line = parts[place]
        whole = plays(how, turn, parts)
        # Most that matters is at the beginning, which is a small part of most lines.
        parts[place] = line[: chance.randrange(2, chance.choice([min(len(line), 80), len(line)]))] + b"\n"
        if not asks(line):
            assert_ended(whole, plays(how, turn, parts), (turn, parts[place]))


@EACH_READER
@pytest.mark.parametrize("kind", ["cut", "bad escape", "too deep"])
@pytest.mark.parametrize(
    "times", [pytest.param(60, id="some"), pytest.param(1500, id="many", marks=ALL_OF_THEM)]
)
def test_a_line_that_cannot_be_read_leaves_no_turn_without_an_end(reader: str, kind: str, times: int) -> None:
    how, chance = READERS[reader], random.Random(f"{reader} {kind}")
    for _ in range(times):
        turn = chance.choice(ending_turns(reader))
        parts = list(how.parts_of(turn))
        place = chance.choice(
            [n for n, part in enumerate(parts) if isinstance(part, bytes) and part.startswith(b"{")]
        )
        parts[place] = unreadable(parts[place], kind, chance)
        whole = plays(how, turn, how.parts_of(turn))
        assert_ended(whole, plays(how, turn, parts), (turn, parts[place]))


def unreadable(line: bytes, kind: str, chance: random.Random) -> bytes:
    """The line as one of which only the beginning can be read: address and kind are there."""
    line = line.removesuffix(b"\n")
    if kind == "cut":
        return line[: len(line) * chance.randint(85, 99) // 100] + b"\n"
    if kind == "too deep":
        return line[:-1] + b',"zz":' + b"[" * 500 + b"]" * 500 + b"}\n"
    return line[:-1] + rb',"zz":"\q"}' + b"\n"


@EACH_READER
def test_a_child_that_dies_in_a_line_or_prints_one_that_is_too_long_has_one_end(reader: str) -> None:
    how = READERS[reader]
    for turn in some_turns(reader, "dies", all_of_them=False):
        parts = [part for part in how.parts_of(turn) if isinstance(part, bytes)]
        longest = max(len(part) for part in parts)
        for damaged in (
            framed([*parts[:-1], parts[-1][: len(parts[-1]) // 2]]),
            framed(parts, longest - 2),
        ):
            assert how.play(turn, damaged, dies=True).stop is not None
