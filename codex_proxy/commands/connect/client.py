"""How one client is connected, as data. `{{base_url}}`, `{{root_url}}` (without `/v1`), `{{model}}` and `{{key}}` are
filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["toml", "json", "yaml"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A value in a settings file, at the keys in `path`; missing objects are created, other values stay."""

    path: tuple[str, ...]
    value: Any
    """Any JSON value; its strings may have placeholders."""
    list_key: str = ""
    """The key by which an object in the list at `path` is found, if set: `value` sets the fields of the object with the
    same value for this key, or is appended.
    """
    only_if_missing: bool = False
    only_with_key: bool = False
    """Whether the value is left out if the server requires no key."""


class ListItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in a list: its fields replace those of the one with the same `key`, or it is appended."""

    list: tuple[str, ...]
    key: str
    value: dict[str, Any]


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A settings file at its usual `path` (empty: none). `values` are set, `defaults` only if missing, `with_key` only
    if the server requires a key.
    """

    path: str
    format: Format
    defaults: dict[str, Any] = {}
    values: dict[str, Any] = {}
    with_key: dict[str, Any] = {}
    items: tuple[ListItem, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        found = [
            Entry(path=path, value=value, only_if_missing=True) for path, value in _leaves(self.defaults)
        ]
        found += [Entry(path=path, value=value) for path, value in _leaves(self.values)]
        found += [Entry(path=path, value=value, only_with_key=True) for path, value in _leaves(self.with_key)]
        return (*found, *(Entry(path=each.list, value=each.value, list_key=each.key) for each in self.items))


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a client is set up. `name` is the argument of `connect`."""

    name: str
    title: str
    about: str
    file: ConfigFile | None = None
    language: str = "text"
    text: str = ""
    """Code to copy, or steps to take."""
    notes: tuple[str, ...] = ()
