"""Shortens and encodes what an agent or a model server may send in any form and length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

MAX_LINE_CHARS: Final = 300


def one_line(text: str) -> str:
    text = " ".join(text[: MAX_LINE_CHARS * 4].split())
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def encode(value: Any) -> bytes:
    """Encodes JSON. A lone surrogate, which a model's text may contain, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(value))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(each) for each in value]
    return value
