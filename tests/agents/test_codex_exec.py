"""The dialect of `codex exec --json`, tested with recordings of the real 0.163 and 0.169."""

from __future__ import annotations

import pytest

from codex_proxy.agents.dialect import NOTHING, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.faults import FaultKind as K
from codex_proxy.core.items import Activity, HistoryMessage, ImagePart, TextPart
from codex_proxy.core.turn import Turn
from tests.agents.child_outcomes import HELLO, OF_ALL, answer, both, fails
from tests.agents.exec_child import ALL, DONE, begin_turn, events_of, item, line
from tests.agents.proto_child import HISTORY, PROMPT, assert_well_formed, end_of, messages

SCRIPTED = "Hello from the scripted model."
OUTCOMES = {
    **OF_ALL,
    **answer("approval_on_request_esc shell_yield", "The command is done."),
    **answer("elicit mcp_http_add mcp_http_boom mcp_readonly_approve", "Tools are done."),
    **answer("err_drop_once", "word0 word1 word2 word3 word4 word5 "),
    **answer("err_incomplete_content_filter", HELLO, HELLO, HELLO, stop="content_filter"),
    **answer("err_incomplete_max_tokens", HELLO, stop="length"),
    **answer("err_incomplete_max_tokens_item_not_done", stop="length"),
    **answer("output_schema", '{"answer":"42","ok":true}'),
    **answer("resume_1", "first"),
    **answer("resume_2", "second"),
    **both(answer("incomplete_filter", SCRIPTED, stop="content_filter")),
    **both(answer("incomplete_max_tokens", SCRIPTED, stop="length")),
    **both(answer("multi", "Message number 0.", "Message number 1.")),
    **both(answer("reasoning", "The answer is 42.")),
    **both(answer("refusal")),
    **both(answer("schema", '{"answer": "42"}')),
    **both(answer("shell", "Shell is done.")),
    **both(answer("text", "Hello there, you.")),
    **fails("approval_untrusted interrupt_mid_text killed_sig15 killed_sig2", K.AGENT_CRASHED),
    **fails("err_drop_always err_failed_server_error_after_text", K.UPSTREAM_DISCONNECTED),
    **fails("err_failed_overloaded", K.UNAVAILABLE),
    **fails("err_http_429_insufficient_quota", K.INSUFFICIENT_QUOTA),
    **fails("err_idle_timeout", K.UPSTREAM_TIMEOUT),
    **fails("no_auth", K.AGENT_NOT_AUTHENTICATED),
    **both(fails("drop", K.UPSTREAM_DISCONNECTED)),
    **both(fails("empty_prompt", K.AGENT_CRASHED)),
    **both(fails("failed_context", K.CONTEXT_LENGTH_EXCEEDED)),
    **both(fails("http_401", K.AGENT_NOT_AUTHENTICATED)),
    **both(fails("http_404_model", K.MODEL_NOT_FOUND)),
    **both(fails("http_429", K.AGENT_RATE_LIMITED)),
    **both(fails("http_429_usage_limit", K.USAGE_LIMIT_REACHED)),
    **both(fails("http_500", K.UPSTREAM_ERROR)),
}


def test_every_recording_has_an_expected_outcome() -> None:
    assert set(ALL) == set(OUTCOMES)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_recording_has_the_recorded_outcome_and_texts(name: str) -> None:
    events = events_of(*ALL[name])
    assert_well_formed(events)
    end = end_of(events)
    stop, fault, texts = OUTCOMES[name]
    assert (end.stop, end.failure and end.failure.kind, messages(events)) == (stop, fault, texts)


def activities(events: list[ev.Event]) -> list[tuple[str, str]]:
    return [
        (event.item.kind, event.item.text)
        for event in events
        if isinstance(event, ev.ItemStarted) and isinstance(event.item, Activity)
    ]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("shell_0.169.0", [("command", "/bin/bash -lc 'echo one; exit 3'")]),
        ("patch", [("file_change", "add <CWD>/new.txt")]),
        ("mcp_http_add", [("mcp_call", "labh.add")]),
        ("search", [("web_search", "mock query")]),
        (
            "plan",
            [
                ("plan", "one (completed), two (pending), three (pending)"),
                ("plan", "one (completed), two (completed), three (completed)"),
            ],
        ),
    ],
)
def test_what_the_agent_does_is_reported_in_one_line_each(name: str, found: list[tuple[str, str]]) -> None:
    assert activities(events_of(*ALL[name])) == found


@pytest.mark.parametrize("release", ["0.163.0", "0.169.0"])
def test_a_command_is_reported_with_its_output_and_whether_it_failed(release: str) -> None:
    events = events_of(*ALL[f"shell_{release}"])
    [output] = [event for event in events if isinstance(event, ev.OutputDelta)]
    assert output.text == "one\n"
    assert ev.ItemEnded(output.id, "failed") in events


def test_a_command_that_outlives_its_turn_stays_open_for_the_repair() -> None:
    events = events_of(*ALL["shell_yield"])
    [started] = [e for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, Activity)]
    assert not any(isinstance(event, ev.ItemEnded) and event.id == started.item.id for event in events)


def test_the_reasoning_is_one_text() -> None:
    [told] = [e for e in events_of(*ALL["reasoning_0.169.0"]) if isinstance(e, ev.FullReasoning)]
    assert told.text.startswith("**Head0**\n\nthink0.0")
    assert "think1.3" in told.text


def test_the_usage_is_that_of_the_turn() -> None:
    events = events_of(*ALL["usage_multistep"])
    assert ev.UsageReported(ev.Usage(3000, 900, 150, 15)) in events


def test_usage_is_estimated_where_the_provider_reports_none() -> None:
    events = events_of(*ALL["usage_missing"])
    assert ev.StepCompleted(None) in events
    assert not any(isinstance(event, ev.UsageReported) for event in events)


def test_a_warning_is_no_failure() -> None:
    events = events_of(*ALL["text_0.169.0"])
    assert any(isinstance(event, ev.Notice) and event.code == "agent_warning" for event in events)
    assert end_of(events).stop == "stop"


def test_a_retry_is_reported_as_one() -> None:
    retries = [event for event in events_of(*ALL["err_drop_once"]) if isinstance(event, ev.Retrying)]
    assert len(retries) == 1


# --- the prompt -------------------------------------------------------------------------------------


def test_a_single_message_is_the_prompt_and_stdin_ends_behind_it() -> None:
    step = begin_turn().begin(Turn(model="m", history=(PROMPT,)))
    assert (step.writes, step.close_stdin) == (b"go", True)


def test_a_conversation_is_one_labelled_text_with_its_images_numbered() -> None:
    text = begin_turn().begin(Turn(model="m", history=HISTORY)).writes.decode()
    assert text.startswith("This is the conversation so far")
    labels = [row for row in text.splitlines() if row.startswith("[")]
    assert labels == [
        "[system]",
        "[user]",
        "[image 1]",
        "[assistant calls tool look, call_1]",
        "[tool output, call_1]",
        "[image 2]",
        "[assistant]",
        "[user]",
    ]


def test_a_message_that_is_only_an_image_is_no_empty_prompt() -> None:
    step = begin_turn().begin(Turn(model="m", history=(HistoryMessage("user", (ImagePart("data:a"),)),)))
    assert b"[image 1]" in step.writes


def test_half_a_surrogate_does_not_break_the_prompt() -> None:
    step = begin_turn().begin(Turn(model="m", history=(HistoryMessage("user", (TextPart("a\ud83d"),)),)))
    assert step.writes == b"a?"


# --- ends -------------------------------------------------------------------------------------------


def test_nothing_comes_after_the_end() -> None:
    dialect = begin_turn()
    assert not dialect.finished
    step = dialect.receive([DONE, item("agent_message", text="late")])
    assert [type(event) for event in step.events] == [ev.StepCompleted, ev.UsageReported, ev.TurnEnded]
    assert dialect.finished
    assert dialect.receive([DONE, b"garbage"]) == dialect.eof(Ended(code=1)) == NOTHING


@pytest.mark.parametrize("code", [0, 1, 101])
def test_a_child_that_goes_away_before_it_says_so_has_failed_whatever_its_exit_code(code: int) -> None:
    stderr = "Reading prompt from stdin...\nError: it broke\n"
    end = end_of(events_of([item("agent_message", text="Half")], Ended(code=code, stderr_tail=stderr)))
    assert end.failure is not None
    assert end.failure.kind is K.AGENT_CRASHED
    assert f"(exit code {code}): Error: it broke" in end.failure.message


def test_a_note_that_stdin_is_read_is_no_reason() -> None:
    end = end_of(events_of([], Ended(signal=9, stderr_tail="Reading additional input from stdin...")))
    assert end.failure is not None
    assert end.failure.message.endswith("(signal 9: killed, perhaps for lack of memory).")


def test_a_child_that_is_stopped_on_request_was_interrupted() -> None:
    dialect = begin_turn()
    assert dialect.interrupt() == NOTHING
    assert end_of(dialect.eof(Ended(signal=15)).events).stop == "interrupted"


def test_a_crash_behind_an_error_ends_with_the_error() -> None:
    told = line("error", message="You've hit your usage limit.")
    failure = end_of(events_of([told], Ended(signal=9))).failure
    assert failure is not None
    assert failure.kind is K.USAGE_LIMIT_REACHED


def test_the_end_counts_although_a_field_of_it_is_damaged() -> None:
    assert end_of(events_of([line("turn.completed", usage="much")])).stop == "stop"
    assert end_of(events_of([line("turn.failed", error=7)])).stop == "failed"
    no_utf8 = line("turn.completed", message="*").replace(b"*", b"\xff")
    assert end_of(events_of([no_utf8])).stop == "stop"


def test_an_item_that_comes_twice_is_reported_once() -> None:
    twice = [item("agent_message", text="a"), item("agent_message", text="a"), DONE]
    assert messages(events_of(twice)) == ["a"]


def test_lines_and_items_of_later_releases_are_ignored() -> None:
    later = [line("turn.moved", x=1), item("hologram", x=1), item("hologram", at="started"), b'"x"', DONE]
    events = events_of(later)
    assert messages(events) == []
    assert end_of(events).stop == "stop"
