"""The conversation of a session, as input items of the Responses API, of which each turn's request is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from codex_proxy.core.items import McpCall, Message, Part, TextPart, ToolCall
from codex_proxy.core.shown_text import escape, one_line
from codex_proxy.parts.sessions.items import WholeItem
from codex_proxy.parts.sessions.sessions import CallResult, Content, Entry, UserMessage

MANY_ENTRIES: Final = 500
"""Entries of a session above which its conversation is made and parsed in a thread: that takes some 50 us for each."""
MAX_BEGINNING: Final = 80
"""Maximum characters of the beginning of a session's first message."""


def message_item(content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a message of the client as an input item of the Responses API."""
    return {"type": "message", "role": "user", "content": list(content)}


def input_items(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Returns a session's log as input items of the Responses API. A call without a result has one that says so."""
    items: list[dict[str, Any]] = []
    unanswered: dict[str, None] = {}
    for entry in entries:
        item = entry.item
        if isinstance(item, CallResult):
            unanswered.pop(item.call_id, None)
            items.append(
                {"type": "function_call_output", "call_id": item.call_id, "output": _output_of(item)}
            )
            continue
        if isinstance(item, UserMessage):
            items += [_no_result(call_id) for call_id in unanswered]
            unanswered.clear()
            items.append(message_item(item.content))
            continue
        whole = WholeItem.of(item.events())
        text = "".join(whole.text)
        if isinstance(whole.item, Message) and text:
            phase = {"phase": whole.item.phase} if whole.item.phase else {}
            content = [{"type": "output_text", "text": text}]
            items.append({"type": "message", "role": "assistant", "content": content, **phase})
        elif isinstance(whole.item, ToolCall):
            unanswered[whole.item.call_id] = None
            call = {"call_id": whole.item.call_id, "name": whole.item.name, "arguments": text or "{}"}
            items.append({"type": "function_call", **call})
        elif isinstance(whole.item, McpCall):
            items.append({"type": "mcp_call", "id": entry.id, **_mcp_fields(whole)})
    return [*items, *map(_no_result, unanswered)]


def _output_of(result: CallResult) -> Any:
    """Returns what the agent is told of a call: its error, if it has one, and its output."""
    output = result.output or ""
    if result.error is None:
        return output
    error = f"Error: {result.error}"
    if isinstance(output, str):
        return f"{error}\n{output}" if output else error
    return [{"type": "input_text", "text": error}, *output]


def _mcp_fields(whole: WholeItem) -> dict[str, Any]:
    shown = whole.object("", "")
    arguments = "".join(whole.text) or "{}"
    return {
        **{name: shown[name] for name in ("server_label", "name", "output", "error")},
        "arguments": arguments,
    }


def _no_result(call_id: str) -> dict[str, Any]:
    output = "The turn ended before the call had a result."
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def content_said(parts: Iterable[Part]) -> Content:
    """Returns what a user has said elsewhere as a message of the client."""
    return tuple(
        {"type": "input_text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "input_image", "image_url": part.url}
        for part in parts
    )


def beginning_of(messages: Iterable[Content]) -> str:
    """Returns the beginning of the first text of some messages as one line; empty if they have none."""
    texts = (part["text"] for content in messages for part in content if part["type"] == "input_text")
    line = escape(next(filter(None, map(one_line, texts)), ""))
    return line if len(line) <= MAX_BEGINNING else line[: MAX_BEGINNING - 1] + "…"
