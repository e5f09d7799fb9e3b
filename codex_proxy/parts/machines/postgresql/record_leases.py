"""The leases of records, those who follow them, and the messages between nodes, in PostgreSQL. Leases are like those of
conversations (`leases.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.parts.machines.postgresql.database import Database
from codex_proxy.store.leases import LEASE_SECONDS
from codex_proxy.store.record_leases import NO_NODE, Following, NodeId, RecordLease
from codex_proxy.store.values import NotStored, StoreUnavailable

log = structlog.get_logger(__name__)

LEASED: Final = f"clock_timestamp() + interval '{LEASE_SECONDS:g} seconds'"
"""The SQL for the end of a lease that begins now."""
MESSAGES: Final = 200
"""Maximum messages that are read at once."""

_RECORD: Final = (
    "SELECT seq FROM codex_proxy.records WHERE owner = $1 AND kind = $2 AND id = $3 AND NOT deleted"
)
_TAKE: Final = f"""
WITH found AS ({_RECORD}), taken AS (
    INSERT INTO codex_proxy.record_leases AS held (record, node, lease_until) SELECT seq, $4, {LEASED} FROM found
    ON CONFLICT (record) DO UPDATE
    SET node = excluded.node, epoch = excluded.epoch, lease_until = excluded.lease_until
    WHERE held.node = excluded.node OR held.lease_until < clock_timestamp()
    RETURNING epoch
)
SELECT seq, (SELECT epoch FROM taken) AS epoch,
    (SELECT node FROM codex_proxy.record_leases WHERE record = seq) AS holder
FROM found"""
_LEAVE: Final = """
DELETE FROM codex_proxy.record_leases WHERE record = $1 AND node = $2 AND epoch = $3"""
_FOLLOW: Final = f"""
INSERT INTO codex_proxy.record_followers (record, node, lease_until) SELECT seq, $4, {LEASED} FROM ({_RECORD}) AS found
ON CONFLICT (record, node) DO UPDATE SET lease_until = excluded.lease_until RETURNING record"""
_HOLDER: Final = """
SELECT node FROM codex_proxy.record_leases WHERE record = $1 AND lease_until > clock_timestamp()"""
_UNFOLLOW: Final = "DELETE FROM codex_proxy.record_followers WHERE record = $1 AND node = $2"

# What another node has left that was killed goes; one that was only stopped learns it from what is missing.
_RENEW: Final = f"""
WITH renewed AS (
    UPDATE codex_proxy.record_leases SET lease_until = {LEASED}
    FROM unnest($2::bigint[], $3::bigint[]) AS given (record, epoch)
    WHERE record_leases.record = given.record AND record_leases.epoch = given.epoch AND node = $1
    RETURNING record_leases.epoch
), following AS (
    UPDATE codex_proxy.record_followers SET lease_until = {LEASED}
    WHERE node = $1 AND record = ANY ($4::bigint[]) RETURNING record
), lapsed AS (
    DELETE FROM codex_proxy.record_followers WHERE node <> $1 AND lease_until < clock_timestamp()
), unread AS (
    DELETE FROM codex_proxy.mail WHERE node <> $1 AND sent < clock_timestamp() - interval '10 minutes'
), left_over AS (
    DELETE FROM codex_proxy.record_leases WHERE node <> $1 AND lease_until < clock_timestamp() - interval '1 day'
)
SELECT ARRAY(SELECT epoch FROM renewed) AS epochs, ARRAY(SELECT record FROM following) AS records"""
_RELEASE: Final = """
WITH leases AS (
    DELETE FROM codex_proxy.record_leases WHERE node = $1
), followers AS (
    DELETE FROM codex_proxy.record_followers WHERE node = $1
)
DELETE FROM codex_proxy.mail WHERE node = $1"""

_POST: Final = "INSERT INTO codex_proxy.mail (node, data) VALUES ($1, $2)"
# By their numbers, and not all up to one: a smaller number may be committed later.
_RECEIVE: Final = f"""
WITH read AS (
    DELETE FROM codex_proxy.mail WHERE node = $1 AND seq = ANY ($2::bigint[])
)
SELECT seq, data FROM codex_proxy.mail WHERE node = $1 AND seq <> ALL ($2) ORDER BY seq LIMIT {MESSAGES}"""


class PostgresRecordLeases:
    """The leases of this node (`node`). `report_change` tells all nodes that something has changed, by its id."""

    def __init__(self, database: Database, node: NodeId, report_change: Callable[[str], None]) -> None:
        self.node = node
        self._database = database
        self._report_change = report_change
        self._held: dict[RecordLease, tuple[int, str]] = {}
        """The row and the id of the record of each lease."""
        self._following: dict[Following, int] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._read: list[int] = []
        """The numbers of the messages that were received."""
        self._receiving = asyncio.Lock()

    async def take(self, owner: str, kind: str, id: str) -> RecordLease | NodeId:
        while True:
            rows = await self._database.read(_TAKE, owner, kind, id, self.node)
            if not rows:
                raise NotStored("record", id)
            row = rows[0]
            if row["epoch"] is not None:
                return self.hold(row["seq"], id, row["epoch"])
            if row["holder"] is not None:  # else another one has taken it at this moment
                return str(row["holder"])

    def hold(self, row: int, id: str, epoch: int) -> RecordLease:
        """Returns the lease of a record that this node holds."""
        lease = RecordLease(self._leave, epoch)
        self._held[lease] = row, id
        return lease

    def _leave(self, lease: RecordLease) -> None:
        row, id = self._held.pop(lease)
        self._spawn(self._give_up(_LEAVE, row, self.node, lease.epoch), id)

    async def follow(self, owner: str, kind: str, id: str) -> Following:
        rows = await self._database.read(_FOLLOW, owner, kind, id, self.node)
        if not rows:
            raise NotStored("record", id)
        row = rows[0]["record"]
        # By a second statement: who takes the record now sees this node, or is seen.
        held = await self._database.read(_HOLDER, row)
        found = Following(self._unfollow, held[0]["node"] if held else NO_NODE)
        self._following[found] = row
        return found

    def _unfollow(self, following: Following) -> None:
        row = self._following.pop(following)
        if row not in self._following.values():
            self._spawn(self._give_up(_UNFOLLOW, row, self.node))

    def _spawn(self, work: Coroutine[Any, Any, None], id: str = "") -> None:
        leaving = keep_until_done(self._leaving, asyncio.get_running_loop().create_task(work))
        if id:
            leaving.add_done_callback(lambda _: self._report_change(id))

    async def _give_up(self, sql: str, *values: object) -> None:
        try:
            await self._database.read(sql, *values)
        except StoreUnavailable as error:  # it runs out
            log.warning("record_not_released", reason=str(error))

    async def renew(self) -> None:
        """Renews all leases of this node, and calls `on_lost` of those that it has lost."""
        held, following = dict(self._held), dict(self._following)
        rows = [row for row, _ in held.values()], [lease.epoch for lease in held]
        (row,) = await self._database.read(_RENEW, self.node, *rows, [*following.values()])
        epochs, records = set(row["epochs"]), set(row["records"])
        for lease in held:
            if lease.epoch not in epochs and self._held.pop(lease, None) is not None:
                lease.lose()
        for each, record in following.items():
            if record not in records and self._following.pop(each, None) is not None:
                each.lose()

    async def release(self) -> None:
        """Gives up all that this node has."""
        await self._database.read(_RELEASE, self.node)

    async def post(self, node: NodeId, message: bytes) -> None:
        await self._database.write(_POST, node, message)
        self._report_change(node)

    async def receive(self) -> list[bytes]:
        async with self._receiving:
            rows = await self._database.read(_RECEIVE, self.node, self._read)
            self._read = [row["seq"] for row in rows]
            return [row["data"] for row in rows]

    async def close(self) -> None:
        """Waits until what was released is."""
        if self._leaving:
            await asyncio.wait(self._leaving)
