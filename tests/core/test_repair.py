"""The repair of a turn, as properties: whatever a child says, in whatever order, the log is well-formed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, FullText, ItemEnded, ItemStarted, Stop, TextDelta, TurnEnded
from codex_proxy.core.items import Activity, Item, Message, Reasoning, ToolCall
from codex_proxy.core.repair import TurnRepair
from tests.core.strategies import EVENT_LISTS, EVENTS, UNENDED_LISTS
from tests.core.well_formed import arguments, open_items, texts, violations

END = TurnEnded(Stop.STOP)


def repair_all(*events: Event) -> list[Event]:
    return TurnRepair().feed(events)


@given(EVENT_LISTS)
def test_any_sequence_of_events_is_repaired_into_a_well_formed_turn(events: list[Event]) -> None:
    assert violations(repair_all(*events, END)) == []


@given(EVENT_LISTS)
def test_the_log_is_well_formed_after_every_single_event(events: list[Event]) -> None:
    rules = TurnRepair()
    log: list[Event] = []
    for event in events:
        log += rules.feed([event])
        assert violations(log, ended=rules.ended) == []


@given(EVENT_LISTS, st.lists(st.integers(0, 26)))
def test_any_batching_of_the_same_events_gives_the_same_log(events: list[Event], cuts: list[int]) -> None:
    events = [*events, END]
    places = sorted({0, len(events), *(cut % len(events) for cut in cuts)})
    rules = TurnRepair()
    batched = [each for a, b in pairwise(places) for each in rules.feed(events[a:b])]
    assert batched == repair_all(*events)


@given(EVENT_LISTS, st.lists(EVENTS))
def test_nothing_comes_out_after_the_end(events: list[Event], late: list[Event]) -> None:
    rules = TurnRepair()
    rules.feed([*events, END])
    assert rules.ended
    assert rules.feed(late) == []


@given(UNENDED_LISTS, st.sampled_from([Stop.LENGTH, Stop.INTERRUPTED, Stop.FAILED]))
def test_the_end_closes_all_that_is_open_in_order_of_opening(events: list[Event], stop: Stop) -> None:
    rules = TurnRepair()
    log = rules.feed([ev.TurnStarted(), *events])
    if rules.ended:  # by a retry that could not be repaired
        return
    *closed, last = rules.feed([TurnEnded(stop)])
    assert [event.id for event in closed if isinstance(event, ItemEnded)] == open_items(log)
    assert said_in(closed).strip("\ufffd") == "", "but for halves of characters nothing is said"
    assert isinstance(last, TurnEnded)
    assert last.stop == stop


@given(EVENT_LISTS)
def test_repairing_twice_changes_nothing(events: list[Event]) -> None:
    once = repair_all(*events, END)
    assert repair_all(*once) == once


def cut_up(text: str, cuts: Sequence[int]) -> list[Event]:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    return [TextDelta("m", text[a:b]) for a, b in pairwise(places)]


TEXT = st.text("ab ", min_size=1, max_size=12)
CUTS = st.lists(st.integers(0, 12), max_size=4)


@given(TEXT, CUTS, st.integers(0, 5))
def test_a_text_that_comes_in_deltas_and_whole_is_sent_once(text: str, cuts: list[int], kept: int) -> None:
    deltas = cut_up(text, cuts)[:kept]
    log = repair_all(ItemStarted(Message("m")), *deltas, FullText("m", text), ItemEnded("m"), END)
    assert texts(log) == {"m": text}


@given(TEXT, CUTS, st.integers(1, 5))
def test_deltas_after_the_whole_text_do_not_say_it_again(text: str, cuts: list[int], kept: int) -> None:
    log = repair_all(ItemStarted(Message("m")), FullText("m", text), *cut_up(text, cuts)[:kept], END)
    assert texts(log) == {"m": text}


@given(TEXT, TEXT)
def test_a_revised_final_text_never_takes_back_what_was_sent(said: str, revised: str) -> None:
    log = repair_all(ItemStarted(Message("m")), TextDelta("m", said), FullText("m", revised), END)
    assert texts(log)["m"].startswith(said)
    if revised.startswith(said):
        assert texts(log)["m"] == revised
    else:
        assert texts(log)["m"] == said
        assert any(isinstance(event, ev.Notice) and event.code == "revised_text" for event in log)


@given(TEXT, CUTS, st.integers(0, 5), CUTS, st.booleans())
def test_an_answer_that_is_repeated_after_a_retry_goes_on_in_the_same_item(
    text: str, cuts: list[int], before: int, again: list[int], same_id: bool
) -> None:
    first = cut_up(text, cuts)[:before]
    id = "m" if same_id else "n"
    second: list[Event] = [
        TextDelta(id, event.text) for event in cut_up(text, again) if isinstance(event, TextDelta)
    ]
    log = repair_all(
        *(ItemStarted(Message("m")), *first, ev.Retrying("once more")),
        *(ItemStarted(Message(id)), *second, FullText(id, text), ItemEnded(id), END),
    )
    assert texts(log) == {"m": text}
    assert log[-1] == END


@given(TEXT, TEXT)
def test_a_retry_that_says_something_else_fails_the_turn(said: str, instead: str) -> None:
    log = repair_all(
        *(ItemStarted(Message("m")), TextDelta("m", said), ev.Retrying("once more")),
        *(ItemStarted(Message("n")), TextDelta("n", instead), ItemEnded("n"), END),
    )
    if instead.startswith(said):
        assert texts(log) == {"m": instead}
        assert log[-1] == END
    else:
        assert texts(log) == {"m": said}
        assert failure_kind(log) == "upstream_disconnected"


def failure_kind(log: list[Event]) -> str | None:
    last = log[-1]
    assert isinstance(last, TurnEnded)
    return last.failure.kind if last.failure else None


def test_a_log_begins_with_the_start_even_if_the_child_never_said_it() -> None:
    assert repair_all(TextDelta("m", "Hi"), END) == [
        ev.TurnStarted(),
        ItemStarted(Message("m")),
        TextDelta("m", "Hi"),
        ItemEnded("m"),
        END,
    ]


def test_notes_and_rate_limits_may_come_before_the_start() -> None:
    notes: list[Event] = [ev.Notice("slow_start"), ev.AccountLimitsReported(b"{}")]
    assert repair_all(*notes, ev.TurnStarted("t", "m")) == [*notes, ev.TurnStarted("t", "m")]


def test_a_second_start_is_dropped() -> None:
    assert repair_all(ev.TurnStarted("t"), ev.TurnStarted("u")) == [ev.TurnStarted("t")]


def test_a_failed_turn_always_has_a_failure_and_no_other_has_one() -> None:
    assert failure_kind(repair_all(TurnEnded(Stop.FAILED))) == "agent_protocol"
    failed = repair_all(TurnEnded(Stop.FAILED))[-1]
    assert isinstance(failed, TurnEnded)
    assert failure_kind(repair_all(TurnEnded(Stop.LENGTH, failure=failed.failure))) is None


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        *((stop, "completed") for stop in (Stop.STOP, Stop.TOOL_CALLS, Stop.FUNCTION_CALL)),
        *((stop, "incomplete") for stop in (Stop.LENGTH, Stop.INTERRUPTED, Stop.FAILED)),
    ],
)
def test_an_item_that_the_end_closes_is_complete_only_if_the_turn_is(stop: Stop, status: str) -> None:
    assert repair_all(ItemStarted(Message("m")), TurnEnded(stop))[-2] == ItemEnded("m", status)  # type: ignore[arg-type]


def test_an_id_that_is_used_again_gets_a_new_name_and_its_deltas_go_there() -> None:
    one = (ItemStarted(Message("m")), TextDelta("m", "one"), ItemEnded("m"))
    two = (ItemStarted(Message("m")), TextDelta("m", "two"), ItemEnded("m"))
    assert texts(repair_all(*one, *two, END)) == {"m": "one", "m~2": "two"}


def test_an_item_that_is_started_twice_is_opened_once() -> None:
    log = repair_all(ItemStarted(Message("m")), ItemStarted(Message("m")), TextDelta("m", "Hi"), END)
    assert texts(log) == {"m": "Hi"}


def test_arguments_in_pieces_and_whole_are_sent_once() -> None:
    call = ToolCall("c", "call_1", "get_weather")
    pieces = (
        ev.ArgumentsDelta("c", '{"ci'),
        ev.FullArguments("c", '{"city": 1}'),
        ev.ArgumentsDelta("c", '"'),
    )
    assert arguments(repair_all(ItemStarted(call), *pieces, ItemEnded("c"), END)) == {
        "get_weather call_1": '{"city": 1}'
    }


def test_a_piece_of_a_call_that_was_not_started_is_dropped_with_a_notice() -> None:
    log = repair_all(ev.ArgumentsDelta("c", "{}"), END)
    assert log[1:] == [ev.Notice("stray_delta", "ToolCall"), END]


def test_a_retry_before_any_output_is_a_notice_for_the_log() -> None:
    log = repair_all(ev.TurnStarted(), ev.Retrying("429"), TextDelta("m", "Hi"), END)
    assert log == [
        *(ev.TurnStarted(), ev.Notice("agent_retry", "429")),
        *(ItemStarted(Message("m")), TextDelta("m", "Hi"), ItemEnded("m"), END),
    ]


def test_an_empty_message_that_was_complete_before_a_retry_does_not_stand_in_its_way() -> None:
    empty = (ItemStarted(Message("m")), ItemEnded("m"))
    log = repair_all(*empty, ev.Retrying("again"), TextDelta("n", "Hi"), END)
    assert texts(log) == {"m": "", "n": "Hi"}
    assert log[-1] == END


def test_a_retry_that_never_repeats_what_was_sent_fails_at_the_end_of_the_step() -> None:
    said = (ItemStarted(Message("m")), TextDelta("m", "Let me"), ev.Retrying("again"))
    assert failure_kind(repair_all(*said, ev.StepCompleted(), END)) == "upstream_disconnected"
    assert failure_kind(repair_all(*said, END)) == "upstream_disconnected"


def test_a_complete_message_that_is_repeated_in_part_fails() -> None:
    said = (ItemStarted(Message("m")), TextDelta("m", "Let me"), ItemEnded("m"), ev.Retrying("again"))
    log = repair_all(*said, TextDelta("n", "Let"), ItemEnded("n"), END)
    assert failure_kind(log) == "upstream_disconnected"


def test_two_messages_are_repeated_in_their_order_and_the_second_goes_on() -> None:
    log = repair_all(
        *(ItemStarted(Message("a")), TextDelta("a", "One."), ItemEnded("a"), TextDelta("b", "Tw")),
        *(ev.Retrying("again"), TextDelta("c", "One."), ItemEnded("c")),
        *(TextDelta("d", "Two."), ItemEnded("d"), ev.StepCompleted(), END),
    )
    assert texts(log) == {"a": "One.", "b": "Two."}
    assert log[-1] == END


def test_a_message_repeated_under_its_own_id_does_not_swallow_the_next_one() -> None:
    log = repair_all(
        *(TextDelta("a", "One"), ev.Retrying("again"), TextDelta("a", "One."), ItemEnded("a")),
        *(ItemStarted(Message("b")), TextDelta("b", "Two."), ItemEnded("b"), END),
    )
    assert texts(log) == {"a": "One.", "b": "Two."}


def test_a_retry_after_a_tool_call_was_sent_fails() -> None:
    call = ItemStarted(ToolCall("c", "call_1", "get_weather"))
    assert failure_kind(repair_all(call, ev.Retrying("again"))) == "upstream_disconnected"


def test_a_retry_after_a_refusal_fails() -> None:
    assert (
        failure_kind(repair_all(ev.RefusalDelta("m", "No"), ev.Retrying("again"))) == "upstream_disconnected"
    )


def test_a_retry_after_a_completed_step_leaves_that_step_alone() -> None:
    log = repair_all(
        *(TextDelta("a", "One."), ItemEnded("a"), ev.StepCompleted()),
        *(ev.Retrying("again"), TextDelta("b", "Two."), END),
    )
    assert texts(log) == {"a": "One.", "b": "Two."}


def test_reasoning_that_was_sent_before_a_retry_is_not_sent_again() -> None:
    thought = ev.ReasoningDelta("r", "Hm")
    log = repair_all(
        thought, ev.Retrying("again"), ev.ReasoningDelta("s", "Hm, hm"), TextDelta("m", "Hi"), END
    )
    assert [event for event in log if isinstance(event, ev.ReasoningDelta)] == [thought]
    assert log[-1] == END


def test_the_end_of_an_interrupted_retry_is_still_an_interruption() -> None:
    log = repair_all(TextDelta("m", "Hel"), ev.Retrying("again"), TurnEnded(Stop.INTERRUPTED))
    assert log[-1] == TurnEnded(Stop.INTERRUPTED)


BAD_LOGS: dict[str, list[Event]] = {
    "something comes before the start": [ItemStarted(Message("m"))],
    "2 starts": [ev.TurnStarted(), ev.TurnStarted()],
    "something comes after the end": [ev.TurnStarted(), END, ev.Notice("late")],
    "FullText in a log": [ev.TurnStarted(), FullText("m", "x")],
    "m is opened twice": [
        ev.TurnStarted(),
        ItemStarted(Message("m")),
        ItemEnded("m"),
        ItemStarted(Message("m")),
    ],
    "m is closed while it is not open": [ev.TurnStarted(), ItemEnded("m")],
    "TextDelta outside m": [ev.TurnStarted(), TextDelta("m", "x")],
    "ArgumentsDelta in a Message": [
        ev.TurnStarted(),
        ItemStarted(Message("m")),
        ev.ArgumentsDelta("m", "x"),
    ],
    "['m'] still open at the end": [ev.TurnStarted(), ItemStarted(Message("m")), END],
    "stop failed with failure None": [ev.TurnStarted(), TurnEnded(Stop.FAILED)],
}


@pytest.mark.parametrize("complaint", BAD_LOGS)
def test_the_checker_finds_what_it_looks_for(complaint: str) -> None:
    assert violations(BAD_LOGS[complaint], ended=False) == [complaint]


def test_a_message_that_is_started_twice_while_it_is_repeated_is_no_other_message() -> None:
    log = repair_all(
        *(
            TextDelta("a", "One."),
            ItemEnded("a"),
            TextDelta("b", "Two."),
            ItemEnded("b"),
            ev.Retrying("again"),
        ),
        *(ItemStarted(Message("c")), ItemStarted(Message("c")), TextDelta("c", "One."), ItemEnded("c")),
        *(ItemStarted(Message("d")), TextDelta("d", "Two."), ItemEnded("d"), END),
    )
    assert texts(log) == {"a": "One.", "b": "Two."}
    assert log[-1] == END


def test_the_late_end_of_a_broken_message_does_not_stop_the_next_attempt() -> None:
    log = repair_all(
        TextDelta("a", "Hel"), ev.Retrying("again"), ItemEnded("a"), TextDelta("b", "Hello"), END
    )
    assert texts(log) == {"a": "Hello"}
    assert log[-1] == END


def test_a_whole_text_that_revises_what_was_repeated_is_not_mixed_with_it() -> None:
    log = repair_all(
        *(TextDelta("a", "abcdef"), ev.Retrying("again"), TextDelta("b", "abc")),
        *(FullText("b", "xyzdef!"), ItemEnded("b"), END),
    )
    assert texts(log) == {"a": "abcdef"}
    assert failure_kind(log) == "upstream_disconnected"


def test_an_open_message_that_a_retry_calls_something_else_is_not_opened_again() -> None:
    thought = ItemStarted(Reasoning("a"))
    log = repair_all(TextDelta("a", "Hel"), ev.Retrying("again"), thought, TextDelta("a", "Hello"), END)
    assert [event.item for event in log if isinstance(event, ItemStarted)] == [Message("a")]
    assert texts(log) == {"a": "Hello"}
    assert log[-1] == END


def test_a_late_delta_after_a_repeated_step_is_a_notice_and_no_fault() -> None:
    log = repair_all(
        *(TextDelta("a", "One."), ItemEnded("a"), ev.Retrying("again"), TextDelta("b", "One.")),
        *(ev.StepCompleted(), TextDelta("b", " More."), END),
    )
    assert texts(log) == {"a": "One."}
    assert log[-2:] == [ev.Notice("late_delta", "Message"), END]


# --- halves of surrogate pairs --------------------------------------------------------------------

REASONING_PART: tuple[int, ev.ReasoningKind] = (1, "raw")
HOMES: dict[str, tuple[Item, Callable[[str], Event], Callable[[str], Event] | None]] = {
    "text": (Message("m"), partial(TextDelta, "m"), partial(FullText, "m")),
    "refusal": (Message("m"), partial(ev.RefusalDelta, "m"), None),
    "reasoning": (
        Reasoning("m"),
        lambda text: ev.ReasoningDelta("m", text, *REASONING_PART),
        lambda text: ev.FullReasoning("m", text, *REASONING_PART),
    ),
    "arguments": (
        ToolCall("m", "c", "f"),
        partial(ev.ArgumentsDelta, "m"),
        partial(ev.FullArguments, "m"),
    ),
    "output": (Activity("m", "command", "ls"), partial(ev.OutputDelta, "m"), None),
}
"""An item, its deltas and its whole text."""


def as_javascript_counts(text: str) -> str:
    """The text with each half of a surrogate pair as a character of its own."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))


def said_in(log: Sequence[Event]) -> str:
    deltas = (*ev.MODEL_DELTAS, ev.OutputDelta)
    return "".join(event.text for event in log if isinstance(event, deltas))  # type: ignore[union-attr]


@pytest.mark.parametrize("home", HOMES)
@given(
    text=st.text("a😀é𝄞", min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 16), max_size=8),
    whole=st.booleans(),
)
def test_halves_of_a_surrogate_pair_in_two_deltas_are_sent_as_one_character(
    home: str, text: str, cuts: list[int], whole: bool
) -> None:
    item, delta, full = HOMES[home]
    units = as_javascript_counts(text)
    places = sorted({0, len(units), *(min(cut, len(units)) for cut in cuts)})
    deltas = [delta(json.loads(json.dumps(units[a:b]))) for a, b in pairwise(places)]
    last = [full(text)] if full is not None and whole else []
    log = repair_all(ItemStarted(item), *deltas, *last, ItemEnded("m"), END)
    assert said_in(log) == text
    assert all(event.text.encode() for event in log if hasattr(event, "text"))
    assert violations(log) == []


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("end", [ItemEnded("m"), END, TurnEnded(Stop.LENGTH)], ids=["item", "turn", "cut"])
def test_half_of_a_surrogate_pair_without_the_other_is_one_replacement_character(
    home: str, end: Event
) -> None:
    item, delta, _ = HOMES[home]
    log = repair_all(ItemStarted(item), delta("Hi \ud83d"), end, END)
    assert said_in(log) == "Hi \ufffd"
    assert violations(log) == []
    log = repair_all(
        ItemStarted(item), delta("\ud83d"), delta("\ud83d"), delta("Hi"), delta("\ud83d"), end, END
    )
    assert said_in(log) == "\ufffd\ufffdHi\ufffd"


def test_arguments_have_no_half_of_a_surrogate_pair_also_in_their_middle() -> None:
    log = repair_all(ItemStarted(ToolCall("m", "c", "f")), ev.ArgumentsDelta("m", '{"a":"\ud83d"}'), END)
    assert said_in(log) == '{"a":"\ufffd"}'


def test_an_answer_that_is_repeated_after_a_retry_completes_a_pair_that_was_cut() -> None:
    log = repair_all(
        *(TextDelta("m", "Hi \ud83d"), ev.Retrying("again")),
        *(TextDelta("m", "Hi \ud83d"), TextDelta("m", "\ude00!"), END),
    )
    assert said_in(log) == "Hi 😀!"


def test_a_whole_text_is_the_same_with_halves_of_pairs_or_their_replacement() -> None:
    for whole in ("Hi \ud83d", "Hi \ufffd", "Hi 😀"):
        log = repair_all(TextDelta("m", "Hi \ud83d"), FullText("m", whole), END)
        assert said_in(log) == whole.replace("\ud83d", "\ufffd")


# --- further input --------------------------------------------------------------------------------


def test_input_that_is_taken_ends_what_the_model_was_writing_as_incomplete() -> None:
    log = repair_all(
        ItemStarted(Activity("c", "command", "ls")),
        ItemStarted(Message("m")),
        TextDelta("m", "Hal"),
        ev.InputTaken("1"),
        ItemStarted(Message("n")),
        TextDelta("n", "Yes."),
        ItemEnded("n"),
        END,
    )
    assert [event for event in log if isinstance(event, ItemEnded | ev.InputTaken)] == [
        ItemEnded("m", "incomplete"),
        ev.InputTaken("1"),
        ItemEnded("n"),
        ItemEnded("c"),
    ]


def test_a_retry_behind_input_repeats_nothing_from_before_it() -> None:
    log = repair_all(
        TextDelta("m", "Half"),
        ev.InputTaken("1"),
        TextDelta("n", "Ye"),
        ev.Retrying("again"),
        TextDelta("o", "Yes."),
        END,
    )
    assert list(texts(log).values()) == ["Half", "Yes."]
    assert isinstance(log[-1], TurnEnded)
    assert log[-1].failure is None


def test_a_subagents_turn_is_repaired_like_a_turn_and_ends_with_its_parents() -> None:
    own: list[Event] = [FullText("m", "Hi."), ItemStarted(Activity("c", "command", "ls"))]
    log = repair_all(
        *(ev.OfSubagent("sub", event) for event in own), TextDelta("m", "Mine."), TurnEnded(Stop.STOP)
    )
    theirs = [event.event for event in log if isinstance(event, ev.OfSubagent)]
    assert [type(event) for event in theirs] == [
        *(ev.TurnStarted, ItemStarted, TextDelta, ItemStarted, ItemEnded, ItemEnded, TurnEnded)
    ]
    assert theirs[-1] == TurnEnded(Stop.INTERRUPTED)
    assert log[-1] == TurnEnded(Stop.STOP)


def test_a_subagents_turn_goes_on_while_its_parents_waits_for_the_client() -> None:
    log = repair_all(ev.OfSubagent("sub", ev.TurnStarted()), TurnEnded(Stop.TOOL_CALLS))
    assert [event.event for event in log if isinstance(event, ev.OfSubagent)] == [ev.TurnStarted()]
