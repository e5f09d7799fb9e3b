"""Webhooks that nobody has taken yet, as statements on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from codex_proxy.store.webhooks import PendingWebhook


def put(connection: sqlite3.Connection, webhooks: Sequence[PendingWebhook]) -> None:
    connection.executemany(
        "INSERT INTO webhooks (event_id, url, body, tries) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(pending.event_id, pending.url, pending.body, pending.tries) for pending in webhooks],
    )


def count_try(connection: sqlite3.Connection, pending: PendingWebhook) -> None:
    connection.execute(
        "UPDATE webhooks SET tries = ? WHERE event_id = ? AND url = ?",
        (pending.tries, pending.event_id, pending.url),
    )


def drop(connection: sqlite3.Connection, event_id: str, url: str) -> None:
    connection.execute("DELETE FROM webhooks WHERE event_id = ? AND url = ?", (event_id, url))


def oldest(connection: sqlite3.Connection, limit: int) -> list[PendingWebhook]:
    rows = connection.execute(
        "SELECT event_id, url, body, tries FROM webhooks ORDER BY seq LIMIT ?", (limit,)
    )
    return [PendingWebhook(*row) for row in rows]
