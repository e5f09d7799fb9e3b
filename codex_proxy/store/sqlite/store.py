"""The SQLite store: each method runs a job of the package in the writing thread or a reading one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar, Unpack

from codex_proxy.store.leases import Key, ReservedWebhooks, SingleNodeLeases
from codex_proxy.store.queries import Query
from codex_proxy.store.record_leases import WrittenRecords
from codex_proxy.store.retention import Removed
from codex_proxy.store.rows import CopiedTable, Row
from codex_proxy.store.sqlite import conversations, records, removal, responses, statements
from codex_proxy.store.sqlite.connections import Readers, Writer
from codex_proxy.store.sqlite.opening import (
    Connect,
    connect,
    names_same_file,
    open_in_memory,
    open_reader,
    open_writer,
)
from codex_proxy.store.sqlite.statements import DIALECT, ask
from codex_proxy.store.store import Store, StoreOptions
from codex_proxy.store.usage import UsageEntry
from codex_proxy.store.values import (
    UNFINISHED,
    Frame,
    NewItem,
    PendingWebhook,
    RecordWrite,
    ResponseUpdate,
    StoredConversation,
    StoredItem,
    StoredResponse,
)

P = ParamSpec("P")
T = TypeVar("T")

LOCK_WAIT: Final = 5.0
"""Seconds to wait for another process's lock. A copy of the file takes longer than writes here."""
CHECK_BYTES: Final = 16 << 10
"""The bytes written to check the disk: several pages, as a small turn needs."""
PAGES_AT_ONCE: Final = 1000
"""The pages that one step gives back to the file system: 4 MiB."""


class SqliteStore(Store):
    """A store in a file (`open`) or in RAM (`in_memory`)."""

    _dialect = DIALECT
    leases: SingleNodeLeases

    def __init__(
        self, writer: Writer, readers: Readers | None, location: str, **options: Unpack[StoreOptions]
    ) -> None:
        """`readers` is None in RAM, where the writer's connection also reads. `location` is for messages."""
        super().__init__(**options)
        self._writer = writer
        self._readers = readers
        self._location = location
        self.leases = SingleNodeLeases(self._unfinished, self._clock)
        self.team = None
        self._reserved = ReservedWebhooks(self._clock)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        lock_wait: float = LOCK_WAIT,
        opener: Connect = connect,
        **options: Unpack[StoreOptions],
    ) -> SqliteStore:
        """Opens a store in a file. `lock_wait`: seconds to wait for another process; `opener`: for tests. Raises
        `StoreRefused` or `StoreUnavailable`, saying what to do.
        """
        connection = await asyncio.to_thread(open_writer, path, lock_wait, opener)
        location = str(path)
        has_file = names_same_file(path)
        readers = Readers(partial(open_reader, path, lock_wait, opener), location, has_file=has_file)
        return cls(Writer(connection, location, has_file=has_file), readers, location, **options)

    @classmethod
    def in_memory(cls, *, opener: Connect = connect, **options: Unpack[StoreOptions]) -> SqliteStore:
        """Opens a store in RAM. `opener`: for tests."""
        location = "in memory"
        return cls(Writer(open_in_memory(opener), location), None, location, **options)

    async def _write(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        return await self._writer.run(lambda connection: job(connection, *args, **named))

    async def _write_and_trim(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a write that may add a chain, and removes chains above `max_conversations` with it."""
        most = self._retention.max_conversations
        if most is None:
            return await self._write(job, *args, **named)
        in_use = self._chains_in_use()

        def both(connection: sqlite3.Connection) -> T:
            done = job(connection, *args, **named)
            removal.trim(connection, most, in_use)
            return done

        return await self._writer.run(both)

    async def _read(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        run = self._writer.run if self._readers is None else self._readers.run
        return await run(lambda connection: job(connection, *args, **named))

    async def _ask(self, query: Query[T]) -> T:
        return await self._read(ask, query)

    async def _ask_both(self, one: Query[T], other: Query[T]) -> tuple[T, T]:
        return await self._read(lambda connection: (ask(connection, one), ask(connection, other)))

    async def _sizes(self) -> tuple[str, int, int, int]:
        return self._location, *await self._read(removal.sizes)

    async def _delete(self, mark: removal.Mark, *key: str) -> bool:
        found, more = await self._write(removal.delete, mark, *key)
        if more:  # a task removes them, so that each write stays short
            self._sweep_later()
        return found

    # --- step memory ----------------------------------------------------------------------------

    async def _save_steps(self, owner: str, entries: Mapping[bytes, bytes]) -> None:
        await self._write(statements.remember, owner, entries, self._now())

    # --- responses ------------------------------------------------------------------------------

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
        if response.previous_id is not None:
            self._continued.pop((response.owner, response.previous_id), None)
        # Only a response in the background has a lease.
        held = (
            response.background and response.is_running and self.leases.hold_new(response.owner, response.id)
        )
        try:
            await self._write_and_trim(responses.add, response, input, output, append, self._now(), frames)
        except BaseException:
            if held:
                self.leases.end(response.owner, response.id)
            raise

    async def _update_response(self, owner: str, id: str, update: ResponseUpdate) -> bool:
        self.leases.check(owner, id, update.epoch, ended=True)
        done = await self._write_and_trim(responses.update, owner, id, update, self._now())
        if update.status not in UNFINISHED:
            self.leases.end(owner, id)
        return done

    async def delete_response(self, owner: str, id: str) -> bool:
        found = await self._delete(responses.mark_deleted, owner, id)
        self.leases.end(owner, id)
        return found

    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        self._note_in_use(owner, response_id)
        await self._read(responses.scan, owner, response_id, self._limits, visit)

    async def _unfinished(self) -> list[Key]:
        return await self._read(responses.unfinished_keys)

    async def append_frames(
        self, owner: str, response_id: str, frames: Sequence[Frame], *, epoch: int | None = None
    ) -> None:
        self.leases.check(owner, response_id, epoch)
        await self._write(responses.append_frames, owner, response_id, frames)

    # --- conversations --------------------------------------------------------------------------

    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        return await self._write(conversations.add, conversation, items, self._limits, self._now())

    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        return await self._write(conversations.update, owner, id, changes, self._now())

    async def delete_conversation(self, owner: str, id: str) -> bool:
        return await self._delete(conversations.mark_deleted, owner, id)

    async def append_items(
        self,
        owner: str,
        conversation_id: str,
        items: Sequence[NewItem],
        *,
        limited: bool = True,
        turn_epoch: int | None = None,
    ) -> tuple[StoredItem, ...]:
        limits = self._limits if limited else None
        return await self._write(conversations.append, owner, conversation_id, items, limits, self._now())

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        return await self._write(conversations.delete_item, owner, conversation_id, item_id, self._now())

    # --- records --------------------------------------------------------------------------------

    async def _write_records(self, owner: str, given: RecordWrite) -> WrittenRecords:
        await self._write(records.write, owner, given, self._now())
        if given.gone:
            self._sweep_later()
        if given.hold is None:
            return WrittenRecords()
        return WrittenRecords(self.leases.records.hold())

    async def delete_record(self, owner: str, kind: str, id: str) -> bool:
        return await self._delete(records.mark_deleted, owner, kind, id)

    # --- usage ----------------------------------------------------------------------------------

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        await self._write(statements.add_usage, entries)

    # --- webhooks -------------------------------------------------------------------------------

    async def claim_webhooks(self, limit: int) -> list[PendingWebhook]:
        return self._reserved.first(
            await self._read(statements.oldest_webhooks, limit + len(self._reserved)), limit
        )

    async def retry_webhook(self, pending: PendingWebhook, delay: float) -> None:
        await self._write(statements.count_webhook_try, pending)
        self._reserved.reserve(pending, delay)

    async def drop_webhook(self, event_id: str, url: str) -> None:
        await self._write(statements.drop_webhook, event_id, url)

    # --- maintenance ----------------------------------------------------------------------------

    async def check_writable(self) -> None:
        await self._write(statements.write_and_remove, CHECK_BYTES)

    async def _remove_oldest(self, what: Removed, before: float, most: int) -> int:
        return await self._write(removal.remove, what, before, most)

    async def _sweep_once(self) -> bool:
        return await self._write(removal.piece)

    async def vacuum(self) -> int:
        freed = 0
        while step := await self._write(_give_back):
            freed += step
        return freed

    # --- copying --------------------------------------------------------------------------------

    async def add_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        await self._write(_add_rows, table, rows)

    async def close(self) -> None:
        """Waits for operations that have begun. Raises `StoreUnavailable` after `CLOSE_WAIT` seconds."""
        await self._end_sweeping()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._readers is not None:
            self._readers.close()
        self._writer.close()  # last: the last connection of all empties the write-ahead log into the file


def _add_rows(connection: sqlite3.Connection, table: CopiedTable, rows: Sequence[Row]) -> None:
    columns, values = ", ".join(table.columns), ", ".join("?" for _ in table.columns)
    connection.executemany(f"INSERT INTO {table.name} ({columns}) VALUES ({values})", rows)
    if table.name == "responses":
        parent = table.columns.index("parent")
        connection.executemany(
            "UPDATE responses SET children = children + 1 WHERE seq = ?",
            ((row[parent],) for row in rows if row[parent] is not None),
        )


def _give_back(connection: sqlite3.Connection) -> int:
    before = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
    after, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int((before - after) * size)
