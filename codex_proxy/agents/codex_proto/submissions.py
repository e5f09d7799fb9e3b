"""Converts a `Turn` to lines for `codex proto`. 0.42 takes one user message: a longer history becomes a transcript. The
fake agent (`extended`) also takes history, tools and choices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import msgspec

from codex_proxy.agents.dialects.json_lines import encode_line
from codex_proxy.agents.dialects.response_items import history_item
from codex_proxy.agents.dialects.transcript import flatten
from codex_proxy.core.items import (
    HistoryItem,
    HistoryMessage,
    Part,
    RawHistoryItem,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import NamedTools, Turn

EFFORTS = {
    "none": "minimal",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""Codex's efforts by the request's: 0.42 silently drops a submission with an unknown one."""

SUMMARIES = frozenset({"auto", "concise", "detailed", "none"})


def submission_line(submission_id: str, op: dict[str, Any]) -> bytes:
    return encode_line({"id": submission_id, "op": op})


def turn_lines(turn: Turn, submission_id: str, model: str, *, extended: bool) -> bytes:
    """Returns the lines that start the turn. Without a `model` the child's default is used."""
    settings: dict[str, Any] = {
        "cwd": turn.workdir or ".",
        "approval_policy": "never",
        "sandbox_policy": {"mode": turn.sandbox},
    }
    summary = turn.summary if turn.summary in SUMMARIES else None
    effort = EFFORTS.get(turn.effort or "")
    input_fields = _extended_fields(turn) if extended else {"items": _input_items(turn)}
    if model:
        op = {"type": "user_turn", **input_fields, **settings, "model": model, "effort": effort}
        op["summary"] = summary or "auto"
        if turn.output_schema is not None:
            op["final_output_json_schema"] = turn.output_schema
        return submission_line(submission_id, op)
    if effort:
        settings["effort"] = effort
    if summary:
        settings["summary"] = summary
    context = submission_line(f"{submission_id}-context", {"type": "override_turn_context", **settings})
    return context + submission_line(submission_id, {"type": "user_input", **input_fields})


def _input_items(turn: Turn) -> list[dict[str, Any]]:
    if len(turn.history) == 1 and _is_user(turn.history[0]):
        return _inputs(turn.history[0].parts)
    text, images = flatten(turn.history)
    return _inputs([TextPart(text), *images])


def _inputs(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "image_url": part.url}
        for part in parts
    ]


def _extended_fields(turn: Turn) -> dict[str, Any]:
    history = list(turn.history)
    last = history.pop() if history and _is_user(history[-1]) else None
    return {
        "items": _inputs(last.parts) if isinstance(last, HistoryMessage) else [],
        "history": [_response_item(item) for item in history],
        "tools": [_tool(tool) for tool in turn.tools],
        "tool_choice": _tool_choice(turn),
        "choices": turn.choices,
        "parallel_tool_calls": turn.parallel_tool_calls,
    }


def _is_user(item: HistoryItem) -> TypeGuard[HistoryMessage]:
    return isinstance(item, HistoryMessage) and item.role == "user"


def _response_item(item: HistoryItem) -> object:
    if isinstance(item, RawHistoryItem):
        return msgspec.Raw(item.json)
    return history_item(item, detail_of=lambda image: image.detail)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": tool.kind,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _tool_choice(turn: Turn) -> object:
    if isinstance(turn.tool_choice, NamedTools):
        return {"names": turn.tool_choice.names, "required": turn.tool_choice.required}
    return turn.tool_choice
