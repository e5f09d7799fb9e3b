"""Writes of records (`store.records`). One statement locks all rows that it names and those above them, in the order
of their numbers: so no other write deletes one of them, or adds another below it, meanwhile. It also locks the lease
under which it is made, so that no other node takes that before the write is committed.
"""

from __future__ import annotations

from typing import Final

from codex_proxy.parts.machines.postgresql.record_leases import LEASED
from codex_proxy.parts.machines.postgresql.removal import MARK_RECORD, PostgresRemoval
from codex_proxy.store.record_leases import RecordLease, WrittenRecords
from codex_proxy.store.records import busy
from codex_proxy.store.rows import checksum
from codex_proxy.store.values import NotStored, Record, RecordWrite, record_lost

# `up` has the rows above each named one, as they were when the statement began: parents do not change. `held` sees what
# was deleted until it had the locks.
_WRITE: Final = f"""
WITH RECURSIVE given AS (
    SELECT * FROM unnest(
        $3::text[], $4::text[], $5::text[], $6::float8[], $7::boolean[], $8::bigint[], $9::bytea[]
    ) WITH ORDINALITY AS given (kind, id, parent, created, busy, json_sum, json, place)
), found AS (
    SELECT kind, id, seq FROM codex_proxy.records WHERE owner = $1 AND id = ANY ($14::text[])
), up (record, seq) AS (
    SELECT seq, seq FROM found
    UNION ALL
    SELECT record, (SELECT above.parent FROM codex_proxy.records AS above WHERE above.seq = up.seq) FROM up
    WHERE seq IS NOT NULL
), held AS (
    SELECT seq FROM codex_proxy.records WHERE seq = ANY (ARRAY(SELECT DISTINCT seq FROM up)) AND NOT deleted
    ORDER BY seq FOR NO KEY UPDATE
), named AS (
    SELECT found.*, seq NOT IN (SELECT record FROM up WHERE seq NOT IN (SELECT seq FROM held)) AS is_live
    FROM found
), placed AS MATERIALIZED (
    SELECT ordered.*, coalesce(known, nextval('codex_proxy.records_seq_seq')) AS seq FROM (
        SELECT given.*, named.seq AS known FROM given LEFT JOIN named
        ON named.kind = given.kind AND named.id = given.id AND is_live ORDER BY place
    ) AS ordered
), parents AS (
    SELECT id, min(seq) AS seq, min(place) AS place FROM (
        SELECT id, seq, 0 AS place FROM named WHERE is_live
        UNION ALL SELECT id, seq, place FROM placed WHERE known IS NULL
    ) AS possible GROUP BY id
), entries AS (
    SELECT placed.*, parents.seq AS above FROM placed LEFT JOIN parents
    ON placed.parent <> '' AND parents.id = placed.parent AND parents.place < placed.place
), gone AS (
    SELECT seq FROM named JOIN unnest($10::text[], $11::text[]) AS gone (kind, id) USING (kind, id) WHERE is_live
), lease AS (
    SELECT record FROM codex_proxy.record_leases WHERE node = $19 AND epoch = $20::bigint
    AND record = ANY (ARRAY(SELECT seq FROM named WHERE kind = $12 AND id = $13::text AND is_live)) FOR SHARE
), followers AS (
    SELECT node FROM codex_proxy.record_followers WHERE node <> $19
    AND record = ANY (ARRAY(SELECT seq FROM named WHERE kind = $12 AND id = $13::text AND is_live))
), checked AS (
    SELECT (SELECT parent FROM entries WHERE parent <> '' AND above IS NULL ORDER BY place LIMIT 1) AS missing,
        $12::text IS NULL OR EXISTS (SELECT FROM named WHERE kind = $12 AND id = $13::text AND is_live) AS has_required,
        $20 IS NULL OR EXISTS (SELECT FROM lease) AS has_lease,
        EXISTS (SELECT FROM named JOIN given USING (kind, id) WHERE NOT is_live) AS has_dead
), permitted AS (
    SELECT FROM checked WHERE missing IS NULL AND has_required AND has_lease AND NOT has_dead
), written AS (
    INSERT INTO codex_proxy.records (seq, owner, kind, id, parent, created, touched, busy, json_sum, json)
    SELECT seq, $1, kind, id, above, created, $2, busy, json_sum, json FROM entries, permitted ORDER BY place
    ON CONFLICT (owner, id, kind) DO UPDATE SET touched = excluded.touched, busy = excluded.busy,
        json_sum = excluded.json_sum, json = excluded.json
), marked AS (
    {MARK_RECORD} FROM permitted WHERE seq = ANY (ARRAY(SELECT seq FROM gone))
), touched AS (
    UPDATE codex_proxy.records SET touched = $2 FROM permitted WHERE seq = ANY (ARRAY(
        SELECT up.seq FROM up JOIN entries ON up.record = coalesce(known, above)
        EXCEPT SELECT seq FROM entries EXCEPT SELECT seq FROM gone
    ))
), told AS (
    INSERT INTO codex_proxy.webhooks (event_id, url, body, tries)
    SELECT given.* FROM unnest($15::text[], $16::text[], $17::bytea[], $18::integer[]) AS given, permitted
    ON CONFLICT DO NOTHING
), posted AS (
    INSERT INTO codex_proxy.mail (node, data) SELECT node, $21::bytea FROM followers, permitted WHERE $21 IS NOT NULL
), leased AS (
    INSERT INTO codex_proxy.record_leases (record, node, lease_until)
    SELECT seq, $19, {LEASED} FROM placed, permitted WHERE kind = $22::text AND id = $23::text
    RETURNING record, epoch
)
SELECT checked.*, record, epoch, ARRAY(SELECT node FROM followers) AS followers
FROM checked LEFT JOIN leased ON true"""

_FREE: Final = f"""
WITH RECURSIVE up (record, parent, deleted) AS (
    SELECT seq, parent, deleted FROM codex_proxy.records
    JOIN unnest($2::text[], $3::text[]) AS given (kind, id) USING (kind, id) WHERE owner = $1 AND id = ANY ($3)
    UNION ALL
    SELECT up.record, above.parent, above.deleted
    FROM up JOIN codex_proxy.records AS above ON above.seq = up.parent
)
{MARK_RECORD} WHERE NOT deleted AND seq = ANY (ARRAY(SELECT record FROM up WHERE deleted))"""
"""The SQL that frees the ids of records that are below a deleted one, and whose rows are still to be removed."""


_BUSY: Final = """
SELECT seq FROM @records AS records WHERE busy AND kind = ?1 AND NOT EXISTS (
    SELECT FROM @record_leases AS held WHERE held.record = records.seq AND lease_until > clock_timestamp()
)"""


class PostgresRecords(PostgresRemoval):
    """The writes of `Store` for records, except deletion; and what no node holds."""

    async def busy_records(self, kind: str) -> list[tuple[str, Record]]:
        return await self._ask(busy(kind, _BUSY))

    async def _write_records(self, owner: str, given: RecordWrite) -> WrittenRecords:
        written, gone, webhooks = given.written, given.gone, given.webhooks

        async def is_stored() -> bool:
            for each in written:
                found = await self.record(owner, *each.key)
                if found is None or (found.json, found.busy) != (each.json, each.busy):
                    return False
            return not any([await self.record(owner, *key) for key in gone])

        kinds, ids = [each.kind for each in written], [each.id for each in written]
        parents = [each.parent for each in written]
        kind, id = given.require or (None, None)
        hold = given.hold or (None, None)
        leases = self.leases.records
        named = {*ids, *parents, *(each for _, each in gone), id} - {"", None}
        values = [
            owner, self._now(), kinds, ids, parents, [each.created for each in written],
            [each.busy for each in written], [checksum(each.json) for each in written],
            [each.json for each in written], [kind for kind, _ in gone], [id for _, id in gone], kind, id,
            list(named), [each.event_id for each in webhooks], [each.url for each in webhooks],
            [each.body for each in webhooks], [each.tries for each in webhooks],
            leases.node, given.epoch, given.tell, *hold,
        ]  # fmt: skip
        while (row := await self._write_row(_WRITE, values, {}, is_stored)) is not None:
            if not row["has_required"]:
                raise NotStored("record", id or "")
            if row["missing"] is not None:
                raise NotStored("record", row["missing"])
            if not row["has_lease"]:
                raise record_lost(id or "")
            if not row["has_dead"]:
                break
            await self._database.write(_FREE, owner, kinds, ids)
        if gone:
            self._sweep_later()
        followers = [] if row is None else row["followers"]
        for node in followers:
            self.leases.report_change(node)
        if given.hold is None:
            return WrittenRecords(None, row is None or bool(followers))
        if row is None:  # whether it was written was looked up
            lease = await leases.take(owner, *given.hold)
            return WrittenRecords(lease if isinstance(lease, RecordLease) else None, followed=True)
        return WrittenRecords(leases.hold(row["record"], given.hold[1], row["epoch"]), bool(followers))
