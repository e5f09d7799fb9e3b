"""API keys, and the limits of each.

Input: the text of a keys file, and keys as clients send them. Output: a `KeySet`. Raises `KeysError`, which names
the entry and the error in it. This module reads no file and creates no key.

Only digests of keys are stored. A plain SHA-256 is enough: the server makes keys from 256 random bits, which cannot
be guessed. A slow, salted hash would add nothing, and would let anyone slow the server down by sending wrong keys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Sandbox

DEFAULT_NAME: Final = "default"
"""The name of the key in PROXY_API_KEY, which is valid in addition to the keys in the keys file."""
NO_KEY_OWNER: Final = "local"
"""The name of the owner of everything that is stored without a key. No key may have this name, since it would get
access to all of that."""

MAX_KEYS: Final = 1000
"""The most keys. Each request's key is compared with every one of them, which takes 0.2 ms for so many."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""The names that a key may have. No two look alike, and none has to be quoted in a log or a TOML file."""

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class KeysError(ValueError):
    """A keys file or a key is invalid. The message is for the person who has written it."""


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key and its limits. A limit that is None, and empty `roots`, mean that the server's setting applies. A
    request beyond a limit is refused.
    """

    name: str
    """The owner of everything that is stored with this key. A new key of the same name has access to it."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """The digest of the key, in hexadecimal digits."""
    created: str = ""
    """The day on which the key was made; a note for the operator."""
    rpm: AtLeastOne | None = None
    """The largest number of requests in a minute."""
    concurrency: AtLeastOne | None = None
    """The largest number of requests at the same time."""
    models: tuple[str, ...] = ()
    """The models that the key may use; a name with an effort (`codex-5-low`) permits that effort alone. Empty: every
    model."""
    agents: tuple[str, ...] = ()
    """The agents whose models the key may use. Empty: every agent."""
    sandbox: Sandbox | None = None
    """The widest sandbox of agent turns with this key; the server's setting applies if that is narrower."""
    roots: tuple[str, ...] = ()
    """The folders that agent turns may work in, instead of the server's setting."""
    plain_model: bool = False
    """Whether requests for agent turns are refused, so that the key can use only plain models: the model answers
    without the agent's own prompt, tools and folder."""
    mcp: bool = True
    """Whether MCP tools may be used: those of the operator's servers, and those of servers that a request names."""


class KeySet(msgspec.Struct, frozen=True):
    """The keys that are valid at one moment, and whether requests need one."""

    keys: tuple[Key, ...] = ()
    required: bool = False
    """Whether requests need a key. It stays True when the last key is removed from the keys file."""

    def by_digest(self, digest: str) -> Key | None:
        """Returns the key with this digest, or None. All digests are compared, each in constant time, so that the
        time taken does not reveal a part of a valid digest.
        """
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def by_name(self, name: str) -> Key | None:
        return next((key for key in self.keys if key.name == name), None)


def digest_of(key: str) -> str:
    """Returns the SHA-256 digest of a key, in hexadecimal digits. Only this is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def check_name(name: str) -> None:
    """Checks the name of a key: 1 to 64 lower-case ASCII letters, digits, `-` and `_`, the first a letter or a
    digit, and not `local` (`NO_KEY_OWNER`). Raises `KeysError` for any other name.
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


def parse_keys(text: str) -> tuple[Key, ...]:
    """Reads a keys file (TOML), which has a table `[keys.NAME]` for each key. Raises `KeysError` if the text is not
    TOML, has other tables, an invalid name or field, more than `MAX_KEYS` keys, or the same key twice.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeysError(f"it is not valid TOML: {error}") from None
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
        raise KeysError(f"[keys.{name}] has to be a table, and its name is in the heading alone")
    try:
        key = msgspec.convert({"name": name, **table}, Key)
    except msgspec.ValidationError as error:
        raise KeysError(f"[keys.{name}]: {error}") from None
    for root in key.roots:
        if not root.startswith("/") or "\0" in root:
            raise KeysError(f"[keys.{name}]: the root {excerpt(root)!r} has to be an absolute path")
    return key


def table_of(key: Key) -> Mapping[str, Any]:
    """Returns the fields of a key, except its name, as the table `[keys.NAME]` of a keys file. Fields with default
    values are left out.
    """
    table: dict[str, Any] = msgspec.to_builtins(key)
    return {
        field: list(value) if isinstance(value, tuple) else value
        for field, value in table.items()
        if field != "name"
    }


def with_default(keys: tuple[Key, ...], api_key: str | None) -> tuple[Key, ...]:
    """Returns the keys of a keys file, with `api_key` (PROXY_API_KEY) put first as the key named `default`; the
    keys alone if it is None. Raises `KeysError` if the file already has that name or that key.
    """
    if api_key is None:
        return keys
    default = Key(name=DEFAULT_NAME, sha256=digest_of(api_key))
    for key in keys:
        if key.name == DEFAULT_NAME:
            raise KeysError(
                f"[keys.{DEFAULT_NAME}]: this is the name of PROXY_API_KEY; give yours another name"
            )
        if key.sha256 == default.sha256:
            raise KeysError(f"[keys.{key.name}]: it is the same key as PROXY_API_KEY")
    return (default, *keys)
