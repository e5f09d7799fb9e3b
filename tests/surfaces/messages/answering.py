"""Reads answers as a client does, without a line of the renderer: events, and the fold of a stream by the rules that
SDKs hold a server to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from codex_proxy.core.events import Event
from codex_proxy.surfaces.messages.render import MessagesRenderer

ID, MODEL, REQUEST = "msg_1", "codex-5", "req_1"
IDENTITY = "codex-app-server/gpt-5.5"


def renderer(**options: Any) -> MessagesRenderer:
    return MessagesRenderer(id=ID, model=MODEL, request_id=REQUEST, **options)


def stream_events(events: Sequence[Event], **options: Any) -> list[dict[str, Any]]:
    """The events of a stream."""
    return frames(renderer(stream=True, **options).feed(events))


def whole(events: Sequence[Event], **options: Any) -> Any:
    """The whole answer to the same events."""
    answer = renderer(stream=False, **options)
    assert answer.feed(events) == b""
    return json.loads(answer.result())


def content(events: Sequence[Event], **options: Any) -> list[dict[str, Any]]:
    """The blocks of the whole answer."""
    blocks: list[dict[str, Any]] = whole(events, **options)["content"]
    return blocks


def types(events: Sequence[Event], **options: Any) -> list[str]:
    """The types of a stream's events."""
    return [frame["type"] for frame in stream_events(events, **options)]


def frames(sse: bytes) -> list[dict[str, Any]]:
    """Every event of an SSE stream: its name, which is the type of its data, and one line of data; LF only."""
    assert b"\r" not in sse
    assert sse.endswith(b"\n\n") or not sse
    payloads = []
    for event in sse.decode("utf-8").split("\n\n")[:-1]:
        name, data, *more = event.split("\n")
        assert not more
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        payloads.append(payload)
    return payloads


def fold(payloads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together. Whatever an SDK would fail on fails here."""
    message: dict[str, Any] = {}
    open_block: int | None = None
    input = ""
    for event in payloads:
        kind = event["type"]
        if kind == "message_start":
            assert not message
            message = json.loads(json.dumps(event["message"]))
            assert message["content"] == []
        elif kind == "content_block_start":
            assert open_block is None
            open_block, input = event["index"], ""
            assert open_block == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            assert event["index"] == open_block
            input += _grown(message["content"][open_block], event["delta"])
        elif kind == "content_block_stop":
            assert event["index"] == open_block
            block = message["content"][open_block]
            if block["type"] in ("tool_use", "server_tool_use"):
                assert block["input"] == {}
                block["input"] = json.loads(input or "{}")
                assert isinstance(block["input"], dict)
            open_block = None
        elif kind == "message_delta":
            assert open_block is None
            message |= event["delta"]
            message["usage"] |= event["usage"]
        else:
            assert kind in ("message_stop", "ping")
    assert payloads[-1]["type"] == "message_stop"
    return message


def _grown(block: dict[str, Any], delta: dict[str, Any]) -> str:
    """Adds a delta to its block. Returns the piece of its input."""
    kind = delta["type"]
    if kind == "input_json_delta":
        assert block["type"] in ("tool_use", "server_tool_use")
        return str(delta["partial_json"])
    if kind == "signature_delta":
        assert block["signature"] == ""  # it overwrites: once, and whole
        block["signature"] = delta["signature"]
        return ""
    field = kind.removesuffix("_delta")
    assert block["type"] == field
    block[field] += delta[field]
    return ""
