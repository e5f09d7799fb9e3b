"""The dialect of `codex proto`, tested with recordings of the real 0.42.

The table holds the expected outcome of each recording. It was read off the recording and off what caused it (the
prompt names the model server's scenario), not off the dialect.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.dialect import Ended
from codex_proxy.core import events as ev
from codex_proxy.core.faults import FaultKind as K
from codex_proxy.core.items import (
    Activity,
)
from codex_proxy.core.turn import Turn
from tests.agents.child_outcomes import HELLO, OF_ALL, WORDS, answer, fails
from tests.agents.proto_child import (
    ALL,
    PROMPT,
    assert_well_formed,
    begin_turn,
    end_of,
    event_line,
    events_of,
    messages,
)

OUTCOMES = {
    **OF_ALL,
    **answer("approval_exec_approved approval_exec_approved_for_session", "The command is done."),
    **answer("approval_exec_denied approval_on_request", "The command is done."),
    **answer("approval_patch_approved approval_patch_denied patch_shell_heredoc", "The patch is done."),
    **answer("err_drop_once", WORDS, "word0 word1 word2 word3 word4 word5 "),
    **answer("no_auth", HELLO),
    **answer("two_turns", "A1"),
    **answer("user_turn", '{"answer":"42","ok":true}'),
    **answer("approval_exec_abort interrupt_in_retry_backoff interrupt_no_headers_yet", stop="interrupted"),
    **answer("interrupt_shell_running", stop="interrupted"),
    **answer("interrupt_mid_text", "".join(f"word{i} " for i in range(20)), stop="interrupted"),
    **answer("interrupt_stalled_stream", WORDS + "word2 ", stop="interrupted"),
    **fails("err_drop_always", K.UPSTREAM_DISCONNECTED, *[WORDS] * 3),
    **fails("err_failed_overloaded", K.UPSTREAM_DISCONNECTED),
    **fails("err_failed_server_error_after_text", K.UPSTREAM_DISCONNECTED, *[WORDS + "word2 "] * 3),
    **fails("err_http_429_insufficient_quota", K.AGENT_RATE_LIMITED),
    **fails("err_idle_timeout", K.UPSTREAM_TIMEOUT, *[WORDS] * 3),
    **fails("err_incomplete_content_filter", K.UPSTREAM_DISCONNECTED, *[HELLO] * 3),
    **fails("err_incomplete_max_tokens", K.UPSTREAM_DISCONNECTED, *[HELLO] * 3),
    **fails("err_incomplete_max_tokens_item_not_done", K.UPSTREAM_DISCONNECTED, *[HELLO] * 3),
    **fails("shutdown_op", K.AGENT_CRASHED),
}


# --- recordings -----------------------------------------------------------------------------------


def test_every_recording_has_an_expected_outcome() -> None:
    assert set(ALL) == set(OUTCOMES)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_recording_has_its_expected_outcome(name: str) -> None:
    events = events_of(*ALL[name])
    assert_well_formed(events)
    end = end_of(events)
    assert (end.stop, end.failure and end.failure.kind, messages(events)) == OUTCOMES[name]
    assert not any(isinstance(event, ev.Notice) and event.code != "agent_warning" for event in events)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_recording_gives_the_same_events_in_one_read(name: str) -> None:
    lines, ended = ALL[name]
    dialect = begin_turn()
    assert dialect.receive(lines).events + dialect.eof(ended).events == events_of(lines, ended)


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_url_of_the_provider_is_in_any_failure(name: str) -> None:
    failure = end_of(events_of(*ALL[name])).failure
    assert failure is None or "://" not in failure.message


@pytest.mark.parametrize("name", ["text", "err_http_400_context", "reasoning_raw", "approval_exec_denied"])
def test_a_child_that_breaks_off_at_any_byte_ends_its_turn_once(name: str) -> None:
    stream = b"".join(line + b"\n" for line in ALL[name][0])
    for cut in range(len(stream)):
        events = events_of(stream[:cut].split(b"\n"), Ended(signal=9))
        assert_well_formed(events)
        end_of(events)


@given(name=st.sampled_from(sorted(ALL)), where=st.floats(0, 1))
def test_any_recording_may_break_off_anywhere(name: str, where: float) -> None:
    stream = b"".join(line + b"\n" for line in ALL[name][0])
    events = events_of(stream[: int(len(stream) * where)].split(b"\n"), Ended(code=1))
    assert_well_formed(events)
    end_of(events)


def test_usage_is_the_sum_of_the_turns_model_calls() -> None:
    events = events_of(*ALL["usage_multistep"])
    call = ev.Usage(1000, 300, 50, 5)
    assert [e.usage for e in events if isinstance(e, ev.UsageReported)] == [
        call,
        call + call,
        call + call + call,
    ]
    assert [e.usage for e in events if isinstance(e, ev.StepCompleted)] == [call, call, call]


def test_a_later_turn_of_a_session_counts_only_its_own_tokens() -> None:
    third = [line.replace(b'{"id":"3"', b'{"id":"1"') for line in ALL["two_turns"][0] if b'"id":"3"' in line]
    events = events_of(third)
    assert [e.usage for e in events if isinstance(e, ev.UsageReported)] == [ev.Usage(100, 40, 20, 5)]


def test_a_first_count_after_the_text_adds_the_tokens_of_the_last_call() -> None:
    total = {"input_tokens": 300, "output_tokens": 30}
    last = {"input_tokens": 100, "output_tokens": 10}
    info = {"total_token_usage": total, "last_token_usage": last}
    events = events_of([event_line("agent_message", message="x"), event_line("token_count", info=info)])
    assert [e.usage for e in events if isinstance(e, ev.UsageReported)] == [ev.Usage(100, 0, 10, 0)]


def test_a_step_without_usage_ends_all_the_same() -> None:
    events = events_of(*ALL["usage_missing"])
    assert [e for e in events if isinstance(e, ev.StepCompleted | ev.UsageReported)] == [
        ev.StepCompleted(None)
    ]


def test_rate_limits_are_reported_once_and_only_where_there_are_some() -> None:
    limits = [e for e in events_of(*ALL["rate_limits"]) if isinstance(e, ev.AccountLimitsReported)]
    assert [json.loads(e.json)["primary"]["used_percent"] for e in limits] == [42.5]
    assert not any(isinstance(e, ev.AccountLimitsReported) for e in events_of(*ALL["text"]))


def test_reasoning_has_the_parts_of_the_child() -> None:
    events = events_of(*ALL["reasoning_raw"])
    parts: dict[tuple[str, int], str] = {}
    for event in events:
        if isinstance(event, ev.ReasoningDelta):
            key = (event.kind, event.part)
            parts[key] = parts.get(key, "") + event.text
    summary = {("summary", i): f"**Head{i}**\n\nthink{i}.0 think{i}.1 " for i in (0, 1)}
    assert parts == summary | {("raw", 0): "raw0 raw1 "}
    full_texts = {(e.kind, e.part): e.text for e in events if isinstance(e, ev.FullReasoning)}
    assert full_texts == summary


@pytest.mark.parametrize(
    ("name", "kind", "text", "status"),
    [
        ("usage_multistep", "command", "echo hi", "completed"),
        ("shell_readonly_denied", "command", "echo x > f.txt; ls", "failed"),
        ("approval_patch_approved", "file_change", "add <CWD>/a.txt", "completed"),
        ("patch", "file_change", "add <CWD>/new.txt", "failed"),
        ("mcp_stdio_add", "mcp_call", "lab.add", "completed"),
        ("mcp_stdio_boom", "mcp_call", "lab.boom", "failed"),
        ("search", "web_search", "mock query", "completed"),
        ("plan", "plan", "one (completed), two (in progress), three (pending)", "completed"),
    ],
)
def test_an_activity_is_described_in_one_line(name: str, kind: str, text: str, status: str) -> None:
    events = events_of(*ALL[name])
    first = next(e.item for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, Activity))
    assert (first.kind, first.text) == (kind, text)
    assert next(e.status for e in events if isinstance(e, ev.ItemEnded) and e.id == first.id) == status


def test_what_a_command_prints_is_decoded() -> None:
    printed = [e.text for e in events_of(*ALL["shell"]) if isinstance(e, ev.OutputDelta)]
    assert "".join(printed) == "one\ntwo\ncafé"


def test_a_chunk_may_end_inside_a_character() -> None:
    begin = event_line("exec_command_begin", call_id="c", command=["ls", "a b"])
    chunks = [
        event_line("exec_command_output_delta", call_id="c", chunk=c) for c in ("Y2Fmww==", "qQ==", "?")
    ]
    events = events_of([begin, *chunks])
    assert [e.text for e in events if isinstance(e, ev.OutputDelta)] == ["caf", "é"]
    assert ev.ItemStarted(Activity("a0", "command", "ls 'a b'")) in events


def test_a_file_of_the_workspace_is_named_from_there() -> None:
    dialect = begin_turn(Turn(model="m", history=(PROMPT,), workdir="/w"))
    changes: dict[str, Any] = {"/w/a.txt": {"update": {}}, "/etc/b": {"delete": {}}}
    step = dialect.receive([event_line("patch_apply_begin", call_id="p", changes=changes)])
    assert step.events == [ev.ItemStarted(Activity("a0", "file_change", "update a.txt, delete /etc/b"))]


def test_a_retry_is_reported_and_its_text_belongs_to_another_message() -> None:
    events = events_of(*ALL["err_drop_once"])
    assert [e.id for e in events if isinstance(e, ev.TextDelta)] == ["m0"] * 2 + ["m1"] * 6
    (retry,) = (e for e in events if isinstance(e, ev.Retrying))
    assert "error decoding response body" in retry.message
    of_400 = [e for e in events_of(*ALL["err_http_400"]) if isinstance(e, ev.Retrying)]
    assert [(e.message, e.http_status) for e in of_400] == [("bad thing", 400)] * 2


def _compact(kind: str, id: str | None = "1", **fields: Any) -> bytes:
    """A line byte for byte as the real agent writes it."""
    return json.dumps({"id": id, "msg": {"type": kind, **fields}}, separators=(",", ":")).encode()


DELTA_LINES = st.sampled_from(
    [
        *(_compact("agent_message_delta", delta=word) for word in ("a", "b", "é")),
        _compact("agent_message_delta", delta=""),
        _compact("agent_message_delta", delta=5),
        _compact("agent_message_delta", delta="c", choice_index=1),
        _compact("agent_message_delta", "2", delta="of another turn"),
        _compact("codex/event/agent_message_delta", delta="d"),
        _compact("agent_message_content_delta", delta="e"),
        event_line("agent_message_delta", delta="f"),
        b'{"id":"1","msg":{"type":"agent_message_delta","delta":"cut',
        _compact("agent_message", message="whole"),
        _compact("agent_reasoning_delta", delta="hm"),
        _compact("token_count", info=None),
        _compact("stream_error", message="again"),
        _compact("task_complete"),
    ]
)


@given(st.lists(DELTA_LINES))
def test_it_does_not_matter_how_many_lines_are_read_at_once(lines: list[bytes]) -> None:
    at_once, one_by_one = begin_turn(), begin_turn()
    singly = [event for line in lines for event in one_by_one.receive([line]).events]
    assert list(at_once.receive(lines).events) == singly


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_recording_read_at_once_gives_the_same_events_as_line_by_line(name: str) -> None:
    lines, _ = ALL[name]
    at_once, one_by_one = begin_turn(), begin_turn()
    singly = [event for line in lines for event in one_by_one.receive([line]).events]
    assert list(at_once.receive(lines).events) == singly
