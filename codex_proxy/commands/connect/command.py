"""The texts and files of `codex-proxy connect`, made from the table of clients.

When it changes a file of another program, it shows the difference, keeps a backup, and replaces the file in one
step.
"""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from codex_proxy.commands.connect.client import ClientSetup, Entry
from codex_proxy.commands.connect.documents import DocumentError, changed
from codex_proxy.commands.connect.table import BY_NAME, CLIENTS
from codex_proxy.files.private import FILE_MODE, create, make_folder, replacing


def difference(before: str, after: str, name: str) -> str:
    """Returns the unified diff from the text `before` to the text `after` of the file `name`."""
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"{name} (now)",
            f"{name} (new)",
        )
    )


def write(file: Path, text: str) -> Path | None:
    """Replaces the file's content in one step, or creates the file and its folder. Returns the path of the backup,
    or None if there was no file.

    If the path is a symbolic link, its target is replaced. Raises `OSError`, and then the file is unchanged.
    """
    target = Path(os.path.realpath(file))
    make_folder(target.parent)
    backup = _make_backup(target) if target.exists() else None
    mode = target.stat().st_mode & 0o777 if backup else FILE_MODE
    with replacing(target, mode=mode) as out:
        out.write(text.encode())
    return backup


def _make_backup(file: Path) -> Path:
    """Copies the file to a new name in the same folder, and returns the path of the copy."""
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
"""The key for clients that require one, if the server requires none."""

KEY_TO_BE_GIVEN = "YOUR-KEY"


class ConnectError(Exception):
    """The command was refused, and nothing was changed. The text says why, and what to do."""


class ServerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The server for which a client is configured: its address (ending with `/v1`), its model, and the key that the
    client sends. `key` is `NO_KEY` if the server requires none, and `KEY_TO_BE_GIVEN` if it requires one that the
    user has not named.
    """

    base_url: str
    model: str
    key: str

    @property
    def root_url(self) -> str:
        """The address without `/v1`, for clients of Anthropic's API, which add it."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def filled(self, value: Any) -> Any:
        """Returns `value`, of any JSON type, with the server's address, model and key in place of `{{base_url}}`,
        `{{root_url}}`, `{{model}}` and `{{key}}` in its strings.
        """
        if isinstance(value, str):
            for name in ("base_url", "root_url", "model", "key"):
                value = value.replace("{{" + name + "}}", getattr(self, name))
            return value
        if isinstance(value, dict):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        return value


def client_named(name: str) -> ClientSetup:
    """Returns the client called `name`; upper and lower case are the same. Raises `ConnectError` if there is none."""
    client = BY_NAME.get(name.lower())
    if client is None:
        near = difflib.get_close_matches(name.lower(), BY_NAME, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConnectError(f"There is no client `{name}`.{hint} `codex-proxy connect` lists them.")
    return client


def listing() -> str:
    """Returns the list of all clients as text, one in each line, with a note on how to use the command."""
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
    """Returns the entries of the client's settings file, with placeholders replaced. Entries that need a key are
    left out if the server requires none. The client must have such a file.
    """
    assert client.file is not None
    return tuple(
        msgspec.structs.replace(
            entry, path=tuple(map(target.filled, entry.path)), value=target.filled(entry.value)
        )
        for entry in client.file.entries
        if target.key != NO_KEY or not entry.only_with_key
    )


def snippet(client: ClientSetup, target: ServerAccess) -> str:
    """Returns the content of the client's settings file, as if it did not exist yet; empty if the client has no
    file.
    """
    return changed("", client.file.format, entries_of(client, target)) if client.file is not None else ""


def instructions(client: ClientSetup, target: ServerAccess, file: str = "") -> str:
    """Returns the text that explains how to connect a client: the content of its settings file (at `file`, if that
    is not empty), code or steps, and notes.
    """
    parts = []
    if client.file is not None:
        where = file or client.file.path or f"the {client.file.format.upper()} file of {client.title}"
        parts.append(f"# In {where}:\n\n{snippet(client, target)}")
    if client.text:
        parts.append(target.filled(client.text))
    parts += [f"Note: {note}\n" for note in client.notes]
    return "\n".join(parts).rstrip("\n")


def write_into(client: ClientSetup, target: ServerAccess, file: str) -> str:
    """Changes the client's settings file (`file`, or its usual path if that is empty). Returns a text with the diff
    and the backup's path, or that the file has all values already. Raises `ConnectError`, and leaves the file as it
    was, if the client has no settings file, the file's path or the server's key is not known, or the file cannot be
    changed.
    """
    if client.file is None:
        raise ConnectError(f"{client.title} has no settings file that this command can change.")
    if target.key == KEY_TO_BE_GIVEN:
        raise ConnectError("This server requires an API key. Give the key for this client with --key.")
    path = file or client.file.path
    if not path:
        raise ConnectError(f"Name the file of {client.title} with --file.")
    target_file = Path(path).expanduser()
    try:
        before = target_file.read_bytes().decode("utf-8") if target_file.exists() else ""
        after = changed(before, client.file.format, entries_of(client, target))
        if after == before:
            return f"{target_file} has all of these settings already."
        backup = write(target_file, after)
    except (DocumentError, OSError, UnicodeDecodeError) as error:
        raise ConnectError(f"{target_file} was not changed: {error}.") from error
    kept = f"The old one is {backup}." if backup else "It is new."
    return f"{difference(before, after, str(target_file))}\n{target_file} was written. {kept}"
