"""Reads answers as a client does, without a line of the renderer: events, and the fold of a stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from codex_proxy.core.events import Event
from codex_proxy.surfaces.responses.profile import OpenResponsesRenderer
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from tests.surfaces.responses.asking import ask

ID, CREATED, ENDED = "resp_1", 1_726_646_400, 1_726_646_407
ECHO = ask().echo


class CountedIds:
    """Ids in order: `msg_1`, `fc_2`."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"


class Stopped:
    """A clock that shows the end of every turn."""

    def epoch(self) -> float:
        return ENDED + 0.75

    def monotonic(self) -> float:
        return 0.0


def renderer(echo: Mapping[str, Any] = ECHO, **options: Any) -> ResponsesRenderer:
    return ResponsesRenderer(
        id=ID, created_at=CREATED, echo=echo, ids=CountedIds(), clock=Stopped(), **options
    )


def stream_events(events: Sequence[Event], **options: Any) -> list[Any]:
    """The payloads of a stream, which must end as streams do."""
    sse = renderer(stream=True, **options).feed(events)
    assert sse.endswith(b"event: done\ndata: [DONE]\n\n")
    return payloads(sse.removesuffix(b"event: done\ndata: [DONE]\n\n"))


def whole(events: Sequence[Event], **options: Any) -> Any:
    """The whole answer to the same events."""
    answer = renderer(stream=False, **options)
    assert answer.feed(events) == b""
    return json.loads(answer.result())


def output(events: Sequence[Event], **options: Any) -> Any:
    return whole(events, **options)["output"]


def types(events: Sequence[Event], **options: Any) -> list[str]:
    return [payload["type"] for payload in stream_events(events, **options)]


def payloads(sse: bytes) -> list[Any]:
    """Every event of an SSE stream: an `event:` line that says the type, a `data:` line, a blank line, LF only."""
    assert b"\r" not in sse
    assert sse.endswith(b"\n\n") or not sse
    found = []
    for event in sse.decode("utf-8").split("\n\n")[:-1]:
        name, data = event.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        found.append(payload)
    return found


def in_profile(events: Sequence[Event]) -> list[Any]:
    """The payloads of the other profile: `data:` lines only."""
    answer = OpenResponsesRenderer(
        id=ID, created_at=CREATED, echo=ECHO, ids=CountedIds(), clock=Stopped(), stream=True
    )
    frames = answer.feed(events).decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


FINAL_TEXT = {
    "response.output_text.done": "text",
    "response.refusal.done": "refusal",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
    "response.mcp_call_arguments.done": "arguments",
    "response.reasoning_summary_text.done": "text",
}
TOLD_AT_THE_END = {
    "mcp_list_tools": ("tools", "error"),
    "mcp_call": ("output", "error"),
    "tool_search_call": ("arguments",),
}
"""What has no events of its own."""
STAGES = {
    f"response.{kind}.{stage}"
    for kind in ("mcp_list_tools", "mcp_call")
    for stage in ("in_progress", "completed", "failed")
}


def fold(stream: Iterable[Any]) -> list[Any]:
    """The output that a client puts together from deltas. Every `done` must say what was put together."""
    items: dict[int, Any] = {}
    done: dict[int, Any] = {}
    for event in stream:
        kind, index = event["type"], event.get("output_index")
        if index is None:
            continue
        if kind == "response.output_item.added":
            assert index == len(items), "items are announced in their order"
            items[index] = json.loads(json.dumps(event["item"]))
            continue
        assert index not in done, "an item that is done says nothing more"
        item = items[index]
        if kind == "response.output_item.done":
            done[index] = event["item"]
            late = {"status", "encrypted_content", *TOLD_AT_THE_END.get(item["type"], ())}
            assert item.keys() | late >= event["item"].keys() >= item.keys()
            assert {**item, **{name: event["item"][name] for name in late & event["item"].keys()}} == event[
                "item"
            ]
            continue
        assert event["item_id"] == item["id"]
        if kind in STAGES:
            assert kind.split(".")[1] == item["type"]
            continue
        _fold_text(item, event, kind)
    assert sorted(done) == sorted(items), "every item is done"
    assert list(done) == sorted(done), "items are done in their order"
    return [done[index] for index in sorted(done)]


def _fold_text(item: Any, event: Any, kind: str) -> None:
    if kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
        field = "content" if "content_index" in event else "summary"
        assert event[f"{field}_index"] == len(item[field])
        item[field].append(event["part"])
        return
    holder = item
    if "content_index" in event or "summary_index" in event:
        field = "content" if "content_index" in event else "summary"
        holder = item[field][event[f"{field}_index"]]
    if kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
        assert event["part"] == holder
        return
    growing = (
        ("output",) if holder.get("type") == "codex:activity" else ("text", "refusal", "arguments", "input")
    )
    name = next(name for name in growing if name in holder)
    if kind.endswith(".delta"):
        holder[name] += event["delta"]
    else:
        assert event[FINAL_TEXT[kind]] == holder[name]
