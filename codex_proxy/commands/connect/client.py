"""How one client is connected, as data: files to change, code to copy, notes.

`{{base_url}}`, `{{root_url}}` (without `/v1`), `{{model}}` and `{{key}}` are the user's values.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["toml", "json", "yaml"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One value in a settings file, at the keys in `path`; missing objects are created, other values stay."""

    path: tuple[str, ...]
    value: Any
    """The value to set, of any JSON type; strings in it may have placeholders."""
    list_key: str = ""
    """If set, `path` is a list, and `value` sets fields of its object with the same value for this key, or
    is appended.
    """
    only_if_missing: bool = False
    """Whether a value that the file already has at `path` is kept."""
    only_with_key: bool = False
    """Whether the value is left out if the server requires no key."""


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A client's settings file. `path` is empty without a fixed place."""

    path: str
    format: Format
    entries: tuple[Entry, ...]


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How a client is configured: by file, code, or hand. `name` is the argument of `connect`, `notes` are printed at
    the end.
    """

    name: str
    title: str
    about: str
    file: ConfigFile | None = None
    language: str = "text"
    """The language of `text`, for its code block in the documentation."""
    text: str = ""
    """Code to copy, or steps to take."""
    notes: tuple[str, ...] = ()


CONTEXT_TOKENS = 272_000
"""The context window of Codex's current models, in tokens."""
