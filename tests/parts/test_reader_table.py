"""Every reader of foreign messages is tried with every damage: the table of who tests what, or why it cannot occur."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.parts import child_readers, reader_damage
from tests.parts.mcp.test_damaged_messages import FRAMES, READ, TRANSPORTS
from tests.parts.upstream.test_damaged_streams import DAMAGES as STREAM_DAMAGES

TESTS: Final = Path(__file__).parents[1]
CHILDREN: Final = ("codex app-server", "codex proto", "claude code", "acp")
MCP: Final = ("mcp stdio", "mcp http", "mcp sse")
UPSTREAMS: Final = ("openai-chat, read", "openai-chat, passed on", "openai-responses")
LISTENER: Final = "tool server of acp"
READERS: Final = (*CHILDREN, *MCP, *UPSTREAMS, LISTENER)

CHILD, STREAM, SERVER, TOOLS, PAIRS, REPAIR, MUTATED = (
    "parts/test_reader_damage.py::",
    "parts/upstream/test_damaged_streams.py::",
    "parts/mcp/test_damaged_messages.py::",
    "parts/acp/test_tool_server.py::",
    "parts/upstream/test_split_pairs.py::",
    "core/test_repair.py::",
    "parts/upstream/test_mutated_with_sdks.py::",
)
PASSED: Final = STREAM + "test_what_is_passed_on_of_a_damaged_stream_are_whole_chunks"
CHAT: Final = STREAM + "test_a_damaged_stream_of_chat_says_what_the_whole_one_says"
RESPONSES: Final = STREAM + "test_a_damaged_stream_of_responses_says_what_the_whole_one_says"
HARMLESS: Final = CHILD + "test_a_turn_comes_out_the_same_under_a_damage_that_concerns_none_of_its_words"
ANSWERS: Final = SERVER + "test_damaged_answers_are_read_or_are_an_error"
EVENTS: Final = SERVER + "test_events_are_read_however_they_are_framed_and_cut"
NOISE: Final = SERVER + "test_noise_around_a_line_is_passed_over"
TORN: Final = SERVER + "test_an_answer_that_breaks_off_anywhere_is_an_error"
ANY_VALUE: Final = SERVER + "test_an_answer_of_which_any_value_is_another_ends_its_call"
JOINED: Final = REPAIR + "test_halves_of_a_surrogate_pair_in_two_deltas_are_sent_as_one_character"
CALLS: Final = TOOLS + "test_a_call_that_cannot_be_read_gets_an_error_with_its_id"
NO_EVENTS: Final = "cannot occur: it reads lines of JSON, no events"
NO_STREAM: Final = "cannot occur: each message has its whole text"
BY_AIOHTTP: Final = "cannot occur: a message is the body of a request, which aiohttp reads"


def row(
    children: str, stdio: str, http: str, chat: str, passed: str, responses: str, tools: str
) -> dict[str, str]:
    return {
        **dict.fromkeys(CHILDREN, children),
        MCP[0]: stdio,
        MCP[1]: http,
        MCP[2]: http,
        **dict(zip(UPSTREAMS, (chat, passed, responses), strict=True)),
        LISTENER: tools,
    }


SDKS: Final = MUTATED + "test_an_sdk_reads_the_answer_of_a_mutated_stream_or_an_error"
TABLE: Final[dict[str, dict[str, str]]] = {
    "half of a pair in one message": row(
        CHILD + "test_half_a_pair_behind_every_piece_of_text_costs_no_other_character",
        *(ANSWERS, ANSWERS),
        "parts/upstream/test_openai_chat_dialect.py::test_half_a_surrogate_pair_reaches_the_client_and_breaks_nothing",
        PAIRS + "test_a_half_alone_becomes_the_replacement_character",
        REPAIR + "test_half_of_a_surrogate_pair_without_the_other_is_one_replacement_character",
        TOOLS + "test_a_damaged_call_is_read",
    ),
    "a pair over two deltas": row(
        JOINED,
        *(NO_STREAM, NO_STREAM),
        SDKS,
        PAIRS + "test_a_pair_over_two_deltas_is_one_character",
        JOINED,
        NO_STREAM,
    ),
    "bare CR": row(HARMLESS, NOISE, EVENTS, CHAT, PASSED, RESPONSES, BY_AIOHTTP),
    "several data lines": row(NO_EVENTS, NO_EVENTS, EVENTS, CHAT, PASSED, RESPONSES, BY_AIOHTTP),
    "keep-alive as data": row(HARMLESS, NOISE, EVENTS, CHAT, PASSED, RESPONSES, BY_AIOHTTP),
    "empty events": row(HARMLESS, NOISE, EVENTS, CHAT, PASSED, RESPONSES, BY_AIOHTTP),
    "cut at each byte": row(
        HARMLESS,
        SERVER + "test_lines_of_a_server_are_read_however_they_are_cut",
        EVENTS,
        CHAT,
        PASSED,
        "parts/upstream/test_openai_responses_dialect.py::"
        "test_interleaved_calls_keep_their_order_ids_and_texts_however_they_are_reported_and_cut",
        BY_AIOHTTP,
    ),
    "torn line": row(
        CHILD + "test_a_line_may_break_off_at_any_byte",
        *(TORN, TORN),
        STREAM + "test_json_that_is_broken_is_an_error_and_text_too",
        "parts/upstream/test_openai_chat_pass_through.py::test_what_breaks_off_is_passed_on_in_whole_events",
        STREAM + "test_json_that_is_broken_is_an_error_and_text_too",
        CALLS,
    ),
    "values of other types": row(
        CHILD + "test_a_value_of_another_type_or_none_leaves_no_turn_without_an_end",
        *(ANY_VALUE, ANY_VALUE),
        SDKS,
        "parts/upstream/test_whole_chat.py::test_an_odd_stream_is_joined_to_what_the_reader_makes_of_it",
        SDKS,
        CALLS,
    ),
}
"""For each damage and reader the test that tries it, or why it cannot occur."""


@cache
def functions_in(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text())) if path.is_file() else ()
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def gaps(table: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    """The cells that name no test that there is, and give no reason."""
    return [
        (damage, reader)
        for damage, cells in table.items()
        for reader in READERS
        if is_empty(cells.get(reader, ""))
    ]


def is_empty(cell: str) -> bool:
    file, _, test = cell.partition("::")
    return not cell.startswith("cannot occur: ") and test not in functions_in(TESTS / file)


def test_every_reader_is_tried_with_every_damage_or_cannot_meet_it() -> None:
    assert gaps(TABLE) == []


@pytest.mark.parametrize(
    "cell", ["", "test_nothing", CHILD, CHILD + "test_nothing", "nowhere.py::test_nothing"]
)
def test_a_gap_is_found(cell: str) -> None:
    damage, reader = next(iter(TABLE)), READERS[-1]
    assert gaps({**TABLE, damage: {**TABLE[damage], reader: cell}}) == [(damage, reader)]
    assert gaps({**TABLE, "new": {}}) == [("new", each) for each in READERS]


def test_the_readers_and_damages_of_the_table_are_those_of_the_tests() -> None:
    assert set(CHILDREN) == set(reader_damage.READERS)
    assert len(CHILDREN) == len(child_readers.READERS)
    assert set(TRANSPORTS) == {"stdio", "json", "events", "sse"}
    assert {"bare CR", "blank lines", "noise", "noise of JSON", "pieces of one byte"} <= set(
        reader_damage.HARMLESS
    )
    assert {"CR", "several data lines", "empty events"} <= set(FRAMES)
    assert {"half of a pair", "the other half"} <= set(READ)
    assert {"CR", "several lines", "nothing 0", "nothing 1", "nothing 2"} <= set(STREAM_DAMAGES)
