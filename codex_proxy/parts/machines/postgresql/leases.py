"""The leases of a server in PostgreSQL, by the database's clock, the list of nodes, and the notices of changed objects.

Leases are rows and no advisory locks, since a pooler may give one such lock to two servers. A notice (NOTIFY, LISTEN)
only saves time: each server also asks once a second. It has its own transaction, because NOTIFY makes the commits of
all servers wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection
from typing import Final
from weakref import WeakValueDictionary

import asyncpg
import msgspec
import structlog

from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.parts.machines.postgresql.database import CONNECT_SECONDS, Database
from codex_proxy.parts.machines.postgresql.record_leases import LEASED, PostgresRecordLeases
from codex_proxy.store.leases import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    ChangeSignal,
    ConversationLease,
    ConversationLocks,
    Key,
    Node,
    ResponseLease,
    Watch,
)
from codex_proxy.store.record_leases import ONLY_EPOCH
from codex_proxy.store.values import StoreUnavailable

log = structlog.get_logger(__name__)

CHANNEL: Final = "codex_proxy"
INTERVAL_SECONDS: Final = 0.05
"""Seconds between two notices of one server."""
LISTEN_AGAIN_SECONDS: Final = 1.0
MAX_PAYLOAD: Final = 7900
"""Maximum bytes of a notice; PostgreSQL refuses 8000."""
MAX_ID: Final = 200

_NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', payload) FROM unnest($1::text[]) AS payload"


class Notices:
    """Sends the notices of one server (`node`), and receives those of the others."""

    def __init__(self, database: Database, node: str, on_notice: Callable[[str], None]) -> None:
        """`on_notice` is called with each id that another server has changed."""
        self._database = database
        self._node = node
        self._on_notice = on_notice
        self._changed: set[str] = set()
        """The ids that were not sent yet."""
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Starts to listen, unless behind a pooler, where no notice arrives."""
        url = self._database.direct_url
        if self._listening is None and url is not None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(url))

    def send(self, id: str) -> None:
        """Tells the other servers soon that an object has changed."""
        if id.isascii() and len(id) <= MAX_ID:
            self._changed.add(id)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._changed:
            await self._send_once()
            await asyncio.sleep(INTERVAL_SECONDS)
        self._sending = None

    async def _send_once(self) -> None:
        ids, self._changed = self._changed, set()
        with contextlib.suppress(StoreUnavailable):  # they ask anyway
            await self._database.read(_NOTIFY, payloads(self._node, ids))

    async def _listen(self, url: str) -> None:
        while True:
            try:
                await self._listen_once(url)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                log.debug("notices_not_received", reason=type(error).__name__)
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    async def _listen_once(self, url: str) -> None:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
        try:
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(CHANNEL, self._on_notification)
            await ended.wait()
        finally:
            connection.terminate()

    def _on_notification(self, connection: object, process: int, channel: str, payload: object) -> None:
        node, *ids = str(payload).split(" ")
        if node != self._node:
            for id in ids:
                self._on_notice(id)

    async def close(self) -> None:
        tasks = [task for task in (self._sending, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._changed:
            await self._send_once()


def payloads(node: str, ids: Collection[str]) -> list[str]:
    """Returns the texts of notices: the node and ids, with spaces between."""
    found = [node]
    for id in ids:
        if len(found[-1]) + len(id) >= MAX_PAYLOAD:
            found.append(node)
        found[-1] += f" {id}"
    return found


_SEEN: Final = f"seen > clock_timestamp() - interval '{LEASE_SECONDS:g} seconds'"
EVERYBODY: Final = "*"
"""The text of the notice that a node has come or gone."""
GONE_AFTER: Final = "1 day"
"""The time after which a node that was killed is forgotten."""

_CLAIM: Final = f"""
WITH free AS (
    SELECT seq FROM codex_proxy.responses WHERE unfinished AND lease_until < clock_timestamp()
    ORDER BY seq LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE codex_proxy.responses SET node = $1, epoch = epoch + 1, lease_until = {LEASED}
    FROM free WHERE responses.seq = free.seq RETURNING responses.seq, owner, id, epoch
)
SELECT owner, id, epoch FROM claimed ORDER BY seq"""
_RENEW: Final = f"""
WITH given AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::integer[]) AS given (owner, id, epoch)
), renewed AS (
    UPDATE codex_proxy.responses SET lease_until = {LEASED} FROM given
    WHERE (responses.owner, responses.id, responses.epoch) = (given.owner, given.id, given.epoch) AND unfinished
    RETURNING given.*
), turns AS (
    UPDATE codex_proxy.conversation_turns SET lease_until = {LEASED}
    WHERE node = $1 AND conversation = ANY ($5::bigint[])
), alive AS (
    INSERT INTO codex_proxy.nodes (id, name, url, version, started, seen)
    SELECT $1, $6::text, $7::text, $8::text, $9::float8, clock_timestamp() WHERE $6::text IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET seen = excluded.seen
), others AS (
    SELECT EXISTS (SELECT FROM codex_proxy.nodes WHERE id <> $1 AND {_SEEN}) AS others
)
SELECT others, owner, id, epoch FROM others LEFT JOIN renewed ON true"""
_RELEASE: Final = """
WITH given_up AS (
    UPDATE codex_proxy.responses SET lease_until = '-infinity' WHERE unfinished AND node = $1
), turns AS (
    DELETE FROM codex_proxy.conversation_turns WHERE node = $1
)
DELETE FROM codex_proxy.nodes WHERE id = $1"""

_ENTER: Final = f"""
WITH found AS (
    SELECT seq FROM codex_proxy.conversations WHERE owner = $1 AND id = $2 AND NOT deleted
), entered AS (
    INSERT INTO codex_proxy.conversation_turns AS held (conversation, node, lease_until)
    SELECT seq, $3, {LEASED} FROM found
    ON CONFLICT (conversation) DO UPDATE
    SET node = excluded.node, epoch = excluded.epoch, lease_until = excluded.lease_until
    WHERE held.node = excluded.node OR held.lease_until < clock_timestamp()
    RETURNING epoch
)
SELECT seq, (SELECT epoch FROM entered) AS epoch FROM found"""
_LEAVE: Final = """
DELETE FROM codex_proxy.conversation_turns WHERE node = $1 AND conversation IN (
    SELECT $2::bigint UNION ALL SELECT seq FROM codex_proxy.conversations WHERE owner = $3 AND id = $4
)"""

_FORGET: Final = f"DELETE FROM codex_proxy.nodes WHERE seen < clock_timestamp() - interval '{GONE_AFTER}'"
_NODES: Final = f"""
SELECT id, name, url, version, started, extract(epoch FROM seen)::float8 AS seen, (
    SELECT count(*) FROM codex_proxy.responses WHERE unfinished AND node = nodes.id
) AS responses
FROM codex_proxy.nodes WHERE {_SEEN} ORDER BY started, id"""


class PostgresLeases:
    """The leases of this node, in PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self.id = uuid.uuid4().hex
        self._node: Node | None = None
        self._database = database
        self.records = PostgresRecordLeases(database, self.id, self.report_change)
        self._notices = Notices(database, self.id, self._on_notice)
        self._others = True
        """Whether there may be other nodes, which want notices."""
        self._held: set[str] = set()
        """The responses that this node believes it holds."""
        self._renewal = asyncio.Event()
        """Set if another node has changed one of the held responses, has come or gone."""
        self._turns: dict[Key, int] = {}
        """The numbers of the rows of the conversations that this node holds, or tries to hold."""
        self._locks = ConversationLocks()
        self._leaving: set[asyncio.Task[None]] = set()
        self._changes: WeakValueDictionary[str, ChangeSignal] = WeakValueDictionary()

    async def claim_responses(self, limit: int) -> list[ResponseLease]:
        rows = await self._database.write(_CLAIM, self.id, limit)
        return [ResponseLease(*row) for row in rows]

    async def renew(self, held: Collection[ResponseLease]) -> list[ResponseLease]:
        self._held = {each.id for each in held}
        await self.records.renew()
        return await self._renew(held)

    async def _renew(self, held: Collection[ResponseLease]) -> list[ResponseLease]:
        columns = [[each[n] for each in held] for n in range(3)]
        node = (None, None, None, None) if self._node is None else msgspec.structs.astuple(self._node)[1:5]
        rows = await self._database.read(_RENEW, self.id, *columns, list(self._turns.values()), *node)
        self._others = rows[0]["others"]
        renewed = {ResponseLease(*row[1:]) for row in (tuple(row.values()) for row in rows)}
        return [each for each in held if each not in renewed]

    async def until_renewal(self) -> None:
        self._notices.listen()  # here, because only servers renew leases
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RENEW_SECONDS):
                await self._renewal.wait()
        self._renewal.clear()

    async def release(self) -> None:
        await self.records.release()
        await self._database.read(_RELEASE, self.id)
        self._notices.send(EVERYBODY)

    async def announce(self, node: Node) -> None:
        self._node = node
        await self._database.read(_FORGET)
        await self._renew(())
        self._notices.send(EVERYBODY)  # from now on the others send notices

    async def nodes(self) -> list[Node]:
        return [Node(**dict(row.items())) for row in await self._database.read(_NODES)]

    # --- conversations --------------------------------------------------------------------------

    async def enter_conversation(self, owner: str, id: str) -> ConversationLease:
        key = owner, id
        await self._locks.acquire(key)
        try:
            watch = self.watch(id)
            while (epoch := await self._enter(key)) is None:
                await watch.wait()
        except BaseException:
            self.leave(key)  # it may be entered all the same
            raise
        return ConversationLease(self.leave, key, epoch)

    async def _enter(self, key: Key) -> int | None:
        """Returns the epoch of the lease; None while another node has it."""
        rows = await self._database.read(_ENTER, *key, self.id)
        if not rows:
            return ONLY_EPOCH
        self._turns[key] = rows[0]["seq"]
        epoch: int | None = rows[0]["epoch"]
        return epoch

    def leave(self, key: Key) -> None:
        """Gives up a conversation; the next turn may begin when that is stored."""
        leaving = self._leave(key, self._turns.pop(key, None))
        keep_until_done(self._leaving, asyncio.get_running_loop().create_task(leaving))

    async def _leave(self, key: Key, row: int | None) -> None:
        try:
            await self._database.read(_LEAVE, self.id, row, *key)
        except StoreUnavailable as error:  # the lease runs out
            log.warning("conversation_not_released", reason=str(error))
        finally:
            self._locks.release(key)
        self.report_change(key[1])

    # --- changes --------------------------------------------------------------------------------

    def watch(self, id: str) -> Watch:
        changes = self._changes.get(id)
        if changes is None:
            changes = self._changes[id] = ChangeSignal()
        return Watch(changes)

    def hold(self, id: str) -> None:
        """Notes a response that this node has added."""
        self._held.add(id)

    def report_change(self, id: str) -> None:
        """Informs this node's watchers and the other nodes that a response or a conversation has changed."""
        self._report(id)
        if self._others:
            self._notices.send(id)

    def _on_notice(self, id: str) -> None:
        self._others = True
        self._report(id)
        if id == EVERYBODY or id in self._held:
            self._renewal.set()

    def _report(self, id: str) -> None:
        changes = self._changes.get(id)
        if changes is not None:
            changes.report()

    async def close(self) -> None:
        """Waits until the conversations are left, and sends the last notices."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self.records.close()
        await self._notices.close()
