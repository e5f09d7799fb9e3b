"""The store: what both engines have in common, and what each of them does in its own way."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, Required, TypedDict, TypeVar, Unpack

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.keys import Key
from codex_proxy.core.step_memory import RamStepMemory, StepMemorySettings
from codex_proxy.core.tokens import UsageSum
from codex_proxy.store import queries, records
from codex_proxy.store.leases import Leases
from codex_proxy.store.queries import ABOVE_ALL, Query, SqlDialect
from codex_proxy.store.record_leases import WrittenRecords
from codex_proxy.store.records import MoreFields, to_write
from codex_proxy.store.retention import NOTHING_REMOVED, Removed, Rule, rules
from codex_proxy.store.rows import (
    KINDS,
    OBJECTS_AT_ONCE,
    CopiedTable,
    Kind,
    Row,
    conversation_of,
    export_line,
    item_of,
    response_of,
)
from codex_proxy.store.team import Team
from codex_proxy.store.usage import UsageEntry, UsageQuery
from codex_proxy.store.values import (
    ChainTurn,
    ContextLimits,
    Frame,
    NewItem,
    NotStored,
    Page,
    PageRequest,
    PendingWebhook,
    PruneResult,
    Record,
    RecordKey,
    RecordWrite,
    ResponseUpdate,
    Retention,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoreStats,
    StoreUnavailable,
    TextSearch,
    TreeNode,
)

T = TypeVar("T")


class SharedStore(Protocol):
    """The class of a store that several servers may use, at a URL. Raises `StoreRefused` or `StoreUnavailable`."""

    async def open(self, url: str, **options: Unpack[StoreOptions]) -> Store: ...

    async def read_keys(self, url: str) -> tuple[Key, ...]:
        """Returns the API keys in the store, and changes nothing. Raises what `open` would raise."""


class StoreOptions(TypedDict, total=False):
    """What every engine is opened with. `memory` is for the step memory."""

    clock: Required[Clock]
    retention: Retention | None
    memory: StepMemorySettings | None
    limits: ContextLimits | None


class Store(ABC):
    """Responses, conversations, records of parts, sums of usage, pending webhooks, and the step memory (`StepMemory`).

    - A write that has returned is on disk, and later reads see it. One whose caller was cancelled, or that raised
      `StoreUnavailable`, is stored completely or not at all.
    - An object exists only for its owner (the name of a client's key): for others reads return None or an empty result,
      or raise `NotStored`, as writes do.
    - Lists are in the order of writing. Times and ids come from the caller or the injected clock.

    Any method may raise `StoreUnavailable`, reads also `StoreDamaged`; methods name other errors themselves; opening
    raises `StoreRefused`.
    """

    _dialect: SqlDialect
    leases: Leases
    team: Team | None
    """The keys and requests of all nodes; None if there is only one."""

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        self._clock = options["clock"]
        self._now = self._clock.epoch
        self._retention = options.get("retention") or Retention()
        self._memory = options.get("memory") or StepMemorySettings()
        self._limits = options.get("limits") or ContextLimits()
        self._ram = RamStepMemory(self._memory, self._clock.epoch)
        self._continued: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Responses whose chains must stay, and since when: a turn that is not stored yet has read their context, or
        they have just ended.
        """
        self._sweeping: asyncio.Task[None] | None = None
        """The task that removes the rest of a large deletion."""
        self._one_sweep = asyncio.Lock()

    @abstractmethod
    async def _ask(self, query: Query[T]) -> T:
        """Runs a statement. Raises `StoreUnavailable`, and what its `convert` raises."""

    @abstractmethod
    async def _ask_both(self, one: Query[T], other: Query[T]) -> tuple[T, T]:
        """Runs two statements, at the same moment if the engine can."""

    # --- responses ------------------------------------------------------------------------------

    @abstractmethod
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
        """Saves a response with its items and the first rows of its stream's log, and appends new items to the
        conversation `append`. This node then holds a background response that has not ended.

        Raises `NotStored` without the previous response or the conversation, `StoreConflict` if an id is taken, or
        unless this node holds the conversation with `turn_epoch` (None: any node may write).
        """

    async def update_response(
        self,
        owner: str,
        id: str,
        *,
        status: str,
        json: bytes,
        output: Sequence[StoredItem] | None = None,
        append: str | None = None,
        only_from: Collection[str] | None = None,
        webhooks: Sequence[PendingWebhook] = (),
        frames: Sequence[Frame] = (),
        epoch: int | None = None,
        turn_epoch: int | None = None,
    ) -> bool:
        """Replaces status and object, and the output unless None; appends items as `add_response` does; adds `webhooks`
        to the outbox and `frames` to the stream: all together. If the response has ended, its `recovery` data are
        removed.

        Returns False, and changes nothing, if it was deleted or its status is not in `only_from` (None: any). Raises as
        `add_response` does, and `StoreConflict` if it is held with another epoch (None: any).
        """
        self._note_in_use(owner, id)  # it was made when it began, and somebody waits for its end
        update = ResponseUpdate(status, json, output, append, only_from, webhooks, frames, epoch, turn_epoch)
        return await self._update_response(owner, id, update)

    @abstractmethod
    async def _update_response(self, owner: str, id: str, update: ResponseUpdate) -> bool: ...

    async def response(self, owner: str, id: str) -> StoredResponse | None:
        return await self._ask(queries.response(owner, id))

    async def newest_responses(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> Page[StoredResponse]:
        """Returns the owner's responses, newest first, behind the response `after`: those whose id or object contains
        the text `search` (in any case of ASCII letters), among `MAX_SEARCHED`. Raises `NotStored` without `after`.
        """
        before = await self._row_before("response", owner, after)
        query = queries.newest(self._dialect, "response", owner, search, before, limit, response_of)
        return await self._ask(query)

    async def response_tree(self, owner: str, id: str) -> list[TreeNode]:
        """Returns the responses with the same first response, parents first, at most `MAX_TREE`. Raises `NotStored`."""
        return await self._ask(queries.tree(self._dialect, owner, id))

    @abstractmethod
    async def delete_response(self, owner: str, id: str) -> bool:
        """Deletes a response; returns False without one. Its items stay in the context of responses that continue
        it.
        """

    async def input_items(self, owner: str, response_id: str, page: PageRequest) -> Page[StoredItem]:
        """Returns a page of the input that clients see. Raises `NotStored` without the response or the item `after`."""
        return await self._page_of("response", owner, response_id, page)

    async def context(self, owner: str, response_id: str) -> list[ChainTurn]:
        """Returns the chain that ends with this response, oldest first. Raises `NotStored`."""
        self._note_in_use(owner, response_id)
        return await self._ask(queries.context(self._dialect, owner, response_id))

    @abstractmethod
    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` in a worker thread with each item of the chain, oldest first. Raises `NotStored`,
        `NotFinished`, or `ContextTooLarge` before the first call.
        """

    async def find_items(
        self, owner: str, ids: Sequence[str], *, limited: bool = False
    ) -> dict[str, StoredItem]:
        """Returns the owner's items that clients see, by id: the newest of several. `limited`: raises `ContextTooLarge`
        if they are too large for a context that has each as often as `ids`.
        """
        return await self._ask(queries.find(owner, ids, self._limits if limited else None))

    @abstractmethod
    async def append_frames(
        self, owner: str, response_id: str, frames: Sequence[Frame], *, epoch: int | None = None
    ) -> None:
        """Adds the rows whose numbers the stream's log does not have. Raises `NotStored`, or `StoreConflict` if this
        node does not hold it with this epoch (None: any node may write).
        """

    async def frames(
        self,
        owner: str,
        response_id: str,
        *,
        after: int = -1,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[Frame]:
        """Returns at most `limit` rows above the number `after`, of at most `max_bytes`, but at least one. Raises
        `NotStored`.
        """
        return await self._ask(queries.frames(owner, response_id, after, limit, max_bytes))

    def _note_in_use(self, owner: str, response_id: str) -> None:
        if self._retention.max_conversations is not None:
            self._continued[owner, response_id] = self._now()
            self._continued.move_to_end((owner, response_id))

    def _chains_in_use(self) -> frozenset[tuple[str, str]]:
        """Returns owner and id of responses whose chains `max_conversations` does not remove."""
        since = self._now() - self._retention.spared
        while self._continued and next(iter(self._continued.values())) < since:
            self._continued.popitem(last=False)
        return frozenset(self._continued)

    # --- conversations --------------------------------------------------------------------------

    @abstractmethod
    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        """Adds a conversation; returns its items, with references resolved. Raises `StoreConflict` if an id is taken,
        `NotStored` for a missing reference, and `ContextTooLarge`.
        """

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        return await self._ask(queries.conversation(owner, id))

    async def newest_conversations(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> Page[StoredConversation]:
        """Returns the owner's conversations as `newest_responses` does; `search` looks at id and metadata."""
        before = await self._row_before("conversation", owner, after)
        query = queries.newest(self._dialect, "conversation", owner, search, before, limit, conversation_of)
        return await self._ask(query)

    @abstractmethod
    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        """Merges `changes` into the metadata; None deletes a key. Raises `NotStored`, and `StoreConflict` for more than
        `MAX_METADATA_KEYS` keys.
        """

    @abstractmethod
    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Deletes a conversation; returns False if there is none."""

    @abstractmethod
    async def append_items(
        self,
        owner: str,
        conversation_id: str,
        items: Sequence[NewItem],
        *,
        limited: bool = True,
        turn_epoch: int | None = None,
    ) -> tuple[StoredItem, ...]:
        """Appends all items or none; returns them, with references resolved. Raises `NotStored` without the
        conversation or a referenced item, `StoreConflict` as `add_response` does, and `ContextTooLarge` if `limited`.
        """

    async def items(self, owner: str, conversation_id: str, page: PageRequest) -> Page[StoredItem]:
        """Returns a page of the items that clients see. Raises `NotStored`."""
        return await self._page_of("conversation", owner, conversation_id, page)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> StoredItem | None:
        """Returns an item, if clients see it. Raises `NotStored` without the conversation."""
        return await self._ask(queries.item(owner, conversation_id, item_id))

    @abstractmethod
    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Removes an item from this conversation, and returns the conversation. Raises `NotStored`."""

    async def scan_conversation(self, owner: str, id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` with each item of a conversation, as `scan_context` does. Raises `NotStored`, or
        `ContextTooLarge`.
        """
        await self._ask(queries.scan_conversation(owner, id, self._limits, visit))

    async def _page_of(self, kind: Kind, owner: str, id: str, page: PageRequest) -> Page[StoredItem]:
        found = await self._ask(queries.page_of(kind, owner, id, page))
        if not found.items:
            listed = await self._ask(queries.is_listed(kind, owner, id, page.after or ""))
            if page.after is not None and not listed:
                raise NotStored("item", page.after)
        return found

    async def _row_before(self, kind: Kind, owner: str, after: str | None) -> int:
        return ABOVE_ALL if after is None else await self._ask(queries.row_of(kind, owner, after))

    # --- records --------------------------------------------------------------------------------

    async def write_records(
        self,
        owner: str,
        records: Sequence[Record],
        *,
        gone: Collection[RecordKey] = (),
        require: RecordKey | None = None,
        epoch: int | None = None,
        hold: RecordKey | None = None,
        webhooks: Sequence[PendingWebhook] = (),
        tell: bytes | None = None,
    ) -> WrittenRecords:
        """Adds or replaces records in this order, deletes those `gone` as `delete_record` does, and adds `webhooks`,
        all together.

        Of one that exists (of its owner, kind and id) only `json`, `busy` and the time of its last use change. Its
        parent is there before, or earlier in the order; to write what is below a record is a use of it, too. Raises
        `NotStored`, and writes nothing, without a parent, or without the record `require`: who goes on with a record
        that may have been deleted meanwhile names it, so that it does not come back. Raises `StoreConflict`, and writes
        nothing, unless this node holds `require` with this epoch (None: any node may write). This node then holds the
        new record `hold`. The nodes that follow `require` get the message `tell` with the write.
        """
        given = RecordWrite(to_write(records, gone), gone, require, epoch, hold, webhooks, tell)
        return await self._write_records(owner, given)

    @abstractmethod
    async def _write_records(self, owner: str, given: RecordWrite) -> WrittenRecords: ...

    async def record(self, owner: str, kind: str, id: str) -> Record | None:
        return await self._ask(records.record(owner, kind, id))

    async def records(self, owner: str, kind: str, page: PageRequest, *, parent: str = "") -> Page[Record]:
        """Returns a page of the records of a kind directly below `parent` (empty: without a parent), in the order in
        which they were added. Raises `NotStored` without the record `after` among them.
        """
        found = await self._ask(records.page_of(owner, kind, page, parent))
        if not found.items and page.after is not None:
            after = await self.record(owner, kind, page.after)
            if after is None or after.parent != parent:
                raise NotStored("record", page.after)
        return found

    async def records_with_text(self, owner: str, search: TextSearch) -> list[Record]:
        """Returns the newest records that a search finds, at most `MAX_RECORDS_FOUND`: below the newest
        `MAX_PARENTS_SEARCHED`, and of at most `MAX_SEARCHED_BYTES`.
        """
        return await self._ask(records.with_text(self._dialect, owner, search))

    @abstractmethod
    async def delete_record(self, owner: str, kind: str, id: str) -> bool:
        """Deletes a record with all that is below it; returns False if there is none."""

    async def busy_records(self, kind: str) -> list[tuple[str, Record]]:
        """Returns owner and record of all that are busy, and that no other node holds, of all owners."""
        return await self._ask(records.busy(kind))

    async def records_of_kind(self, kind: str, after: int, limit: int) -> list[tuple[int, str, Record]]:
        """Returns row, owner and record of those without a parent behind the row `after` (0: the first), of all owners,
        at most `limit`.
        """
        return await self._ask(records.of_kind(kind, after, limit))

    # --- the step memory ------------------------------------------------------------------------

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        if durable and self._memory.kind == "disk":
            await self._save_steps(owner, entries)
            for key in entries:  # an older one in RAM must not hide it
                self._ram.forget(owner, key)
        else:
            await self._ram.remember(owner, entries)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found = await self._ram.recall(owner, keys)
        missing = [key for key in keys if key not in found]
        if missing and self._memory.kind == "disk":
            saved = await self._ask(queries.steps(owner, missing, self._now() - self._memory.age))
            found |= saved
        return found

    @abstractmethod
    async def _save_steps(self, owner: str, entries: Mapping[bytes, bytes]) -> None: ...

    # --- usage and webhooks ---------------------------------------------------------------------

    @abstractmethod
    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        """Adds all entries, or none if it raises."""

    async def usage(self, query: UsageQuery) -> list[UsageSum]:
        return await self._ask(queries.usage(query))

    @abstractmethod
    async def claim_webhooks(self, limit: int) -> list[PendingWebhook]:
        """Returns the oldest webhooks, at most `limit`, and reserves them for this node for `DELIVERY_SECONDS`."""

    @abstractmethod
    async def retry_webhook(self, pending: PendingWebhook, delay: float) -> None:
        """Saves `pending.tries`; after `delay` seconds any node may claim the webhook again. Changes nothing if one has
        claimed it since.
        """

    @abstractmethod
    async def drop_webhook(self, event_id: str, url: str) -> None: ...

    # --- removal --------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Removes the rows of objects that an earlier process has deleted, in small writes."""
        # One at a time: in SQLite the pieces of two would be combined into one long commit, and in PostgreSQL one
        # does not see what another is just removing.
        async with self._one_sweep:
            while await self._sweep_once():
                pass  # other writes come in between

    @abstractmethod
    async def _sweep_once(self) -> bool:
        """Removes some rows of deleted objects. Returns whether there may be more."""

    def _sweep_later(self) -> None:
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_quietly())

    async def _sweep_quietly(self) -> None:
        # Nobody waits for it: where it cannot go on, the next `prune` or `sweep` does, and tells its caller why.
        with contextlib.suppress(StoreUnavailable):
            await self.sweep()

    async def _end_sweeping(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    async def prune(self, now: float | None = None) -> PruneResult:
        """Removes in small writes what exceeds `Retention` at `now` (None: the present), and old entries of the step
        memory.
        """
        now = self._now() if now is None else now
        self._ram.expire(now)
        return await self._prune(now)

    async def _prune(self, now: float) -> PruneResult:
        total = NOTHING_REMOVED
        await self.sweep()
        for rule in rules(self._retention, self._memory.age, now):
            while (gone := await self._apply(rule)) != NOTHING_REMOVED:
                total += gone
                await self.sweep()
        return total

    async def last_use(self) -> float | None:
        """Returns when the store was last used for a turn, in seconds since 1970; None if never."""
        return await self._ask(queries.LAST_USE)

    async def _apply(self, rule: Rule) -> PruneResult:
        """Applies a rule in one short write. Returns how much it removed."""
        most = rule.at_once
        if rule.max_bytes is not None and (await self._sizes())[2] <= rule.max_bytes:
            return NOTHING_REMOVED
        if rule.max_count is not None:
            most = max(0, min(most, await self._ask(queries.RESPONSES) - rule.max_count))
        if rule.what == "objects":  # one at a time, because their sizes differ much
            what, most = await self._ask(queries.older_kind(self._dialect, rule.before)), 1
        else:
            what = rule.what
        return PruneResult(**{what: await self._remove_oldest(what, rule.before, most)})

    @abstractmethod
    async def _remove_oldest(self, what: Removed, before: float, most: int) -> int:
        """Removes at most `most` of the oldest rows or objects from before `before`, in one short write. Returns how
        many it removed.
        """

    # --- the operator's commands ----------------------------------------------------------------

    async def stats(self) -> StoreStats:
        location, version, used, free = await self._sizes()
        counts = await self._ask(queries.COUNTS)
        counts["steps"] += len(self._ram)
        return StoreStats(
            location=location, schema_version=version, bytes_used=used, bytes_free=free, **counts
        )

    @abstractmethod
    async def _sizes(self) -> tuple[str, int, int, int]:
        """Returns location, version of the tables, bytes used and bytes free."""

    @abstractmethod
    async def check_writable(self) -> None:
        """Writes a row and removes it."""

    async def export(
        self, write: Callable[[bytes], object], more: Mapping[str, MoreFields] = MappingProxyType({})
    ) -> int:
        """Writes a line of JSON for each response, conversation and record. Returns how many. `more`: adds fields to
        the lines of records of these kinds.
        """
        total = 0
        for kind in KINDS:
            after = 0
            while True:
                # In parts, since SQLite's write-ahead log cannot be emptied, nor PostgreSQL's rows, during a read.
                objects, items = await self._ask_both(*queries.next_to_export(kind, after, OBJECTS_AT_ONCE))
                if not objects:
                    break
                held: dict[int, list[tuple[int, StoredItem]]] = {}
                for row, side, *columns in items:
                    held.setdefault(row, []).append((side, item_of(columns)))
                for row, *columns in objects:
                    write(export_line(kind, columns, held.get(row, ())))
                total, after = total + len(objects), objects[-1][0]
        return total + await self._export_records(write, more)

    async def _export_records(self, write: Callable[[bytes], object], more: Mapping[str, MoreFields]) -> int:
        total = after = 0
        while rows := await self._ask(records.next_to_export(after, OBJECTS_AT_ONCE)):
            for _, is_live, owner, *columns in rows:
                if is_live:
                    write(records.export_line(owner, columns, more))
                    total += 1
            after = rows[-1][0]
        return total

    @abstractmethod
    async def vacuum(self) -> int:
        """Gives unused pages back to the file system, in small steps. Returns their bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Waits for operations that have begun. A second call does nothing."""

    # --- copying --------------------------------------------------------------------------------

    async def rows_from(self, table: CopiedTable, key: Row | None, limit: int) -> Sequence[Row]:
        """Returns at most `limit` rows in the order of their keys, from this key on (None: the first)."""
        sql = table.select(first=key is None)
        return await self._ask(Query(sql, (*(key or ()), limit), _tuples))

    async def rows_after(self, table: CopiedTable, last: Row | None) -> Sequence[Row]:
        """Returns the next rows behind `last` (None: the first ones), `at_once` of them."""
        if last is None:
            return await self.rows_from(table, None, table.at_once)
        key = last[: len(table.key)]
        found = await self.rows_from(table, key, table.at_once + 1)
        return [row for row in found if row[: len(key)] != key]  # `last` may have been deleted since

    async def last_row(self, table: CopiedTable) -> Row | None:
        """Returns the row with the largest key, if any."""
        rows = await self._ask(Query(table.select_last(), (), _tuples))
        return rows[0] if rows else None

    @abstractmethod
    async def add_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None: ...


def _tuples(rows: Iterable[Row]) -> list[Row]:
    return [tuple(row) for row in rows]
