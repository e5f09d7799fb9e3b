"""Reads TOML that others have written. It imports nothing that the start does not need anyhow."""

from __future__ import annotations

import tomllib
from typing import Any

BYTE_ORDER_MARK = "\ufeff"


class TomlError(ValueError):
    """A content is not TOML. The message is the end of a sentence that begins with its name: `is not UTF-8`."""


def toml_of(content: bytes | str) -> dict[str, Any]:
    """Returns the entries of a file's content. Raises `TomlError`, whatever the content is."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError:
        raise TomlError("is not UTF-8") from None
    if text.startswith(BYTE_ORDER_MARK):
        raise TomlError("begins with a byte order mark: save it as UTF-8 without one")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("is not valid TOML: its values are nested too deeply") from None
    except ValueError as error:  # also a number with too many digits
        raise TomlError(f"is not valid TOML: {error}") from None
