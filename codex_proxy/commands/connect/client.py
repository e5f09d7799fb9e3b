"""How one client is connected to this server, as data: files to change, code to copy, notes.

The placeholders `{{base_url}}`, `{{root_url}}` (the same without `/v1`), `{{model}}` and `{{key}}` are replaced by
the user's values.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["toml", "json", "yaml"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a file. `path` leads to it; every other value of the file stays as it is."""

    path: tuple[str, ...]
    value: Any
    list_key: str = ""
    """The value is an item of a list: it takes the place of the item with the same value under this key."""
    only_if_missing: bool = False
    """Whether an existing value is kept: the client only needs the setting to be there."""
    only_with_key: bool = False


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a client's settings. `path` is empty where it can be anywhere."""

    path: str
    format: Format
    entries: tuple[Entry, ...]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """How one client is configured for this server: by a file, by code, or by hand."""

    name: str
    title: str
    about: str
    file: ConfigFile | None = None
    language: str = "text"
    """The language of `text`, for its code block in the documentation."""
    text: str = ""
    """Code to copy, or steps to take; behind the file where there is one."""
    notes: tuple[str, ...] = ()


CONTEXT_TOKENS = 272_000
"""The input of Codex's current models; `GET /v1/models` tells each one's own."""
