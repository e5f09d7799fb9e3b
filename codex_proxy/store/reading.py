"""All that a store reads, by the statements of `queries`; an engine says how one of these is run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from codex_proxy.store import copying, queries
from codex_proxy.store.base import StoreBase
from codex_proxy.store.checksums import ROWS_AT_ONCE, CheckedTable, Part, check_tables
from codex_proxy.store.copying import CopiedTable, Row
from codex_proxy.store.export import AT_ONCE, conversation_line, response_line
from codex_proxy.store.interface import (
    ChainTurn,
    Checked,
    ConversationPage,
    Frame,
    NotStored,
    Page,
    PageRequest,
    ResponsePage,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoreStats,
    TreeNode,
)
from codex_proxy.store.queries import BEYOND, Dialect, Kind, Query
from codex_proxy.store.rows import INPUT, OUTPUT, conversation_of, item_of, response_of
from codex_proxy.store.usage import UsageQuery, UsageSum

T = TypeVar("T")


class ReadingStore(StoreBase):
    """The methods of `store.interface.Store` that read."""

    _dialect: Dialect

    @abstractmethod
    async def _ask(self, query: Query[T]) -> T:
        """Runs a statement. Raises `StoreUnavailable`, and what its `convert` raises."""

    @abstractmethod
    async def _ask_both(self, one: Query[T], other: Query[T]) -> tuple[T, T]:
        """Runs two statements, at the same moment if the engine can."""

    @abstractmethod
    async def _sizes(self) -> tuple[str, int, int, int]:
        """Returns location, version of the tables, bytes used and bytes free."""

    # --- responses ------------------------------------------------------------------------------

    async def response(self, owner: str, id: str) -> StoredResponse | None:
        return await self._ask(queries.response(owner, id))

    async def newest_responses(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ResponsePage:
        before = await self._row_before("response", owner, after)
        query = queries.newest(self._dialect, "response", owner, search, before, limit, response_of)
        return ResponsePage(*await self._ask(query))

    async def response_tree(self, owner: str, id: str) -> list[TreeNode]:
        return await self._ask(queries.tree(self._dialect, owner, id))

    async def input_items(self, owner: str, response_id: str, page: PageRequest) -> Page:
        return await self._page_of("response", owner, response_id, page)

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
        return await self._ask(queries.find(owner, list(dict.fromkeys(ids))))

    async def context(self, owner: str, response_id: str) -> list[ChainTurn]:
        self._note_in_use(owner, response_id)
        return await self._ask(queries.context(self._dialect, owner, response_id))

    async def frames(
        self,
        owner: str,
        response_id: str,
        *,
        after: int = -1,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[Frame]:
        return await self._ask(queries.frames(owner, response_id, after, limit, max_bytes))

    # --- conversations --------------------------------------------------------------------------

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        return await self._ask(queries.conversation(owner, id))

    async def newest_conversations(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ConversationPage:
        before = await self._row_before("conversation", owner, after)
        query = queries.newest(self._dialect, "conversation", owner, search, before, limit, conversation_of)
        return ConversationPage(*await self._ask(query))

    async def items(self, owner: str, conversation_id: str, page: PageRequest) -> Page:
        return await self._page_of("conversation", owner, conversation_id, page)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> StoredItem | None:
        return await self._ask(queries.item(owner, conversation_id, item_id))

    async def scan_conversation(self, owner: str, id: str, visit: Callable[[StoredItem], object]) -> None:
        await self._ask(queries.scan_conversation(owner, id, self._limits, visit))

    async def _page_of(self, kind: Kind, owner: str, id: str, page: PageRequest) -> Page:
        found = await self._ask(queries.page_of(kind, owner, id, page))
        if not found.items:
            after = page.after
            listed = await self._ask(queries.is_listed(kind, owner, id, after or ""))
            if after is not None and not listed:
                raise NotStored("item", after)
        return found

    async def _row_before(self, kind: Kind, owner: str, after: str | None) -> int:
        return BEYOND if after is None else await self._ask(queries.row_of(kind, owner, after))

    # --- all ------------------------------------------------------------------------------------

    async def _load_steps(self, owner: str, keys: Sequence[bytes], since: float) -> dict[bytes, bytes]:
        return await self._ask(queries.steps(owner, keys, since))

    async def usage(self, query: UsageQuery) -> list[UsageSum]:
        return await self._ask(queries.usage(query))

    async def stats(self) -> StoreStats:
        location, version, used, free = await self._sizes()
        counts = await self._ask(queries.COUNTS)
        counts["steps"] += len(self._ram)
        return StoreStats(
            location=location, schema_version=version, bytes_used=used, bytes_free=free, **counts
        )

    async def export(self, write: Callable[[bytes], object]) -> int:
        total = 0
        kinds: tuple[Kind, ...] = ("response", "conversation")
        for kind in kinds:
            after = 0
            while True:
                # In parts, since SQLite's write-ahead log cannot be emptied, nor PostgreSQL's rows, during a read.
                objects, items = await self._ask_both(*queries.exported(kind, after, AT_ONCE))
                if not objects:
                    break
                sides = _items_by_object(items)
                for row, *columns in objects:
                    write(_line(kind, columns, sides.get(row, ())))
                total, after = total + len(objects), objects[-1][0]
        return total

    async def check(self) -> Checked:
        async def read(table: CheckedTable, key: tuple[int, ...]) -> Part:
            return await self._ask(Query(table.sql, (*key, ROWS_AT_ONCE), table.check))

        return await check_tables(read)

    async def rows_from(self, table: CopiedTable, key: Row | None, limit: int) -> Sequence[Row]:
        sql = copying.select(table, first=key is None)
        return await self._ask(Query(sql, (*(key or ()), limit), _tuples))

    async def last_row(self, table: CopiedTable) -> Row | None:
        rows = await self._ask(Query(copying.select_last(table), (), _tuples))
        return rows[0] if rows else None


def _tuples(rows: Iterable[Row]) -> list[Row]:
    return [tuple(row) for row in rows]


def _items_by_object(rows: Iterable[Row]) -> dict[int, list[tuple[int, StoredItem]]]:
    """Returns the sides and items of responses or conversations by their rows."""
    found: dict[int, list[tuple[int, StoredItem]]] = {}
    for row, side, *columns in rows:
        found.setdefault(row, []).append((side, item_of(columns)))
    return found


def _line(kind: Kind, columns: Iterable[Any], items: Sequence[tuple[int, StoredItem]]) -> bytes:
    """Returns the line of an export for a response or conversation with its sides and items."""
    if kind == "conversation":
        return conversation_line(conversation_of(columns), (item for _, item in items))
    sides = ([item for side, item in items if side == which] for which in (INPUT, OUTPUT))
    return response_line(response_of(columns), *sides)
