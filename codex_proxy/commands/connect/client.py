"""How one client is connected to this server, as data: files to change, code to copy, notes.

The placeholders `{{base_url}}`, `{{root_url}}` (the same without `/v1`), `{{model}}` and `{{key}}` are replaced by
the user's values.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["toml", "json", "yaml"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One value in a settings file. `path` has the keys of the objects that lead to it, the last one its own, which
    may have placeholders; objects that are missing are created. Other values of the file are not changed.
    """

    path: tuple[str, ...]
    value: Any
    """The value to set, of any JSON type; strings in it may have placeholders."""
    list_key: str = ""
    """If set, `path` leads to a list of objects, and `value` is one of them: its fields are set in the object of
    the list that has the same value for this key, or it is appended if there is none. Empty: `value` is set at
    `path`.
    """
    only_if_missing: bool = False
    """Whether a value that the file already has at `path` is kept."""
    only_with_key: bool = False
    """Whether the value is left out if the server requires no key."""


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A client's settings file. `path` is empty if the file has no fixed place. `entries` are the values to set in
    it.
    """

    path: str
    format: Format
    entries: tuple[Entry, ...]


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How one client is configured for this server: by a file, by code, or by hand. `name` is the argument of
    `codex-proxy connect`, `title` the client's full name, and `about` a few words about it. `notes` are sentences
    that are printed after the file and the text.
    """

    name: str
    title: str
    about: str
    file: ConfigFile | None = None
    language: str = "text"
    """The language of `text`, for its code block in the documentation."""
    text: str = ""
    """Code to copy, or steps to take, in addition to the file if there is one."""
    notes: tuple[str, ...] = ()


CONTEXT_TOKENS = 272_000
"""The context window of Codex's current models, in tokens. `GET /v1/models` has that of each model."""
