"""`codex-proxy keys`: makes, shows and takes away keys. The key itself is only ever told to whoever makes it."""

from __future__ import annotations

import datetime
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from codex_proxy.commands.keys_change import put_key, remove_key
from codex_proxy.config import Settings
from codex_proxy.core.keys import DEFAULT_NAME, Key, KeysError, digest_of, table_of
from codex_proxy.keys_file import open_to_others, read_keys

PREFIX = "cpx_"
"""So that scanners for secrets, and people, know one when they see it."""
CHANCE_BYTES = 32
"""256 bits: what makes a plain hash of it enough (see `core.keys`)."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of a new key."""

    models: Sequence[str] = ()
    sandbox: Any = None
    roots: Sequence[str] = ()
    rpm: int | None = None
    concurrency: int | None = None
    plain_model: bool = False
    no_mcp: bool = False


def add(settings: Settings, name: str, limits: Limits, *, replace: bool) -> tuple[str, str]:
    """Makes a key. Gives it, and what to tell beside it. Raises `KeysError`."""
    if name == DEFAULT_NAME and settings.api_key is not None:
        raise KeysError(f"'{DEFAULT_NAME}' is the name of the key in PROXY_API_KEY: take another name")
    secret = PREFIX + secrets.token_urlsafe(CHANCE_BYTES)
    key = Key(
        name=name,
        sha256=digest_of(secret),
        created=datetime.date.today().isoformat(),
        rpm=limits.rpm,
        concurrency=limits.concurrency,
        models=tuple(limits.models),
        sandbox=limits.sandbox,
        roots=tuple(_folder(root) for root in limits.roots),
        plain_model=limits.plain_model,
        mcp=not limits.no_mcp,
    )
    first = not settings.wants_key
    replaced = put_key(settings.keys_path, key, replace=replace)
    told = (
        f"The key '{name}' is above: it is not shown again. {settings.keys_path} holds its hash"
        f"{'; the old key of this name works no longer' if replaced else ''}.\n"
        "Clients send it as `Authorization: Bearer KEY`. A server that runs takes it within a second."
        f"{' From then on every client needs a key.' if first else ''}"
    )
    return secret, told


def remove(settings: Settings, name: str) -> str:
    """Takes a key away. Raises `KeysError`."""
    if name == DEFAULT_NAME and settings.api_key is not None:
        raise KeysError(
            f"'{DEFAULT_NAME}' is the key in PROXY_API_KEY: unset that, and start the server anew"
        )
    remove_key(settings.keys_path, name)
    told = (
        f"The key '{name}' is gone; a server that runs lets nobody in with it from the next second on. What was "
        "stored with it stays, for a new key of this name."
    )
    if not read_keys(settings.keys_path):
        told += f" No key is left: while {settings.keys_path} is there, a server wants one all the same."
    return told


def listing(settings: Settings, *, as_json: bool) -> str:
    """Every key with its limits, without its hash. Raises `KeysError`."""
    keys = read_keys(settings.keys_path)
    if as_json:
        shown = [{"name": key.name, **table_of(key)} for key in keys]
        for each in shown:
            each.pop("sha256")
        return json.dumps({"file": str(settings.keys_path), "keys": shown}, indent=2)
    lines = [f"{key.name}  {_limits_of(key)}" for key in keys]
    if settings.api_key is not None:
        lines.insert(0, f"{DEFAULT_NAME}  the key in PROXY_API_KEY, without limits of its own")
    if not lines:
        return f"There is no key in {settings.keys_path}. `codex-proxy keys add NAME` makes one."
    others = open_to_others(settings.keys_path)
    if others:
        lines.append(f"\nOthers may {others} {settings.keys_path}: run `chmod 600 {settings.keys_path}`.")
    return "\n".join(lines)


def _limits_of(key: Key) -> str:
    limits = [
        f"made {key.created}" if key.created else "",
        "plain model only" if key.plain_model else "",
        "" if key.mcp else "no MCP servers",
        f"models {', '.join(key.models)}" if key.models else "",
        f"sandbox at most {key.sandbox}" if key.sandbox else "",
        f"folders {', '.join(key.roots)}" if key.roots else "",
        f"{key.rpm} requests a minute" if key.rpm else "",
        f"{key.concurrency} at once" if key.concurrency else "",
    ]
    return "; ".join(limit for limit in limits if limit) or "no limits of its own"


def _folder(given: str) -> str:
    """A whole path of a folder that is there, so that a slip of the pen does not lock a key out later."""
    folder = Path(os.path.abspath(os.path.expanduser(given)))
    if not folder.is_dir():
        raise KeysError(f"--root {given} is not a folder")
    return str(folder)
