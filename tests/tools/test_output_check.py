"""Answers under a schema that we keep: held, checked, asked for once more, then failed."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, FullText, ItemEnded, ItemStarted, Stop, TextDelta, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryMessage, Message, Reasoning, TextPart, ToolCall
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.tools.attempt import ANY_OBJECT, OutputCheck, with_schema_words
from codex_proxy.tools.schemas import Verdict
from tests.core.strategies import UNENDED_LISTS
from tests.core.well_formed import texts, violations

SCHEMA = b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
RIGHT, WRONG = '{"city":"Paris"}', '{"town":"Paris"}'
END = TurnEnded(Stop.STOP)


def message(text: str, id: str = "m", choice: int | None = None) -> list[Event]:
    return [ItemStarted(Message(id, choice)), TextDelta(id, text), ItemEnded(id)]


def passes(*events: Event, schema: bytes = SCHEMA) -> bool:
    """Whether a turn that says this and ends is let through as it is."""
    check = OutputCheck(schema)
    out = check.feed([*events, END])
    assert (check.wrong is None) == bool(out)
    return out == [*events, END]


def test_text_is_held_until_the_end_and_passes_if_it_is_valid() -> None:
    check = OutputCheck(SCHEMA)
    assert check.feed(message(RIGHT)) == []
    assert check.feed([END]) == [*message(RIGHT), END]
    assert check.wrong is None


def test_an_invalid_text_is_thrown_away_and_the_reason_kept() -> None:
    check = OutputCheck(SCHEMA)
    assert check.feed([*message(WRONG), END]) == []
    assert check.wrong == 'at $: "city" is a required property'


def test_a_second_invalid_text_fails_the_turn_with_the_reason() -> None:
    check = OutputCheck(SCHEMA, second_try=True)
    (end,) = check.feed([*message(WRONG), END])
    assert check.wrong is None
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, end.failure.code) == (FaultKind.UPSTREAM_ERROR, "invalid_structured_output")
    assert '"city" is a required property' in end.failure.message


def test_a_second_text_that_is_valid_passes() -> None:
    assert OutputCheck(SCHEMA, second_try=True).feed([*message(RIGHT), END]) == [*message(RIGHT), END]


@pytest.mark.parametrize("text", ["{}", '{"a":1}', ' {"a": [1]}\n'])
def test_any_object_is_enough_for_json_object(text: str) -> None:
    assert passes(*message(text), schema=ANY_OBJECT)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"{}"', "", "Hello", "{} {}", '{"a":NaN}'])
def test_what_is_no_object_is_not_enough_for_json_object(text: str) -> None:
    assert not passes(*message(text), schema=ANY_OBJECT)


@pytest.mark.parametrize(
    "text",
    [f"```json\n{RIGHT}\n```", f"```\n{RIGHT}\n```", f"Here you are: {RIGHT}", RIGHT + " Anything else?"],
)
def test_a_text_that_a_json_parser_does_not_take_is_wrong(text: str) -> None:
    assert not passes(*message(text))


def test_no_text_at_all_is_wrong() -> None:
    assert not passes()
    assert not passes(ItemStarted(Message("m")), ItemEnded("m"))


@pytest.mark.parametrize("tail", [[FullText("m", RIGHT)], [TextDelta("m", RIGHT[4:]), FullText("m", RIGHT)]])
def test_a_text_that_comes_in_deltas_and_whole_counts_once(tail: list[Event]) -> None:
    assert passes(ItemStarted(Message("m")), TextDelta("m", RIGHT[:4]), *tail)
    assert passes(ItemStarted(Message("m")), FullText("m", RIGHT), TextDelta("m", RIGHT))


def test_a_text_that_the_agent_repeats_counts_once() -> None:
    again: list[Event] = [ev.Retrying("again"), ItemStarted(Message("n")), TextDelta("n", RIGHT)]
    assert passes(ItemStarted(Message("m")), TextDelta("m", RIGHT[:4]), *again)


def test_a_repetition_that_says_something_else_is_left_to_the_repair() -> None:
    again: list[Event] = [ev.Retrying("again"), ItemStarted(Message("n")), TextDelta("n", "else")]
    check = OutputCheck(SCHEMA)
    log = TurnRepair().feed(check.feed([ItemStarted(Message("m")), TextDelta("m", RIGHT[:4]), *again, END]))
    assert check.wrong is None
    assert isinstance(log[-1], TurnEnded)
    assert log[-1].failure is not None
    assert log[-1].failure.kind == FaultKind.UPSTREAM_DISCONNECTED


def test_several_messages_are_checked_as_a_client_joins_them() -> None:
    assert passes(*message('{"city":', "a"), *message('"Paris"}', "b"))
    assert not passes(*message('{"city":"Pa', "a"), *message('ris"}', "b"))
    assert not passes(*message("Let me see.", "a"), *message(RIGHT, "b"))


def test_each_choice_is_checked_by_itself() -> None:
    assert passes(*message(RIGHT, "a", 0), *message(RIGHT, "b", 1))
    assert not passes(*message(RIGHT, "a", 0), *message(WRONG, "b", 1))


def test_a_choice_that_was_cut_off_is_not_checked() -> None:
    end = TurnEnded(Stop.STOP, choice_stops={1: Stop.LENGTH})
    story = [*message(RIGHT, "a", 0), *message(RIGHT[:5], "b", 1), end]
    assert OutputCheck(SCHEMA).feed(story) == story


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.CONTENT_FILTER, Stop.TOOL_CALLS, Stop.INTERRUPTED])
def test_an_answer_that_did_not_come_to_its_end_is_passed_unchecked(stop: Stop) -> None:
    story = [*message(RIGHT[:5]), TurnEnded(stop)]
    assert OutputCheck(SCHEMA).feed(story) == story


def test_a_refusal_is_an_answer() -> None:
    assert passes(ItemStarted(Message("m")), ev.RefusalDelta("m", "I will not."), ItemEnded("m"))


def test_a_failed_turn_passes_its_failure_and_no_unchecked_text() -> None:
    failed = TurnEnded(Stop.FAILED, "provider", Failure(kind=FaultKind.UPSTREAM_ERROR, message="it failed"))
    assert OutputCheck(SCHEMA).feed([*message(RIGHT[:5]), failed]) == [failed]


def test_text_stays_before_the_calls_that_follow_it() -> None:
    call: list[Event] = [ItemStarted(ToolCall("c", "a", "weather")), ItemEnded("c")]
    story = [ItemStarted(Reasoning("r")), *message("Let me look."), *call, TurnEnded(Stop.TOOL_CALLS)]
    assert OutputCheck(SCHEMA).feed(story) == story


def test_questions_and_costs_are_not_held() -> None:
    now: list[Event] = [
        ev.TurnStarted("t", "m"),
        ev.ApprovalRequested("q", "command", "rm"),
        ev.UsageReported(ev.Usage(1, 0, 1, 0)),
        ev.Notice("note"),
    ]
    assert OutputCheck(SCHEMA).feed([*message(RIGHT), *now]) == now


def test_nothing_follows_the_end() -> None:
    check = OutputCheck(SCHEMA)
    check.feed([*message(WRONG), END])
    assert check.feed([*message(RIGHT), END]) == []


@given(UNENDED_LISTS, st.lists(st.integers(0, 26)))
def test_any_batching_of_the_same_events_gives_the_same(story: list[Event], cuts: list[int]) -> None:
    story = [*story, END]
    places = sorted({0, len(story), *(cut % len(story) for cut in cuts)})
    whole, parts = OutputCheck(ANY_OBJECT), OutputCheck(ANY_OBJECT)
    out = [event for a, b in pairwise(places) for event in parts.feed(story[a:b])]
    assert (out, parts.wrong) == (whole.feed(story), whole.wrong)


@given(UNENDED_LISTS, st.sampled_from([Stop.STOP, Stop.LENGTH]))
def test_an_answer_is_let_through_whole_or_not_at_all(story: list[Event], stop: Stop) -> None:
    check = OutputCheck(b"true")
    out = check.feed([*story, TurnEnded(stop)])
    log, plain = TurnRepair().feed(out), TurnRepair().feed([*story, TurnEnded(stop)])
    if check.wrong is None:
        assert violations(log) == []
        assert texts(log) == texts(plain)
    else:
        answer_from = max(
            (n for n, event in enumerate(story, 1) if isinstance(event, ev.InputTaken)), default=0
        )
        assert texts(log) == texts(TurnRepair().feed([*story[:answer_from], END]))


def test_a_text_before_a_further_input_passes_in_its_place_and_is_not_checked() -> None:
    check, taken = OutputCheck(SCHEMA), ev.InputTaken("more")
    assert check.feed([*message("Let me see.", "a"), taken]) == [*message("Let me see.", "a"), taken]
    assert check.feed([*message(RIGHT, "b"), END]) == [*message(RIGHT, "b"), END]
    check = OutputCheck(SCHEMA)
    assert check.feed([*message(RIGHT, "a"), taken, *message(WRONG, "b"), END]) == [
        *message(RIGHT, "a"),
        taken,
    ]
    assert check.wrong is not None


# --- a schema that the provider was given -----------------------------------------------------------


def test_an_answer_that_begins_as_an_object_passes_as_it_comes() -> None:
    check = OutputCheck(SCHEMA, streams=True)
    story: list[Event] = [ItemStarted(Message("m")), TextDelta("m", " \n")]
    assert check.feed(story) == []
    assert check.feed([TextDelta("m", '{"ci')]) == [*story, TextDelta("m", '{"ci')]
    rest: list[Event] = [TextDelta("m", 'ty":"Paris"}'), ItemEnded("m")]
    assert check.feed(rest) == rest
    assert check.feed([END]) == [END]
    assert check.wrong is None


def test_prose_is_thrown_away_and_asked_for_again_though_the_provider_was_given_the_schema() -> None:
    check = OutputCheck(SCHEMA, streams=True)
    assert check.feed([*message("Here you are: {}"), END]) == []
    assert check.wrong is not None
    assert check.wrong.startswith("it is not valid JSON")


def test_an_object_that_was_seen_and_is_wrong_fails_the_turn() -> None:
    check = OutputCheck(SCHEMA, streams=True)
    *said, end = check.feed([*message(WRONG), END])
    assert said == message(WRONG)
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert end.failure.code == "invalid_structured_output"
    assert "twice" not in end.failure.message
    assert check.wrong is None


# --- a schema that was made to fit ------------------------------------------------------------------

OPTIONAL = (
    b'{"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"string"}},"required":["city"]}'
)
WITH_NULL = '{"city": "Paris", "zip": null}'


def in_strict_form() -> OutputCheck:
    return OutputCheck(OPTIONAL, in_strict_form=True)


def visible_events(check: OutputCheck, story: list[Event]) -> list[Event]:
    """What the client sees."""
    return TurnRepair().feed(check.feed(story))


def test_nulls_for_absent_properties_are_removed_and_the_text_is_sent_once() -> None:
    check = in_strict_form()
    assert check.feed([ItemStarted(Message("m")), TextDelta("m", WITH_NULL[:9])]) == []
    out = check.feed([TextDelta("m", WITH_NULL[9:]), FullText("m", WITH_NULL), ItemEnded("m"), END])
    assert out == [*message(RIGHT), END]
    assert check.wrong is None


def test_an_answer_without_nulls_passes_as_the_model_gave_it() -> None:
    check = in_strict_form()
    assert check.feed([*message('{ "city": "Paris" }'), END]) == [*message('{ "city": "Paris" }'), END]


def test_an_answer_that_is_invalid_without_its_nulls_is_asked_for_again() -> None:
    check = in_strict_form()
    assert check.feed([*message('{"city":null,"zip":null}'), END]) == []
    assert check.wrong is not None
    assert check.wrong.startswith("at $.city: null is not of type")


def test_messages_that_make_one_text_become_one_message() -> None:
    story = [
        ItemStarted(Reasoning("r")),
        *message('{"city":"Paris",', "a"),
        *message('"zip":null}', "b"),
        END,
    ]
    log = visible_events(in_strict_form(), story)
    assert violations(log) == []
    assert texts(log) == {"b": RIGHT}
    assert not any(type(each) is ItemStarted and each.item.id == "a" for each in log)


def test_each_choice_is_rewritten_by_itself() -> None:
    log = visible_events(
        in_strict_form(), [*message(WITH_NULL, "a", 0), *message('{"city": "Rome"}', "b", 1), END]
    )
    assert texts(log) == {"a": RIGHT, "b": '{"city": "Rome"}'}


def test_a_text_that_was_cut_off_or_stands_before_calls_is_the_models() -> None:
    for stop in (Stop.LENGTH, Stop.TOOL_CALLS):
        story = [*message(WITH_NULL), TurnEnded(stop)]
        assert in_strict_form().feed(story) == story


def test_a_text_that_takes_long_to_check_is_rewritten_by_whoever_checks_it() -> None:
    check = in_strict_form()
    long = WITH_NULL + " " * 500_000 + "\n"
    assert check.feed([*message(long + "]"), END]) == []
    assert [(each.in_strict_form, len(each.text)) for each in check.checks] == [(True, len(long) + 1)]
    assert check.with_verdicts([Verdict(rewritten=RIGHT)]) == [*message(RIGHT), END]


def test_what_the_client_will_send_back_is_known() -> None:
    check = in_strict_form()
    said = (HistoryMessage("assistant", (TextPart(WITH_NULL),)),)
    assert check.as_shown(said) == said
    check.feed([*message(WITH_NULL), END])
    assert check.as_shown(said) == (HistoryMessage("assistant", (TextPart(RIGHT),)),)


# --- what the model is told ----------------------------------------------------------------------


def words(turn: Turn) -> str:
    (said,) = turn.history[1:]
    assert isinstance(said, HistoryMessage)
    assert said.role == "developer"
    return "".join(part.text for part in said.parts if isinstance(part, TextPart))


TURN = Turn(
    model="m", history=(HistoryMessage("user", (TextPart("Where?"),)),), output_schema=msgspec.Raw(SCHEMA)
)


def test_the_schema_is_sent_to_the_model_after_the_conversation() -> None:
    told = with_schema_words(TURN, SCHEMA)
    assert told.history[:1] == TURN.history
    assert SCHEMA.decode() in words(told)
    assert told.output_schema is None


def test_the_model_gets_what_was_wrong_with_its_answer() -> None:
    assert "it is not valid JSON" in words(with_schema_words(TURN, SCHEMA, wrong="it is not valid JSON"))
    assert "thrown away" not in words(with_schema_words(TURN, SCHEMA))


def test_for_any_object_no_schema_is_sent() -> None:
    assert "schema" not in words(with_schema_words(TURN, ANY_OBJECT))
