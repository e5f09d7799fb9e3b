"""Reads token counts: of a `usage` object, and of an answer that is passed on, in chunks. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from codex_proxy.core.events import Usage
from codex_proxy.core.json_values import UNREADABLE, count_at, is_too_costly

_NAME: Final = b'"usage"'
# The quantifiers give nothing back: without its end an object is left after one look.
_OBJECT: Final = re.compile(rb"\s*+:\s*+(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})")
_BEGUN: Final = re.compile(rb"\s*+(?::\s*+(?:\{.*)?)?", re.DOTALL)
_MAX_HELD: Final = 1024
"""Maximum bytes of an unfinished `usage` object; 300 are usual."""


def usage_of(given: Any) -> Usage | None:
    """Reads Chat Completions' or Responses' `usage`; None if it does not count the input."""
    if not isinstance(given, dict):
        return None  # most chunks
    for input, output in (("prompt", "completion"), ("input", "output")):
        count = count_at(given, f"{input}_tokens")
        if count is not None:
            cached = count_at(given, f"{input}_tokens_details", "cached_tokens")
            written = count_at(given, f"{input}_tokens_details", "cache_write_tokens")
            return Usage(
                input=count,
                cached=cached or count_at(given, "prompt_cache_hit_tokens") or 0,
                output=count_at(given, f"{output}_tokens") or 0,
                reasoning=count_at(given, f"{output}_tokens_details", "reasoning_tokens") or 0,
                cache_written=written or count_at(given, "cache_creation_input_tokens") or 0,
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
        if is_too_costly(json):
            return
        try:
            given = msgspec.json.decode(json)
        except UNREADABLE:
            return
        total = count_at(given, "total_tokens")  # all that servers tell of a ranking
        found = usage_of(given)
        self.usage = found or (self.usage if total is None else Usage(input=total))
