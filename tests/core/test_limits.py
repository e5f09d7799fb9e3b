"""Limits of what a turn may say: cut exactly there, wherever the deltas have their borders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codex_proxy.core.events import (
    AnnotationAdded,
    ArgumentsDelta,
    Event,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    Stop,
    TextDelta,
)
from codex_proxy.core.items import Message, Reasoning, ToolCall
from codex_proxy.core.limits import (
    DELTA_SIZE,
    ITEM_SIZE,
    MaxSize,
    MaxTokens,
    StopSequences,
    TurnLimits,
)
from tests.cpu_time import assert_cpu_time_below

TEXT = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


def message_events(text: str, cuts: Sequence[int], id: str = "m") -> list[Event]:
    """A message of this text, cut into deltas."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    return [ItemStarted(Message(id)), *[TextDelta(id, piece) for piece in pieces if piece], ItemEnded(id)]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def expected(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the sequence that is complete first, read letter by letter."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(deadline=None)
@given(TEXT, STOPS, st.lists(st.integers(0, 12), max_size=6))
def test_a_message_is_cut_exactly_before_the_stop_sequence_that_is_complete_first(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    events, hit = StopSequences(stops).feed(message_events(text, cuts))
    assert (text_of(events), hit) == expected(text, stops)


def test_long_stop_sequences_that_nearly_come_are_looked_for_in_no_time() -> None:
    """As long as a request may bring them: an answer of their beginnings, in pieces."""

    def feed() -> None:
        limit = StopSequences(["a" * 999 + "b", "ab" * 500, "a" * 500 + "b" * 500, "b" + "a" * 999])
        limit.feed([ItemStarted(Message("m"))])
        for _ in range(200):
            limit.feed([TextDelta("m", "a" * 900), TextDelta("m", "ab" * 40)])

    assert_cpu_time_below(1.5, feed)


@settings(deadline=None)
@given(TEXT, STOPS, st.lists(st.integers(0, 12), max_size=6))
def test_no_delta_is_empty_and_every_item_is_closed_once(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    events, _ = StopSequences(stops).feed(message_events(text, cuts))
    assert all(event.text for event in events if isinstance(event, TextDelta))
    assert [event for event in events if not isinstance(event, TextDelta)] == [
        ItemStarted(Message("m")),
        ItemEnded("m"),
    ]


def test_text_that_may_begin_a_stop_sequence_is_held_back_and_nothing_more() -> None:
    limit = StopSequences(["STOP"])
    assert limit.feed([ItemStarted(Message("m")), TextDelta("m", "go ST")])[0][1:] == [TextDelta("m", "go ")]
    assert limit.feed([TextDelta("m", "AY")])[0] == [TextDelta("m", "STAY")]


def test_text_that_was_held_back_comes_out_when_the_message_ends() -> None:
    limit = StopSequences(["STOP"])
    limit.feed([ItemStarted(Message("m")), TextDelta("m", "ST")])
    assert limit.feed([ItemEnded("m")]) == ([TextDelta("m", "ST"), ItemEnded("m")], None)


def test_a_stop_sequence_does_not_span_two_messages() -> None:
    events, hit = StopSequences(["STOP"]).feed(
        [*message_events("ST", [], "a"), *message_events("OP", [], "b")]
    )
    assert (text_of(events), hit) == ("STOP", None)


def test_only_what_the_assistant_says_is_searched() -> None:
    events: list[Event] = [
        ItemStarted(Reasoning("r")),
        ReasoningDelta("r", "STOP"),
        ItemEnded("r"),
        ItemStarted(ToolCall("t", "call_1", "f")),
        ArgumentsDelta("t", "STOP"),
        ItemEnded("t"),
    ]
    assert StopSequences(["STOP"]).feed(events) == (events, None)


def test_a_hit_closes_every_open_item_and_lets_nothing_more_pass() -> None:
    limit = StopSequences(["STOP"])
    events, hit = limit.feed(
        [
            ItemStarted(Message("other")),
            TextDelta("other", "S"),
            ItemStarted(Message("m")),
            TextDelta("m", "xSTOPy"),
            ItemEnded("m"),
            StepCompleted(),
        ]
    )
    assert hit == "STOP"
    assert events[2:] == [
        TextDelta("m", "x"),
        TextDelta("other", "S"),
        ItemEnded("other"),
        ItemEnded("m"),
    ]
    assert limit.feed([ItemStarted(Message("n"))]) == ([], "STOP")


ROOM = 6
"""Digits that two tokens hold."""


@pytest.mark.parametrize("over", [1, 100])
def test_text_beyond_the_limit_is_cut_exactly_there(over: int) -> None:
    limit = MaxTokens(2)
    events, hit = limit.feed(
        [ItemStarted(Message("m")), TextDelta("m", "1" * (ROOM + over)), StepCompleted()]
    )
    assert hit == "length"
    assert events[1:] == [TextDelta("m", "1" * ROOM), ItemEnded("m", "incomplete")]
    assert limit.feed([ItemStarted(Message("n"))]) == ([], "length")


def test_a_turn_that_just_fits_is_not_cut() -> None:
    events = message_events("1" * ROOM, [3])
    assert MaxTokens(2).feed(events) == (events, None)


def test_a_delta_that_finds_no_room_at_all_is_left_out() -> None:
    events, hit = MaxTokens(2).feed(
        [ItemStarted(Message("m")), TextDelta("m", "1" * ROOM), TextDelta("m", "2")]
    )
    assert hit == "length"
    assert events[2:] == [ItemEnded("m", "incomplete")]


def test_a_refusal_counts_and_arguments_do_not() -> None:
    call: list[Event] = [
        ItemStarted(ToolCall("t", "call_1", "f")),
        ArgumentsDelta("t", "1" * 99),
        ItemEnded("t"),
    ]
    assert MaxTokens(2).feed(call) == (call, None)
    assert MaxTokens(2).feed([ItemStarted(Message("m")), RefusalDelta("m", "1" * 99)])[1] == "length"


def test_every_choice_has_room_of_its_own() -> None:
    events: list[Event] = []
    for choice in (0, 1):
        id = str(choice)
        events += [ItemStarted(Message(id, choice)), TextDelta(id, "1" * ROOM), ItemEnded(id)]
    assert MaxTokens(2).feed(events) == (events, None)


def test_several_messages_share_the_room_of_their_choice() -> None:
    assert (
        MaxTokens(2).feed([*message_events("1" * ROOM, [], "a"), *message_events("2", [], "b")])[1]
        == "length"
    )


# --- a size -------------------------------------------------------------------------------------


def test_a_turn_below_the_size_passes_as_it_is() -> None:
    limit = MaxSize(2 * ITEM_SIZE + 3 * DELTA_SIZE + 6)
    batches: list[list[Event]] = [message_events("abc", (1,)), message_events("def", (), "n")]
    assert [limit.feed(batch) for batch in batches] == [(batch, None) for batch in batches]


WORDS = "a" * (100 - DELTA_SIZE)
KEPT: list[Event] = [
    TextDelta("m", WORDS),
    RefusalDelta("m", WORDS),
    ReasoningDelta("m", WORDS),
    ArgumentsDelta("m", WORDS),
    OutputDelta("m", "a" * 8 * 99),
    RawItem("r", b"a" * 100),
    AnnotationAdded("m", WORDS.encode()),
    HostedEvent("m", "response.code_interpreter_call.completed", WORDS.encode()),
]


@pytest.mark.parametrize("event", KEPT, ids=lambda event: type(event).__name__)
def test_the_size_of_kept_events_counts_and_the_turn_is_cut_at_the_limit(event: Event) -> None:
    limit = MaxSize(ITEM_SIZE + 200)
    opened: list[Event] = [ItemStarted(Message("m")), event]
    assert limit.feed(opened) == (opened, None)
    cut, hit = limit.feed([event, event, ItemEnded("m")])
    assert (cut, hit) == ([event, ItemEnded("m", "incomplete")], "length")


def test_each_delta_counts_for_more_than_its_text_in_a_batch_of_deltas_alone_too() -> None:
    limit = MaxSize(ITEM_SIZE + 3 * (DELTA_SIZE + 1))
    delta: Event = TextDelta("m", "a")
    assert limit.feed([ItemStarted(Message("m"))])[1] is None
    assert [limit.feed([delta])[1] for _ in range(4)] == [None, None, None, "length"]


def test_items_without_any_text_count_too_and_the_one_too_many_is_not_begun() -> None:
    started: list[Event] = [ItemStarted(ToolCall(f"c{n}", call_id=f"c{n}", name="f")) for n in range(4)]
    cut, hit = MaxSize(3 * ITEM_SIZE).feed(started)
    assert hit == "length"
    assert cut == [*started[:3], *(ItemEnded(f"c{n}", "incomplete") for n in range(3))]


def test_an_item_that_has_ended_is_not_closed_once_more() -> None:
    cut, hit = MaxSize(2 * ITEM_SIZE + DELTA_SIZE + 3).feed(
        [*message_events("abc", ()), ItemStarted(Message("n")), TextDelta("n", "d")]
    )
    assert hit == "length"
    assert cut[-2:] == [ItemStarted(Message("n")), ItemEnded("n", "incomplete")]


# --- all of them --------------------------------------------------------------------------------


def test_a_turn_without_limits_of_the_client_is_cut_by_its_size_alone() -> None:
    events = message_events("1" * 99, [50])
    assert TurnLimits(chars=10_000).feed(events) == (events, None)
    assert TurnLimits(chars=10).feed(events)[1] is Stop.LENGTH


@pytest.mark.parametrize(
    ("text", "said", "stop", "sequence"),
    [
        ("1" * ROOM + "2", "1" * ROOM, Stop.LENGTH, None),
        ("12END3", "12", Stop.STOP, "END"),
        ("1" * ROOM + "2END", "1" * ROOM, Stop.LENGTH, None),
    ],
    ids=["length", "stop", "length before stop"],
)
def test_the_limit_that_the_text_reaches_first_ends_the_turn(
    text: str, said: str, stop: Stop, sequence: str | None
) -> None:
    limits = TurnLimits(chars=10_000, stop=["END"], max_tokens=2)
    events, hit = limits.feed(message_events(text, []))
    assert (text_of(events), hit, limits.stop_sequence) == (said, stop, sequence)
    assert limits.feed(message_events("more", [], "n"))[0] == []
