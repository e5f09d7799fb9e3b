"""Sends and receives notices of changed objects by NOTIFY and LISTEN. A notice only saves time: each server also
asks once a second. A notice has its own transaction, because NOTIFY makes the commits of all servers wait for each
other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Final

import asyncpg
import structlog

from codex_proxy.parts.machines.postgresql.database import CONNECT_SECONDS, Database
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
