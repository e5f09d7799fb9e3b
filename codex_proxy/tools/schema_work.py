"""Estimates how much work a JSON schema can cause for each character of a text, before it is used.

Comes in: a schema as JSON. Goes out: the number of places in the schema that one place of a text may be compared
with, as an upper bound; None where there is no useful bound: the schema refers to itself, or its keywords look at the
same members again and again.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

HEAVY_CLASS = 160
"""A Unicode class takes this many times the room of a character in a compiled pattern."""
MAX_WORK = 1 << 40
"""Counting stops here, since references that double at each level grow without end."""

_REPEATED = re.compile(r"\{(\d{1,9})?(?:,(\d{1,9})?)?\}")
_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef"})
_IDS = frozenset({"$id", "id"})
_AGAIN = frozenset({"unevaluatedProperties", "unevaluatedItems"})


class _NoBoundError(Exception):
    pass


def schema_work(schema: bytes) -> int | None:
    """Returns the bound. Each place of the schema counts one, a pattern counts its compiled size, and what a
    reference names counts again for each reference."""
    try:
        root = msgspec.json.decode(schema)
        return _Count(root).of(root)
    except (msgspec.DecodeError, RecursionError, _NoBoundError):
        return None


class _Count:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: dict[str, int | None] = {}
        """The count of what a reference names, by the reference; None while it is being counted."""

    def of(self, value: Any) -> int:
        if isinstance(value, list):
            return self._bounded(1 + sum(map(self.of, value)))
        if isinstance(value, str):
            return 1 + len(value) // 64
        if not isinstance(value, dict):
            return 1
        work = 1
        for key, inner in value.items():
            if key in _AGAIN or (key in _REFERENCES and isinstance(inner, str)):
                raise _NoBoundError
            if key in _IDS and isinstance(inner, str) and value is not self._root:
                raise _NoBoundError  # the pointers below it begin there
            if key == "$ref" and isinstance(inner, str):
                work += self._of_reference(inner)
            elif key == "pattern" and isinstance(inner, str):
                work += _work_of_pattern(inner)
            elif key == "patternProperties" and isinstance(inner, dict):
                work += sum(_work_of_pattern(pattern) + self.of(each) for pattern, each in inner.items())
            else:
                work += self.of(inner)
        return self._bounded(work)

    def _of_reference(self, reference: str) -> int:
        if reference in self._referred:
            known = self._referred[reference]
            if known is None:
                raise _NoBoundError
            return known
        self._referred[reference] = None
        work = self._referred[reference] = self.of(self._target(reference))
        return work

    def _target(self, reference: str) -> Any:
        """Returns what a JSON pointer names. Other references are rare and not resolved here."""
        if reference[:2] != "#/" or "%" in reference:
            raise _NoBoundError
        found = self._root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise _NoBoundError
        return found

    def _bounded(self, work: int) -> int:
        if work > MAX_WORK:
            raise _NoBoundError
        return work


def _work_of_pattern(pattern: str) -> int:
    """Returns the number of instructions of the compiled pattern: its characters, multiplied by their repetitions."""
    work = 1 + len(pattern)
    if "\\p" in pattern or "\\P" in pattern:
        work *= HEAVY_CLASS
    for match in _REPEATED.finditer(pattern):
        work *= max(int(match[1] or 1), int(match[2] or 1), 1)
        if work > MAX_WORK:
            raise _NoBoundError
    return work
