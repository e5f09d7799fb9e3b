"""Who answers a call: what the client sees, what stays hidden, and what the model is told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Notice, StepCompleted, Stop, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryOutput, Message, TextPart, Tool, ToolCall
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import NamedTools, ToolChoice, Turn
from codex_proxy.tools.policy import DEFERRED_CALL, MAX_FAULTS, HiddenOutput, PolicyResult, ToolPolicy
from tests.core.strategies import NOTES, TALK
from tests.core.well_formed import arguments, texts, violations

SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}')
EMPTY = msgspec.Raw(b'{"type":"object","properties":{},"additionalProperties":false}')
WEATHER = Tool("weather", parameters=SCHEMA, strict=True)
LOOSE = Tool("loose", parameters=SCHEMA)
NOW = Tool("now", parameters=EMPTY, strict=True)
SHELL = Tool("shell", strict=True, kind="custom")

STEP = StepCompleted()
END = TurnEnded(Stop.STOP)
GOOD, BAD = '{"city":"Paris"}', '{"town":"Paris"}'
HELLO: list[Event] = [ItemStarted(Message("m")), ev.TextDelta("m", "Hello"), ItemEnded("m")]


def turn(choice: ToolChoice = "auto", *, parallel: bool = True) -> Turn:
    return Turn(
        model="m",
        history=(),
        mode="model",
        tools=(WEATHER, LOOSE, NOW, SHELL),
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )


def call(call_id: str, text: str = GOOD, name: str = "weather", **more: str) -> ev.ToolCallRequested:
    return ev.ToolCallRequested(f"ask_{call_id}", call_id, name, text, **more)  # type: ignore[arg-type]


def visible(done: PolicyResult) -> dict[str, str]:
    """The calls that a client gets to see, with their arguments, once what came out is repaired."""
    log = TurnRepair().feed(done.events)
    assert violations(log, ended=any(isinstance(event, TurnEnded) for event in log)) == []
    return arguments(log)


def output_texts(answers: Sequence[HiddenOutput]) -> dict[str, str]:
    """What was answered to each call, by its ask."""
    return {each.request_id: "".join(part.text for part in each.output.parts) for each in answers}  # type: ignore[union-attr]


# --- the calls of a step -------------------------------------------------------------------------


def test_calls_of_a_step_end_the_turn_together_and_in_order() -> None:
    policy = ToolPolicy(turn())
    assert policy.feed([call("a"), call("b", "{}", "now")]) == PolicyResult([], [])
    done = policy.feed([STEP])
    assert list(visible(done).items()) == [("weather a", GOOD), ("now b", "{}")]
    assert done.events[-1] == TurnEnded(Stop.TOOL_CALLS, "token_count")
    assert [each.call_id for each in policy.visible] == ["a", "b"]
    assert policy.hidden == []


def test_text_before_a_call_comes_before_it() -> None:
    done = ToolPolicy(turn()).feed([*HELLO, call("a"), STEP])
    assert done.events[:3] == HELLO
    assert visible(done) == {"weather a": GOOD}


def test_a_step_that_the_repair_refuses_ends_the_turn_before_its_call_is_seen() -> None:
    retried: list[Event] = [
        ItemStarted(Message("m")),
        ev.TextDelta("m", "Hello"),
        ev.Retrying("again"),
        ItemStarted(Message("m2")),
        ev.TextDelta("m2", "Hel"),
    ]
    log = TurnRepair().feed(ToolPolicy(turn()).feed([*retried, call("a"), STEP]).events)
    assert arguments(log) == {}
    assert isinstance(log[-1], TurnEnded)
    assert log[-1].stop == Stop.FAILED


def test_a_call_is_named_by_its_item_and_keeps_its_kind() -> None:
    done = ToolPolicy(turn()).feed([call("a", "ls", "shell", item_id="fc_1", kind="custom"), STEP])
    assert ItemStarted(ToolCall("fc_1", "a", "shell", "custom")) in done.events


def test_a_step_without_calls_leaves_the_turn_going_on() -> None:
    policy = ToolPolicy(turn())
    assert policy.feed([*HELLO, STEP]).events == [*HELLO, STEP]
    assert policy.feed([END]).events == [END]


def test_nothing_follows_the_end() -> None:
    policy = ToolPolicy(turn())
    policy.feed([call("a"), STEP])
    assert policy.feed([*HELLO, call("b"), STEP, END]) == PolicyResult([], [])
    assert [each.call_id for each in policy.visible] == ["a"]


def test_a_retry_discards_the_calls_of_the_step_that_comes_anew() -> None:
    policy = ToolPolicy(turn())
    policy.feed([call("old"), Notice("unoffered_call"), ev.Retrying("again"), call("new"), STEP])
    assert [each.call_id for each in policy.visible] == ["new"]


def test_calls_of_a_step_that_never_completes_are_dropped() -> None:
    policy = ToolPolicy(turn())
    assert policy.feed([call("a"), TurnEnded(Stop.INTERRUPTED)]).events == [TurnEnded(Stop.INTERRUPTED)]
    assert policy.visible == []


@pytest.mark.parametrize("text", [GOOD, BAD])
def test_the_calls_of_an_agent_that_ends_its_turn_with_them_are_the_clients(text: str) -> None:
    policy = ToolPolicy(turn())
    done = policy.feed([*HELLO, call("a", text), TurnEnded(Stop.TOOL_CALLS)])
    assert visible(done) == {"weather a": text}
    assert done.events[-1] == TurnEnded(Stop.TOOL_CALLS, "token_count")
    assert [each.call_id for each in policy.visible] == ["a"]


# --- strict --------------------------------------------------------------------------------------


def test_a_call_that_breaks_its_schema_is_answered_and_the_turn_goes_on() -> None:
    policy = ToolPolicy(turn())
    done = policy.feed([call("a", BAD), STEP])
    assert visible(done) == {}
    assert policy.visible == []
    assert done.answers[0].output.call_id == "a"
    assert '"city" is a required property' in output_texts(done.answers)["ask_a"]
    assert visible(policy.feed([call("b"), STEP])) == {"weather b": GOOD}


def test_after_the_last_error_the_client_gets_the_invalid_call_and_the_log_a_notice() -> None:
    policy = ToolPolicy(turn())
    for number in range(MAX_FAULTS):
        assert output_texts(policy.feed([call(str(number), BAD), STEP]).answers).keys() == {f"ask_{number}"}
    done = policy.feed([call("last", BAD), STEP])
    assert done.answers == []
    assert visible(done) == {"weather last": BAD}
    assert Notice("strict_violation", "weather") in done.events


def test_only_invalid_calls_that_the_client_gets_have_a_notice() -> None:
    policy = ToolPolicy(turn(parallel=False))
    for number in range(MAX_FAULTS):
        policy.feed([call(str(number), BAD), STEP])
    done = policy.feed([call("good"), call("bad", BAD), STEP])
    assert Notice("strict_violation", "weather") not in done.events
    assert output_texts(policy.hidden) == {"ask_bad": DEFERRED_CALL}


def test_several_violations_of_one_step_are_reported_at_once_and_count_once() -> None:
    policy = ToolPolicy(turn())
    for _ in range(MAX_FAULTS):
        assert len(policy.feed([call("a", BAD), call("b", BAD), call("c", BAD), STEP]).answers) == 3
    assert visible(policy.feed([call("a", BAD), STEP])) == {"weather a": BAD}


def test_beside_a_valid_call_the_invalid_one_stays_hidden_with_its_output() -> None:
    policy = ToolPolicy(turn())
    done = policy.feed([call("bad", BAD), call("good"), STEP])
    assert visible(done) == {"weather good": GOOD}
    assert done.answers == []
    assert output_texts(policy.hidden).keys() == {"ask_bad"}
    assert policy.hidden[0].output.call_id == "bad"


def test_arguments_that_are_no_json_break_a_strict_schema() -> None:
    done = ToolPolicy(turn()).feed([call("a", '{"city":'), STEP])
    assert "not valid JSON" in output_texts(done.answers)["ask_a"]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_no_argument_text_means_no_arguments(text: str) -> None:
    assert visible(ToolPolicy(turn()).feed([call("a", text, "now"), STEP])).keys() == {"now a"}
    assert len(ToolPolicy(turn()).feed([call("a", text), STEP]).answers) == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("loose", "function"), ("shell", "custom"), ("unknown", "function")]
)
def test_only_strict_functions_are_checked(name: str, kind: str) -> None:
    done = ToolPolicy(turn()).feed([call("a", BAD, name, kind=kind), STEP])
    assert visible(done) == {f"{name} a": BAD}


# --- one call at a time --------------------------------------------------------------------------


def test_without_parallel_calls_the_first_is_visible_and_the_others_are_deferred() -> None:
    policy = ToolPolicy(turn(parallel=False))
    done = policy.feed([call("a"), call("b"), call("c"), STEP])
    assert visible(done) == {"weather a": GOOD}
    assert output_texts(policy.hidden) == {"ask_b": DEFERRED_CALL, "ask_c": DEFERRED_CALL}
    assert done.answers == []


def test_without_parallel_calls_the_first_valid_one_is_the_visible_one() -> None:
    policy = ToolPolicy(turn(parallel=False))
    assert visible(policy.feed([call("a", BAD), call("b"), call("c"), STEP])) == {"weather b": GOOD}
    assert output_texts(policy.hidden).keys() == {"ask_a", "ask_c"}


def test_an_answer_of_this_server_is_an_output_of_the_calls_kind() -> None:
    policy = ToolPolicy(turn(parallel=False))
    policy.feed([call("a"), call("b", "ls", "shell", kind="custom"), STEP])
    assert policy.hidden == [HiddenOutput("ask_b", HistoryOutput("b", (TextPart(DEFERRED_CALL),), "custom"))]


# --- a call is required --------------------------------------------------------------------------

REQUIRED: list[ToolChoice] = ["required", NamedTools(("weather",), required=True)]


@pytest.mark.parametrize("choice", REQUIRED)
def test_where_a_call_is_required_text_is_held_until_it_comes(choice: ToolChoice) -> None:
    policy = ToolPolicy(turn(choice))
    assert policy.feed(HELLO).events == []
    done = policy.feed([call("a"), STEP])
    assert done.events[:4] == [*HELLO, STEP]
    assert visible(done) == {"weather a": GOOD}


@pytest.mark.parametrize("choice", REQUIRED)
def test_where_no_required_call_came_the_turn_is_tried_again(choice: ToolChoice) -> None:
    done = ToolPolicy(turn(choice)).feed([*HELLO, STEP, END])
    assert done == PolicyResult([], [], again=True)


def test_where_no_required_call_came_twice_the_turn_fails() -> None:
    done = ToolPolicy(turn("required"), second_try=True).feed([*HELLO, STEP, END])
    assert not done.again
    (end,) = done.events
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, end.failure.code) == (FaultKind.UPSTREAM_ERROR, "tool_choice_not_honoured")


@pytest.mark.parametrize("choice", ["auto", "none", NamedTools(("weather",))])
def test_where_no_call_is_required_text_is_an_answer(choice: ToolChoice) -> None:
    assert ToolPolicy(turn(choice)).feed([*HELLO, STEP, END]) == PolicyResult([*HELLO, STEP, END], [])


def test_questions_and_costs_are_not_held() -> None:
    now: list[Event] = [
        ev.TurnStarted("t", "m"),
        ev.ApprovalRequested("q", "command", "rm"),
        ev.InputRequested("q2", "well?"),
        ev.RequestClosed("q2"),
        ev.UsageReported(ev.Usage(1, 0, 1, 0)),
        ev.AccountLimitsReported(b"{}"),
        Notice("note"),
    ]
    assert ToolPolicy(turn("required")).feed([*HELLO, *now]).events == now


def test_a_text_before_a_further_input_passes_in_its_place_though_a_call_is_required() -> None:
    policy, taken = ToolPolicy(turn("required")), ev.InputTaken("more")
    assert policy.feed([*HELLO, taken]).events == [*HELLO, taken]
    assert policy.feed([*HELLO, END]).again


def test_a_failure_before_the_required_call_is_reported_without_the_text_that_was_held() -> None:
    failed = TurnEnded(Stop.FAILED, "provider", Failure(kind=FaultKind.UPSTREAM_ERROR, message="it failed"))
    assert ToolPolicy(turn("required")).feed([*HELLO, failed]) == PolicyResult([failed], [])


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.CONTENT_FILTER, Stop.INTERRUPTED])
def test_an_answer_that_was_cut_off_before_the_required_call_is_reported_as_it_is(stop: Stop) -> None:
    end = TurnEnded(stop)
    assert ToolPolicy(turn("required")).feed([*HELLO, end]) == PolicyResult([*HELLO, end], [])


def test_a_dialect_that_says_its_calls_itself_has_called() -> None:
    call: list[Event] = [ItemStarted(ToolCall("c", "a", "weather")), ev.ArgumentsDelta("c", GOOD)]
    policy = ToolPolicy(turn("required"))
    assert policy.feed(HELLO).events == []
    assert policy.feed(call[:1]).events == [*HELLO, call[0]]
    assert policy.feed(call[1:]).events == call[1:]
    assert policy.feed([ItemEnded("c"), STEP, END]) == PolicyResult([ItemEnded("c"), STEP, END], [])


def test_a_hidden_call_does_not_count_as_the_required_one() -> None:
    policy = ToolPolicy(turn("required"))
    assert len(policy.feed([call("a", BAD), STEP]).answers) == 1
    assert policy.feed([*HELLO, STEP, END]) == PolicyResult([], [], again=True)


# --- calls that the agent answers by itself -------------------------------------------------------


@pytest.mark.parametrize("code", ["unoffered_call", "unreadable_arguments"])
def test_a_model_that_keeps_making_bad_calls_fails_the_turn(code: str) -> None:
    policy = ToolPolicy(turn())
    for _ in range(MAX_FAULTS):
        assert policy.feed([Notice(code, "x"), STEP]).events == [Notice(code, "x"), STEP]
    end = policy.feed([Notice(code, "x"), STEP]).events[-1]
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert end.failure.code == "invalid_tool_calls"


def test_bad_calls_of_one_step_are_one_fault() -> None:
    policy = ToolPolicy(turn())
    bad = [Notice("unoffered_call", "x")] * (MAX_FAULTS + 2)
    assert policy.feed([*bad, STEP]).events == [*bad, STEP]


def test_a_bad_call_beside_a_good_one_does_no_harm() -> None:
    policy = ToolPolicy(turn())
    for _ in range(MAX_FAULTS):
        policy.feed([Notice("unoffered_call", "x"), STEP])
    assert visible(policy.feed([Notice("unoffered_call", "x"), call("a"), STEP])) == {"weather a": GOOD}


def test_violations_and_bad_calls_are_counted_together() -> None:
    policy = ToolPolicy(turn())
    policy.feed([call("a", BAD), STEP])
    policy.feed([Notice("unoffered_call", "x"), STEP])
    assert visible(policy.feed([call("b", BAD), STEP])) == {"weather b": BAD}


def test_other_notes_are_no_faults() -> None:
    policy = ToolPolicy(turn())
    for _ in range(MAX_FAULTS + 2):
        assert policy.feed([Notice("agent_warning"), STEP]).events == [Notice("agent_warning"), STEP]


# --- as properties -------------------------------------------------------------------------------

ASKS = st.builds(
    call,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([GOOD, BAD, "{", ""]),
    st.sampled_from(["weather", "loose", "now"]),
)
FAULTS = st.sampled_from([Notice("unoffered_call", "x"), Notice("unreadable_arguments", "x")])
STORIES = st.lists(TALK | ASKS | NOTES | FAULTS | st.just(STEP) | st.just(ev.Retrying("again")), max_size=25)
TURNS = st.builds(turn, st.sampled_from(["auto", *REQUIRED]), parallel=st.booleans())


def outcome(policy: ToolPolicy, batches: Sequence[Sequence[Event]]) -> tuple[object, ...]:
    done = [policy.feed(batch) for batch in batches]
    return (
        [event for each in done for event in each.events],
        [answer for each in done for answer in each.answers],
        [each.again for each in done if each.again],
        policy.visible,
        policy.hidden,
    )


@given(TURNS, STORIES, st.lists(st.integers(0, 26)), st.booleans())
def test_any_batching_of_the_same_events_gives_the_same(
    asked: Turn, story: list[Event], cuts: list[int], second: bool
) -> None:
    story = [*story, END]
    places = sorted({0, len(story), *(cut % len(story) for cut in cuts)})
    batches = [story[a:b] for a, b in pairwise(places)]
    whole = outcome(ToolPolicy(asked, second_try=second), [story])
    assert outcome(ToolPolicy(asked, second_try=second), batches) == whole


@given(TURNS, STORIES, st.lists(st.integers(0, 26)))
def test_batches_without_a_decisive_event_may_go_by_it(
    asked: Turn, story: list[Event], cuts: list[int]
) -> None:
    story = [*story, END]
    places = sorted({0, len(story), *(cut % len(story) for cut in cuts)})
    whole = ToolPolicy(asked).feed(story).events
    policy, came = ToolPolicy(asked), list[Event]()
    for start, end in pairwise(places):
        awaited_events, batch = policy.awaited_events, story[start:end]
        goes_by = awaited_events is not None and awaited_events.isdisjoint(map(type, batch))
        came += batch if goes_by else policy.feed(batch).events
    assert came == whole


@given(TURNS, STORIES)
def test_any_events_become_a_turn_that_ends_once(asked: Turn, story: list[Event]) -> None:
    done = ToolPolicy(asked).feed([*story, END])
    assert done.again == (not any(isinstance(event, TurnEnded) for event in done.events))
    if not done.again:
        assert violations(TurnRepair().feed(done.events)) == []


@given(STORIES)
def test_events_that_the_policy_passes_keep_their_order(story: list[Event]) -> None:
    """Without a required call: exactly what came, less the asks, up to where the policy ended the turn."""
    policy = ToolPolicy(turn())
    out = policy.feed([*story, END]).events
    came = [event for event in [*story, END] if not isinstance(event, ev.ToolCallRequested)]
    same = next((n for n, (a, b) in enumerate(zip(out, came, strict=False)) if a is not b), len(came))
    ours = out[same:]
    assert not any(isinstance(event, ev.TextDelta | ev.ReasoningDelta) for event in ours)
    assert len([event for event in ours if isinstance(event, TurnEnded)]) == (1 if ours else 0)


@given(TURNS, STORIES)
def test_no_call_of_a_step_is_forgotten_and_none_is_answered_twice(asked: Turn, story: list[Event]) -> None:
    """Until the turn ends, every call of a complete step is with the client, or answered by us."""
    policy = ToolPolicy(asked)
    waiting: list[ev.ToolCallRequested] = []
    for event in story:
        done = policy.feed([event])
        if isinstance(event, ev.ToolCallRequested):
            waiting.append(event)
        elif isinstance(event, ev.Retrying):
            waiting.clear()
        elif isinstance(event, StepCompleted):
            with_us = [each.request_id for each in (*done.answers, *policy.hidden)]
            assert sorted([*with_us, *(each.request_id for each in policy.visible)]) == sorted(
                each.request_id for each in waiting
            )
            waiting.clear()
        if any(isinstance(each, TurnEnded) for each in done.events):
            return


@given(STORIES)
def test_nothing_is_sent_of_an_attempt_that_is_repeated(story: list[Event]) -> None:
    done = ToolPolicy(turn("required")).feed([*story, END])
    if done.again:
        assert texts(done.events) == {}
        assert arguments(done.events) == {}
