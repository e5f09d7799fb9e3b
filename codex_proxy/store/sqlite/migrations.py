"""The tables, as the steps that create them. A published step never changes; later changes are new steps.
`user_version` counts a file's steps; missing ones run in one transaction, so that a process that dies leaves the file
unchanged.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from codex_proxy.store.checksums import checksum

STEP_MEMORY: Final = (
    """CREATE TABLE steps (
        seq INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        key BLOB NOT NULL,
        created REAL NOT NULL,
        value BLOB NOT NULL,
        UNIQUE (owner, key)
    )""",
    "CREATE INDEX steps_by_age ON steps (created)",
)

# Bodies lie apart from the rows that are walked and counted: a chain of 1,000 turns is read through some
# pages, and a child of a response does not write its parent's text again.
OBJECTS: Final = (
    """CREATE TABLE items (
        seq INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        digest BLOB NOT NULL,
        created REAL NOT NULL,
        json BLOB NOT NULL,
        raw BLOB NOT NULL,
        UNIQUE (owner, id, digest)
    )""",
    """CREATE TABLE responses (
        seq INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        parent INTEGER REFERENCES responses (seq),
        previous_id TEXT,
        conversation_id TEXT,
        status TEXT NOT NULL,
        background INTEGER NOT NULL,
        created REAL NOT NULL,
        unfinished INTEGER NOT NULL,
        children INTEGER NOT NULL DEFAULT 0,
        deleted INTEGER NOT NULL DEFAULT 0,
        UNIQUE (owner, id)
    )""",
    "CREATE INDEX responses_by_parent ON responses (parent)",
    "CREATE INDEX responses_to_finish ON responses (seq) WHERE unfinished = 1",
    "CREATE INDEX responses_to_prune ON responses (created) WHERE children = 0 AND unfinished = 0",
    "CREATE INDEX responses_in_background ON responses (created) WHERE background = 1",
    """CREATE TABLE response_bodies (
        response INTEGER PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
        json BLOB NOT NULL,
        recovery BLOB NOT NULL
    )""",
    """CREATE TABLE response_items (
        response INTEGER NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
        side INTEGER NOT NULL,
        position INTEGER NOT NULL,
        item INTEGER NOT NULL REFERENCES items (seq),
        item_id TEXT NOT NULL,
        visible INTEGER NOT NULL,
        PRIMARY KEY (response, side, position),
        UNIQUE (response, side, item_id)
    ) WITHOUT ROWID""",
    "CREATE INDEX response_items_by_item ON response_items (item)",
    """CREATE TABLE frames (
        response INTEGER NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (response, number)
    ) WITHOUT ROWID""",
    """CREATE TABLE conversations (
        seq INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        created REAL NOT NULL,
        touched REAL NOT NULL,
        version INTEGER NOT NULL,
        next_position INTEGER NOT NULL,
        metadata BLOB NOT NULL,
        UNIQUE (owner, id)
    )""",
    "CREATE INDEX conversations_by_use ON conversations (touched)",
    """CREATE TABLE conversation_items (
        conversation INTEGER NOT NULL REFERENCES conversations (seq) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        item INTEGER NOT NULL REFERENCES items (seq),
        item_id TEXT NOT NULL,
        visible INTEGER NOT NULL,
        PRIMARY KEY (conversation, position),
        UNIQUE (conversation, item_id)
    ) WITHOUT ROWID""",
    "CREATE INDEX conversation_items_by_item ON conversation_items (item)",
)

USAGE: Final = (
    """CREATE TABLE usage (
        owner TEXT NOT NULL,
        hour INTEGER NOT NULL,
        model TEXT NOT NULL,
        turns INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        estimated INTEGER NOT NULL,
        input INTEGER NOT NULL,
        cached INTEGER NOT NULL,
        output INTEGER NOT NULL,
        reasoning INTEGER NOT NULL,
        PRIMARY KEY (owner, hour, model)
    ) WITHOUT ROWID""",
)

WEBHOOKS: Final = (
    """CREATE TABLE webhooks (
        seq INTEGER PRIMARY KEY,
        event_id TEXT NOT NULL,
        url TEXT NOT NULL,
        body BLOB NOT NULL,
        tries INTEGER NOT NULL,
        UNIQUE (event_id, url)
    )""",
)

REMOVAL: Final = (
    "ALTER TABLE conversations ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX conversations_to_remove ON conversations (seq) WHERE deleted = 1",
    "CREATE INDEX responses_to_remove ON responses (children, background) WHERE deleted = 1",
)

# What a conversation holds, so that a write need not count it.
SIZES: Final = (
    "ALTER TABLE conversations ADD COLUMN items INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE conversations ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0",
    """UPDATE conversations SET (items, bytes) = (
        SELECT count(*), coalesce(sum(length(json) + length(raw)), 0)
        FROM conversation_items JOIN items ON items.seq = item WHERE conversation = conversations.seq
    )""",
)

# Items have a digest from the beginning.
CHECKSUMS: Final = (
    "ALTER TABLE response_bodies ADD COLUMN json_sum INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE response_bodies ADD COLUMN recovery_sum INTEGER NOT NULL DEFAULT 0",
    "UPDATE response_bodies SET json_sum = checksum(json), recovery_sum = checksum(recovery)",
    "ALTER TABLE frames ADD COLUMN data_sum INTEGER NOT NULL DEFAULT 0",
    "UPDATE frames SET data_sum = checksum(data)",
    "ALTER TABLE conversations ADD COLUMN metadata_sum INTEGER NOT NULL DEFAULT 0",
    "UPDATE conversations SET metadata_sum = checksum(CAST(metadata AS BLOB))",
    "ALTER TABLE steps ADD COLUMN value_sum INTEGER NOT NULL DEFAULT 0",
    "UPDATE steps SET value_sum = checksum(value)",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    STEP_MEMORY,
    OBJECTS,
    USAGE,
    WEBHOOKS,
    REMOVAL,
    SIZES,
    CHECKSUMS,
)
LATEST: Final = len(MIGRATIONS)

APPLICATION_ID: Final = 0x63787078
"""The id in the file's header ("cxpx")."""


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, to: int = LATEST) -> None:
    """Brings an older file to version `to`."""
    if version_of(connection) >= to:
        return
    connection.create_function("checksum", 1, checksum, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated the file meanwhile, so the version is read again.
        for step in MIGRATIONS[version_of(connection) : to]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(to, version_of(connection))}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
