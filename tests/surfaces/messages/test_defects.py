"""The defects on which SDKs were seen to fail are those that our checker of streams finds, and no stream of ours has.

The streams are recordings of the answers that a scripted server gave to three SDKs. Which SDK fails on which:
docs/messages.md#streams.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from pydantic import TypeAdapter, ValidationError

from codex_proxy.core.events import Event
from codex_proxy.surfaces.messages.answer import BLOCK_TYPES, EVENT_TYPES, PING
from tests.surfaces.messages.answering import fold, renderer
from tests.surfaces.messages.asking import RECORDINGS
from tests.surfaces.messages.test_fold import turns

BROKEN = {
    "no_event_lines",
    "done_marker",
    "comments",
    "ping_first",
    "comment_first",
    "unknown_event",
    "unknown_block",
    "unknown_delta",
    "index_gap",
    "interleaved",
    "no_block_stop",
    "no_message_delta",
    "no_message_stop",
    "no_start",
    "bad_tool_json",
    "array_tool_json",
    "tool_input_in_start",
    "no_usage_start",
    "no_usage_delta",
    "usage_without_input",
    "stop_reason_new",
    "no_stop_sequence_key",
    "thinking_nosig",
    "thinking_two_sig",
    "error_mid",
    "error_first",
    "error_request_id",
    "eof_mid",
    "crlf",
    "empty_text_block",
}
"""Streams that our own never look like: some SDK fails on them, or no client needs them."""
SOUND = {
    "good",
    "empty_tool_args",
    "usage_null_fields",
    "thinking",
    "server_tool",
    "split_utf8",
    "no_content",
}
REASONS = {"end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal"}
DELTAS = {"text_delta", "thinking_delta", "signature_delta", "input_json_delta"}

_known: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def recorded_streams() -> dict[str, bytes]:
    """The first answer under each name."""
    found: dict[str, bytes] = {}
    names: dict[int, str] = {}
    for line in (RECORDINGS / "07-sdks.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] == "request":
            names[entry["n"]] = (entry["body"] or {}).get("model", "")
        elif isinstance(entry.get("events"), list):
            found.setdefault(names[entry["n"]], b"".join(map(_sse, entry["events"])))
    return found


def _sse(event: Any) -> bytes:
    if isinstance(event, str):
        return event.encode()
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


STREAMS = recorded_streams()


def check(sse: bytes) -> None:
    """Raises `AssertionError` for a stream that is not as every client wants it."""
    assert b"\r" not in sse
    events = []
    for block in sse.decode("utf-8").split("\n\n")[:-1]:
        lines = block.split("\n")
        assert len(lines) == 2
        assert lines[1].startswith("data: {")
        event = json.loads(lines[1].removeprefix("data: "))
        assert lines[0] == f"event: {event['type']}"
        _check_event(event)
        events.append(event)
    assert events[0]["type"] == "message_start"
    message = fold(events)
    assert message["stop_reason"] in REASONS
    for block in message["content"]:
        assert block["type"] != "text" or block["text"]
        assert block["type"] != "thinking" or block["signature"]


def _check_event(event: dict[str, Any]) -> None:
    kind = event["type"]
    assert kind in EVENT_TYPES
    assert kind != "error"
    if kind == "message_start":
        assert event["message"]["usage"]["input_tokens"]
    if kind == "content_block_start":
        assert event["content_block"]["type"] in BLOCK_TYPES
    if kind == "content_block_delta":
        assert event["delta"]["type"] in DELTAS
    if kind == "message_delta":
        assert {"stop_reason", "stop_sequence"} <= set(event["delta"])
        assert {"input_tokens", "output_tokens"} <= set(event["usage"])
    try:
        _known.validate_python(event)
    except ValidationError:
        assert kind == "ping"  # the SDK's own types have none


def test_every_recorded_stream_is_judged_here() -> None:
    assert {name for name in STREAMS if name} == BROKEN | SOUND


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_stream_with_a_defect_is_found(name: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        check(STREAMS[name])


@pytest.mark.parametrize("name", sorted(SOUND - {"usage_null_fields"}))
def test_a_stream_that_every_sdk_reads_passes(name: str) -> None:
    stream = STREAMS[name].replace(
        b'"usage": {"output_tokens"', b'"usage": {"input_tokens": 1, "output_tokens"'
    )
    check(stream)


@settings(deadline=None)
@given(turns())
def test_no_stream_of_this_server_has_a_defect(events: list[Event]) -> None:
    answer = renderer(stream=True, thinking=True, state_identity="a/m", web_search=True)
    begun = answer.open() + PING
    check(begun + answer.feed(events))
    check(renderer(stream=True).feed(events))
