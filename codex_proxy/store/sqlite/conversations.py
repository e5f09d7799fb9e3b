"""SQL for conversations. An item's position is never used again, so that a client that reads page by page gets every
item once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from codex_proxy.store import queries
from codex_proxy.store.rows import checksum, encode_metadata, merge_metadata
from codex_proxy.store.sqlite.statements import ListEntry, ask, forget, keep, row_of
from codex_proxy.store.values import (
    ContextLimits,
    NewItem,
    NotStored,
    StoreConflict,
    StoredConversation,
    StoredItem,
)


def add(
    connection: sqlite3.Connection,
    conversation: StoredConversation,
    items: Sequence[NewItem],
    limits: ContextLimits,
    now: float,
) -> tuple[StoredItem, ...]:
    metadata = encode_metadata(conversation.metadata)
    try:
        connection.execute(
            "INSERT INTO conversations"
            " (owner, id, created, touched, version, next_position, metadata, metadata_sum)"
            " VALUES (?, ?, ?, ?, 0, 0, ?, ?)",
            (conversation.owner, conversation.id, conversation.created, now, metadata, checksum(metadata)),
        )
    except sqlite3.IntegrityError as error:
        raise StoreConflict("id_taken", f"there is a conversation {conversation.id!r} already") from error
    if not items:
        return ()
    return append(connection, conversation.owner, conversation.id, items, limits, now)


def require(connection: sqlite3.Connection, owner: str, id: str) -> StoredConversation:
    """Returns a conversation. Raises `NotStored`."""
    found = ask(connection, queries.conversation(owner, id))
    if found is None:
        raise NotStored("conversation", id)
    return found


def update(
    connection: sqlite3.Connection, owner: str, id: str, changes: Mapping[str, str | None], now: float
) -> StoredConversation:
    encoded = merge_metadata(require(connection, owner, id).metadata, changes)
    connection.execute(
        "UPDATE conversations SET metadata = ?, metadata_sum = ?, touched = ?"
        " WHERE owner = ? AND id = ? AND deleted = 0",
        (encoded, checksum(encoded), now, owner, id),
    )
    return require(connection, owner, id)


def mark_deleted(connection: sqlite3.Connection, owner: str, id: str) -> bool:
    """Marks a conversation, and frees its id. Returns False if there is none."""
    row = connection.execute(
        "UPDATE conversations SET deleted = 1, id = id || '#' || seq"
        " WHERE owner = ? AND id = ? AND deleted = 0",
        (owner, id),
    )
    return row.rowcount > 0


def append(
    connection: sqlite3.Connection,
    owner: str,
    id: str,
    items: Sequence[NewItem],
    limits: ContextLimits | None,
    now: float,
) -> tuple[StoredItem, ...]:
    """Appends items, and returns them with references resolved. `limits`: the largest size that the conversation
    may have afterwards. Raises as `Store.append_items`; the caller rolls back.
    """
    row, position = _row_and_position(connection, owner, id)
    named = queries.references_in(items)
    found = ask(connection, queries.find(owner, named, limits)) if named else {}
    new = queries.resolve(items, found)
    _append_entries(connection, row, position, [keep(connection, owner, each) for each in new], now)
    if limits is not None:
        limits.check(*_size(connection, row))
    return new


def end_turn(
    connection: sqlite3.Connection, owner: str, id: str, held: Iterable[ListEntry], now: float
) -> None:
    """Appends a turn's items, without those that the conversation has. Raises `NotStored`."""
    row, position = _row_and_position(connection, owner, id)
    new: dict[str, ListEntry] = {}
    for each in held:
        if each.id not in new and not _is_listed(connection, row, each.id):
            new[each.id] = each
    _append_entries(connection, row, position, list(new.values()), now)


def delete_item(
    connection: sqlite3.Connection, owner: str, id: str, item_id: str, now: float
) -> StoredConversation:
    row = row_of(connection, "conversation", owner, id)
    found = connection.execute(
        "SELECT item, length(json) + length(raw) FROM conversation_items JOIN items ON items.seq = item"
        " WHERE conversation = ? AND item_id = ? AND visible = 1",
        (row, item_id),
    ).fetchone()
    if found is None:
        raise NotStored("item", item_id)
    connection.execute(
        "DELETE FROM conversation_items WHERE conversation = ? AND item_id = ?", (row, item_id)
    )
    connection.execute(
        "UPDATE conversations SET version = version + 1, touched = ?, items = items - 1, bytes = bytes - ?"
        " WHERE seq = ?",
        (now, found[1], row),
    )
    forget(connection, found[:1])
    return require(connection, owner, id)


def _row_and_position(connection: sqlite3.Connection, owner: str, id: str) -> tuple[int, int]:
    found = connection.execute(
        "SELECT seq, next_position FROM conversations WHERE owner = ? AND id = ? AND deleted = 0", (owner, id)
    ).fetchone()
    if found is None:
        raise NotStored("conversation", id)
    row, position = found
    return row, position


def _size(connection: sqlite3.Connection, row: int) -> tuple[int, int]:
    items, size = connection.execute(
        "SELECT items, bytes FROM conversations WHERE seq = ?", (row,)
    ).fetchone()
    return items, size


def _is_listed(connection: sqlite3.Connection, row: int, item_id: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM conversation_items WHERE conversation = ? AND item_id = ?", (row, item_id)
    )
    return found.fetchone() is not None


def _append_entries(
    connection: sqlite3.Connection, row: int, position: int, held: Sequence[ListEntry], now: float
) -> None:
    try:
        connection.executemany(
            "INSERT INTO conversation_items VALUES (?, ?, ?, ?, ?)",
            ((row, position + index, each.row, each.id, each.visible) for index, each in enumerate(held)),
        )
    except sqlite3.IntegrityError as error:
        raise StoreConflict("id_taken", "the conversation has an item with this id already") from error
    connection.execute(
        "UPDATE conversations SET version = version + 1, next_position = ?, touched = ?,"
        " items = items + ?, bytes = bytes + ? WHERE seq = ?",
        (position + len(held), now, len(held), sum(each.size for each in held), row),
    )
