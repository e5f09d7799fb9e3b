"""`codex-proxy keys`: creates, lists and removes API keys. A key is printed only once. Functions raise `UserError`."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError

from codex_proxy.agents import registry
from codex_proxy.agents.configured.agents import configured_agents, is_single
from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.keyring import new_secret, others_access, read_keys
from codex_proxy.commands.store import existing_store
from codex_proxy.core.json_values import without_surrogates
from codex_proxy.core.keys import DEFAULT_NAME, Key, KeysError, digest_of, parse_keys, table_of
from codex_proxy.files.private import make_folder, replace_file
from codex_proxy.parts import absent_part_text, absent_parts, shared_store
from codex_proxy.settings.fields import Settings
from codex_proxy.store.team import Team


def add(settings: Settings, name: str, limits: Mapping[str, Any], *, replace: bool) -> tuple[str, str]:
    """Writes a key's digest into the keys file; `limits` are fields of `core.keys.Key`. Returns the key and a note.
    Raises `KeysError` for an invalid or taken name (unless `replace`), a missing folder, or a file that cannot be
    changed.
    """
    if name == DEFAULT_NAME and settings.api_key is not None:
        raise KeysError(f"'{DEFAULT_NAME}' is the name of the key in PROXY_API_KEY: use another name")
    secret, key = _new_key(name, limits)
    key = msgspec.structs.replace(key, roots=tuple(map(_folder, key.roots)))
    first = not settings.wants_key
    replaced = put_key(settings.keys_path, key, replace=replace)
    note = _note_on_new(name, str(settings.keys_path), "A running server", replaced=replaced)
    if first:
        note += " From then on every client needs a key."
    return secret, note + _unknown_among(key.agents, settings)


async def add_to_store(
    settings: Settings, name: str, limits: Mapping[str, Any], *, replace: bool
) -> tuple[str, str]:
    """Adds a key to the store; its folders may be on other machines."""
    secret, key = _new_key(name, limits)
    parse_keys(tomlkit.dumps({"keys": {name: dict(table_of(key))}}))
    async with _team_of(settings) as team:
        replaced = await team.put_key(key, replace=replace)
    note = _note_on_new(name, "The store", "Every server of this store", replaced=replaced)
    return secret, f"{note} From then on every client needs a key.{_unknown_among(key.agents, settings)}"


def _note_on_new(name: str, place: str, servers: str, *, replaced: bool) -> str:
    old = "; the old key of this name is no longer valid" if replaced else ""
    return (
        f"The key '{name}' is shown above and is not shown again. {place} has its hash{old}.\nClients send it as "
        f"`Authorization: Bearer KEY`. {servers} accepts it within a second."
    )


async def remove_from_store(settings: Settings, name: str) -> str:
    """Removes a key from the store. Returns a note for the user."""
    async with _team_of(settings) as team:
        if not await team.remove_key(name):
            raise KeysError(f"there is no key '{name}' in the store")
    return _note_on_removed(name, "every server of this store")


def _note_on_removed(name: str, servers: str) -> str:
    return (
        f"The key '{name}' was removed; {servers} refuses it from the next second on. What was stored with it stays, "
        "for a new key of this name."
    )


async def stored_keys(settings: Settings) -> tuple[Key, ...]:
    async with _team_of(settings) as team:
        return await team.keys()


@contextlib.asynccontextmanager
async def _team_of(settings: Settings) -> AsyncIterator[Team]:
    if not settings.in_database:
        form = shared_store()
        missing = [name for name, known in absent_parts().items() if known.stores]
        needs = f"PROXY_STORE={form}" if form else absent_part_text(missing[0])
        raise KeysError(f"--store needs {needs}; without it, keys are in the keys file")
    async with existing_store(settings) as store:
        assert store.team is not None, "a database has keys"
        yield store.team


def _new_key(name: str, limits: Mapping[str, Any]) -> tuple[str, Key]:
    for option in ("model", "agent", "root"):
        for given in limits.get(f"{option}s", ()):
            if not given.strip() or without_surrogates(given) != given:
                raise KeysError(f"--{option} {given!r} is empty, or is not text")
    secret = new_secret()
    created = datetime.date.today().isoformat()
    return secret, Key(name=name, sha256=digest_of(secret), created=created, **limits)


def _unknown_among(agents: Sequence[str], settings: Settings) -> str:
    try:
        known = [each.name or each.spec.name for each in configured_agents(settings)]
        if is_single(settings) and known == ["auto"]:
            known = [spec.name for spec in registry.specs() if spec.uses_codex]
    except NoAgentError:
        return ""
    unknown = ", ".join(f"'{name}'" for name in agents if name not in known)
    return (
        f"\nThe settings have no agent {unknown}; the agents are {', '.join(known)}. Until it "
        "exists, the key cannot use any model of it."
        if unknown
        else ""
    )


def remove(settings: Settings, name: str) -> str:
    """Removes a key from the keys file. Returns a note for the user."""
    if name == DEFAULT_NAME and settings.api_key is not None:
        raise KeysError(f"'{DEFAULT_NAME}' is the key in PROXY_API_KEY: unset it and restart the server")
    remove_key(settings.keys_path, name)
    note = _note_on_removed(name, "a running server")
    if not read_keys(settings.keys_path):
        note += (
            f" No key is left, so nobody can use the server. Create one with `codex-proxy keys add NAME`, or delete "
            f"{settings.keys_path} and restart the server: it then needs no key on loopback."
        )
    return note


def listing(settings: Settings, stored: Sequence[Key] | None = None, *, as_json: bool) -> str:
    """Returns the keys in the store (`stored`; None: in the keys file), as text or JSON."""
    file = settings.keys_path
    keys = read_keys(file) if stored is None else stored
    if as_json:
        listed: dict[str, Any] = {"file": str(file)} if stored is None else {}
        listed["keys"] = [_without_digest(key) for key in keys]
        return json.dumps(listed, indent=2)
    lines = [f"{key.name}  {_limits_of(key)}" for key in keys]
    if stored is None and settings.api_key is not None:
        lines.insert(0, f"{DEFAULT_NAME}  the key in PROXY_API_KEY, without limits of its own")
    if not lines:
        place, flag = (f"in {file}", "") if stored is None else ("in the store", "--store ")
        elsewhere = " Those in the store: `--store`." if stored is None and settings.in_database else ""
        return f"There is no key {place}. `codex-proxy keys add {flag}NAME` creates one.{elsewhere}"
    others = others_access(file) if stored is None else ""
    if others:
        lines.append(f"\nOther users may {others} {file}: run `chmod 600 {file}`.")
    return "\n".join(lines)


def _without_digest(key: Key) -> dict[str, Any]:
    table = {"name": key.name, **table_of(key)}
    del table["sha256"]
    return table


def _limits_of(key: Key) -> str:
    limits = [
        f"made {key.created}" if key.created else "",
        "plain model only" if key.plain_model else "",
        "" if key.mcp else "no MCP servers",
        f"agents {', '.join(key.agents)}" if key.agents else "",
        f"models {', '.join(key.models)}" if key.models else "",
        f"sandbox at most {key.sandbox}" if key.sandbox else "",
        {"ask": "is asked for approvals", "decline": "is asked for no approvals"}.get(
            key.approvals or "", ""
        ),
        "may approve" if key.may_approve else "",
        f"folders {', '.join(key.roots)}" if key.roots else "",
        f"{key.rpm} requests a minute" if key.rpm else "",
        f"{key.concurrency} at once" if key.concurrency else "",
    ]
    return "; ".join(limit for limit in limits if limit) or "no limits of its own"


def _folder(given: str) -> str:
    folder = Path(os.path.abspath(os.path.expanduser(given)))
    if not os.path.isdir(folder):  # which takes a name that is too long for none
        # A key that is limited to a misspelt folder could not be used.
        raise KeysError(f"--root {given} is not a folder")
    return str(folder)


FILE_HEADER = """\
# Keys of clients, made by `codex-proxy keys add`. Only hashes of them are kept here.
# A running server notices changes within a second.
"""


def put_key(path: Path, key: Key, *, replace: bool) -> bool:
    """Adds a key; returns whether it replaced one. Raises `KeysError` if the name is taken, unless `replace`, or the
    file cannot be changed.
    """
    with _edit_keys(path) as tables:
        there = key.name in tables
        if there and not replace:
            raise KeysError(f"there is already a key '{key.name}'; replace it with --replace")
        tables[key.name] = dict(table_of(key))
    return there


def remove_key(path: Path, name: str) -> None:
    """Removes a key. Raises `KeysError` if there is none, or the file cannot be changed."""
    with _edit_keys(path) as tables:
        if name not in tables:
            raise KeysError(f"there is no key '{name}' in {path}")
        del tables[name]


@contextlib.contextmanager
def _edit_keys(path: Path) -> Iterator[tomlkit.items.Table]:
    """Gives the table of keys to the body of the `with`, then replaces the file, with its comments, all under a lock;
    not if anything raises.
    """
    path = Path(os.path.realpath(path))
    try:
        make_folder(path.parent)
        with _lock_folder(path.parent):
            read_keys(path)
            document = tomlkit.parse(path.read_text("utf-8") if path.exists() else FILE_HEADER)
            yield document.setdefault("keys", tomlkit.table(is_super_table=True))
            text = tomlkit.dumps(document)
            parse_keys(text)
            with replace_file(path) as new:
                new.write(text.encode())
    except OSError as error:
        raise KeysError(f"{path} cannot be written: {error.strerror}") from error
    except TOMLKitError as error:
        raise KeysError(f"{path} cannot be changed: {error}") from error


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
