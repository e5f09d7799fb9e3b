"""API keys and their limits, from the text of a keys file. Only SHA-256 digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.toml_text import TomlError, toml_of
from codex_proxy.core.turn import Approvals, Sandbox

DEFAULT_NAME: Final = "default"
"""The name of the key in PROXY_API_KEY."""
NO_KEY_OWNER: Final = "local"

MAX_KEYS: Final = 1000
"""Maximum keys; comparing a request's key with so many takes 0.2 ms."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Matches a key's name. No two look alike, and none needs quotes in a log or in TOML."""

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class KeysError(UserError):
    """An error in the keys file, with a message for its author."""


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key and its limits. None, and empty `roots`: the server's settings apply."""

    name: str
    """The owner of what is stored with it; a new key of this name can access that."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 digest in hexadecimal."""
    created: str = ""
    """The day of its creation, a note for the operator."""
    rpm: AtLeastOne | None = None
    """Maximum requests in a minute."""
    concurrency: AtLeastOne | None = None
    """Maximum requests at the same time."""
    models: tuple[str, ...] = ()
    """The models that the key may use (`codex-5-low`: with this effort only). Empty: all."""
    agents: tuple[str, ...] = ()
    """The agents whose models the key may use. Empty: all."""
    sandbox: Sandbox | None = None
    """The widest sandbox of the key's agent turns, within the server's setting."""
    roots: tuple[str, ...] = ()
    """The folders that the key's agent turns may work in."""
    plain_model: bool = False
    """Whether agent turns are refused."""
    mcp: bool = True
    """Whether tools of MCP servers may be used."""
    approvals: Approvals | None = None
    """Whether questions of the agent for permission are declined in the key's sessions, or passed on to the client."""
    may_approve: bool = False
    """Whether the key may answer such questions."""


class KeySet(msgspec.Struct, frozen=True):
    """The keys that are valid at one moment."""

    keys: tuple[Key, ...] = ()
    required: bool = False
    """Whether requests need a key, also after the last was removed."""
    start_digest: str = ""
    """The digest of the key of this start, where none is required: who has that key may answer approval requests, and
    is the same owner as without it. Empty: there is none.
    """

    def is_of_start(self, digest: str) -> bool:
        """Whether this is the digest of the key of this start. Compares in constant time."""
        return bool(self.start_digest) and hmac.compare_digest(self.start_digest, digest)

    def by_digest(self, digest: str) -> Key | None:
        """Returns the key with this digest, or None. Compares in constant time."""
        found = None
        # All digests are compared, so that the time reveals no part of a valid one.
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def by_name(self, name: str) -> Key | None:
        return next((key for key in self.keys if key.name == name), None)


def digest_of(key: str) -> str:
    """Returns the SHA-256 in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def check_name(name: str) -> None:
    """Raises `KeysError` unless the name is 1 to 64 of `[a-z0-9_-]`, begins with a letter or digit, and
    is not `local`.
    """
    if _NAME.fullmatch(name) is None:
        raise KeysError(
            f"{excerpt(name)!r} cannot be a key's name: use up to 64 lower-case letters, digits, - and _, with a "
            "letter or a digit first."
        )
    if name == NO_KEY_OWNER:
        raise KeysError(
            f"{NO_KEY_OWNER!r} cannot be a key's name. It is reserved for data stored without a key."
        )


def parse_keys(content: bytes | str) -> tuple[Key, ...]:
    """Reads TOML with a table `[keys.NAME]` for each key. Raises `KeysError`."""
    try:
        document = toml_of(content)
    except TomlError as error:
        raise KeysError(f"it {error}") from None
    unknown = sorted(set(document) - {"keys"})
    if unknown:
        raise KeysError(f"there is no entry {excerpt(unknown[0])!r}; each key is a table [keys.NAME]")
    tables = document.get("keys", {})
    if not isinstance(tables, dict):
        raise KeysError("'keys' must be tables: [keys.NAME]")
    if len(tables) > MAX_KEYS:
        raise KeysError(f"it has {len(tables)} keys; the maximum is {MAX_KEYS}")
    keys = tuple(_key_of(name, table) for name, table in tables.items())
    seen: dict[str, str] = {}
    for key in keys:
        other = seen.setdefault(key.sha256, key.name)
        if other != key.name:
            raise KeysError(f"'{key.name}' and '{other}' are the same key")
    return keys


def _key_of(name: str, table: Any) -> Key:
    check_name(name)
    if not isinstance(table, dict) or "name" in table:
        raise KeysError(f"[keys.{name}] must be a table without a key `name`")
    try:
        key = msgspec.convert({"name": name, **table}, Key)
    except msgspec.ValidationError as error:
        raise KeysError(f"[keys.{name}]: {error}") from None
    if key.approvals == "ask" and not key.may_approve:
        raise KeysError(
            f'[keys.{name}]: approvals = "ask" needs may_approve = true, since only the key of a session can answer'
        )
    for root in key.roots:
        if not root.startswith("/") or "\0" in root:
            raise KeysError(f"[keys.{name}]: the root {excerpt(root)!r} has to be an absolute path")
    return key


def table_of(key: Key) -> Mapping[str, Any]:
    """Returns a key as its table in a TOML file, without its name, which is the table's, and without default values."""
    table: dict[str, Any] = msgspec.to_builtins(key)
    return {
        field: list(value) if isinstance(value, tuple) else value
        for field, value in table.items()
        if field != "name"
    }


def with_default(keys: tuple[Key, ...], api_key: str | None) -> tuple[Key, ...]:
    """Returns the keys with `api_key`, if any, first as `default`. Raises `KeysError` if the file has
    that name or key.
    """
    if api_key is None:
        return keys
    default = Key(name=DEFAULT_NAME, sha256=digest_of(api_key), may_approve=True)  # it is the operator's own
    for key in keys:
        if key.name == DEFAULT_NAME:
            raise KeysError(
                f"[keys.{DEFAULT_NAME}]: this is the name of PROXY_API_KEY; give yours another name"
            )
        if key.sha256 == default.sha256:
            raise KeysError(f"[keys.{key.name}]: it is the same key as PROXY_API_KEY")
    return (default, *keys)
