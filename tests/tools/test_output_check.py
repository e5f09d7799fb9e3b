"""Answers under a schema that we keep: held, checked, asked for once more, then failed."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Stop, TextDelta, TextWhole, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Message, Reasoning, SaidMessage, TextPart, ToolCall
from codex_proxy.core.rules import Rules
from codex_proxy.core.turn import Turn
from codex_proxy.tools.output_check import ANY_OBJECT, OutputCheck, told_of_schema
from tests.core.strategies import UNENDED_LISTS
from tests.core.well_formed import texts, violations

SCHEMA = b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
RIGHT, WRONG = '{"city":"Paris"}', '{"town":"Paris"}'
END = TurnEnded(Stop.STOP)


def says(text: str, id: str = "m", choice: int | None = None) -> list[Event]:
    return [ItemStarted(Message(id, choice)), TextDelta(id, text), ItemEnded(id)]


def passes(*events: Event, schema: bytes = SCHEMA) -> bool:
    """Whether a turn that says this and ends is let through as it is."""
    check = OutputCheck(schema)
    out = check.feed([*events, END])
    assert (check.wrong is None) == bool(out)
    return out == [*events, END]


def test_text_is_held_until_the_end_and_passes_if_it_is_valid() -> None:
    check = OutputCheck(SCHEMA)
    assert check.feed(says(RIGHT)) == []
    assert check.feed([END]) == [*says(RIGHT), END]
    assert check.wrong is None


def test_an_invalid_text_is_thrown_away_and_the_reason_kept() -> None:
    check = OutputCheck(SCHEMA)
    assert check.feed([*says(WRONG), END]) == []
    assert check.wrong == "at $: 'city' is a required property"


def test_a_second_invalid_text_fails_the_turn_with_the_reason() -> None:
    check = OutputCheck(SCHEMA, second_try=True)
    (end,) = check.feed([*says(WRONG), END])
    assert check.wrong is None
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, end.failure.code) == (FaultKind.UPSTREAM_ERROR, "invalid_structured_output")
    assert "'city' is a required property" in end.failure.message


def test_a_second_text_that_is_valid_passes() -> None:
    assert OutputCheck(SCHEMA, second_try=True).feed([*says(RIGHT), END]) == [*says(RIGHT), END]


@pytest.mark.parametrize("text", ["{}", '{"a":1}', ' {"a": [1]}\n'])
def test_any_object_is_enough_for_json_object(text: str) -> None:
    assert passes(*says(text), schema=ANY_OBJECT)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"{}"', "", "Hello", "{} {}", '{"a":NaN}'])
def test_what_is_no_object_is_not_enough_for_json_object(text: str) -> None:
    assert not passes(*says(text), schema=ANY_OBJECT)


@pytest.mark.parametrize(
    "text",
    [f"```json\n{RIGHT}\n```", f"```\n{RIGHT}\n```", f"Here you are: {RIGHT}", RIGHT + " Anything else?"],
)
def test_a_text_that_a_json_parser_does_not_take_is_wrong(text: str) -> None:
    assert not passes(*says(text))


def test_no_text_at_all_is_wrong() -> None:
    assert not passes()
    assert not passes(ItemStarted(Message("m")), ItemEnded("m"))


@pytest.mark.parametrize(
    "tail", [[TextWhole("m", RIGHT)], [TextDelta("m", RIGHT[4:]), TextWhole("m", RIGHT)]]
)
def test_a_text_that_is_also_told_whole_counts_once(tail: list[Event]) -> None:
    assert passes(ItemStarted(Message("m")), TextDelta("m", RIGHT[:4]), *tail)
    assert passes(ItemStarted(Message("m")), TextWhole("m", RIGHT), TextDelta("m", RIGHT))


def test_a_text_that_the_agent_repeats_counts_once() -> None:
    again: list[Event] = [ev.Retrying("again"), ItemStarted(Message("n")), TextDelta("n", RIGHT)]
    assert passes(ItemStarted(Message("m")), TextDelta("m", RIGHT[:4]), *again)


def test_a_repetition_that_says_something_else_is_left_to_the_rules() -> None:
    again: list[Event] = [ev.Retrying("again"), ItemStarted(Message("n")), TextDelta("n", "else")]
    check = OutputCheck(SCHEMA)
    log = Rules().feed(check.feed([ItemStarted(Message("m")), TextDelta("m", RIGHT[:4]), *again, END]))
    assert check.wrong is None
    assert isinstance(log[-1], TurnEnded)
    assert log[-1].failure is not None
    assert log[-1].failure.kind == FaultKind.UPSTREAM_DISCONNECTED


def test_several_messages_are_checked_as_a_client_joins_them() -> None:
    assert passes(*says('{"city":', "a"), *says('"Paris"}', "b"))
    assert not passes(*says('{"city":"Pa', "a"), *says('ris"}', "b"))
    assert not passes(*says("Let me see.", "a"), *says(RIGHT, "b"))


def test_each_choice_is_checked_by_itself() -> None:
    assert passes(*says(RIGHT, "a", 0), *says(RIGHT, "b", 1))
    assert not passes(*says(RIGHT, "a", 0), *says(WRONG, "b", 1))


def test_a_choice_that_was_cut_off_is_not_checked() -> None:
    end = TurnEnded(Stop.STOP, choice_stops={1: Stop.LENGTH})
    story = [*says(RIGHT, "a", 0), *says(RIGHT[:5], "b", 1), end]
    assert OutputCheck(SCHEMA).feed(story) == story


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.CONTENT_FILTER, Stop.TOOL_CALLS, Stop.INTERRUPTED])
def test_an_answer_that_did_not_come_to_its_end_is_passed_unchecked(stop: Stop) -> None:
    story = [*says(RIGHT[:5]), TurnEnded(stop)]
    assert OutputCheck(SCHEMA).feed(story) == story


def test_a_refusal_is_an_answer() -> None:
    assert passes(ItemStarted(Message("m")), ev.RefusalDelta("m", "I will not."), ItemEnded("m"))


def test_a_failed_turn_passes_its_failure_and_no_unchecked_text() -> None:
    failed = TurnEnded(Stop.FAILED, "provider", Failure(kind=FaultKind.UPSTREAM_ERROR, message="it failed"))
    assert OutputCheck(SCHEMA).feed([*says(RIGHT[:5]), failed]) == [failed]


def test_text_stays_before_the_calls_that_follow_it() -> None:
    call: list[Event] = [ItemStarted(ToolCall("c", "a", "weather")), ItemEnded("c")]
    story = [ItemStarted(Reasoning("r")), *says("Let me look."), *call, TurnEnded(Stop.TOOL_CALLS)]
    assert OutputCheck(SCHEMA).feed(story) == story


def test_questions_and_costs_are_not_held() -> None:
    now: list[Event] = [
        ev.TurnStarted("t", "m"),
        ev.ApprovalAsked("q", "command", "rm"),
        ev.UsageSeen(ev.Usage(1, 0, 1, 0)),
        ev.Noticed("note"),
    ]
    assert OutputCheck(SCHEMA).feed([*says(RIGHT), *now]) == now


def test_nothing_follows_the_end() -> None:
    check = OutputCheck(SCHEMA)
    check.feed([*says(WRONG), END])
    assert check.feed([*says(RIGHT), END]) == []


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
    log, plain = Rules().feed(out), Rules().feed([*story, TurnEnded(stop)])
    if check.wrong is None:
        assert violations(log) == []
        assert texts(log) == texts(plain)
    else:
        assert texts(log) == {}


# --- what the model is told ----------------------------------------------------------------------


def words(turn: Turn) -> str:
    (said,) = turn.history[1:]
    assert isinstance(said, SaidMessage)
    assert said.role == "developer"
    return "".join(part.text for part in said.parts if isinstance(part, TextPart))


ASKED = Turn(
    model="m", history=(SaidMessage("user", (TextPart("Where?"),)),), output_schema=msgspec.Raw(SCHEMA)
)


def test_a_model_is_told_the_schema_behind_the_conversation() -> None:
    told = told_of_schema(ASKED, SCHEMA)
    assert told.history[:1] == ASKED.history
    assert SCHEMA.decode() in words(told)
    assert told.output_schema is None


def test_a_model_is_told_what_was_wrong() -> None:
    assert "it is not valid JSON" in words(told_of_schema(ASKED, SCHEMA, wrong="it is not valid JSON"))
    assert "thrown away" not in words(told_of_schema(ASKED, SCHEMA))


def test_for_any_object_no_schema_is_told() -> None:
    assert "schema" not in words(told_of_schema(ASKED, ANY_OBJECT))
