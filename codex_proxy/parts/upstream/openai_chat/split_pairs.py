"""Joins surrogate pairs whose halves came in two chunks of a stream: a client that decodes each chunk alone, as SDKs
do, would get two halves.
"""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.core.json_values import object_at, objects_in, without_surrogates
from codex_proxy.core.retries import FIRST_HALF, SECOND_HALF

MAX_HALVES: Final = 100
"""Maximum texts of a stream that wait for the other half."""
Path = tuple[str | int, ...]


class SplitPairs:
    """The first halves of a stream. Give `mend` the chunks that have halves, and while `halves` wait all others; `rest`
    at the end.
    """

    def __init__(self) -> None:
        self.halves: dict[Path, str] = {}
        """Those that wait for the other half, by the choice and the path of their text."""
        self._head: dict[str, Any] = {}
        """The fields of the last chunk beside its choices."""

    def mend(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Returns the chunk with whole characters: a half at the end of a text waits for the next chunk. A half without
        another becomes U+FFFD, at a finish reason also one that waits.
        """
        self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
        choices = []
        for choice in objects_in(chunk.get("choices")):
            index = _place_of(choice, 0)
            field = "message" if "delta" not in choice and "message" in choice else "delta"
            delta = self._mended(object_at(choice, field), (index,))
            if choice.get("finish_reason"):
                _merge(delta, self._delta_of(index))
            choices.append({**choice, field: delta})
        return {**chunk, "choices": choices}

    def rest(self) -> dict[str, Any] | None:
        """Returns a chunk with U+FFFD for the halves that wait, if any does."""
        indexes = dict.fromkeys(path[0] for path in self.halves)
        if not indexes:
            return None
        choices = [
            {"index": index, "delta": self._delta_of(index), "finish_reason": None} for index in indexes
        ]
        return {**self._head, "choices": choices}

    def _mended(self, value: Any, path: Path) -> Any:
        if isinstance(value, str):
            return self._with_half(value, path)
        if isinstance(value, dict):
            return {name: self._mended(each, (*path, name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self._mended(each, (*path, _place_of(each, n))) for n, each in enumerate(value)]
        return value

    def _with_half(self, text: str, path: Path) -> str:
        half = self.halves.pop(path, "")
        if not half and text.isascii():
            return text
        text = half + text
        if FIRST_HALF <= text[-1:] < SECOND_HALF and len(self.halves) < MAX_HALVES:
            self.halves[path], text = text[-1], text[:-1]
        return without_surrogates(text)

    def _delta_of(self, index: str | int) -> dict[str, Any]:
        """Returns a delta with U+FFFD for each half of a choice that waits, which it no longer does."""
        delta: dict[str, Any] = {}
        for path in [path for path in self.halves if path[0] == index]:
            value: Any = without_surrogates(self.halves.pop(path))
            for step in reversed(path[1:]):
                if isinstance(step, int):
                    value = [{"index": step, **value}] if isinstance(value, dict) else [value]
                else:
                    value = {step: value}
            _merge(delta, value)
        return delta


def _place_of(entry: Any, place: int) -> int:
    index = entry.get("index") if isinstance(entry, dict) else None
    return index if type(index) is int else place


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds a delta to another, in front of its texts."""
    for name, value in more.items():
        known = into.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
            continue
        both = isinstance(known, str | list) and isinstance(value, type(known))
        into[name] = value + known if both else value
