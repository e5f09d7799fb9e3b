"""Changes of the keys file: each is a new file in the old one's place, readable for its owner only.

So nobody ever reads half of one, and two changes at once do not undo each other. Comments in it stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from codex_proxy.core.keys import Key, KeysError, parse_keys, table_of
from codex_proxy.files.private import make_folder, replacing
from codex_proxy.keys_file import read_keys

HEAD = (
    "Keys of clients, made by `codex-proxy keys add`. Only hashes of them are kept here.\n"
    "A server that runs notices changes within a second."
)


def put_key(path: Path, key: Key, *, replace: bool) -> bool:
    """Writes the key into the file, which is made if need be. True where it took another one's place.

    Raises `KeysError`: for a name that is taken, unless `replace`, and for what cannot be read or written.
    """

    def put(tables: tomlkit.items.Table) -> bool:
        there = key.name in tables
        if there and not replace:
            raise KeysError(f"there is a key '{key.name}' already; --replace puts a new one in its place")
        tables[key.name] = dict(table_of(key))
        return there

    return _change(path, put)


def remove_key(path: Path, name: str) -> None:
    """Takes the key out of the file. Raises `KeysError` where it is not there, or the file cannot be changed."""

    def remove(tables: tomlkit.items.Table) -> bool:
        if name not in tables:
            raise KeysError(f"there is no key '{name}' in {path}")
        del tables[name]
        return True

    _change(path, remove)


def _change(path: Path, change: Callable[[tomlkit.items.Table], bool]) -> bool:
    """Reads, changes and replaces the file, while nobody else does. Comments in it stay."""
    path = Path(os.path.realpath(path))
    try:
        make_folder(path.parent)
        with _alone_in(path.parent):
            read_keys(path)
            document = tomlkit.parse(path.read_text("utf-8")) if path.exists() else _empty()
            tables = document.setdefault("keys", tomlkit.table(is_super_table=True))
            result = change(tables)
            text = tomlkit.dumps(document)
            parse_keys(text)
            with replacing(path) as new:
                new.write(text.encode())
    except OSError as error:
        raise KeysError(f"{path} cannot be written: {error.strerror}") from error
    except TOMLKitError as error:
        raise KeysError(f"{path} cannot be changed: {error}") from error
    return result


def _empty() -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    for line in HEAD.splitlines():
        document.add(tomlkit.comment(line))
    return document


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Nobody else changes the file meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
