"""Creates the tables, by the files in `migrations` in the order of their numbers. A published file never changes.

`user_version` counts a store's files; missing ones run in one transaction, so that a process that dies leaves the store
unchanged.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from codex_proxy.store.checksums import checksum

FILES: Final = sorted((Path(__file__).parent / "migrations").glob("*.sql"))
LATEST: Final = len(FILES)

APPLICATION_ID: Final = 0x63787078
"""The id in the file's header ("cxpx")."""


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, to: int = LATEST) -> None:
    """Brings an older store to version `to`."""
    if version_of(connection) >= to:
        return
    connection.create_function("checksum", 1, checksum, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated the file meanwhile, so the version is read again.
        for file in FILES[version_of(connection) : to]:
            for statement in file.read_text().split(";\n"):  # `executescript` would commit
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(to, version_of(connection))}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
