"""Whether a history goes on where a thread stopped: exactly then, and with exactly what is new to it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.runs.idle_sessions import Digests, HistoryDigests, item_digests, unseen_items
from codex_proxy.tools.replay import assistant_text, call_key
from tests.tools.histories import HISTORIES, ITEMS, OUTPUTS, RAW, USER_MESSAGES

QUESTION = HistoryMessage("user", (TextPart("Well?"),))
MORE = HistoryMessage("user", (TextPart("And?"),))
ANSWER = HistoryMessage("assistant", (TextPart("So."),))
CALL, OUTPUT = HistoryCall("a", "f", "{}"), HistoryOutput("a", (TextPart("done"),))
RAW_ITEM = RawHistoryItem(b'{"type":"reasoning"}')


def fresh_items(seen: Digests, history: Sequence[HistoryItem]) -> tuple[HistoryItem, ...] | None:
    return unseen_items(seen, HistoryDigests(history))


def digests(history: Sequence[HistoryItem]) -> tuple[bytes, ...]:
    return item_digests(history)[0]


def plain(history: Sequence[HistoryItem]) -> list[object]:
    """A history as a client sees it, by another way: no raw items, one text for what the assistant said at once."""
    out: list[object] = []
    spoken: list[HistoryItem] = []
    for item in [*history, None]:
        if isinstance(item, RawHistoryItem):
            continue
        if isinstance(item, HistoryMessage) and item.role == "assistant":
            spoken.append(item)
            continue
        if assistant_text(spoken):
            out.append(assistant_text(spoken))
        spoken = []
        if isinstance(item, HistoryMessage):
            parts = [
                ("i", p.url, p.detail or "") if isinstance(p, ImagePart) else ("t", p.text)
                for p in item.parts
            ]
            out.append((item.role, parts))
        elif item is not None:
            out.append(msgspec.to_builtins(item))
    return out


def test_items_behind_those_that_a_thread_has_seen_are_new() -> None:
    assert fresh_items(digests([QUESTION, ANSWER]), [QUESTION, ANSWER, MORE]) == (MORE,)


def test_outputs_are_new_to_a_thread_that_waits_for_them() -> None:
    assert fresh_items(digests([QUESTION, ANSWER, CALL]), [QUESTION, ANSWER, CALL, OUTPUT]) == (OUTPUT,)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [QUESTION],
        [QUESTION, ANSWER],
        [MORE, ANSWER, MORE],
        [QUESTION, HistoryMessage("assistant", (TextPart("So!"),)), MORE],
        [QUESTION, ANSWER, ANSWER, MORE],
        [QUESTION, CALL, ANSWER, MORE],
        [ANSWER, QUESTION, MORE],
        [HistoryMessage("developer", QUESTION.parts), ANSWER, MORE],
    ],
)
def test_a_history_that_does_not_go_on_from_there_is_not_taken(history: list[HistoryItem]) -> None:
    assert fresh_items(digests([QUESTION, ANSWER]), history) is None


def test_nothing_goes_on_from_nothing() -> None:
    assert fresh_items((), [QUESTION]) is None


@pytest.mark.parametrize(
    "other",
    [
        HistoryCall("b", "f", "{}"),
        HistoryCall("a", "g", "{}"),
        HistoryCall("a", "f", '{"x":1}'),
        HistoryCall("a", "f", "{}", "custom"),
    ],
)
def test_every_field_of_a_call_counts(other: HistoryCall) -> None:
    assert digests([CALL]) != digests([other])
    assert digests([CALL]) == digests([HistoryCall("a", "f", "{}", id="fc_1")])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("", "{}"),
        ('{"b": 1.0, "a": "\\u00e9\\/"}', '{"a":"é/","b":1}'),
        ('{ "a" : [ 1e2, -0.5 ] }', '{"a":[100,-0.5]}'),
    ],
)
def test_arguments_count_by_their_value_since_clients_spell_them_anew(one: str, other: str) -> None:
    assert digests([HistoryCall("a", "f", one)]) == digests([HistoryCall("a", "f", other)])
    assert call_key(HistoryCall("a", "f", one)) == call_key(HistoryCall("a", "f", other))
    if one:
        assert digests([HistoryCall("a", "f", one, "custom")]) != digests(
            [HistoryCall("a", "f", other, "custom")]
        )


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "text", '{"a":1e999}', '{"a":NaN}'])
def test_arguments_that_are_no_json_count_too(text: str) -> None:
    assert digests([HistoryCall("a", "f", text)]) != digests([CALL])


@pytest.mark.parametrize(
    "other",
    [
        HistoryOutput("b", OUTPUT.parts),
        HistoryOutput("a", (TextPart("else"),)),
        HistoryOutput("a", (TextPart("do"), TextPart("ne"))),
        HistoryOutput("a", (ImagePart("done"),)),
        HistoryOutput("a", ()),
        HistoryOutput("a", OUTPUT.parts, "custom"),
    ],
)
def test_every_field_of_an_output_counts(other: HistoryOutput) -> None:
    assert digests([OUTPUT]) != digests([other])


def test_the_detail_of_an_image_counts() -> None:
    assert digests([HistoryOutput("a", (ImagePart("u", "high"),))]) != digests(
        [HistoryOutput("a", (ImagePart("u"),))]
    )


def test_consecutive_messages_of_the_assistant_are_one() -> None:
    two = [HistoryMessage("assistant", (TextPart("One."),)), HistoryMessage("assistant", (TextPart("Two."),))]
    one = [HistoryMessage("assistant", (TextPart("One.\n\nTwo."),))]
    assert digests(two) == digests(one)
    assert fresh_items(digests(two), [*one, MORE]) == (MORE,)
    assert fresh_items(digests(one), [two[0], RAW_ITEM, two[1], MORE]) == (MORE,)


def test_reasoning_that_a_client_puts_into_the_answer_does_not_count() -> None:
    thought = HistoryMessage("assistant", (TextPart("<think>\nHm.\n</think>\n\nSo."),))
    assert fresh_items(digests([QUESTION, ANSWER]), [QUESTION, thought, MORE]) == (MORE,)


def test_a_message_of_the_assistant_that_says_nothing_does_not_count() -> None:
    empty = HistoryMessage("assistant", (TextPart(""),))
    assert fresh_items(digests([QUESTION, CALL]), [QUESTION, empty, CALL, OUTPUT]) == (OUTPUT,)


@given(HISTORIES, HISTORIES)
def test_two_histories_have_the_same_digests_exactly_if_a_client_sees_the_same(
    one: list[HistoryItem], other: list[HistoryItem]
) -> None:
    assert (digests(one) == digests(other)) is (plain(one) == plain(other))


@given(HISTORIES, USER_MESSAGES | OUTPUTS, st.lists(ITEMS, max_size=4))
def test_exactly_the_items_that_a_client_adds_are_new(
    history: list[HistoryItem], first: HistoryItem, more: list[HistoryItem]
) -> None:
    """A client adds a question or an output first."""
    assume(digests(history))
    assert fresh_items(digests(history), [*history, first, *more]) == (first, *more)


@given(HISTORIES, HISTORIES)
def test_a_history_is_taken_exactly_if_it_begins_with_what_was_seen(
    before: list[HistoryItem], history: list[HistoryItem]
) -> None:
    known, now = plain(before), plain(history)
    goes_on = bool(known) and len(now) > len(known) and now[: len(known)] == known
    fresh = fresh_items(digests(before), history)
    assert (fresh is not None) is goes_on
    if fresh is not None:
        assert plain(fresh) == now[len(known) :]


@given(HISTORIES, HISTORIES, st.lists(st.tuples(st.integers(0, 20), RAW)))
def test_raw_items_never_matter(
    before: list[HistoryItem], history: list[HistoryItem], added: list[tuple[int, RawHistoryItem]]
) -> None:
    littered = list(history)
    for place, item in added:
        littered.insert(place, item)
    fresh, with_raw = fresh_items(digests(before), history), fresh_items(digests(before), littered)
    assert (fresh is None) is (with_raw is None)
    assert digests(littered) == digests(history)
    if fresh is not None and with_raw is not None:
        assert plain(with_raw) == plain(fresh)
