"""SQL for the step memory, the sums of usage, and the pending webhooks: rows that are found by a key, and to which no
other row refers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import astuple

from codex_proxy.core.tokens import FIGURES
from codex_proxy.store.checksums import checksum
from codex_proxy.store.usage import UsageEntry
from codex_proxy.store.values import PendingWebhook

# --- step memory ----------------------------------------------------------------------------------


def remember(connection: sqlite3.Connection, owner: str, entries: Mapping[bytes, bytes], now: float) -> None:
    connection.executemany(
        "INSERT INTO steps (owner, key, created, value, value_sum) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (owner, key) DO UPDATE"
        " SET created = excluded.created, value = excluded.value, value_sum = excluded.value_sum",
        ((owner, key, now, value, checksum(value)) for key, value in entries.items()),
    )


def write_and_remove(connection: sqlite3.Connection, size: int) -> None:
    """Checks whether the disk has room for `size` bytes, by writing them. Raises `sqlite3.Error`."""
    connection.execute(
        "INSERT INTO steps (owner, key, created, value) VALUES ('', x'', 0, zeroblob(?))", (size,)
    )
    connection.execute("DELETE FROM steps WHERE owner = '' AND key = x''")


# --- usage ----------------------------------------------------------------------------------------

_ADD: Final = (
    f"INSERT INTO usage (owner, hour, model, {', '.join(FIGURES)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (owner, hour, model) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in FIGURES)
)


def add_usage(connection: sqlite3.Connection, entries: Sequence[UsageEntry]) -> None:
    rows = ((entry.owner, entry.hour, entry.model, *astuple(entry.figures)) for entry in entries)
    connection.executemany(_ADD, rows)


# --- webhooks -------------------------------------------------------------------------------------


def put_webhooks(connection: sqlite3.Connection, webhooks: Sequence[PendingWebhook]) -> None:
    connection.executemany(
        "INSERT INTO webhooks (event_id, url, body, tries) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(pending.event_id, pending.url, pending.body, pending.tries) for pending in webhooks],
    )


def count_webhook_try(connection: sqlite3.Connection, pending: PendingWebhook) -> None:
    connection.execute(
        "UPDATE webhooks SET tries = ? WHERE event_id = ? AND url = ?",
        (pending.tries, pending.event_id, pending.url),
    )


def drop_webhook(connection: sqlite3.Connection, event_id: str, url: str) -> None:
    connection.execute("DELETE FROM webhooks WHERE event_id = ? AND url = ?", (event_id, url))


def oldest_webhooks(connection: sqlite3.Connection, limit: int) -> list[PendingWebhook]:
    rows = connection.execute(
        "SELECT event_id, url, body, tries FROM webhooks ORDER BY seq LIMIT ?", (limit,)
    )
    return [PendingWebhook(*row) for row in rows]
