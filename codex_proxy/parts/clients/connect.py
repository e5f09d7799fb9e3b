"""The texts and files of `codex-proxy connect`, and what a server that may be running answers."""

from __future__ import annotations

import difflib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from codex_proxy.core.faults import UserError
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.files.private import FILE_MODE, create, make_folder, read_regular, replace_file
from codex_proxy.parts.clients.clients import BY_NAME, CLIENTS, ClientSetup, Entry
from codex_proxy.parts.clients.documents import DocumentError, set_values


def write(file: Path, text: str) -> Path | None:
    """Replaces a file, or a link's target, in one step, or creates it. Returns the backup of an old one. Raises
    `OSError`, having changed nothing.
    """
    target = Path(os.path.realpath(file))
    make_folder(target.parent)
    backup = _make_backup(target) if target.exists() else None
    mode = target.stat().st_mode & 0o777 if backup else FILE_MODE
    with replace_file(target, mode=mode) as out:
        out.write(text.encode())
    return backup


def _make_backup(file: Path) -> Path:
    number = 0
    while True:
        backup = file.with_name(f"{file.name}.bak{number or ''}")
        try:
            os.close(create(backup))  # closed, before there is anything in it
        except FileExistsError:
            number += 1
            continue
        shutil.copy2(file, backup)
        return backup


NO_KEY = "none"
"""The key for clients that require one, of a server that requires none."""

KEY_TO_BE_GIVEN = "YOUR-KEY"

NO_LIST = (
    "\nNo server at {base_url} gave its list of models. Start it and repeat this, so that {title} knows them."
)


class ServerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server. `base_url` ends with `/v1`. `key` is `NO_KEY` if none is needed, `KEY_TO_BE_GIVEN` if it
    is not known.
    """

    base_url: str
    model: str
    key: str

    @property
    def root_url(self) -> str:
        """The URL without `/v1`, which clients of Anthropic's API add."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def fill(self, value: Any) -> Any:
        """Fills the placeholders in the strings of a JSON value."""
        if isinstance(value, str):
            for name in ("base_url", "root_url", "model", "key"):
                value = value.replace("{{" + name + "}}", getattr(self, name))
            return value
        if isinstance(value, dict):
            return {key: self.fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.fill(each) for each in value]
        return value


def access_to(
    base_url: str, settings: Any, *, key: str | None = None, model: str = "codex-5"
) -> ServerAccess:
    """Returns how to reach a server with these settings; without a `key` one that has to be filled in, if it needs
    one.
    """
    known_key = key or (KEY_TO_BE_GIVEN if settings.wants_key else NO_KEY)
    return ServerAccess(base_url=base_url, model=model, key=known_key)


def client_named(name: str) -> ClientSetup:
    """Returns the client with this name, in any case. Raises `UserError`."""
    client = BY_NAME.get(name.lower())
    if client is None:
        near = difflib.get_close_matches(name.lower(), BY_NAME, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f"There is no client `{name}`.{hint} `codex-proxy connect` lists them.")
    return client


def listing() -> str:
    width = max(len(client.name) for client in CLIENTS)
    lines = [f"  {client.name:{width}}  {client.title}: {client.about}" for client in CLIENTS]
    return "\n".join(
        [
            "Clients:",
            *lines,
            "",
            "`codex-proxy connect CLIENT` prints what to put where; with --write it changes the file and keeps a copy.",
        ]
    )


def entries_of(client: ClientSetup, target: ServerAccess) -> tuple[Entry, ...]:
    """Returns the entries of the client's file, with their placeholders filled in."""
    assert client.file is not None
    return tuple(
        msgspec.structs.replace(
            entry, path=tuple(map(target.fill, entry.path)), value=target.fill(entry.value)
        )
        for entry in client.file.entries
        if target.key != NO_KEY or not entry.only_with_key
    )


def write_models(client: ClientSetup, target: ServerAccess, folder: Path) -> tuple[Entry, ...]:
    """Puts the server's list of models into `folder`, for a client that reads one. Returns the entry with its path;
    none if no server gives such a list. Raises `OSError`.
    """
    wanted = client.file.models if client.file is not None else None
    if wanted is None:
        return ()
    reply = ask_server(f"{target.base_url}/models?{wanted.query}", target.key)
    if reply is None or reply.status != 200 or not _lists_models(reply.body):
        return ()
    path = folder / wanted.name
    make_folder(folder)
    with replace_file(path) as out:
        out.write(reply.body)
    return (Entry(path=(wanted.key,), value=str(path)),)


def _lists_models(body: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(body, type=dict[str, Any]).get("models"))
    except UNREADABLE:
        return False


def snippet(client: ClientSetup, target: ServerAccess) -> str:
    """Returns the text of a new settings file; empty if the client has no such file."""
    return set_values("", client.file.format, entries_of(client, target)) if client.file is not None else ""


class Block(msgspec.Struct, frozen=True):
    """A text to copy as it is, in a `language`, or steps to take (no language). `file` names where it belongs."""

    text: str
    language: str = ""
    file: str = ""


def blocks(client: ClientSetup, target: ServerAccess, file: str = "") -> tuple[Block, ...]:
    """Returns what the client is set up with: its settings file (at `file`), steps, code."""
    found = []
    if client.file is not None:
        where = file or client.file.path or f"the {client.file.format.upper()} file of {client.title}"
        found.append(Block(snippet(client, target), client.file.format, where))
    if client.steps:
        found.append(Block(target.fill(client.steps)))
    if client.text:
        found.append(Block(target.fill(client.text), client.language))
    return tuple(found)


def guides(settings: Any, base_url: str) -> list[dict[str, Any]]:
    """Returns how each client is connected to the server at `base_url`, for its page."""
    target = access_to(base_url, settings)
    return [
        {
            "name": each.name,
            "title": each.title,
            "about": each.about,
            "blocks": msgspec.to_builtins(blocks(each, target)),
            "notes": each.notes,
        }
        for each in CLIENTS
    ]


def instructions(client: ClientSetup, target: ServerAccess, file: str = "") -> str:
    """Returns what to tell the user in a terminal: the blocks, and notes."""
    parts = [
        f"# In {block.file}:\n\n{block.text}" if block.file else block.text
        for block in blocks(client, target, file)
    ]
    parts += [f"Note: {note}\n" for note in client.notes]
    return "\n".join(parts).rstrip("\n")


def write_into(client: ClientSetup, target: ServerAccess, file: str) -> str:
    """Changes the settings file (`file`, or its usual path); returns the diff and the backup's path. Raises
    `UserError` if the file or the key is not known, or the file cannot be changed.
    """
    if client.file is None:
        raise UserError(f"{client.title} has no settings file that this command can change.")
    if target.key == KEY_TO_BE_GIVEN:
        raise UserError("This server requires an API key. Give the key for this client with --key.")
    path = file or client.file.path
    if not path:
        raise UserError(f"Name the file of {client.title} with --file.")
    target_file = Path(path).expanduser()
    try:
        before = read_regular(target_file, MAX_BYTES).decode("utf-8") if target_file.exists() else ""
        models = write_models(client, target, target_file.parent)
        after = set_values(before, client.file.format, (*entries_of(client, target), *models))
        unlisted = client.file.models is not None and not models
        note = NO_LIST.format(base_url=target.base_url, title=client.title) if unlisted else ""
        if after == before:
            return f"{target_file} has all of these settings already.{note}"
        backup = write(target_file, after)
    except (DocumentError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{target_file} was not changed: {error}.") from error
    except (RecursionError, OverflowError) as error:
        raise UserError(f"{target_file} was not changed: it is nested too deep, or too long.") from error
    kept = f"The old one is {backup}." if backup else "It is new."
    names = f"{target_file} (now)", f"{target_file} (new)"
    lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return f"{''.join(difflib.unified_diff(*lines, *names))}\n{target_file} was written. {kept}{note}"


SECONDS: Final = 2.0
"""Seconds in which a running server answers."""
MAX_BYTES: Final = 64 << 20


class Reply(NamedTuple):
    status: int
    body: bytes


def ask_server(url: str, key: str | None = None) -> Reply | None:
    """Returns the reply to a GET; None if no codex-proxy answers there."""
    # Without the proxy of the environment: this is a server of the user's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with opener.open(request, timeout=SECONDS) as reply:
            answer, server = Reply(reply.status, reply.read(MAX_BYTES)), reply.headers["Server"]
    except urllib.error.HTTPError as error:
        answer, server = Reply(error.code, b""), error.headers["Server"]
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return answer if server == "codex-proxy" else None
