"""Converts a `Turn` to the lines that are written to `codex proto`.

Release 0.42 takes one user message: no history, no system role, no tools of the client. A longer history is sent as
one transcript with labelled messages, so that the model reads the roles as text. The fake agent (`extended`), a
test program that imitates `codex proto`, also takes the history as Responses items, the tools and the number of
choices, in fields that the real one would ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from codex_proxy.agents.transcript import flattened
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
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
"""The reasoning effort that release 0.42 is sent for each effort of the API. 0.42 silently drops a submission with
an effort that it does not know."""

SUMMARIES = frozenset({"auto", "concise", "detailed", "none"})


def submission_line(submission_id: str, op: dict[str, Any]) -> bytes:
    """Encodes the operation `op` as one line. `submission_id` becomes the operation's id."""
    return msgspec.json.encode({"id": submission_id, "op": op}) + b"\n"


def is_flattened(turn: Turn) -> bool:
    """Returns whether a real `codex proto` gets the turn's history as one transcript, which loses the roles."""
    return not (len(turn.history) == 1 and _is_user(turn.history[0]))


def needs_model(turn: Turn) -> bool:
    """Returns whether the turn can only be written when the child has reported its model.

    This is so for a turn with a schema but without a model, because the operation for a schema requires a model's
    name.
    """
    return turn.output_schema is not None and not turn.model


def turn_lines(turn: Turn, submission_id: str, model: str, *, extended: bool) -> bytes:
    """Returns the lines that start the turn. The turn's events will have `submission_id` as their id.

    If `model` is empty, the child's default model is used, and the settings are sent in a line of their own before
    the input. `extended`: the child is the fake agent, which also accepts a history and tools.
    """
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
    """Returns the input of a real `codex proto`: the single user message, or the transcript."""
    first = turn.history[0] if turn.history else None
    if isinstance(first, HistoryMessage) and not is_flattened(turn):
        return _inputs(first.parts)
    return transcript(turn.history)


def _inputs(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Converts parts of a message to inputs of `codex proto`: objects of the type `text` or `image`."""
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "image_url": part.url}
        for part in parts
    ]


def transcript(history: Sequence[HistoryItem]) -> list[dict[str, Any]]:
    """Returns the history as input parts: one text, in which a number stands for each image, followed by the images
    in that order.
    """
    text, images = flattened(history)
    return _inputs([TextPart(text), *images])


def _extended_fields(turn: Turn) -> dict[str, Any]:
    """Returns the fields for the fake agent: `items` is the last message if it is the user's, `history` all before
    it as Responses items; further fields are the tools and the number of choices.
    """
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


def _is_user(item: HistoryItem) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "user"


def _response_item(item: HistoryItem) -> object:
    """Converts an item of the history to a Responses item."""
    if isinstance(item, RawHistoryItem):
        return msgspec.Raw(item.json)
    if isinstance(item, HistoryCall):
        call = {"type": "function_call", "call_id": item.call_id, "name": item.name}
        return {**call, "arguments": item.arguments}
    if isinstance(item, HistoryOutput):
        output = _content(item.parts, "input_text")
        return {"type": "function_call_output", "call_id": item.call_id, "output": output}
    kind = "output_text" if item.role == "assistant" else "input_text"
    return {"type": "message", "role": item.role, "content": _content(item.parts, kind)}


def _content(parts: Iterable[Part], kind: str) -> list[dict[str, Any]]:
    """Converts parts to Responses content parts; `kind` is the type of text parts."""
    return [
        {"type": kind, "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "input_image", "image_url": part.url}
        for part in parts
    ]


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
