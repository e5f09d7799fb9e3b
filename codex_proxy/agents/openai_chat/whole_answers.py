"""Converts a whole answer of Chat Completions to chunks, and the reverse. Keeps unknown fields, raises nothing, and
takes linear time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from codex_proxy.core.json_values import object_at, objects_in

_WHOLE_TEXTS: Final = frozenset({"role", "id", "type", "name"})
"""Fields whose texts never come in pieces."""


def chunks_of(answer: dict[str, Any], *, wants_usage: bool) -> Iterator[dict[str, Any]]:
    """Yields a chunk with all choices and, if `wants_usage`, one with the usage."""
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    choices = answer.get("choices")
    said = [_as_delta(choice) for choice in choices or () if isinstance(choice, dict)]
    yield {**head, "choices": said}
    usage = answer.get("usage")
    if wants_usage and usage is not None:
        yield {**head, "choices": [], "usage": usage}


class WholeAnswer:
    """Joins chunks to an answer. `add` may change its chunks."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[Any, dict[str, Any]] = {}
        self._texts: list[tuple[dict[str, Any], str]] = []
        """The objects and their keys with a `_Text` as the value."""

    def add(self, chunk: dict[str, Any]) -> None:
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in self._fields):
                self._fields[name] = value
        for choice in objects_in(chunk.get("choices")):
            given = choice.get("index")
            index = given if isinstance(given, int) else 0
            self._add_choice(self._choices.setdefault(index, {"index": index, "message": {}}), choice)

    def whole(self) -> dict[str, Any]:
        """Returns the joined answer. May be called once."""
        for into, name in self._texts:
            text = into[name]
            if isinstance(text, _Text):
                into[name] = "".join(text.pieces)
        return {**self._fields, "object": "chat.completion", "choices": list(self._choices.values())}

    def _add_choice(self, into: dict[str, Any], choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if name in ("delta", "message"):
                self._add(into["message"], value if isinstance(value, dict) else {})
            elif name == "logprobs" and isinstance(value, dict):
                if not isinstance(into.get(name), dict):
                    into[name] = {}
                self._add(into[name], value)
            elif name != "index" and (value is not None or name not in into):
                into[name] = value

    def _add(self, into: dict[str, Any], delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            known = into.get(name)
            if name == "tool_calls" and isinstance(value, list):
                calls = into[name] = known if isinstance(known, list) else []
                self._add_calls(calls, objects_in(value))
            elif isinstance(value, str) and isinstance(known, _Text):
                known.pieces.append(value)
            elif name not in _WHOLE_TEXTS and isinstance(value, str) and isinstance(known, str):
                into[name] = _Text(known, value)
                self._texts.append((into, name))
            elif isinstance(value, list) and isinstance(known, list):
                known += value
            elif isinstance(value, dict) and isinstance(known, dict):
                self._add(known, value)
            elif value is not None or name not in into:
                into[name] = value

    def _add_calls(self, calls: list[dict[str, Any]], deltas: Iterable[dict[str, Any]]) -> None:
        for delta in deltas:
            index = delta.pop("index", None)
            place = index if isinstance(index, int) and 0 <= index < len(calls) else len(calls)
            if place == len(calls):
                calls.append({})
            self._add(calls[place], delta)


class _Text:
    """A text that came in several pieces."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = list(pieces)


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    delta = dict(object_at(choice, "message"))
    if isinstance(delta.get("tool_calls"), list):
        delta["tool_calls"] = [
            {"index": index, **call} for index, call in enumerate(objects_in(delta["tool_calls"]))
        ]
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": delta}
