"""The dialect of `codex proto`, held to the real 0.42 (recordings), to older spellings and the fake agent.

What each recording should mean stands in a table here, read off the recording and what caused it (its prompt
names the model server's scenario), not off the dialect.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.base import NOTHING, Decision, Ended, ToolReply
from codex_proxy.agents.codex_proto import CodexProto, is_flattened, proto_argv
from codex_proxy.core import events as ev
from codex_proxy.core.faults import FaultKind as K
from codex_proxy.core.items import (
    Activity,
    ImagePart,
    Message,
    PastCall,
    PastOutput,
    PastRaw,
    SaidMessage,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.turn import Turn

ROOT = Path(__file__).parents[2]
RECORDINGS = sorted((ROOT / "tests/golden/recordings/proto").glob("*.jsonl"))
HELLO = "Hello from the mock model."
WORDS = "word0 word1 "
ASKED = SaidMessage("user", (TextPart("go"),))

# Recording -> the stop, the fault, the messages in order (a retry says its text again).
MEANINGS: dict[str, tuple[str, K | None, list[str]]] = {
    "approval_exec_abort": ("interrupted", None, []),
    "approval_exec_approved": ("stop", None, ["The command is done."]),
    "approval_exec_approved_for_session": ("stop", None, ["The command is done."]),
    "approval_exec_denied": ("stop", None, ["The command is done."]),
    "approval_never_esc": ("stop", None, ["The command is done."]),
    "approval_on_request": ("stop", None, ["The command is done."]),
    "approval_patch_approved": ("stop", None, ["The patch is done."]),
    "approval_patch_denied": ("stop", None, ["The patch is done."]),
    "ask": ("stop", None, ["Asked."]),
    "bad_config": ("failed", K.AGENT_MISCONFIGURED, []),
    "empty": ("stop", None, [""]),
    "env_key_missing": ("failed", K.AGENT_MISCONFIGURED, []),
    "err_drop_always": ("failed", K.UPSTREAM_DISCONNECTED, [WORDS] * 3),
    "err_drop_at_end_once": ("stop", None, [HELLO] * 2),
    "err_drop_once": ("stop", None, [WORDS, "word0 word1 word2 word3 word4 word5 "]),
    "err_error_event": ("failed", K.UPSTREAM_DISCONNECTED, []),
    "err_failed_context": ("failed", K.CONTEXT_LENGTH_EXCEEDED, []),
    "err_failed_cyber": ("failed", K.UPSTREAM_DISCONNECTED, []),
    "err_failed_invalid_prompt": ("failed", K.REJECTED_BY_PROVIDER, []),
    "err_failed_overloaded": ("failed", K.UPSTREAM_DISCONNECTED, []),
    "err_failed_quota": ("failed", K.INSUFFICIENT_QUOTA, []),
    "err_failed_rate_limit": ("stop", None, [HELLO]),
    "err_failed_server_error_after_text": ("failed", K.UPSTREAM_DISCONNECTED, [WORDS + "word2 "] * 3),
    "err_failed_unknown": ("failed", K.UPSTREAM_DISCONNECTED, []),
    "err_garbage_line": ("stop", None, [HELLO]),
    "err_http_400": ("failed", K.REJECTED_BY_PROVIDER, []),
    "err_http_400_context": ("failed", K.CONTEXT_LENGTH_EXCEEDED, []),
    "err_http_400_model": ("failed", K.MODEL_NOT_FOUND, []),
    "err_http_400_raw_html": ("failed", K.REJECTED_BY_PROVIDER, []),
    "err_http_401": ("failed", K.UPSTREAM_UNAUTHORIZED, []),
    "err_http_403": ("failed", K.UPSTREAM_UNAUTHORIZED, []),
    "err_http_404_model": ("failed", K.MODEL_NOT_FOUND, []),
    "err_http_413": ("failed", K.REQUEST_TOO_LARGE, []),
    "err_http_429_insufficient_quota": ("failed", K.AGENT_RATE_LIMITED, []),
    "err_http_429_once": ("stop", None, [HELLO]),
    "err_http_429_retry_after": ("failed", K.AGENT_RATE_LIMITED, []),
    "err_http_429_usage_limit": ("failed", K.USAGE_LIMIT_REACHED, []),
    "err_http_500": ("failed", K.UPSTREAM_ERROR, []),
    "err_http_500_once": ("stop", None, [HELLO]),
    "err_http_503_overloaded": ("failed", K.UNAVAILABLE, []),
    "err_idle_timeout": ("failed", K.UPSTREAM_TIMEOUT, [WORDS] * 3),
    "err_incomplete_content_filter": ("failed", K.UPSTREAM_DISCONNECTED, [HELLO] * 3),
    "err_incomplete_max_tokens": ("failed", K.UPSTREAM_DISCONNECTED, [HELLO] * 3),
    "err_incomplete_max_tokens_item_not_done": ("failed", K.UPSTREAM_DISCONNECTED, [HELLO] * 3),
    "image_gen": ("stop", None, ["Painted."]),
    "interrupt_in_retry_backoff": ("interrupted", None, []),
    "interrupt_mid_text": ("interrupted", None, ["".join(f"word{i} " for i in range(20))]),
    "interrupt_no_headers_yet": ("interrupted", None, []),
    "interrupt_shell_running": ("interrupted", None, []),
    "interrupt_stalled_stream": ("interrupted", None, [WORDS + "word2 "]),
    "mcp_dead": ("stop", None, [HELLO]),
    "mcp_stdio_add": ("stop", None, ["Tools are done."]),
    "mcp_stdio_boom": ("stop", None, ["Tools are done."]),
    "no_auth": ("stop", None, [HELLO]),
    "no_deltas": ("stop", None, ["All at once."]),
    "patch": ("stop", None, ["The patch is done."]),
    "patch_shell_heredoc": ("stop", None, ["The patch is done."]),
    "plan": ("stop", None, ["The plan is done."]),
    "rate_limits": ("stop", None, [HELLO]),
    "reasoning": ("stop", None, ["The answer is 42."]),
    "reasoning_hidden": ("stop", None, ["The answer is 42."]),
    "reasoning_raw": ("stop", None, ["The answer is 42."]),
    "refusal": ("stop", None, []),
    "search": ("stop", None, ["Found it."]),
    "shell": ("stop", None, ["The command is done."]),
    "shell_readonly_denied": ("stop", None, ["The command is done."]),
    "shutdown_op": ("failed", K.AGENT_CRASHED, []),
    "text": ("stop", None, [HELLO]),
    "two_messages": ("stop", None, ["Message 0 here.", "Message 1 here."]),
    "two_messages_phase": ("stop", None, ["Message 0 here.", "Message 1 here."]),
    "two_turns": ("stop", None, ["A1"]),
    "usage_missing": ("stop", None, [HELLO]),
    "usage_multistep": ("stop", None, ["The command is done."]),
    "user_turn": ("stop", None, ['{"answer":"42","ok":true}']),
}


def recorded(path: Path) -> tuple[list[bytes], Ended]:
    """What the child printed, and how it ended."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    code = json.loads(next(row["line"] for row in rows if row["dir"] == "exit"))["rc"]
    stderr = "\n".join(row["line"] for row in rows if row["dir"] == "err")
    return [row["line"].encode() for row in rows if row["dir"] == "out"], Ended(code=code, stderr_tail=stderr)


ALL = {path.stem: recorded(path) for path in RECORDINGS}


def begun(turn: Turn | None = None, **options: bool) -> CodexProto:
    dialect = CodexProto(**options)
    dialect.begin(turn or Turn(model="m", history=(ASKED,)))
    return dialect


def run(lines: Iterable[bytes], ended: Ended | None = None) -> list[ev.Event]:
    """All events of one child, one line per read, its end included."""
    dialect = begun()
    events = [event for line in lines for event in dialect.receive([line]).events]
    return events + dialect.eof(ended or Ended(code=0)).events


def well_formed(events: list[ev.Event]) -> None:
    """What the dialect promises by itself, before any rule repairs it."""
    live: set[str] = set()
    for position, event in enumerate(events):
        match event:
            case ev.TurnEnded():
                assert position == len(events) - 1
            case ev.ItemStarted(item):
                assert item.id not in live
                live.add(item.id)
            case ev.ItemEnded(item_id):
                live.remove(item_id)
            case ev.TextDelta() | ev.TextWhole() | ev.ReasoningDelta() | ev.ReasoningWhole():
                assert event.id in live
            case ev.ArgumentsDelta() | ev.ArgumentsWhole() | ev.OutputDelta():
                assert event.id in live
            case _:
                pass
    assert isinstance(events[-1], ev.TurnEnded)


def the_end(events: list[ev.Event]) -> ev.TurnEnded:
    (end,) = (event for event in events if isinstance(event, ev.TurnEnded))
    return end


def messages(events: list[ev.Event]) -> list[str]:
    """The text of each message: the whole where it was told, else its deltas."""
    texts = {e.item.id: "" for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, Message)}
    for event in events:
        if isinstance(event, ev.TextDelta):
            texts[event.id] += event.text
    wholes = {event.id: event.text for event in events if isinstance(event, ev.TextWhole)}
    return list((texts | wholes).values())


def event_line(kind: str, submission: str | None = "1", **fields: Any) -> bytes:
    return json.dumps({"id": submission, "msg": {"type": kind, **fields}}).encode()


def flat_line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


# --- recordings -----------------------------------------------------------------------------------


def test_every_recording_has_a_meaning_here() -> None:
    assert set(ALL) == set(MEANINGS)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_recording_means_what_it_shows(name: str) -> None:
    events = run(*ALL[name])
    well_formed(events)
    end = the_end(events)
    assert (end.stop, end.failure and end.failure.kind, messages(events)) == MEANINGS[name]
    assert not any(isinstance(event, ev.Noticed) and event.code != "agent_warning" for event in events)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_recording_says_the_same_in_one_read(name: str) -> None:
    lines, ended = ALL[name]
    dialect = begun()
    assert dialect.receive(lines).events + dialect.eof(ended).events == run(lines, ended)


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_url_of_the_provider_is_in_any_failure(name: str) -> None:
    failure = the_end(run(*ALL[name])).failure
    assert failure is None or "://" not in failure.message


@pytest.mark.parametrize("name", ["text", "err_http_400_context", "reasoning_raw", "approval_exec_denied"])
def test_a_child_that_breaks_off_at_any_byte_ends_its_turn_once(name: str) -> None:
    stream = b"".join(line + b"\n" for line in ALL[name][0])
    for cut in range(len(stream)):
        events = run(stream[:cut].split(b"\n"), Ended(signal=9))
        well_formed(events)
        the_end(events)


@given(name=st.sampled_from(sorted(ALL)), where=st.floats(0, 1))
def test_any_recording_may_break_off_anywhere(name: str, where: float) -> None:
    stream = b"".join(line + b"\n" for line in ALL[name][0])
    events = run(stream[: int(len(stream) * where)].split(b"\n"), Ended(code=1))
    well_formed(events)
    the_end(events)


def test_usage_is_the_sum_of_the_turns_model_calls() -> None:
    events = run(*ALL["usage_multistep"])
    call = ev.Usage(1000, 300, 50, 5)
    assert [e.usage for e in events if isinstance(e, ev.UsageSeen)] == [call, call + call, call + call + call]
    assert [e.usage for e in events if isinstance(e, ev.StepCompleted)] == [call, call, call]


def test_a_later_turn_of_a_session_counts_only_its_own_tokens() -> None:
    third = [line.replace(b'{"id":"3"', b'{"id":"1"') for line in ALL["two_turns"][0] if b'"id":"3"' in line]
    events = run(third)
    assert [e.usage for e in events if isinstance(e, ev.UsageSeen)] == [ev.Usage(100, 40, 20, 5)]


def test_a_first_count_after_the_text_is_new_by_what_the_last_call_took() -> None:
    total = {"input_tokens": 300, "output_tokens": 30}
    last = {"input_tokens": 100, "output_tokens": 10}
    info = {"total_token_usage": total, "last_token_usage": last}
    events = run([event_line("agent_message", message="x"), event_line("token_count", info=info)])
    assert [e.usage for e in events if isinstance(e, ev.UsageSeen)] == [ev.Usage(100, 0, 10, 0)]


def test_a_step_without_usage_ends_all_the_same() -> None:
    events = run(*ALL["usage_missing"])
    assert [e for e in events if isinstance(e, ev.StepCompleted | ev.UsageSeen)] == [ev.StepCompleted(None)]


def test_rate_limits_are_told_once_and_only_where_there_are_some() -> None:
    told = [e for e in run(*ALL["rate_limits"]) if isinstance(e, ev.RateLimits)]
    assert [json.loads(e.json)["primary"]["used_percent"] for e in told] == [42.5]
    assert not any(isinstance(e, ev.RateLimits) for e in run(*ALL["text"]))


def test_reasoning_comes_in_the_parts_that_the_child_broke_it_into() -> None:
    events = run(*ALL["reasoning_raw"])
    parts: dict[tuple[str, int], str] = {}
    for event in events:
        if isinstance(event, ev.ReasoningDelta):
            key = (event.kind, event.part)
            parts[key] = parts.get(key, "") + event.text
    summary = {("summary", i): f"**Head{i}**\n\nthink{i}.0 think{i}.1 " for i in (0, 1)}
    assert parts == summary | {("raw", 0): "raw0 raw1 "}
    wholes = {(e.kind, e.part): e.text for e in events if isinstance(e, ev.ReasoningWhole)}
    assert wholes == summary


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
def test_what_the_agent_does_is_one_line_for_a_person(name: str, kind: str, text: str, status: str) -> None:
    events = run(*ALL[name])
    first = next(e.item for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, Activity))
    assert (first.kind, first.text) == (kind, text)
    assert next(e.status for e in events if isinstance(e, ev.ItemEnded) and e.id == first.id) == status


def test_what_a_command_prints_is_decoded() -> None:
    printed = [e.text for e in run(*ALL["shell"]) if isinstance(e, ev.OutputDelta)]
    assert "".join(printed) == "one\ntwo\ncafé"


def test_a_chunk_may_end_inside_a_character() -> None:
    begin = event_line("exec_command_begin", call_id="c", command=["ls", "a b"])
    chunks = [
        event_line("exec_command_output_delta", call_id="c", chunk=c) for c in ("Y2Fmww==", "qQ==", "?")
    ]
    events = run([begin, *chunks])
    assert [e.text for e in events if isinstance(e, ev.OutputDelta)] == ["caf", "é"]
    assert ev.ItemStarted(Activity("a0", "command", "ls 'a b'")) in events


def test_a_file_of_the_workspace_is_named_from_there() -> None:
    dialect = begun(Turn(model="m", history=(ASKED,), workdir="/w"))
    changes: dict[str, Any] = {"/w/a.txt": {"update": {}}, "/etc/b": {"delete": {}}}
    step = dialect.receive([event_line("patch_apply_begin", call_id="p", changes=changes)])
    assert step.events == [ev.ItemStarted(Activity("a0", "file_change", "update a.txt, delete /etc/b"))]


def test_a_retry_is_told_and_its_text_belongs_to_another_message() -> None:
    events = run(*ALL["err_drop_once"])
    assert [e.id for e in events if isinstance(e, ev.TextDelta)] == ["m0"] * 2 + ["m1"] * 6
    (retry,) = (e for e in events if isinstance(e, ev.Retrying))
    assert "error decoding response body" in retry.message
    of_400 = [e for e in run(*ALL["err_http_400"]) if isinstance(e, ev.Retrying)]
    assert [(e.message, e.http_status) for e in of_400] == [("bad thing", 400)] * 2


# --- what we write --------------------------------------------------------------------------------


def ops(written: bytes) -> list[dict[str, Any]]:
    return [json.loads(line)["op"] for line in written.splitlines()]


def test_a_turn_is_written_at_once_with_all_that_a_user_turn_takes() -> None:
    schema = msgspec.Raw(b'{"type":"object"}')
    parts = (TextPart("look"), ImagePart("data:image/png;base64,AA"))
    turn = Turn(
        model="gpt-5",
        history=(SaidMessage("user", parts),),
        effort="xhigh",
        output_schema=schema,
        workdir="/w",
    )
    (op,) = ops(CodexProto().begin(turn).writes)
    assert op == {
        "type": "user_turn",
        "items": [
            {"type": "text", "text": "look"},
            {"type": "image", "image_url": "data:image/png;base64,AA"},
        ],
        "cwd": "/w",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "gpt-5",
        "effort": "high",
        "summary": "auto",
        "final_output_json_schema": {"type": "object"},
    }


def test_without_a_model_the_settings_go_ahead_and_the_childs_own_model_serves() -> None:
    context, turn = ops(
        CodexProto().begin(Turn(model="", history=(ASKED,), workdir="/w", effort="low")).writes
    )
    assert context["type"] == "override_turn_context"
    assert (context["cwd"], context["effort"], "model" in context) == ("/w", "low", False)
    assert turn == {"type": "user_input", "items": [{"type": "text", "text": "go"}]}


def test_a_schema_without_a_model_waits_for_the_childs_model() -> None:
    dialect = CodexProto()
    assert dialect.begin(Turn(model="", history=(ASKED,), output_schema=msgspec.Raw(b"{}"))) == NOTHING
    step = dialect.receive([event_line("session_configured", "", session_id="s", model="gpt-5")])
    assert step.events == [ev.TurnStarted("s", "gpt-5")]
    (op,) = ops(step.writes)
    assert (op["type"], op["model"], op["final_output_json_schema"]) == ("user_turn", "gpt-5", {})
    assert dialect.receive([event_line("task_started")]) == NOTHING


HISTORY = (
    SaidMessage("developer", (TextPart("Be brief."),)),
    SaidMessage("user", (TextPart("What is it?"), ImagePart("data:a"))),
    PastRaw(b'{"type":"reasoning"}'),
    PastCall("call_1", "look", '{"x":1}'),
    PastOutput("call_1", (TextPart("a cat"), ImagePart("data:b"))),
    SaidMessage("assistant", (TextPart("A cat."),)),
    SaidMessage("user", (TextPart("Sure?"),)),
)


def test_a_history_becomes_one_labelled_transcript_with_its_images_behind_it() -> None:
    (op,) = ops(CodexProto().begin(Turn(model="m", history=HISTORY)).writes)
    text, *images = op["items"]
    assert text["text"].split("\n\n")[1:] == [
        "[system]\nBe brief.",
        "[user]\nWhat is it?\n[image 1]",
        '[assistant calls tool look, call_1]\n{"x":1}',
        "[tool output, call_1]\na cat\n[image 2]",
        "[assistant]\nA cat.",
        "[user]\nSure?",
    ]
    assert [image["image_url"] for image in images] == ["data:a", "data:b"]


def test_only_a_single_user_message_goes_in_unflattened() -> None:
    assert not is_flattened(Turn(model="", history=(ASKED,)))
    assert is_flattened(Turn(model="", history=(ASKED, ASKED)))
    assert is_flattened(Turn(model="", history=(SaidMessage("developer", (TextPart("x"),)),)))


def test_the_fake_agent_gets_roles_tools_and_choices_beside_the_turn() -> None:
    tool = Tool("look", parameters=msgspec.Raw(b'{"type":"object"}'))
    turn = Turn(model="m", history=HISTORY, tools=(tool,), choices=3, parallel_tool_calls=False)
    (op,) = ops(CodexProto(extended=True).begin(turn).writes)
    assert op["items"] == [{"type": "text", "text": "Sure?"}]
    assert [item.get("role") or item["type"] for item in op["history"]] == [
        "developer",
        "user",
        "reasoning",
        "function_call",
        "function_call_output",
        "assistant",
    ]
    assert [(t["name"], t["parameters"]) for t in op["tools"]] == [("look", {"type": "object"})]
    assert (op["choices"], op["parallel_tool_calls"]) == (3, False)


@pytest.mark.parametrize(("approve", "decision"), [(True, "approved"), (False, "denied")])
@pytest.mark.parametrize(
    ("name", "op_type", "text"),
    [
        ("approval_on_request", "exec_approval", "touch q (mock wants it)"),
        ("approval_patch_denied", "patch_approval", "add <CWD>/a.txt"),
    ],
)
def test_an_approval_is_asked_and_answered_by_the_events_id(
    name: str, op_type: str, text: str, approve: bool, decision: str
) -> None:
    dialect = begun()
    events = [event for line in ALL[name][0][:4] for event in dialect.receive([line]).events]
    (asked,) = (event for event in events if isinstance(event, ev.ApprovalAsked))
    assert asked.text == text
    step = dialect.answer(asked.ask_id, Decision(approve=approve))
    assert ops(step.writes) == [{"type": op_type, "id": "1", "decision": decision}]
    assert step.events == [ev.AskClosed(asked.ask_id)]
    assert dialect.answer(asked.ask_id, Decision(approve=approve)) == NOTHING


def test_what_is_no_decision_is_a_no() -> None:
    dialect = begun()
    (asked,) = dialect.receive([event_line("exec_approval_request", call_id="c", command="ls")]).events
    assert isinstance(asked, ev.ApprovalAsked)
    (op,) = ops(dialect.answer(asked.ask_id, ToolReply((TextPart("yes"),))).writes)
    assert op["decision"] == "denied"


def test_an_interrupt_is_written_once_and_ends_the_turn_as_interrupted_even_if_the_child_dies_of_it() -> None:
    dialect = begun()
    assert ops(dialect.interrupt().writes) == [{"type": "interrupt"}]
    assert dialect.interrupt() == NOTHING
    assert the_end(dialect.eof(Ended(signal=15)).events).stop == "interrupted"


# --- ends -----------------------------------------------------------------------------------------


def test_nothing_comes_after_the_end() -> None:
    dialect = begun()
    assert not dialect.settled
    step = dialect.receive([event_line("task_complete"), event_line("agent_message", message="late")])
    assert [type(event) for event in step.events] == [ev.TurnEnded]
    assert dialect.settled
    assert dialect.receive([event_line("task_complete"), b"garbage"]) == NOTHING
    assert dialect.eof(Ended(code=1)) == dialect.interrupt() == NOTHING


@pytest.mark.parametrize(
    ("ended", "kind", "message"),
    [
        (Ended(code=0), K.AGENT_CRASHED, "The agent's process ended before its answer did (exit code 0)."),
        (Ended(signal=9), K.AGENT_CRASHED, "The agent's process ended before its answer did (signal 9)."),
        (
            Ended(code=101, stderr_tail="x\n\x1b[31mthread 'main' panicked\x1b[0m at http://10.0.0.1/v1\n\n"),
            K.AGENT_CRASHED,
            "The agent's process ended before its answer did (exit code 101): "
            "thread 'main' panicked at [link]",
        ),
        (
            Ended(code=1, stderr_tail="Error: CODEX_HOME points to /x, which does not exist\n"),
            K.AGENT_MISCONFIGURED,
            "The agent's process ended before its answer did (exit code 1): "
            "Error: CODEX_HOME points to /x, which does not exist",
        ),
    ],
)
def test_a_crash_names_how_and_the_last_words(ended: Ended, kind: K, message: str) -> None:
    failure = the_end(run([event_line("task_started")], ended)).failure
    assert failure is not None
    assert (failure.kind, failure.message) == (kind, message)


def test_a_crash_of_a_child_that_is_not_signed_in_says_what_to_do() -> None:
    ended = Ended(code=1, stderr_tail="Error: Not logged in")
    failure = the_end(run([], ended)).failure
    assert failure is not None
    assert failure.kind is K.AGENT_NOT_AUTHENTICATED
    assert "codex login" in failure.message


def test_the_last_words_are_short() -> None:
    failure = the_end(run([], Ended(code=1, stderr_tail="x" * 5000))).failure
    assert failure is not None
    assert len(failure.message) < 400


def test_a_crash_after_an_error_ends_with_the_error() -> None:
    error = event_line("error", message="You've hit your usage limit.")
    failure = the_end(run([error], Ended(signal=9))).failure
    assert failure is not None
    assert failure.kind is K.USAGE_LIMIT_REACHED


def test_an_error_that_only_cut_the_answer_is_no_failure() -> None:
    error = event_line("error", message="Incomplete response returned, reason: max_output_tokens")
    end = the_end(run([event_line("agent_message_delta", delta="a"), error, event_line("task_complete")]))
    assert (end.stop, end.failure) == ("length", None)


def test_an_error_of_the_session_does_not_fail_the_turn() -> None:
    events = run([event_line("error", "", message="MCP client failed"), event_line("task_complete")])
    assert events[0] == ev.Noticed("agent_warning", "MCP client failed")
    assert the_end(events).stop == "stop"


def test_events_of_another_submission_are_not_ours() -> None:
    other = [event_line("agent_message", "2", message="x"), event_line("task_complete", "2")]
    events = run([*other, event_line("agent_message", message="ours"), event_line("task_complete")])
    assert messages(events) == ["ours"]


# --- the fake agent's extensions ------------------------------------------------------------------


def call_piece(index: int, arguments: str = "", **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return {"index": index, "type": "function", "function": {**name, "arguments": arguments}, **fields}


def calls_of(events: list[ev.Event]) -> list[tuple[str, str, str, int | None]]:
    """Call id, name, arguments and choice of each call."""
    calls = {
        e.item.id: e.item for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, ToolCall)
    }
    texts = dict.fromkeys(calls, "")
    for event in events:
        if isinstance(event, ev.ArgumentsDelta):
            texts[event.id] += event.text
    wholes = {e.id: e.text for e in events if isinstance(e, ev.ArgumentsWhole)}
    texts |= wholes
    return [(call.call_id, call.name, texts[key], call.choice) for key, call in calls.items()]


def test_pieces_of_parallel_calls_find_their_call_by_choice_and_index() -> None:
    def pieces(*calls: dict[str, Any]) -> bytes:
        return event_line("tool_calls_delta", choice_index=0, tool_calls=list(calls))

    events = run(
        [
            pieces(call_piece(0, id="a", name="f"), call_piece(1, "[", name="g")),
            pieces(call_piece(1, "1"), call_piece(0, "{}", id="a")),
            pieces(call_piece(1, "]", id="late")),
            event_line("task_complete"),
        ]
    )
    well_formed(events)
    assert calls_of(events) == [("a", "f", "{}", None), ("call_1", "g", "[1]", None)]
    assert the_end(events).stop == "tool_calls"


def test_a_call_without_a_name_yet_is_held_back() -> None:
    first = event_line("tool_calls_delta", tool_calls=[call_piece(0, "{", id="a")])
    second = event_line("tool_calls_delta", tool_calls=[call_piece(0, "}", name="f")])
    assert calls_of(run([first, second])) == [("a", "f", "{}", None)]


def test_made_up_call_ids_do_not_repeat_those_of_earlier_steps() -> None:
    dialect = begun(Turn(model="m", history=HISTORY))
    step = dialect.receive([event_line("tool_calls_delta", tool_calls=[call_piece(0, name="f")])])
    assert calls_of(step.events) == [("call_1", "f", "", None)]


def test_calls_that_come_whole_after_their_pieces_are_said_once() -> None:
    delta = event_line(
        "tool_calls_delta", choice_index=0, tool_calls=[call_piece(0, '{"a":1}', id="a", name="f")]
    )
    whole = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    other = {**whole, "id": "b"}
    message = event_line("agent_message", message=None, choice_index=0, tool_calls=[whole, other])
    events = run([delta, message, message, event_line("task_complete")])
    well_formed(events)
    assert calls_of(events) == [("a", "f", '{"a":1}', None), ("b", "f", '{"a":1}', None)]
    assert messages(events) == []


def test_the_legacy_function_call_comes_in_pieces_or_whole_once() -> None:
    pieces = [
        event_line("function_call_delta", function_call={"name": "f", "arguments": ""}),
        event_line("function_call_delta", function_call={"arguments": "{}"}),
    ]
    whole = event_line("agent_message", message=None, function_call={"name": "f", "arguments": "{}"})
    for lines in ([*pieces, whole, whole], [whole]):
        events = run([*lines, event_line("task_complete")])
        assert calls_of(events) == [("call_0", "f", "{}", None)]
        assert the_end(events).stop == "function_call"


def test_calls_belong_to_every_choice_unless_the_child_tells_choices_apart() -> None:
    def calls(choice: int) -> bytes:
        return event_line(
            "tool_calls_delta", choice_index=choice, tool_calls=[call_piece(0, id="a", name="f")]
        )

    said = event_line("agent_message", message="x", choice_index=0)
    assert calls_of(run([calls(0)])) == [("a", "f", "", None)]
    assert calls_of(run([said, calls(0), calls(1)])) == [("a", "f", "", 0), ("a", "f", "", 1)]


def test_choices_are_told_apart() -> None:
    lines = [
        event_line("agent_message_delta", delta=text, choice_index=i)
        for i, text in ((0, "a"), (1, "b"), (0, "c"))
    ]
    wholes = [event_line("agent_message", message=text, choice_index=i) for i, text in ((0, "ac"), (1, "b!"))]
    end = event_line("task_complete", choice_finish_reasons={"0": "stop", "1": "length"})
    events = run([*lines, *wholes, end])
    well_formed(events)
    assert messages(events) == ["ac", "b!"]
    assert (the_end(events).stop, the_end(events).choice_stops) == ("stop", {1: "length"})


@pytest.mark.parametrize(
    ("count", "complete", "stop", "trigger"),
    [
        ({}, {"finish_reason": "length"}, "length", "task_complete"),
        ({"finish_reason": "length"}, {}, "length", "token_count"),
        ({"finish_reason": "length"}, {"finish_reason": "quantum_pause"}, "quantum_pause", "task_complete"),
        ({}, {}, "stop", "task_complete"),
    ],
)
def test_a_finish_reason_passes_through_with_the_event_that_told_it(
    count: dict[str, str], complete: dict[str, str], stop: str, trigger: str
) -> None:
    end = the_end(run([event_line("token_count", **count), event_line("task_complete", **complete)]))
    assert (end.stop, end.trigger) == (stop, trigger)


# --- older spellings and nonsense -----------------------------------------------------------------


def respelled(line: bytes, *, flat: bool, prefix: str) -> bytes:
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
    assert run([respelled(line, flat=flat, prefix=prefix) for line in lines], ended) == run(lines, ended)


@pytest.mark.parametrize(("flat", "prefix"), OLDER)
@pytest.mark.parametrize("name", ["text", "usage_multistep", "reasoning", "approval_exec_denied"])
def test_what_comes_twice_under_two_spellings_is_said_once(name: str, flat: bool, prefix: str) -> None:
    lines, ended = ALL[name]
    twice = [one for line in lines for one in (line, respelled(line, flat=flat, prefix=prefix))]
    assert run(twice, ended) == run(lines, ended)


def test_a_delta_that_comes_under_a_later_name_too_is_said_once() -> None:
    twice = [event_line(name, delta="a") for name in ("agent_message_delta", "agent_message_content_delta")]
    assert messages(run(twice)) == ["a"]
    assert messages(run(twice[1:])) == ["a"]


def test_the_oldest_count_stands_at_the_top_level() -> None:
    line = flat_line("token_count", input_tokens=10, cached_input_tokens=4, output_tokens=2, total_tokens=12)
    events = run([flat_line("agent_message", message="x"), line, flat_line("task_complete")])
    assert ev.UsageSeen(ev.Usage(10, 4, 2, 0)) in events


def test_a_text_that_is_told_only_at_the_end_is_a_message() -> None:
    assert messages(run([event_line("task_complete", last_agent_message="all of it")])) == ["all of it"]


def test_unknown_events_are_ignored_and_lines_that_are_none_are_noticed() -> None:
    unknown = [event_line("event_of_a_later_version", delta=[1]), b"", b"  "]
    assert begun().receive(unknown) == NOTHING
    garbage = [b"not json", b"\xff\xfe{}", b"[1]", b'"x"', b"[" * 100_000, b'{"id":']
    assert [e.code for e in begun().receive(garbage).events if isinstance(e, ev.Noticed)] == ["bad_line"] * 6


def test_a_damaged_end_still_ends_and_other_damage_is_noticed() -> None:
    delta = event_line("agent_message_delta", delta={"text": "x"})
    end = event_line("task_complete", finish_reason=7)
    events = run([delta, end])
    assert events[:2] == [
        ev.Noticed("bad_event", "agent_message_delta"),
        ev.Noticed("bad_event", "task_complete"),
    ]
    assert the_end(events).stop == "stop"


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
    events = run(data.draw(st.permutations(lines)))
    well_formed(events)
    the_end(events)


@given(st.lists(NONSENSE, max_size=20))
def test_nonsense_never_raises(lines: list[bytes]) -> None:
    events = run(lines)
    well_formed(events)
    the_end(events)


# --- the fake agent -------------------------------------------------------------------------------

FAKE = (sys.executable, "-m", "fake_proto")
SCENARIOS = sorted(path.stem for path in (ROOT / "fake_proto/scenarios").glob("*.json"))
# What a scenario's name and `about` promise where it is not simply a `stop`.
FAKE_ENDS: dict[str, tuple[str, K | None]] = {
    "auth_401": ("failed", K.UPSTREAM_UNAUTHORIZED),
    "content_filter": ("content_filter", None),
    "context_length": ("failed", K.CONTEXT_LENGTH_EXCEEDED),
    "error_500": ("failed", K.UPSTREAM_ERROR),
    "error_mid_text": ("failed", K.UPSTREAM_DISCONNECTED),
    "error_rate_limit": ("failed", K.AGENT_RATE_LIMITED),
    "error_rate_limit_wait": ("failed", K.AGENT_RATE_LIMITED),
    "function_call": ("function_call", None),
    "function_call_whole": ("function_call", None),
    "future_finish_reason": ("quantum_pause", None),
    "invalid_prompt": ("failed", K.REJECTED_BY_PROVIDER),
    "length": ("length", None),
    "model_not_found": ("failed", K.MODEL_NOT_FOUND),
    "overloaded": ("failed", K.UNAVAILABLE),
    "quota": ("failed", K.INSUFFICIENT_QUOTA),
    "truncation": ("length", None),
    "usage_limit": ("failed", K.USAGE_LIMIT_REACHED),
}


@contextlib.contextmanager
def fake_child() -> Iterator[subprocess.Popen[bytes]]:
    """A fake agent that is killed after the test, or after ten seconds."""
    child = subprocess.Popen(
        proto_argv(FAKE), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    limit = threading.Timer(10, child.kill)
    limit.start()
    try:
        yield child
    finally:
        limit.cancel()
        child.kill()
        child.communicate()


def played(scenario: str) -> list[ev.Event]:
    """One scenario through the dialect; every approval is refused."""
    dialect = CodexProto(extended=True)
    prompt = SaidMessage("user", (TextPart(f"[[fake:{scenario}]] go"),))
    tool = Tool("get_weather", parameters=msgspec.Raw(b"{}"))
    events: list[ev.Event] = []
    with fake_child() as child:
        assert child.stdin
        assert child.stdout
        writes = dialect.begin(Turn(model="", history=(prompt,), tools=(tool,))).writes
        while not dialect.settled:
            if writes:
                child.stdin.write(writes)
                child.stdin.flush()
            line = child.stdout.readline()
            step = dialect.receive([line]) if line else dialect.eof(Ended())
            events += step.events
            asked = [event for event in step.events if isinstance(event, ev.ApprovalAsked)]
            answers = [dialect.answer(event.ask_id, Decision()).writes for event in asked]
            writes = step.writes + b"".join(answers)
    return events


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_of_the_fake_agent_ends_as_it_promises(scenario: str) -> None:
    events = played(scenario)
    well_formed(events)
    end = the_end(events)
    default = ("tool_calls", None) if scenario.startswith("tool_call") else ("stop", None)
    assert (end.stop, end.failure and end.failure.kind) == FAKE_ENDS.get(scenario, default)
    assert not any(isinstance(event, ev.Noticed) for event in events)


# --- launch ---------------------------------------------------------------------------------------


def test_the_arguments_are_json_and_ours_give_way_to_the_operators() -> None:
    argv = proto_argv(
        ("codex",),
        config={"model": "gpt-5", "tools.view_image": True},
        custom_provider="mine",
        parallel_tool_calls=True,
    )
    assert argv[:2] == ("codex", "proto")
    assert argv[-2:] == ("--config", "parallel_tool_calls=true")
    assert set(argv[3:-2:2]) == {
        "tools.view_image=true",
        "model_providers.mine.request_max_retries=0",
        "model_providers.mine.stream_max_retries=0",
        'model="gpt-5"',
    }


def test_the_program_may_be_several_words() -> None:
    assert proto_argv(FAKE) == (*FAKE, "proto", "-c", "tools.view_image=false")
