"""Reads items: pages of a list, and items by their ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from codex_proxy.store.interface import ContextLimits, NotStored, Order, Page, PageRequest, StoredItem
from codex_proxy.store.postgresql.database import Database
from codex_proxy.store.rows import INPUT, ITEM, item_of

ListKind = Literal["response", "conversation"]

FIND: Final = f"""
SELECT DISTINCT ON (items.id) {ITEM} FROM codex_proxy.items
WHERE owner = $1 AND items.id = ANY ($2::text[]) AND octet_length(json) > 0 AND (
    EXISTS (SELECT FROM codex_proxy.conversation_items JOIN codex_proxy.conversations AS held
        ON held.seq = conversation WHERE item = items.seq AND NOT deleted)
    OR EXISTS (SELECT FROM codex_proxy.response_items JOIN codex_proxy.responses AS held
        ON held.seq = response WHERE item = items.seq AND NOT deleted)
)
ORDER BY items.id, items.seq DESC"""


def _page(kind: ListKind, order: Order) -> str:
    """Returns the statement for a page of the items that clients see. Its parameters: owner, id of the list, the item
    before the page, and the most items. It has a row without an item if the page is empty.
    """
    table, side = f"codex_proxy.{kind}_items", f"AND side = {INPUT}" if kind == "response" else ""
    comparison, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
    return f"""
WITH list AS (
    SELECT seq FROM codex_proxy.{kind}s WHERE owner = $1 AND id = $2 AND NOT deleted
), start AS (
    SELECT position FROM list JOIN {table} ON {kind} = list.seq {side} WHERE item_id = $3 AND visible
)
SELECT start.position, {ITEM} FROM list LEFT JOIN start ON true LEFT JOIN LATERAL (
    SELECT position, item FROM {table}
    WHERE {kind} = list.seq {side} AND visible AND ($3::text IS NULL OR position {comparison} start.position)
    ORDER BY position {direction} LIMIT $4
) AS held ON true LEFT JOIN codex_proxy.items ON items.seq = item
ORDER BY held.position {direction}"""


_PAGES: Final[dict[tuple[ListKind, Order], str]] = {
    ("response", "asc"): _page("response", "asc"),
    ("response", "desc"): _page("response", "desc"),
    ("conversation", "asc"): _page("conversation", "asc"),
    ("conversation", "desc"): _page("conversation", "desc"),
}


async def page_of(database: Database, kind: ListKind, owner: str, id: str, page: PageRequest) -> Page:
    """Returns a page of the input of a response, or of a conversation. Raises `NotStored`."""
    rows = await database.read(_PAGES[kind, page.order], owner, id, page.after, page.limit + 1)
    if not rows:
        raise NotStored(kind, id)
    if page.after is not None and rows[0]["position"] is None:
        raise NotStored("item", page.after)
    found = [item_of(columns) for _, *columns in rows if columns[0] is not None]
    return Page(tuple(found[: page.limit]), has_more=len(found) > page.limit)


async def found_among(database: Database, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
    """See `Responses.find_items`."""
    found = (item_of(row) for row in await database.read(FIND, owner, list(ids)))
    return {item.id: item for item in found}


def visit_rows(rows: Sequence[Any], limits: ContextLimits, visit: Callable[[StoredItem], object]) -> None:
    """Calls `visit` with the items of rows with the number and bytes of all items and the columns `ITEM`, which are
    null if there are no items, or more than the limits. Raises `ContextTooLarge`, or `StoreDamaged`.
    """
    limits.check(rows[0][0], rows[0][1])
    for _, _, *item in rows:
        if item[0] is not None:
            visit(item_of(item))
