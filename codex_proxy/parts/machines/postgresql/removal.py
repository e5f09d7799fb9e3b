"""Deletes objects: a short statement marks one, and others remove its rows, a limited number at a time. Only the marks
record what is left, so nothing is missed if a server ends.

Items that lose a link are noted, and removed by a later statement if they have none: only that one sees what others
have meanwhile committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from codex_proxy.parts.machines.postgresql.statements import DIALECT, UNCONTINUED, StorePart
from codex_proxy.store.records import BY_KEY, LIVE
from codex_proxy.store.retention import OBJECTS_AT_ONCE, Removed

PIECE: Final = 500
"""Maximum rows that one statement removes."""
FIRST_PIECES: Final = 5
"""The pieces of each kind for which a deletion waits."""
PIECE_BYTES: Final = 16 << 20
"""Maximum bytes of items that one statement removes."""

_ENDED: Final = f"{DIALECT.ended} AND NOT deleted"
"""The SQL condition for responses that may be removed."""

_DELETE_RESPONSES: Final = """, marked AS (
    UPDATE codex_proxy.responses SET deleted = true, unfinished = false
    FROM target WHERE responses.seq = target.seq RETURNING responses.seq
), bodies AS (
    DELETE FROM codex_proxy.response_bodies USING marked WHERE response = marked.seq
)"""
_DELETE_CONVERSATIONS: Final = """, marked AS (
    UPDATE codex_proxy.conversations SET deleted = true, id = id || '#' || conversations.seq
    FROM target WHERE conversations.seq = target.seq RETURNING conversations.seq
)"""
MARK_RECORD: Final = "UPDATE codex_proxy.records SET deleted = true, busy = false, id = id || '#' || seq"
_DELETE_RECORDS: Final = f""", marked AS (
    {MARK_RECORD} WHERE seq = ANY (ARRAY(SELECT seq FROM target)) RETURNING seq
)"""
_TARGET: Final = """WITH target AS (
    SELECT seq FROM codex_proxy.{} WHERE owner = $1 AND id = $2 AND NOT deleted FOR NO KEY UPDATE
)"""
_COUNT: Final = "SELECT count(*) AS count FROM marked"
DELETE_RESPONSE: Final = f"{_TARGET.format('responses')}{_DELETE_RESPONSES} {_COUNT}"
DELETE_CONVERSATION: Final = f"{_TARGET.format('conversations')}{_DELETE_CONVERSATIONS} {_COUNT}"

DELETE_RECORD: Final = f"""{DIALECT.write(LIVE.format(BY_KEY))}, target AS (
    SELECT seq FROM codex_proxy.records WHERE seq = (SELECT record FROM live) AND NOT deleted FOR NO KEY UPDATE
){_DELETE_RECORDS} {_COUNT}"""


def _unlink(kind: str, which: str) -> str:
    """Returns the SQL that removes links of the deleted objects that fulfil the condition `which`."""
    return f"""
WITH links AS (
    DELETE FROM codex_proxy.{kind}_items USING (
        SELECT {kind}_items.ctid AS place FROM codex_proxy.{kind}s
        JOIN codex_proxy.{kind}_items ON {kind} = {kind}s.seq WHERE deleted AND {which} LIMIT $1
    ) AS first WHERE {kind}_items.ctid = first.place RETURNING item
), unlinked AS (
    INSERT INTO codex_proxy.unlinked (item) SELECT item FROM links
)
SELECT count(*) = $1 AS more FROM links"""


def _drop(kind: str, which: str, left: str) -> str:
    """Returns the SQL that removes the deleted objects without links that fulfil the condition `which`. `left`: an SQL
    condition on a removed row; if one fulfils it, there is more to remove.
    """
    return f"""
WITH gone AS (
    DELETE FROM codex_proxy.{kind}s WHERE seq IN (
        SELECT seq FROM codex_proxy.{kind}s WHERE deleted AND {which}
        AND NOT EXISTS (SELECT FROM codex_proxy.{kind}_items WHERE {kind} = {kind}s.seq)
        LIMIT $1 FOR UPDATE SKIP LOCKED
    ) RETURNING {left} AS again
)
SELECT count(*) = $1 OR coalesce(bool_or(again), false) AS more FROM gone"""


_FORGET: Final = f"""
WITH first AS (
    SELECT unlinked.seq, row_number() OVER earlier AS number,
        sum(coalesce(octet_length(json) + octet_length(raw), 0)) OVER earlier AS bytes
    FROM codex_proxy.unlinked LEFT JOIN codex_proxy.items ON items.seq = item
    WINDOW earlier AS (ORDER BY unlinked.seq) LIMIT $1
), noted AS (
    DELETE FROM codex_proxy.unlinked
    WHERE seq IN (SELECT seq FROM first WHERE number = 1 OR bytes <= {PIECE_BYTES}) RETURNING item
), gone AS (
    DELETE FROM codex_proxy.items WHERE seq IN (SELECT item FROM noted)
    AND NOT EXISTS (SELECT FROM codex_proxy.response_items WHERE item = items.seq)
    AND NOT EXISTS (SELECT FROM codex_proxy.conversation_items WHERE item = items.seq)
)
SELECT count(*) = $1 OR count(*) < (SELECT count(*) FROM first) AS more FROM noted"""
"""The SQL that removes items that have lost their last link."""

_BELOW: Final = """(
    SELECT below.seq FROM codex_proxy.records AS below WHERE below.parent = {}.seq
    ORDER BY below.kind, below.seq LIMIT 1
)"""
"""The SQL for a row below another one. The order makes the planner use the index: where many rows are below a few, it
expects to find one soon in any order.
"""
_RECORD_PIECES: Final = (
    # One with records below leaves its parent, so that what is below it is removed next.
    f"""
WITH next AS (
    SELECT child.seq, {_BELOW.format("child")} IS NOT NULL AS is_parent FROM codex_proxy.records CROSS JOIN LATERAL (
        SELECT seq FROM codex_proxy.records AS child WHERE child.parent = records.seq OFFSET 0
    ) AS child WHERE deleted LIMIT $1
), marked AS (
    {MARK_RECORD}, parent = NULL WHERE seq = ANY (ARRAY(SELECT seq FROM next WHERE is_parent))
), gone AS (
    DELETE FROM codex_proxy.records WHERE seq = ANY (ARRAY(SELECT seq FROM next WHERE NOT is_parent))
)
SELECT count(*) = $1 OR coalesce(bool_or(is_parent), false) AS more FROM next""",
    f"""
WITH gone AS (
    DELETE FROM codex_proxy.records WHERE seq = ANY (ARRAY(
        SELECT seq FROM codex_proxy.records WHERE deleted AND {_BELOW.format("records")} IS NULL
        LIMIT $1 FOR UPDATE SKIP LOCKED
    )) RETURNING seq
)
SELECT count(*) = $1 AS more FROM gone""",
)

_PIECES: Final = (
    """
WITH gone AS (
    DELETE FROM codex_proxy.frames USING (
        SELECT response, number FROM codex_proxy.responses JOIN codex_proxy.frames ON response = seq
        WHERE deleted LIMIT $1
    ) AS first WHERE frames.response = first.response AND frames.number = first.number RETURNING frames.number
)
SELECT count(*) = $1 AS more FROM gone""",
    _unlink("response", UNCONTINUED),
    _drop(
        "response",
        f"{UNCONTINUED} AND NOT EXISTS (SELECT FROM codex_proxy.frames WHERE response = responses.seq)",
        "parent IS NOT NULL",
    ),
    _unlink("conversation", "true"),
    _drop("conversation", "true", "false"),
    _FORGET,
    *_RECORD_PIECES,
)
"""The statements that remove marked objects piece by piece, in an order in which each finds what those
before it left.
"""

# --- retention ----------------------------------------------------------------------------------

USED_BYTES: Final = """
SELECT (
    (SELECT coalesce(sum(octet_length(json) + octet_length(raw)), 0) FROM codex_proxy.items)
    + (SELECT coalesce(sum(octet_length(json) + octet_length(recovery)), 0) FROM codex_proxy.response_bodies)
    + (SELECT coalesce(sum(octet_length(data)), 0) FROM codex_proxy.frames)
    + (SELECT coalesce(sum(octet_length(value)), 0) FROM codex_proxy.steps)
    + (SELECT coalesce(sum(octet_length(metadata)), 0) FROM codex_proxy.conversations)
    + (SELECT coalesce(sum(octet_length(json)), 0) FROM codex_proxy.records)
)::bigint AS bytes"""
"""The SQL for the bytes of all content. A table's size on disk does not fall when rows are removed."""

_OLDEST_RESPONSES: Final = f"""
WITH target AS (
    SELECT seq FROM codex_proxy.responses WHERE {_ENDED} AND created <= $1
    ORDER BY created, seq LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
){_DELETE_RESPONSES} {_COUNT}"""
_OLDEST_CONVERSATIONS: Final = f"""
WITH target AS (
    SELECT seq FROM codex_proxy.conversations WHERE NOT deleted AND touched <= $1
    ORDER BY touched, seq LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
){_DELETE_CONVERSATIONS} {_COUNT}"""
_OLDEST_RECORDS: Final = f"""
WITH target AS (
    SELECT seq FROM codex_proxy.records WHERE parent IS NULL AND NOT deleted AND NOT busy AND touched <= $1
    ORDER BY touched, seq LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
){_DELETE_RECORDS} {_COUNT}"""
_OLDEST: Final[Mapping[Removed, str]] = {
    "steps": """
WITH gone AS (
    DELETE FROM codex_proxy.steps WHERE seq IN (
        SELECT seq FROM codex_proxy.steps WHERE created <= $1 ORDER BY created LIMIT $2
    ) RETURNING seq
)
SELECT count(*) AS count FROM gone""",
    "frames": """
WITH oldest AS (
    SELECT seq FROM codex_proxy.responses WHERE background AND NOT unfinished AND created <= $1
    AND EXISTS (SELECT FROM codex_proxy.frames WHERE response = seq) ORDER BY created LIMIT 1
), gone AS (
    DELETE FROM codex_proxy.frames USING (
        SELECT response, number FROM oldest JOIN codex_proxy.frames ON response = seq ORDER BY number LIMIT $2
    ) AS first WHERE frames.response = first.response AND frames.number = first.number RETURNING frames.number
)
SELECT count(*) AS count FROM gone""",
    "usage": """
WITH gone AS (
    DELETE FROM codex_proxy.usage WHERE (owner, hour, model) IN (
        SELECT owner, hour, model FROM codex_proxy.usage WHERE hour < $1 LIMIT $2
    ) RETURNING hour
)
SELECT count(*) AS count FROM gone""",
    "responses": _OLDEST_RESPONSES,
    "conversations": _OLDEST_CONVERSATIONS,
    "records": _OLDEST_RECORDS,
}
_TRIM: Final = f"""
WITH last AS (
    SELECT seq, owner, id, created FROM codex_proxy.responses WHERE {_ENDED} AND conversation_id IS NULL
), target AS (
    SELECT seq FROM last WHERE (owner, id) NOT IN (SELECT * FROM unnest($2::text[], $3::text[]))
    ORDER BY created, seq LIMIT greatest(0, least({OBJECTS_AT_ONCE}, (SELECT count(*) FROM last) - $1))
){_DELETE_RESPONSES} {_COUNT}"""


class PostgresRemoval(StorePart):
    async def delete_response(self, owner: str, id: str) -> bool:
        found = await self._delete(DELETE_RESPONSE, owner, id)
        self.leases.report_change(id)
        return found

    async def delete_conversation(self, owner: str, id: str) -> bool:
        return await self._delete(DELETE_CONVERSATION, owner, id)

    async def delete_record(self, owner: str, kind: str, id: str) -> bool:
        return await self._delete(DELETE_RECORD, owner, kind, id)

    async def _delete(self, sql: str, *key: str) -> bool:
        """Marks an object and removes its first rows; a task removes the others."""
        if not await self._remove_rows(sql, *key):
            return False
        for _ in range(FIRST_PIECES):
            if not await self._sweep_once():
                return True
        self._sweep_later()
        return True

    async def _sweep_once(self) -> bool:
        return any([await self._piece(sql) for sql in _PIECES])

    async def _forget(self) -> None:
        await self._piece(_FORGET)

    async def _piece(self, sql: str) -> bool:
        (row,) = await self._database.write(sql, PIECE)
        return bool(row["more"])

    async def _remove_rows(self, sql: str, *values: object) -> int:
        """Runs a statement that removes rows, and returns its `count`. Repeated, it removes less."""
        (row,) = await self._database.write(sql, *values)
        return int(row["count"])

    async def _remove_oldest(self, what: Removed, before: float, most: int) -> int:
        return await self._remove_rows(_OLDEST[what], before, most)

    async def _trim(self) -> None:
        """Removes the oldest chains above `Retention.max_conversations`, but not those in use on this server."""
        most = self._retention.max_conversations
        if most is None:
            return
        in_use = self._chains_in_use()
        owners, ids = [owner for owner, _ in in_use], [id for _, id in in_use]
        for _ in range(OBJECTS_AT_ONCE):
            if not await self._remove_rows(_TRIM, most, owners, ids):
                return
            await self._sweep_once()
