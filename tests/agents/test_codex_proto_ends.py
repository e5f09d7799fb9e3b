"""How a turn of `codex proto` ends, and how older spellings and invalid lines are handled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.dialect import NOTHING, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.faults import FaultKind as K
from tests.agents.proto_child import (
    ALL,
    assert_well_formed,
    begin_turn,
    end_of,
    event_line,
    events_of,
    flat_line,
    messages,
)

# --- ends -----------------------------------------------------------------------------------------


def test_nothing_comes_after_the_end() -> None:
    dialect = begin_turn()
    assert not dialect.finished
    step = dialect.receive([event_line("task_complete"), event_line("agent_message", message="late")])
    assert [type(event) for event in step.events] == [ev.TurnEnded]
    assert dialect.finished
    assert dialect.receive([event_line("task_complete"), b"garbage"]) == NOTHING
    assert dialect.eof(Ended(code=1)) == dialect.interrupt() == NOTHING


@pytest.mark.parametrize(
    ("ended", "kind", "message"),
    [
        (
            Ended(code=0),
            K.AGENT_CRASHED,
            "The agent's process ended before its answer was complete (exit code 0).",
        ),
        (
            Ended(signal=9),
            K.AGENT_CRASHED,
            "The agent's process ended before its answer was complete (signal 9: killed, perhaps for lack of memory).",
        ),
        (
            Ended(code=101, stderr_tail="x\n\x1b[31mthread 'main' panicked\x1b[0m at http://10.0.0.1/v1\n\n"),
            K.AGENT_CRASHED,
            "The agent's process ended before its answer was complete (exit code 101): thread "
            "'main' panicked at [link]",
        ),
        (
            Ended(code=1, stderr_tail="Error: CODEX_HOME points to /x, which does not exist\n"),
            K.AGENT_MISCONFIGURED,
            "The agent's process ended before its answer was complete (exit code 1): Error: "
            "CODEX_HOME points to /x, which does not exist",
        ),
    ],
)
def test_a_crash_names_the_exit_and_the_last_line_of_stderr(ended: Ended, kind: K, message: str) -> None:
    failure = end_of(events_of([event_line("task_started")], ended)).failure
    assert failure is not None
    assert (failure.kind, failure.message) == (kind, message)


def test_a_crash_of_a_child_that_is_not_signed_in_says_what_to_do() -> None:
    ended = Ended(code=1, stderr_tail="Error: Not logged in")
    failure = end_of(events_of([], ended)).failure
    assert failure is not None
    assert failure.kind is K.AGENT_NOT_AUTHENTICATED
    assert "codex login" in failure.message


def test_the_line_of_stderr_in_a_failure_is_short() -> None:
    failure = end_of(events_of([], Ended(code=1, stderr_tail="x" * 5000))).failure
    assert failure is not None
    assert len(failure.message) < 400


def test_a_crash_after_an_error_ends_with_the_error() -> None:
    error = event_line("error", message="You've hit your usage limit.")
    failure = end_of(events_of([error], Ended(signal=9))).failure
    assert failure is not None
    assert failure.kind is K.USAGE_LIMIT_REACHED


def test_an_error_that_only_cut_the_answer_is_no_failure() -> None:
    error = event_line("error", message="Incomplete response returned, reason: max_output_tokens")
    end = end_of(
        events_of([event_line("agent_message_delta", delta="a"), error, event_line("task_complete")])
    )
    assert (end.stop, end.failure) == ("length", None)


def test_an_error_of_the_session_does_not_fail_the_turn() -> None:
    events = events_of([event_line("error", "", message="MCP client failed"), event_line("task_complete")])
    assert events[0] == ev.Notice("agent_warning", "MCP client failed")
    assert end_of(events).stop == "stop"


def test_events_of_another_submission_are_ignored() -> None:
    other = [event_line("agent_message", "2", message="x"), event_line("task_complete", "2")]
    events = events_of([*other, event_line("agent_message", message="ours"), event_line("task_complete")])
    assert messages(events) == ["ours"]


# --- older spellings and nonsense -----------------------------------------------------------------


def in_older_spelling(line: bytes, *, flat: bool, prefix: str) -> bytes:
    whole = json.loads(line)
    msg = {**whole["msg"], "type": prefix + whole["msg"]["type"]}
    return json.dumps(msg if flat else {**whole, "msg": msg}).encode()


OLDER = [(True, ""), (False, "codex/event/"), (True, "codex/event/")]


@pytest.mark.parametrize(("flat", "prefix"), OLDER)
@pytest.mark.parametrize(
    "name", ["reasoning_raw", "usage_multistep", "err_http_400", "approval_patch_approved"]
)
def test_older_spellings_mean_the_same(name: str, flat: bool, prefix: str) -> None:
    lines, ended = ALL[name]
    assert events_of(
        [in_older_spelling(line, flat=flat, prefix=prefix) for line in lines], ended
    ) == events_of(lines, ended)


@pytest.mark.parametrize(("flat", "prefix"), OLDER)
@pytest.mark.parametrize("name", ["text", "usage_multistep", "reasoning", "approval_exec_denied"])
def test_an_event_in_two_spellings_counts_once(name: str, flat: bool, prefix: str) -> None:
    lines, ended = ALL[name]
    twice = [one for line in lines for one in (line, in_older_spelling(line, flat=flat, prefix=prefix))]
    assert events_of(twice, ended) == events_of(lines, ended)


def test_a_delta_that_comes_under_a_later_name_too_counts_once() -> None:
    twice = [event_line(name, delta="a") for name in ("agent_message_delta", "agent_message_content_delta")]
    assert messages(events_of(twice)) == ["a"]
    assert messages(events_of(twice[1:])) == ["a"]


def test_the_oldest_count_stands_at_the_top_level() -> None:
    line = flat_line("token_count", input_tokens=10, cached_input_tokens=4, output_tokens=2, total_tokens=12)
    events = events_of([flat_line("agent_message", message="x"), line, flat_line("task_complete")])
    assert ev.UsageReported(ev.Usage(10, 4, 2, 0)) in events


def test_a_text_that_comes_only_with_the_end_is_a_message() -> None:
    assert messages(events_of([event_line("task_complete", last_agent_message="all of it")])) == ["all of it"]


def test_unknown_events_are_ignored_and_lines_that_are_no_events_get_a_notice() -> None:
    unknown = [event_line("event_of_a_later_version", delta=[1]), b"", b"  "]
    assert begin_turn().receive(unknown) == NOTHING
    garbage = [b"not json", b"\xff\xfe{}", b"[1]", b'"x"', b"[" * 100_000, b"{id:"]
    assert [e.code for e in begin_turn().receive(garbage).events if isinstance(e, ev.Notice)] == [
        "bad_line"
    ] * 6


def test_a_damaged_end_still_ends_and_other_damage_gets_a_notice() -> None:
    delta = event_line("agent_reasoning_delta", delta={"text": "x"})
    end = event_line("task_complete", finish_reason=7)
    events = events_of([delta, end])
    assert events[:2] == [
        ev.Notice("bad_event", "agent_reasoning_delta"),
        ev.Notice("bad_event", "task_complete"),
    ]
    assert end_of(events).stop == "stop"


LINES = [line for lines, _ in ALL.values() for line in lines]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["delta", "message", "info", "tool_calls", "function_call", "call_id", "changes", "plan"]
    ),
    JSON | st.just([{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]),
)
KINDS = sorted(
    {json.loads(line)["msg"]["type"] for line in LINES} | {"tool_calls_delta", "function_call_delta"}
)
NONSENSE = st.one_of(
    st.builds(lambda line, cut: line[: cut % (len(line) + 1)], st.sampled_from(LINES), st.integers(0, 5000)),
    st.builds(lambda kind, fields: event_line(kind, **fields), st.sampled_from(KINDS), FIELDS),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
)


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
def test_shuffled_and_repeated_lines_never_raise(name: str, data: st.DataObject) -> None:
    lines = ALL[name][0] + data.draw(st.lists(st.sampled_from(LINES), max_size=10))
    events = events_of(data.draw(st.permutations(lines)))
    assert_well_formed(events)
    end_of(events)


@given(st.lists(NONSENSE, max_size=20))
def test_lines_that_make_no_sense_leave_a_well_formed_turn(lines: list[bytes]) -> None:
    events = events_of(lines)
    assert_well_formed(events)
    end_of(events)
