"""Conversations. Each change of the items locks the conversation's row, which counts the changes; an item's position is
never used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from codex_proxy.parts.machines.postgresql import statements
from codex_proxy.parts.machines.postgresql.removal import PostgresRemoval
from codex_proxy.parts.machines.postgresql.statements import arrays_of, check_conversation, placeholders
from codex_proxy.store.queries import references_in, resolve
from codex_proxy.store.rows import (
    CONVERSATION_COLUMNS,
    INPUT_SIDE,
    checksum,
    conversation_of,
    encode_metadata,
    merge_metadata,
)
from codex_proxy.store.values import NewItem, NotStored, StoredConversation, StoredItem

_ADD: Final = f"""
WITH permitted AS (SELECT), conversation AS (
    INSERT INTO codex_proxy.conversations
        (owner, id, created, touched, metadata, metadata_sum, version, next_position, items, bytes)
    VALUES ($1, $2, $3, $4, $5, $6, sign($7::integer)::integer, $7::integer, $7::integer, $8::bigint)
    RETURNING seq
), {statements.ENTRIES.format(*placeholders(9, 7))}, listed AS (
    INSERT INTO codex_proxy.conversation_items (conversation, position, item, item_id, visible)
    SELECT seq, position, item, item_id, visible FROM conversation, entries
)
SELECT FROM conversation"""
_APPEND: Final = f"""
WITH {statements.CONVERSATION.format("$2")}, {statements.TURN.format(id="$2", epoch="$15", node="$16")}, checked AS (
    SELECT EXISTS (SELECT FROM conversation) AS has_conversation, {statements.IN_TURN.format("$15")},
        (SELECT items + $4::bigint FROM conversation) AS items, (SELECT bytes + $5::bigint FROM conversation) AS bytes
), permitted AS (
    SELECT FROM checked WHERE has_conversation AND in_turn
        AND ($6::bigint IS NULL OR items <= $6) AND ($7::bigint IS NULL OR bytes <= $7)
), {statements.ENTRIES.format(*placeholders(8, 7))}, {statements.LISTED.format(new="entries", now="$3")}
SELECT * FROM checked"""
_UPDATE: Final = f"""
UPDATE codex_proxy.conversations SET metadata = $3, metadata_sum = $4, touched = $5
WHERE owner = $1 AND id = $2 AND NOT deleted AND metadata = $6 RETURNING {CONVERSATION_COLUMNS}"""
_DELETE_ITEM: Final = f"""
WITH {statements.CONVERSATION.format("$2")}, gone AS (
    DELETE FROM codex_proxy.conversation_items USING conversation
    WHERE conversation = seq AND item_id = $3 AND visible RETURNING item
), unlinked AS (
    INSERT INTO codex_proxy.unlinked (item) SELECT item FROM gone
), changed AS (
    UPDATE codex_proxy.conversations SET version = conversations.version + 1, touched = $4,
        items = conversations.items - 1, bytes = conversations.bytes - octet_length(json) - octet_length(raw)
    FROM conversation, gone JOIN codex_proxy.items ON items.seq = item WHERE conversations.seq = conversation.seq
    RETURNING conversations.*
)
SELECT {CONVERSATION_COLUMNS} FROM (SELECT FROM conversation) AS found LEFT JOIN changed ON true"""

_LISTED: Final = """
SELECT count(*) AS count FROM codex_proxy.conversations JOIN codex_proxy.conversation_items ON conversation = seq
WHERE owner = $1 AND id = $2 AND NOT deleted AND item_id = ANY ($3::text[])"""

_TAKEN: Final = {
    "conversations": "there is a conversation with this id already",
    "conversation_items": "the conversation has an item with this id already",
}


class PostgresConversations(PostgresRemoval):
    """The writes of `Store` for conversations, except deletion."""

    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        metadata = encode_metadata(conversation.metadata)
        new = await self._resolve(conversation.owner, items)
        size = sum(each.size for each in new)
        self._limits.check(len(new), size)

        async def is_stored() -> bool:
            return await self.conversation(conversation.owner, conversation.id) is not None

        values = [
            conversation.owner,
            conversation.id,
            conversation.created,
            self._now(),
            metadata,
            checksum(metadata),
            len(new),
            size,
            *arrays_of((INPUT_SIDE, new)),
        ]
        await self._write_row(_ADD, values, _TAKEN, is_stored)
        return new

    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        while True:
            before = await self.conversation(owner, id)
            if before is None:
                raise NotStored("conversation", id)
            metadata = merge_metadata(before.metadata, changes)
            values = (metadata, checksum(metadata), self._now(), encode_metadata(before.metadata))
            rows = await self._database.write(_UPDATE, owner, id, *values)
            if rows:  # else somebody has changed it between
                return conversation_of(rows[0])

    async def append_items(
        self,
        owner: str,
        conversation_id: str,
        items: Sequence[NewItem],
        *,
        limited: bool = True,
        turn_epoch: int | None = None,
    ) -> tuple[StoredItem, ...]:
        try:
            new = await self._resolve(owner, items, limited=limited)
        except NotStored:
            if await self.conversation(owner, conversation_id) is None:
                raise NotStored("conversation", conversation_id) from None
            raise
        size, limits = sum(each.size for each in new), self._limits
        bounds = (limits.max_items, limits.max_bytes) if limited else (None, None)

        async def are_stored() -> bool:
            ids = [each.id for each in new]
            (row,) = await self._database.read(_LISTED, owner, conversation_id, ids)
            return bool(row["count"] == len(new))

        values = [
            owner, conversation_id, self._now(), len(new), size, *bounds, *arrays_of((INPUT_SIDE, new)),
            turn_epoch, self.leases.id,
        ]  # fmt: skip
        row = await self._write_row(_APPEND, values, _TAKEN, are_stored)
        if row is not None:
            check_conversation(row, conversation_id)
            if limited:
                limits.check(row["items"], row["bytes"])
        return new

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        rows = await self._database.write(_DELETE_ITEM, owner, conversation_id, item_id, self._now())
        if not rows:
            raise NotStored("conversation", conversation_id)
        if rows[0]["id"] is None:
            raise NotStored("item", item_id)
        await self._forget()
        return conversation_of(rows[0])

    async def _resolve(
        self, owner: str, items: Sequence[NewItem], *, limited: bool = True
    ) -> tuple[StoredItem, ...]:
        named = references_in(items)
        return resolve(items, await self.find_items(owner, named, limited=limited) if named else {})
