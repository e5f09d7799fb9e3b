"""What there is to say of one client, as values: files to change, code to copy, notes.

`{{base_url}}`, `{{root_url}}` (the same without `/v1`), `{{model}}` and `{{key}}` in them stand for what the user has.
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
    """What the client wants to be there, whatever it is."""
    only_with_key: bool = False


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a client's settings. `path` is empty where it can be anywhere."""

    path: str
    format: Format
    entries: tuple[Entry, ...]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """How one client is told of this server: by a file, by code, or by hand."""

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
