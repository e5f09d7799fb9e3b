"""Reads token counts: of a `usage` object, and of an answer that is passed on, in chunks. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from codex_proxy.core.events import Usage
from codex_proxy.core.json_values import value_at

_NAME: Final = b'"usage"'
# The quantifiers give nothing back: without its end an object is left after one look.
_OBJECT: Final = re.compile(rb"\s*+:\s*+(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})")
_BEGUN: Final = re.compile(rb"\s*+(?::\s*+(?:\{.*)?)?", re.DOTALL)
_MAX_HELD: Final = 1024
"""Maximum bytes of an unfinished `usage` object; 300 are usual."""


def count_of(fields: Any, name: str) -> int | None:
    """Returns the count in a field of a decoded object, if any."""
    value = value_at(fields, name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 1 << 53 else None


def usage_of(given: Any) -> Usage | None:
    """Reads Chat Completions' or Responses' `usage`; None if it does not count the input."""
    for input, output in (("prompt", "completion"), ("input", "output")):
        count = count_of(given, f"{input}_tokens")
        if count is not None:
            of_input, of_output = (given.get(f"{part}_tokens_details") for part in (input, output))
            return Usage(
                input=count,
                cached=count_of(of_input, "cached_tokens") or count_of(given, "prompt_cache_hit_tokens") or 0,
                output=count_of(given, f"{output}_tokens") or 0,
                reasoning=count_of(of_output, "reasoning_tokens") or 0,
            )
    return None


class PassedUsage:
    """Finds the tokens in an answer of unknown form. `usage` is the last count found."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._held = b""

    def feed(self, chunk: bytes) -> None:
        data, end = self._held + chunk, 0
        at = data.find(_NAME)
        while at >= 0:
            end = at + len(_NAME)
            # Within a text the quote in front has a backslash.
            found = None if data[at - 1 : at] == b"\\" else _OBJECT.match(data, end)
            if found is not None:
                end = found.end()
                self._read(found[1])
            elif len(data) - at <= _MAX_HELD and _BEGUN.fullmatch(data, end):
                break  # the rest may come
            at = data.find(_NAME, end)
        self._held = data[max(end, len(data) - len(_NAME)) :] if at < 0 else data[max(at - 1, 0) :]

    def _read(self, json: bytes) -> None:
        try:
            given = msgspec.json.decode(json)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        total = count_of(given, "total_tokens")  # all that servers tell of a ranking
        found = usage_of(given)
        self.usage = found or (self.usage if total is None else Usage(input=total))
