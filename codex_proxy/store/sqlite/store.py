"""The SQLite store: each method runs a job of the package in the writing thread or a reading one."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.step_memory import StepMemorySettings
from codex_proxy.store import copying
from codex_proxy.store.base import StoreBase
from codex_proxy.store.checksums import ROWS_AT_ONCE, CheckedTable, Part, check_tables
from codex_proxy.store.copying import CopiedTable, Row
from codex_proxy.store.interface import (
    UNFINISHED,
    Append,
    ChainTurn,
    Checked,
    ContextLimits,
    ConversationPage,
    Frame,
    NewItem,
    Page,
    PageRequest,
    PendingWebhook,
    Pruned,
    ResponsePage,
    Retention,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoreStats,
    StoreUnavailable,
    TreeNode,
)
from codex_proxy.store.leases import Key
from codex_proxy.store.retention import Rule, prune
from codex_proxy.store.single_node import ReservedWebhooks, SingleNodeLeases
from codex_proxy.store.sqlite import (
    conversations,
    export,
    items,
    keyed_rows,
    listing,
    removal,
    responses,
    retention,
)
from codex_proxy.store.sqlite.connections import Readers, Writer
from codex_proxy.store.sqlite.opening import Connect, connect, open_in_memory, open_reader, open_writer
from codex_proxy.store.usage import UsageEntry, UsageQuery, UsageSum

P = ParamSpec("P")
T = TypeVar("T")

LOCK_WAIT: Final = 5.0
"""Seconds to wait for another process's lock. A copy of the file takes longer than writes here."""
CHECK_BYTES: Final = 16 << 10
"""Bytes written to check the disk: several pages, as a small turn needs."""
PAGES_AT_ONCE: Final = 1000
"""Pages that one step gives back to the file system: 4 MiB."""


class SqliteStore(StoreBase):
    """Implements `store.interface.Store` with a file (`open`) or in RAM (`in_memory`)."""

    def __init__(
        self,
        writer: Writer,
        readers: Readers | None,
        location: str,
        *,
        clock: Clock,
        retention: Retention | None,
        memory: StepMemorySettings | None,
        limits: ContextLimits | None,
    ) -> None:
        """`readers` is None in RAM, where the writer's connection also reads. `location` names the store in messages;
        `memory` are the settings of the step memory.
        """
        super().__init__(clock=clock, retention=retention, memory=memory, limits=limits)
        self._writer = writer
        self._readers = readers
        self._location = location
        self.leases = SingleNodeLeases(self._unfinished, clock)
        self.team = None
        self._reserved = ReservedWebhooks(clock)
        self._sweeping: asyncio.Task[None] | None = None
        """The task that removes the rest of a large deletion, if any."""
        self._one_sweep = asyncio.Lock()
        """One sweep at a time: the pieces of two would be combined into one long commit."""

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        retention: Retention | None = None,
        memory: StepMemorySettings | None = None,
        limits: ContextLimits | None = None,
        lock_wait: float = LOCK_WAIT,
        opener: Connect = connect,
    ) -> SqliteStore:
        """Opens or creates the file. `memory`: the settings of the step memory; `lock_wait`: seconds to wait for
        another process; `opener`: for tests. Raises `StoreRefused` or `StoreUnavailable`, saying what to do.
        """
        connection = await asyncio.to_thread(open_writer, path, lock_wait, opener)
        location = str(path)
        return cls(
            Writer(connection, location),
            Readers(partial(open_reader, path, lock_wait, opener), location),
            location,
            clock=clock,
            retention=retention,
            memory=memory,
            limits=limits,
        )

    @classmethod
    def in_memory(
        cls,
        *,
        clock: Clock,
        retention: Retention | None = None,
        memory: StepMemorySettings | None = None,
        limits: ContextLimits | None = None,
        opener: Connect = connect,
    ) -> SqliteStore:
        """Returns a new store in RAM, with the parameters of `open`."""
        location = "in memory"
        return cls(
            Writer(open_in_memory(opener), location),
            None,
            location,
            clock=clock,
            retention=retention,
            memory=memory,
            limits=limits,
        )

    async def _write(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        return await self._writer.run(lambda connection: job(connection, *args, **named))

    async def _write_and_trim(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a write that may add a chain of responses, and removes chains above `max_conversations` in the same
        write.
        """
        most = self._retention.max_conversations
        if most is None:
            return await self._write(job, *args, **named)
        in_use = self._in_use()

        def both(connection: sqlite3.Connection) -> T:
            done = job(connection, *args, **named)
            retention.trim(connection, most, in_use)
            return done

        return await self._writer.run(both)

    async def _read(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        run = self._writer.run if self._readers is None else self._readers.run
        return await run(lambda connection: job(connection, *args, **named))

    async def _delete(self, mark: removal.Mark, owner: str, id: str) -> bool:
        """Deletes an object, which `mark` marks as deleted; returns whether it existed. A background task removes the
        last rows of a large object, so that each write stays short.
        """
        found, more = await self._write(removal.delete, mark, owner, id)
        if more and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_quietly())
        return found

    async def _sweep_quietly(self) -> None:
        # Nobody waits for it: where it cannot go on, the next `prune` or `sweep` does, and tells its caller why.
        with contextlib.suppress(StoreUnavailable):
            await self.sweep()

    # --- step memory ----------------------------------------------------------------------------

    async def _save_steps(self, owner: str, entries: Mapping[bytes, bytes]) -> None:
        await self._write(keyed_rows.remember, owner, entries, self._now)

    async def _load_steps(self, owner: str, keys: Sequence[bytes], since: float) -> dict[bytes, bytes]:
        return await self._read(keyed_rows.recall, owner, keys, since)

    # --- responses ------------------------------------------------------------------------------

    async def add_response(
        self,
        response: StoredResponse,
        *,
        input: Sequence[StoredItem] = (),
        output: Sequence[StoredItem] = (),
        append: Append | None = None,
    ) -> None:
        if response.previous_id is not None:
            self._continued.pop((response.owner, response.previous_id), None)
        unfinished = response.background and response.status in UNFINISHED
        held = unfinished and self.leases.hold_new(response.owner, response.id)
        try:
            await self._write_and_trim(responses.add, response, input, output, append, self._now)
        except BaseException:
            if held:
                self.leases.end(response.owner, response.id)
            raise

    async def update_response(
        self,
        owner: str,
        id: str,
        *,
        status: str,
        json: bytes,
        output: Sequence[StoredItem] | None = None,
        append: Append | None = None,
        only_from: Collection[str] | None = None,
        webhooks: Sequence[PendingWebhook] = (),
        frames: Sequence[Frame] = (),
        epoch: int | None = None,
    ) -> bool:
        self.leases.check(owner, id, epoch, ended=True)
        change = responses.ResponseUpdate(status, json, webhooks, frames)
        self._note_in_use(owner, id)  # it was made when it began, and somebody waits for its end
        done = await self._write_and_trim(
            responses.update, owner, id, change, output, append, only_from, self._now
        )
        if status not in UNFINISHED:
            self.leases.end(owner, id)
        return done

    async def response(self, owner: str, id: str) -> StoredResponse | None:
        return await self._read(responses.get, owner, id)

    async def newest_responses(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ResponsePage:
        return await self._read(listing.newest, owner, search, after, limit)

    async def newest_conversations(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ConversationPage:
        return await self._read(listing.newest_conversations, owner, search, after, limit)

    async def response_tree(self, owner: str, id: str) -> list[TreeNode]:
        return await self._read(listing.tree, owner, id)

    async def delete_response(self, owner: str, id: str) -> bool:
        found = await self._delete(responses.mark_deleted, owner, id)
        self.leases.end(owner, id)
        return found

    async def input_items(self, owner: str, response_id: str, page: PageRequest) -> Page:
        return await self._read(responses.input_items, owner, response_id, page)

    async def context(self, owner: str, response_id: str) -> list[ChainTurn]:
        self._note_in_use(owner, response_id)
        return await self._read(responses.context, owner, response_id)

    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        self._note_in_use(owner, response_id)
        await self._read(responses.scan, owner, response_id, self._limits, visit)

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
        return await self._read(items.found_among, owner, ids)

    async def _unfinished(self) -> list[Key]:
        return await self._read(responses.unfinished)

    async def append_frames(
        self, owner: str, response_id: str, frames: Sequence[Frame], *, epoch: int | None = None
    ) -> None:
        self.leases.check(owner, response_id, epoch)
        await self._write(responses.append_frames, owner, response_id, frames)

    async def frames(
        self,
        owner: str,
        response_id: str,
        *,
        after: int = -1,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[Frame]:
        return await self._read(responses.frames, owner, response_id, after, limit, max_bytes)

    # --- conversations --------------------------------------------------------------------------

    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        return await self._write(conversations.add, conversation, items, self._limits, self._now)

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        return await self._read(conversations.get, owner, id)

    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        return await self._write(conversations.update, owner, id, changes, self._now)

    async def delete_conversation(self, owner: str, id: str) -> bool:
        return await self._delete(conversations.mark_deleted, owner, id)

    async def append_items(
        self,
        owner: str,
        conversation_id: str,
        items: Sequence[NewItem],
        *,
        version: int | None = None,
        limited: bool = True,
    ) -> tuple[StoredItem, ...]:
        limits = self._limits if limited else None
        return await self._write(
            conversations.append, owner, conversation_id, items, version, limits, self._now
        )

    async def items(self, owner: str, conversation_id: str, page: PageRequest) -> Page:
        return await self._read(conversations.items, owner, conversation_id, page)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> StoredItem | None:
        return await self._read(conversations.item, owner, conversation_id, item_id)

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        return await self._write(conversations.delete_item, owner, conversation_id, item_id, self._now)

    async def scan_conversation(self, owner: str, id: str, visit: Callable[[StoredItem], object]) -> None:
        await self._read(conversations.scan, owner, id, self._limits, visit)

    # --- usage ----------------------------------------------------------------------------------

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        await self._write(keyed_rows.add_usage, entries)

    async def usage(self, query: UsageQuery) -> list[UsageSum]:
        return await self._read(keyed_rows.usage_sums, query)

    # --- webhooks -------------------------------------------------------------------------------

    async def claim_webhooks(self, limit: int) -> list[PendingWebhook]:
        return self._reserved.first(
            await self._read(keyed_rows.oldest_webhooks, limit + len(self._reserved)), limit
        )

    async def retry_webhook(self, pending: PendingWebhook, delay: float) -> None:
        await self._write(keyed_rows.count_webhook_try, pending)
        self._reserved.reserve(pending, delay)

    async def drop_webhook(self, event_id: str, url: str) -> None:
        await self._write(keyed_rows.drop_webhook, event_id, url)

    # --- maintenance ----------------------------------------------------------------------------

    async def stats(self) -> StoreStats:
        return await self._read(export.stats, self._location, len(self._ram))

    async def check_writable(self) -> None:
        await self._write(keyed_rows.write_and_remove, CHECK_BYTES)

    async def prune(self, now: float | None = None) -> Pruned:
        now = self._now if now is None else now
        self._ram.expire(now)

        async def apply(rule: Rule) -> Pruned:
            return await self._write(retention.apply, rule)

        return await prune(apply, self.sweep, self._retention, self._memory.age, now)

    async def sweep(self) -> None:
        async with self._one_sweep:
            while await self._write(removal.piece):
                pass  # other writes come in between

    async def export(self, write: Callable[[bytes], object]) -> int:
        total = 0
        for part in (export.responses_after, export.conversations_after):
            row = 0
            while True:
                lines, row = await self._read(part, row)
                if not lines:
                    break
                for line in lines:
                    write(line)
                total += len(lines)
        return total

    async def check(self) -> Checked:
        async def read(table: CheckedTable, key: tuple[int, ...]) -> Part:
            return await self._read(_check_after, table, key)

        return await check_tables(read)

    async def vacuum(self) -> int:
        freed = 0
        while step := await self._write(_give_back):
            freed += step
        return freed

    # --- copying --------------------------------------------------------------------------------

    async def rows_from(self, table: CopiedTable, key: Row | None, limit: int) -> Sequence[Row]:
        sql = copying.select(table, "", "?", first=key is None)
        return await self._read(_fetched, sql, (*(key or ()), limit))

    async def last_row(self, table: CopiedTable) -> Row | None:
        rows = await self._read(_fetched, copying.select_last(table, ""), ())
        return rows[0] if rows else None

    async def add_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        await self._write(_add_rows, table, rows)

    async def close(self) -> None:
        """Finishes the queued jobs and closes the file. Raises `StoreUnavailable` after `CLOSE_WAIT` seconds."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._readers is not None:
            self._readers.close()
        self._writer.close()  # last: the last connection of all empties the write-ahead log into the file


def _check_after(connection: sqlite3.Connection, table: CheckedTable, key: tuple[int, ...]) -> Part:
    return table.check(connection.execute(table.query("", "?"), (*key, ROWS_AT_ONCE)))


def _fetched(connection: sqlite3.Connection, sql: str, values: Row) -> list[Row]:
    return connection.execute(sql, values).fetchall()


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
