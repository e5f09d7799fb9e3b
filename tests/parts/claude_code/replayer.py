"""Plays a recording of Claude Code to our side of the conversation.

A recording holds what another client asked, under other request ids: an answer to its `initialize` is given as the
answer to ours, and answers to what we do not ask are left out. What the recording's program asks of its client is
asked of us.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import Mode, Turn
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from tests.captures import capture, lines_of, names_of

NAMES = names_of("claude-code")
PREFIX = "mcp__client__"


@cache
def lines_of_recording(name: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The lines of a recording with their direction: `in` went to the program, `out` came from it."""
    lines = lines_of("claude-code", name)
    return tuple(("in" if kind == "to" else "out", json.loads(line)) for kind, line in lines)


def recorded_turn(name: str) -> Turn:
    """The turn that we would ask for to get what the recording did."""
    lines = lines_of_recording(name)
    argv = capture("claude-code", name).head["settings"]["argv"]
    mode: Mode = "model" if "--tools" in argv else "agent"
    tools: list[Tool] = []
    schema: Any = json.loads(argv[argv.index("--json-schema") + 1]) if "--json-schema" in argv else None
    history: list[HistoryItem] = []
    asked = False
    for dir, value in lines:
        if dir != "in":
            continue
        if value["type"] in ("user", "assistant"):
            history += [] if asked else _items(value["message"])
            asked |= value["type"] == "user" and value.get("shouldQuery", True)
        elif value["type"] == "control_request":
            schema = value["request"].get("jsonSchema", schema)
        else:
            result = ((value["response"].get("response") or {}).get("mcp_response") or {}).get("result") or {}
            tools += [
                Tool(each["name"], each["description"], msgspec.Raw(json.dumps(each["inputSchema"]).encode()))
                for each in result.get("tools", ())
            ]
    raw = None if schema is None else msgspec.Raw(json.dumps(schema).encode())
    return Turn(model="", history=tuple(history), mode=mode, tools=tuple(tools), output_schema=raw)


def _items(message: dict[str, Any]) -> Iterable[HistoryItem]:
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in content:
        if block["type"] == "text":
            yield HistoryMessage(message["role"], (TextPart(block["text"]),))
        elif block["type"] == "image":
            source = block["source"]
            part: Part = ImagePart(f"data:{source['media_type']};base64,{source['data']}")
            yield HistoryMessage("user", (part,))
        elif block["type"] == "tool_use":
            yield HistoryCall(block["id"], block["name"].removeprefix(PREFIX), json.dumps(block["input"]))
        elif block["type"] == "tool_result":
            text = block["content"] if isinstance(block["content"], str) else block["content"][0]["text"]
            yield HistoryOutput(block["tool_use_id"], (TextPart(text),))


def output_lines(name: str) -> list[bytes]:
    """What the program would have said to us, up to the end of the first turn that had an answer."""
    initialize: dict[str, Any] = {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": "initialize", "response": {}},
    }
    lines = lines_of_recording(name)
    asked = {
        value["request_id"]: value["request"]["subtype"]
        for dir, value in lines
        if dir == "in" and value["type"] == "control_request"
    }
    out: list[dict[str, Any]] = [] if "initialize" in asked.values() else [initialize]
    for dir, value in lines:
        if dir != "out":
            continue
        if value["type"] == "control_response":
            if asked.get(value["response"].get("request_id")) == "initialize":
                out.append(initialize)
            continue
        out.append(value)
    return [json.dumps(value, separators=(",", ":")).encode() for value in out]


def begin_turn(name: str) -> ClaudeCodeTurn:
    """A dialect that has begun the recording's turn."""
    dialect = ClaudeCodeTurn()
    dialect.begin(recorded_turn(name))
    return dialect


def resumable(name: str) -> ClaudeCodeTurn:
    """A dialect that has read the recording as far as the turn can be resumed."""
    dialect = begin_turn(name)
    for line in output_lines(name):
        dialect.receive([line])
        if dialect.can_resume:
            break
    return dialect


def events_of(name: str, lines: Sequence[bytes] | None = None) -> list[Event]:
    """All events of a recording, of which the dialect is given one line at a time."""
    dialect = begin_turn(name)
    events: list[Event] = []
    for line in output_lines(name) if lines is None else lines:
        events += dialect.receive([line]).events
    return events
