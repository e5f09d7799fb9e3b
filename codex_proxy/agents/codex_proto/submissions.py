"""What we write to `codex proto`: a `Turn` in, op lines out. Pure.

The real 0.42 takes one user turn: no history, no system role, no tools of the client. A turn that is more
than one user message goes in as one labelled transcript, which is lossy: the model reads the roles instead
of having them. The fake agent (`extended`) also takes the history as Responses items, the tools and the
number of choices in fields that the real one would ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
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
"""To what 0.42 knows: a word that it does not know makes it drop the whole op without a sign."""

SUMMARIES = frozenset({"auto", "concise", "detailed", "none"})

PREAMBLE = "This is the conversation so far, oldest message first. Answer its last message."

_ROLES = {"developer": "system", "user": "user", "assistant": "assistant"}


def line(submission: str, op: dict[str, Any]) -> bytes:
    """One submission, ready to be written."""
    return msgspec.json.encode({"id": submission, "op": op}) + b"\n"


def is_flattened(turn: Turn) -> bool:
    """Whether a real `codex proto` gets this turn's history as one transcript (and loses the roles)."""
    return not (len(turn.history) == 1 and _is_user(turn.history[0]))


def needs_model(turn: Turn) -> bool:
    """Whether the turn can only be written once the child has said its model: a schema needs `user_turn`,
    `user_turn` needs a model, and the turn has none."""
    return turn.output_schema is not None and not turn.model


def turn_lines(turn: Turn, submission: str, model: str, *, extended: bool) -> bytes:
    """The lines that start the turn; its events will carry the id `submission`.

    `model` may be empty, for the child's default: then `override_turn_context` carries the settings.
    """
    settings: dict[str, Any] = {
        "cwd": turn.workdir or ".",
        "approval_policy": "never",
        "sandbox_policy": {"mode": turn.sandbox},
    }
    summary = turn.summary if turn.summary in SUMMARIES else None
    effort = EFFORTS.get(turn.effort or "")
    said = _extended(turn) if extended else {"items": _items(turn)}
    if model:
        op = {"type": "user_turn", **said, **settings, "model": model, "effort": effort}
        op["summary"] = summary or "auto"
        if turn.output_schema is not None:
            op["final_output_json_schema"] = turn.output_schema
        return line(submission, op)
    if effort:
        settings["effort"] = effort
    if summary:
        settings["summary"] = summary
    context = line(f"{submission}-context", {"type": "override_turn_context", **settings})
    return context + line(submission, {"type": "user_input", **said})


def _items(turn: Turn) -> list[dict[str, Any]]:
    first = turn.history[0] if turn.history else None
    if isinstance(first, HistoryMessage) and not is_flattened(turn):
        return _inputs(first.parts)
    return transcript(turn.history)


def _inputs(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "image_url": part.url}
        for part in parts
    ]


def transcript(history: Sequence[HistoryItem]) -> list[dict[str, Any]]:
    """The whole history as one text, and its images behind it in the order of their marks."""
    images: list[ImagePart] = []
    blocks = [PREAMBLE]
    # What came raw from the model (encrypted reasoning) has no text: it cannot go this way.
    blocks += [_block(item, images) for item in history if not isinstance(item, RawHistoryItem)]
    return _inputs([TextPart("\n\n".join(blocks)), *images])


def _block(item: HistoryMessage | HistoryCall | HistoryOutput, images: list[ImagePart]) -> str:
    if isinstance(item, HistoryMessage):
        return f"[{_ROLES[item.role]}]\n{_marked(item.parts, images)}"
    if isinstance(item, HistoryCall):
        return f"[assistant calls tool {item.name}, {item.call_id}]\n{item.arguments}"
    return f"[tool output, {item.call_id}]\n{_marked(item.parts, images)}"


def _marked(parts: Iterable[Part], images: list[ImagePart]) -> str:
    """The text of the parts; each image is put aside and leaves its number."""
    words = []
    for part in parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        else:
            images.append(part)
            words.append(f"[image {len(images)}]")
    return "\n".join(words)


def _extended(turn: Turn) -> dict[str, Any]:
    """`items` is the last user message, `history` all before it as Responses items."""
    history = list(turn.history)
    last = history.pop() if history and _is_user(history[-1]) else None
    return {
        "items": _inputs(last.parts) if isinstance(last, HistoryMessage) else [],
        "history": [_response_item(item) for item in history],
        "tools": [_tool(tool) for tool in turn.tools],
        "tool_choice": _choice(turn),
        "choices": turn.choices,
        "parallel_tool_calls": turn.parallel_tool_calls,
    }


def _is_user(item: HistoryItem) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "user"


def _response_item(item: HistoryItem) -> object:
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


def _choice(turn: Turn) -> object:
    if isinstance(turn.tool_choice, NamedTools):
        return {"names": turn.tool_choice.names, "required": turn.tool_choice.required}
    return turn.tool_choice
