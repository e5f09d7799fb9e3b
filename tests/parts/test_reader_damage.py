"""Every reader of children under every damage: no text is lost silently, and no turn is left without an end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from codex_proxy.core.events import TextDelta, TurnEnded
from codex_proxy.parts.acp.messages import request_id
from tests.agents.damage import STRANGE
from tests.every_agent import OF_MODEL_SERVERS, OF_TESTS, with_every_agent
from tests.parts.child_readers import READERS as BEGUN
from tests.parts.child_readers import SESSION
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


# --- odd lines in an answer -------------------------------------------------------------------------


def streamed(event: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "stream_event", "session_id": SESSION, "event": event, **fields}


def streamed_text(text: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": text}
    return streamed({"type": "content_block_delta", "index": 0, "delta": delta})


def result_with(**fields: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": False, "result": "Hello", **fields}


def update(of: Any, session: Any = SESSION, method: Any = "session/update") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {"sessionId": session, "update": of}}


def chunk_of(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "claude-code": (
        [
            streamed({"type": "message_start", "message": {"id": "m1", "model": "m"}}),
            streamed({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}),
            streamed_text("Hel"),
        ],
        [
            streamed_text("lo"),
            streamed({"type": "content_block_stop", "index": 0}),
            streamed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
            result_with(),
        ],
    ),
    "acp": (
        [update(chunk_of("Hel"))],
        [
            update(chunk_of("lo")),
            {"id": request_id(1, 2), "result": {"stopReason": "end_turn", "usage": {"outputTokens": 2}}},
        ],
    ),
}
"""The lines of an answer, "Hello", before and behind an odd one."""
BOTH = (b"plain text", b"{plain text}", b"[1, 2]", b"5", b"null", b'"x"', {"level": "info", "msg": "x"})
NEEDLESS: dict[str, tuple[Any, ...]] = {
    "claude-code": (
        *BOTH,
        *({"type": "new", "message": [1]}, {"type": "rate_limit_event", "rate_limit_info": 5}),
        *({"session_id": SESSION, "x": "y"}, {"type": 5, "session_id": SESSION}),
        {"type": "system", "subtype": "status", "session_id": [1], "capabilities": "x"},
        {"type": "system", "subtype": "api_retry", "attempt": "x"},
        *(streamed({"type": "new", "index": "a", "delta": 5}), streamed({"x": 1}), streamed(None)),
        *(streamed({"type": "content_block_delta", "index": 0, "delta": None}), streamed(5)),
        *({"type": "stream_event"}, streamed("x", parent_tool_use_id="t")),
        b'{"type":"rate_limit_event","rat',
    ),
    "acp": (
        *BOTH,
        *({"method": "new/thing", "params": {"sessionId": SESSION}}, {"method": "new/thing", "params": [1]}),
        *({"method": None, "params": {"sessionId": SESSION}}, {"params": {"sessionId": SESSION}}),
        *(
            update(None),
            update({}),
            update(5),
            update({"sessionUpdate": 5}),
            update({"sessionUpdate": "new"}),
        ),
        *(update(chunk_of("x"), "other"), update(5, "other"), update({"sessionUpdate": "plan"}, 5)),
        {"method": "session/update", "params": {"update": {"sessionUpdate": "plan", "entries": []}}},
        {"jsonrpc": "2.0", "id": 77, "result": {}},
        f'{{"method":"_x/log","params":{{"sessionId":"{SESSION}","a":'.encode(),
    ),
}
"""Lines that carry nothing which the turn needs, or which it can read."""
NEEDED: dict[str, tuple[Any, ...]] = {
    "claude-code": (
        *(streamed("x"), streamed({"delta": {"text": "x"}}), streamed({"type": "message_start"})),
        *({"event": {"type": "content_block_delta"}}, {"is_error": False}, {"request": {}}),
        *(b'{"type":"stream_event","sess', b'{"type":"assistant","mess', b'{"ty'),
    ),
    "acp": (
        *(update({"content": {"text": "x"}}), update(chunk_of("x"), 5), update(chunk_of("x"), method=5)),
        *({"jsonrpc": "2.0", "result": {}}, {"id": None, "error": {"code": -32700}}),
        f'{{"method":"session/update","params":{{"sessionId":"{SESSION}","upd'.encode(),
        b'{"jsonrpc":"2.0","me',
    ),
}
"""Lines that may carry a piece of the answer, its end or a question, and cannot be read."""


def with_odd_line(
    agent: str, line: Any, answer: tuple[list[Any], list[Any]] | None = None
) -> tuple[str, str]:
    """The text, and how the turn ended; `lost` if the agent's process would be given up."""
    begun, rest = answer or ANSWERS[agent]
    reader = BEGUN[agent](keeps_log=True)
    reader.say(*begun, line, *rest)
    ends = [event.stop for event in reader.log if isinstance(event, TurnEnded)]
    text = "".join(event.text for event in reader.log if isinstance(event, TextDelta))
    return text, "lost" if reader.fault else ends[0]


@pytest.mark.parametrize(("agent", "line"), [(agent, line) for agent in NEEDLESS for line in NEEDLESS[agent]])
def test_a_line_that_carries_nothing_needed_ends_no_turn(agent: str, line: Any) -> None:
    assert with_odd_line(agent, line) == ("Hello", "stop")


@pytest.mark.parametrize(("agent", "line"), [(agent, line) for agent in NEEDED for line in NEEDED[agent]])
def test_a_line_that_may_carry_the_answer_and_cannot_be_read_ends_the_turn(agent: str, line: Any) -> None:
    assert with_odd_line(agent, line)[1] in ("failed", "lost")


@pytest.mark.parametrize(
    ("odd", "stop"),
    [
        *(({name: 5}, "stop") for name in ("result", "stop_reason", "terminal_reason", "usage")),
        *(({"api_error_status": "x"}, "stop"), ({"result": None}, "stop"), ({"session_id": []}, "stop")),
        *(({"is_error": "yes"}, "failed"), ({"is_error": True, "result": 5}, "failed")),
    ],
)
def test_the_end_of_claude_code_is_read_as_far_as_it_can_be(odd: dict[str, Any], stop: str) -> None:
    begun, rest = ANSWERS["claude-code"]
    assert with_odd_line("claude-code", {"type": "new"}, (begun, [*rest[:-1], result_with(**odd)])) == (
        "Hello",
        stop,
    )
