"""Reads answers as a client does, without a line of the renderer: frames, and the fold of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from codex_proxy.core.events import Event
from codex_proxy.surfaces.chat.render import ChatRenderer

ID, CREATED, MODEL = "chatcmpl-1", 1_726_646_400, "codex-5"


def renderer(**options: Any) -> ChatRenderer:
    return ChatRenderer(id=ID, created=CREATED, model=MODEL, **options)


def stream_events(events: Sequence[Event], **options: Any) -> list[Any]:
    """The frames of a stream: JSON values, and `[DONE]` as a string."""
    return frames(renderer(stream=True, **options).feed(events))


def whole(events: Sequence[Event], **options: Any) -> Any:
    """The whole answer to the same events."""
    answer = renderer(stream=False, **options)
    assert answer.feed(events) == b""
    return json.loads(answer.result())


def message(events: Sequence[Event], **options: Any) -> Any:
    return whole(events, **options)["choices"][0]["message"]


def deltas(events: Sequence[Event], **options: Any) -> list[Any]:
    """The deltas of a stream of one choice, without role and finalizer."""
    chunks = [frame for frame in stream_events(events, **options) if frame != "[DONE]" and "choices" in frame]
    found = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    return [delta for delta in found if delta and "role" not in delta]


def frames(sse: bytes) -> list[Any]:
    """Every event of an SSE stream: one `data:` line and a blank line each, LF only."""
    assert b"\r" not in sse
    assert sse.endswith(b"\n\n") or not sse
    events = sse.decode("utf-8").split("\n\n")[:-1]
    payloads = []
    for event in events:
        assert event.startswith("data: ")
        assert "\n" not in event
        data = event.removeprefix("data: ")
        payloads.append(data if data == "[DONE]" else json.loads(data))
    return payloads


def fold(payloads: Iterable[Any]) -> dict[str, Any]:
    """The completion that a client puts together: by choice index, then by tool call index."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    head: dict[str, Any] = {}
    for chunk in payloads:
        if chunk == "[DONE]":
            break
        head = {key: chunk[key] for key in ("id", "created", "model")}
        usage = chunk.get("usage") or usage
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"finish_reason": None, "message": {}, "calls": {}})
            _add(choice, part["delta"])
            choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
    return {"head": head, "usage": usage, "choices": [_closed(i, choices[i]) for i in sorted(choices)]}


def _add(choice: dict[str, Any], delta: dict[str, Any]) -> None:
    said = choice["message"]
    for key, value in delta.items():
        if key == "tool_calls":
            for piece in value:
                _add_call(choice["calls"].setdefault(piece["index"], {}), piece)
        elif key == "function_call":
            _add_call(said.setdefault("function_call", {}), value)
        else:
            said[key] = said.get(key, "") + value


def _add_call(call: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if isinstance(value, dict):
            _add_call(call.setdefault(key, {}), value)
        elif isinstance(value, str):
            call[key] = call.get(key, "") + value


def _closed(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    said = {"content": None, "refusal": None, **choice["message"]}
    if choice["calls"]:
        said["tool_calls"] = [choice["calls"][i] for i in sorted(choice["calls"])]
    return {"index": index, "message": said, "logprobs": None, "finish_reason": choice["finish_reason"]}
