"""Responses with their items, chains and stream events.

A row names the response that it continues, and has those before it as an array, so that a chain is read without
recursion. Above `MAX_CHAIN` a new array begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from codex_proxy.parts.machines.postgresql.database import Row
from codex_proxy.parts.machines.postgresql.record_leases import LEASED
from codex_proxy.parts.machines.postgresql.removal import PostgresRemoval
from codex_proxy.parts.machines.postgresql.statements import (
    CHAIN,
    CONVERSATION,
    END_TURN,
    ENTRIES,
    HELD,
    IN_TURN,
    TURN,
    arrays_of,
    check_conversation,
    placeholders,
)
from codex_proxy.store.leases import FIRST_EPOCH
from codex_proxy.store.queries import visit_items
from codex_proxy.store.rows import INPUT_SIDE, ITEM_COLUMNS, OUTPUT_SIDE, checksum
from codex_proxy.store.values import (
    UNFINISHED,
    Frame,
    NotFinished,
    NotStored,
    ResponseUpdate,
    StoreConflict,
    StoredItem,
    StoredResponse,
    lease_lost,
)

MAX_CHAIN: Final = 256
"""Maximum rows in a chain's array, of 8 bytes each."""
CHAIN_OF_CHILD: Final = f"""
        CASE WHEN parent.seq IS NULL THEN '{{}}' WHEN cardinality(parent.chain) < {MAX_CHAIN}
            THEN parent.chain || parent.seq ELSE ARRAY[parent.seq] END"""
"""The SQL for the chain of a response that continues `parent`."""

_TAKEN: Final = {
    "responses": "there is a response with this id already",
    "response_items": "two items of one response have the same id",
}


def _add(append: bool) -> str:
    """Returns the SQL that adds a response; `append`: also to a conversation."""
    return f"""
WITH parent AS (
    SELECT seq, chain FROM codex_proxy.responses WHERE owner = $1 AND id = $3 AND NOT deleted FOR SHARE
), {CONVERSATION.format("$24") + "," + TURN.format(id="$24", epoch="$26", node="$20") + "," if append else ""}
checked AS (
    SELECT $3::text IS NULL OR EXISTS (SELECT FROM parent) AS has_parent,
        EXISTS (SELECT FROM codex_proxy.responses WHERE owner = $1 AND id = $2) AS taken,
        {"EXISTS (SELECT FROM conversation)" if append else "true"} AS has_conversation,
        {IN_TURN.format("$26") if append else "true AS in_turn"}
), permitted AS (
    SELECT FROM checked WHERE has_parent AND NOT taken AND has_conversation AND in_turn
), response AS (
    INSERT INTO codex_proxy.responses
        (owner, id, parent, chain, previous_id, conversation_id, status, background, created, unfinished,
        node, epoch, lease_until)
    SELECT $1, $2, parent.seq,
        {CHAIN_OF_CHILD},
        $3, $4, $5, $6, $7, $8, CASE WHEN $8 THEN $20 END, {FIRST_EPOCH}, {LEASED}
    FROM permitted LEFT JOIN parent ON true
    RETURNING seq
), body AS (
    INSERT INTO codex_proxy.response_bodies (response, json, json_sum, recovery, recovery_sum)
    SELECT seq, $9, $10, $11, $12 FROM response
), streamed AS (
    INSERT INTO codex_proxy.frames (response, number, data, data_sum)
    SELECT seq, given.* FROM response, unnest($21::bigint[], $22::bytea[], $23::bigint[]) AS given
), {ENTRIES.format(*placeholders(13, 7))}, linked AS (
    INSERT INTO codex_proxy.response_items (response, side, position, item, item_id, visible)
    SELECT seq, side, position, item, item_id, visible FROM response, entries
){"," + END_TURN.format(held="entries", new="new", now="$25") if append else ""}
SELECT * FROM checked"""


def _update(append: bool) -> str:
    end_turn = f""", held AS (
    SELECT * FROM entries
    UNION ALL
    SELECT side, position, item, item_id, visible, octet_length(json) + octet_length(raw)
    FROM target JOIN codex_proxy.response_items ON response = target.seq JOIN codex_proxy.items ON items.seq = item
    WHERE side = {INPUT_SIDE} OR NOT $12
), {END_TURN.format(held="held", new="new", now="$25")}"""
    return f"""
WITH target AS (
    SELECT seq, epoch, background AND $5 AS unfinished FROM codex_proxy.responses
    WHERE owner = $1 AND id = $2 AND NOT deleted AND ($3::text[] IS NULL OR status = ANY ($3))
    FOR NO KEY UPDATE
), {CONVERSATION.format("$24") + "," + TURN.format(id="$24", epoch="$26", node="$27") + "," if append else ""}
checked AS (
    SELECT EXISTS (SELECT FROM target) AS found,
        NOT EXISTS (SELECT FROM target WHERE epoch <> $23::integer) AS held,
        {"EXISTS (SELECT FROM conversation)" if append else "true"} AS has_conversation,
        {IN_TURN.format("$26") if append else "true AS in_turn"}
), permitted AS (
    SELECT FROM checked WHERE found AND held AND has_conversation AND in_turn
), changed AS (
    UPDATE codex_proxy.responses SET status = $4, unfinished = target.unfinished
    FROM target, permitted WHERE responses.seq = target.seq
), body AS (
    UPDATE codex_proxy.response_bodies SET json = $6, json_sum = $7,
        recovery = CASE WHEN unfinished THEN recovery ELSE '' END,
        recovery_sum = CASE WHEN unfinished THEN recovery_sum ELSE 0 END
    FROM target, permitted WHERE response = target.seq
), told AS (
    INSERT INTO codex_proxy.webhooks (event_id, url, body, tries)
    SELECT given.* FROM unnest($8::text[], $9::text[], $10::bytea[], $11::integer[]) AS given, permitted
    ON CONFLICT DO NOTHING
), gone AS (
    DELETE FROM codex_proxy.response_items USING target, permitted
    WHERE $12 AND response = target.seq AND side = {OUTPUT_SIDE} RETURNING item
), unlinked AS (
    INSERT INTO codex_proxy.unlinked (item) SELECT item FROM gone
), streamed AS (
    INSERT INTO codex_proxy.frames (response, number, data, data_sum)
    SELECT target.seq, given.* FROM target, permitted, unnest($13::bigint[], $14::bytea[], $15::bigint[]) AS given
    ON CONFLICT DO NOTHING
), {ENTRIES.format(*placeholders(16, 7))}, linked AS (
    INSERT INTO codex_proxy.response_items (response, side, position, item, item_id, visible)
    SELECT seq, side, position, item, item_id, visible
    FROM target, entries, (SELECT count(*) FROM gone) AS before
){end_turn if append else ""}
SELECT * FROM checked"""


_ADD: Final = {append: _add(append) for append in (False, True)}
_UPDATE: Final = {append: _update(append) for append in (False, True)}

_SCAN: Final = f"""{CHAIN}, list AS MATERIALIZED (
    SELECT chain.seq AS response, side, position, {ITEM_COLUMNS} FROM chain {HELD} WHERE items.id IS NOT NULL
), total AS (
    SELECT count(*) AS count, coalesce(sum(octet_length(json) + octet_length(raw)), 0)::bigint AS bytes FROM list
)
SELECT total.count, total.bytes, {ITEM_COLUMNS} FROM (
    SELECT FROM codex_proxy.responses WHERE owner = $1 AND id = $2 AND NOT deleted AND NOT unfinished
) AS found, total LEFT JOIN list AS items
    ON ($3::bigint IS NULL OR total.count <= $3) AND ($4::bigint IS NULL OR total.bytes <= $4)
ORDER BY response, side, position"""

_APPEND_FRAMES: Final = """
WITH response AS (
    SELECT seq, $6::integer IS NULL OR (epoch = $6 AND unfinished) AS held
    FROM codex_proxy.responses WHERE owner = $1 AND id = $2 AND NOT deleted FOR SHARE
), added AS (
    INSERT INTO codex_proxy.frames (response, number, data, data_sum)
    SELECT seq, given.* FROM response, unnest($3::bigint[], $4::bytea[], $5::bigint[]) AS given WHERE held
    ON CONFLICT DO NOTHING
)
SELECT held FROM response"""


class PostgresResponses(PostgresRemoval):
    """The writes of `Store` for responses, except deletion, and `scan_context`."""

    async def add_response(
        self,
        response: StoredResponse,
        *,
        input: Sequence[StoredItem] = (),
        output: Sequence[StoredItem] = (),
        append: str | None = None,
        frames: Sequence[Frame] = (),
        turn_epoch: int | None = None,
    ) -> None:
        values: list[object] = [
            response.owner,
            response.id,
            response.previous_id,
            response.conversation_id,
            response.status,
            response.background,
            response.created,
            response.is_running,
            response.json,
            checksum(response.json),
            response.recovery,
            checksum(response.recovery),
            *arrays_of((INPUT_SIDE, input), (OUTPUT_SIDE, output)),
            self.leases.id,
            *_columns_of(frames),
        ]
        if append is not None:
            values += [append, self._now(), turn_epoch]

        async def is_stored() -> bool:  # nobody else adds a response of this id
            return await self.response(response.owner, response.id) == response

        row = await self._write_row(_ADD[append is not None], values, _TAKEN, is_stored)
        if row is not None:
            _check_added(row, response, append)
        if response.previous_id is not None:
            self._continued.pop((response.owner, response.previous_id), None)
        if response.is_running:
            self.leases.hold(response.id)
        await self._trim()

    async def _update_response(self, owner: str, id: str, update: ResponseUpdate) -> bool:
        values: list[object] = [
            owner,
            id,
            None if update.only_from is None else list(update.only_from),
            update.status,
            update.status in UNFINISHED,
            update.json,
            checksum(update.json),
            [each.event_id for each in update.webhooks],
            [each.url for each in update.webhooks],
            [each.body for each in update.webhooks],
            [each.tries for each in update.webhooks],
            update.output is not None,
            *_columns_of(update.frames),
            *arrays_of((OUTPUT_SIDE, update.output or ())),
            update.epoch,
        ]
        append = update.append
        if append is not None:
            values += [append, self._now(), update.turn_epoch, self.leases.id]

        async def is_stored() -> bool:
            stored = await self.response(owner, id)
            return stored is not None and (stored.status, stored.json) == (update.status, update.json)

        row = await self._write_row(_UPDATE[append is not None], values, _TAKEN, is_stored)
        if row is not None and row["found"]:
            if not row["held"]:
                raise lease_lost(id)
            if append is not None:
                check_conversation(row, append)
        self.leases.report_change(id)
        await self._trim()
        return row is None or bool(row["found"])

    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        self._note_in_use(owner, response_id)
        limits = self._limits
        rows = await self._database.read(_SCAN, owner, response_id, limits.max_items, limits.max_bytes)
        if not rows and await self.response(owner, response_id) is not None:
            raise NotFinished(response_id)
        if not rows:
            raise NotStored("response", response_id)
        await asyncio.to_thread(visit_items, rows[0], rows[1:], limits, visit)

    async def append_frames(
        self, owner: str, response_id: str, frames: Sequence[Frame], *, epoch: int | None = None
    ) -> None:
        # Repeated, it changes nothing more.
        rows = await self._database.read(_APPEND_FRAMES, owner, response_id, *_columns_of(frames), epoch)
        if not rows:
            raise NotStored("response", response_id)
        if not rows[0]["held"]:
            raise lease_lost(response_id)
        self.leases.report_change(response_id)


def _check_added(row: Row, response: StoredResponse, append: str | None) -> None:
    if not row["has_parent"]:
        assert response.previous_id is not None
        raise NotStored("response", response.previous_id)
    if row["taken"]:
        raise StoreConflict("id_taken", _TAKEN["responses"])
    if append is not None:
        check_conversation(row, append)


def _columns_of(frames: Sequence[Frame]) -> tuple[list[int], list[bytes], list[int]]:
    data = [each for _, each in frames]
    return [number for number, _ in frames], data, [checksum(each) for each in data]
