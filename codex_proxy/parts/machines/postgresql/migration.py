"""Creates the tables, by the files in `migrations` in the order of their numbers. A published file never changes.

`codex_proxy.schema` has the version of the tables, and the oldest program that may use them, since servers of two
versions run while they are replaced. So a file only adds; a later one removes, and raises `MIN_COMPATIBLE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import asyncpg

from codex_proxy.parts.machines.postgresql.database import Database
from codex_proxy.store.values import StoreRefused

FILES: Final = sorted((Path(__file__).parent / "migrations").glob("*.sql"))
LATEST_VERSION: Final = len(FILES)
KEYS_VERSION: Final = 3
"""The first version with the table of keys."""
MIN_COMPATIBLE: Final = 1
"""The oldest version of the tables whose programs may use the newest ones."""
LOCK: Final = 0x63787078
"""The number of the advisory lock that lets one server at a time change the tables ("cxpx")."""

_SCHEMA: Final = "SELECT FROM pg_namespace WHERE nspname = 'codex_proxy'"
_TABLES: Final = """
CREATE TABLE codex_proxy.schema (version integer NOT NULL, min_compatible integer NOT NULL);
INSERT INTO codex_proxy.schema VALUES (0, 0);"""


async def migrate(database: Database) -> None:
    """Creates what is missing. Raises `StoreRefused` if the tables are of a newer version that this program does not
    know, or another program's.
    """
    async with database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        version = await existing_version(connection, database.location)
        if not version:
            # Asked first, because a user who may use the schema need not have the right to create one.
            if not await connection.fetch(_SCHEMA):
                await connection.execute("CREATE SCHEMA codex_proxy")
            await connection.execute(_TABLES)
        for file in FILES[version:]:
            await connection.execute(file.read_text())
        if version < LATEST_VERSION:
            sql = "UPDATE codex_proxy.schema SET version = $1, min_compatible = $2"
            await connection.execute(sql, LATEST_VERSION, MIN_COMPATIBLE)
            # Without statistics the plans for new tables are those for tables of any size.
            await connection.execute(
                "ANALYZE codex_proxy.items, codex_proxy.responses, codex_proxy.response_items"
            )


async def version_of(database: Database) -> int:
    (row,) = await database.read("SELECT version FROM codex_proxy.schema")
    return int(row["version"])


async def existing_version(connection: asyncpg.Connection, location: str) -> int:
    """Returns the version of the tables; 0 if there are none. Raises `StoreRefused` as `migrate` does."""
    if await connection.fetchval("SELECT to_regclass('codex_proxy.schema')") is None:
        if await connection.fetch("SELECT FROM pg_tables WHERE schemaname = 'codex_proxy'"):
            raise StoreRefused(
                f"the schema codex_proxy in {location} is another program's; name another database"
            )
        return 0
    version, min_compatible = await connection.fetchrow(
        "SELECT version, min_compatible FROM codex_proxy.schema"
    )
    if min_compatible > LATEST_VERSION:
        raise StoreRefused(
            f"the store {location} was written by a newer version (its schema is {version}, for programs from"
            f" {min_compatible} on; this one has {LATEST_VERSION}); run that version, or name another database"
        )
    return int(version)
