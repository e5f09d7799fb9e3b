"""Converts a whole answer of Chat Completions to the chunks of a stream, and chunks to a whole answer.

Used when a server streams although it was asked not to, or the other way round. Unknown fields are kept. No input
raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def chunks_of(answer: dict[str, Any], *, wants_usage: bool) -> Iterator[dict[str, Any]]:
    """Yields the chunks of a whole answer: one with all choices and, if `wants_usage`, one with the usage."""
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    choices = answer.get("choices")
    said = [_as_delta(choice) for choice in choices or () if isinstance(choice, dict)]
    yield {**head, "choices": said}
    usage = answer.get("usage")
    if wants_usage and usage is not None:
        yield {**head, "choices": [], "usage": usage}


def whole_of(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Combines the chunks of a stream to a whole answer: joins the texts of each choice, and the pieces of its
    calls by their index.
    """
    answer: dict[str, Any] = {}
    choices: dict[Any, dict[str, Any]] = {}
    for chunk in chunks:
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in answer):
                answer[name] = value
        for choice in _dicts(chunk.get("choices")):
            given = choice.get("index")
            index = given if isinstance(given, int) else 0
            _add_choice(choices.setdefault(index, {"index": index, "message": {}}), choice)
    return {**answer, "object": "chat.completion", "choices": list(choices.values())}


def _add_choice(into: dict[str, Any], choice: dict[str, Any]) -> None:
    for name, value in choice.items():
        if name in ("delta", "message"):
            _add(into["message"], value if isinstance(value, dict) else {})
        elif name == "logprobs" and isinstance(value, dict):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            _add(into[name], value)
        elif name != "index" and (value is not None or name not in into):
            into[name] = value


def _add(into: dict[str, Any], delta: dict[str, Any]) -> None:
    """Adds the fields of a delta to `into`: joins texts, merges calls by their index, and concatenates other lists."""
    for name, value in delta.items():
        known = into.get(name)
        if name == "tool_calls" and isinstance(value, list):
            into[name] = _with_calls(known if isinstance(known, list) else [], _dicts(value))
        elif name not in ("role", "id", "type", "name") and isinstance(known, str) and isinstance(value, str):
            into[name] = known + value
        elif isinstance(known, list) and isinstance(value, list):
            into[name] = [*known, *value]
        elif isinstance(known, dict) and isinstance(value, dict):
            _add(known, value)
        elif value is not None or name not in into:
            into[name] = dict(value) if isinstance(value, dict) else value


def _with_calls(calls: list[dict[str, Any]], deltas: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    for delta in deltas:
        index = delta.get("index")
        place = index if isinstance(index, int) and 0 <= index < len(calls) else len(calls)
        if place == len(calls):
            calls.append({})
        _add(calls[place], {name: value for name, value in delta.items() if name != "index"})
    return calls


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    """Converts a choice of a whole answer to a choice of a chunk, in which each call has an index."""
    message = choice.get("message")
    delta = dict(message) if isinstance(message, dict) else {}
    if isinstance(delta.get("tool_calls"), list):
        delta["tool_calls"] = [
            {"index": index, **call} for index, call in enumerate(_dicts(delta["tool_calls"]))
        ]
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": delta}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
