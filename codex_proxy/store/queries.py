"""The statements that read, in the SQL that SQLite and PostgreSQL share, and the conversions of their rows.

Most functions return a `Query`: what their docstrings say of a result, and of errors, is of the query when it is run.
`@` stands before the name of a table and `?1` for the first value; `SqlDialect.write` replaces both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from codex_proxy.core.tokens import FIGURES, Figures, UsageSum
from codex_proxy.store.retention import Removed
from codex_proxy.store.rows import (
    CONVERSATION_COLUMNS,
    INPUT_SIDE,
    ITEM_COLUMNS,
    RESPONSE_COLUMNS,
    Kind,
    conversation_of,
    frames_of,
    item_of,
    response_of,
    turns_of,
    verify,
)
from codex_proxy.store.usage import UsageQuery
from codex_proxy.store.values import (
    MAX_SEARCHED,
    MAX_TREE,
    ChainTurn,
    ContextLimits,
    Frame,
    ItemReference,
    NewItem,
    NotStored,
    Order,
    Page,
    PageRequest,
    StoredConversation,
    StoredItem,
    StoredResponse,
    TreeNode,
)

T = TypeVar("T")
Row: TypeAlias = Sequence[Any]

ABOVE_ALL: Final = 1 << 62
"""A number larger than every row, position, and number of an event."""


class Query(NamedTuple, Generic[T]):
    """A statement that reads, and the function that converts its rows to the result."""

    sql: str
    values: tuple[object, ...]
    convert: Callable[[Iterator[Row]], T]
    is_slow: bool = False
    """Whether `convert` takes long however few the rows are, and so needs a worker thread."""


class SqlDialect(NamedTuple):
    """SQL expressions that differ between engines."""

    prefix: str
    """The text before the name of a table."""
    parameter: str
    """The text before the number of a parameter: `?` or `$`."""
    listed: str
    """How a parameter of a list is written: `$` and its number `\\1`, or `?` alone, because since Python 3.12 its
    SQLite module looks each number up among all.
    """
    chain: str
    """A clause `WITH RECURSIVE ... chain`: the rows `seq` of the chain that ends with the response `?2` of the owner
    `?1`.
    """
    context: str
    """A statement for the id of each response of that chain, a side and the `ITEM_COLUMNS`, in their order."""
    has_text: str
    """A condition: the bytes `{0}` contain the bytes `?3` in any case of ASCII letters; `?3` has only lower-case ones.
    """
    as_bytes: str
    """An expression for the text `{0}` as bytes."""
    ended: str
    """A condition: a response has ended, and no other continues it."""

    def write(self, sql: str) -> str:
        return _LISTED.sub(self.listed, sql.replace("@", self.prefix)).replace("?", self.parameter)


_LISTED: Final = re.compile(r"\?:(\d+)")


# --- one object -----------------------------------------------------------------------------------

_SELECT_ROW: Final = "SELECT seq FROM @{kind}s WHERE owner = ?1 AND id = ?2 AND NOT deleted"
_RESPONSES: Final = f"SELECT {RESPONSE_COLUMNS} FROM @responses JOIN @response_bodies ON response = seq"
_CONVERSATIONS: Final = f"SELECT {CONVERSATION_COLUMNS} FROM @conversations"
_WHERE_ID: Final = "WHERE owner = ?1 AND id = ?2 AND NOT deleted"


def response(owner: str, id: str) -> Query[StoredResponse | None]:
    return Query(f"{_RESPONSES} {_WHERE_ID}", (owner, id), partial(first_of, response_of))


def conversation(owner: str, id: str) -> Query[StoredConversation | None]:
    return Query(f"{_CONVERSATIONS} {_WHERE_ID}", (owner, id), partial(first_of, conversation_of))


def row_of(kind: Kind, owner: str, id: str) -> Query[int]:
    """Returns the number of an object's row. Raises `NotStored`."""

    sql = _SELECT_ROW.format(kind=kind)
    return Query(sql, (owner, id), lambda rows: int(_require_row(rows, kind, id)[0]))


def first_of(make: Callable[[Row], T], rows: Iterator[Row]) -> T | None:
    row = next(rows, None)
    return None if row is None else make(row)


def _require_row(rows: Iterator[Row], kind: Kind, id: str) -> Row:
    row = next(rows, None)
    if row is None:
        raise NotStored(kind, id)
    return row


# --- items ----------------------------------------------------------------------------------------


@cache
def _page(kind: Kind, order: Order, *, behind: bool) -> str:
    """Returns the statement for a page of a list: after the item `?4` if `behind`, else from the beginning."""
    found = _SELECT_ROW.format(kind=kind)
    side = f"AND side = {INPUT_SIDE}" if kind == "response" else ""
    held = f"@{kind}_items AS held", f"{kind} = ({found}) {side} AND visible"
    comparison, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
    start = f"SELECT position FROM {held[0]} WHERE {held[1]} AND item_id = ?4"
    bound = f"AND position {comparison} ({start})" if behind else ""
    return f"""
SELECT {ITEM_COLUMNS} FROM {held[0]} JOIN @items AS items ON items.seq = held.item WHERE {held[1]} {bound}
ORDER BY position {direction} LIMIT ?3"""


def page_of(kind: Kind, owner: str, id: str, page: PageRequest) -> Query[Page[StoredItem]]:
    """Returns a page of a response's input or of a conversation. It is also empty if the list or the item before it is
    missing (`is_listed`).
    """
    behind = page.after is not None
    values = (owner, id, page.limit + 1, *([page.after] if behind else []))
    return Query(_page(kind, page.order, behind=behind), values, partial(make_page, item_of, page.limit))


def make_page(make: Callable[[Row], T], limit: int, rows: Iterator[Row]) -> Page[T]:
    found = [make(row) for row in rows]
    return Page(tuple(found[:limit]), has_more=len(found) > limit)


def is_listed(kind: Kind, owner: str, id: str, item_id: str) -> Query[bool]:
    """Whether clients see an item in a list. Raises `NotStored` without the list."""

    side = f"AND side = {INPUT_SIDE}" if kind == "response" else ""
    sql = (
        f"SELECT held.item FROM ({_SELECT_ROW.format(kind=kind)}) AS found LEFT JOIN @{kind}_items AS held"
        f" ON {kind} = found.seq {side} AND item_id = ?3 AND visible"
    )
    return Query(sql, (owner, id, item_id), lambda rows: _require_row(rows, kind, id)[0] is not None)


def find(owner: str, ids: Sequence[str], limits: ContextLimits | None = None) -> Query[dict[str, StoredItem]]:
    """Returns the owner's items that clients see, by id: the newest of several. No content is fetched of items that are
    too large together.
    """
    counts = Counter(ids)
    # The first row has the bytes of all, too.
    sql = f"""
WITH newest AS (
    SELECT max(items.seq) AS seq FROM @items AS items
    WHERE owner = ?1 AND items.id IN ({_places(3, len(counts))}) AND length(json) > 0 AND (
        EXISTS (SELECT 1 FROM @conversation_items JOIN @conversations AS held ON held.seq = conversation
            WHERE item = items.seq AND NOT deleted)
        OR EXISTS (SELECT 1 FROM @response_items JOIN @responses AS held ON held.seq = response
            WHERE item = items.seq AND NOT deleted)
    ) GROUP BY items.id
), total AS (
    SELECT coalesce(sum(length(json) + length(raw)), 0) AS bytes FROM @items AS items
    WHERE seq IN (SELECT seq FROM newest)
)
SELECT bytes, {ITEM_COLUMNS} FROM total
LEFT JOIN newest ON bytes <= ?2 LEFT JOIN @items AS items ON items.seq = newest.seq"""

    def convert(rows: Iterator[Row]) -> dict[str, StoredItem]:
        found, size = {}, 0
        for total, *columns in rows:
            if limits is not None:
                limits.check(len(ids), total)
            if columns[0] is None:
                continue
            item = item_of(columns)
            found[item.id] = item
            size += item.size * counts[item.id]
            if limits is not None:
                limits.check(len(ids), size)
        return found

    most = ABOVE_ALL if limits is None or limits.max_bytes is None else limits.max_bytes
    return Query(sql, (owner, most, *counts), convert)


def references_in(items: Iterable[NewItem]) -> list[str]:
    return [each.id for each in items if isinstance(each, ItemReference)]


def resolve(items: Iterable[NewItem], found: Mapping[str, StoredItem]) -> tuple[StoredItem, ...]:
    """Replaces references by the items `found`. Raises `NotStored` for one that is missing."""
    resolved = []
    for each in items:
        item = found.get(each.id) if isinstance(each, ItemReference) else each
        if item is None:
            raise NotStored("item", each.id)
        resolved.append(item)
    return tuple(resolved)


def _places(first: int, count: int) -> str:
    """Returns a list of parameters; their numbers must be the statement's highest."""
    return ", ".join([f"?{first}", *(f"?:{first + more}" for more in range(1, count))]) if count else "NULL"


_JOIN_ITEMS: Final = """
LEFT JOIN @conversation_items AS held ON held.conversation = {conversation} {more}
LEFT JOIN @items AS items ON items.seq = held.item"""
_ITEM: Final = f"""
SELECT {ITEM_COLUMNS} FROM ({_SELECT_ROW.format(kind="conversation")}) AS found
{_JOIN_ITEMS.format(conversation="found.seq", more="AND item_id = ?3 AND visible")}"""
_ITEMS: Final = f"""
SELECT list.items, list.bytes, {ITEM_COLUMNS} FROM @conversations AS list
{_JOIN_ITEMS.format(conversation="list.seq", more="AND list.items <= ?3 AND list.bytes <= ?4")}
WHERE list.owner = ?1 AND list.id = ?2 AND NOT deleted ORDER BY position"""


def item(owner: str, id: str, item_id: str) -> Query[StoredItem | None]:
    """Returns an item that clients see. Raises `NotStored` without the conversation."""

    def convert(rows: Iterator[Row]) -> StoredItem | None:
        row = _require_row(rows, "conversation", id)
        return None if row[0] is None else item_of(row)

    return Query(_ITEM, (owner, id, item_id), convert)


def scan_conversation(
    owner: str, id: str, limits: ContextLimits, visit: Callable[[StoredItem], object]
) -> Query[None]:
    """Calls `visit` with each item of a conversation. Raises `NotStored`, or `ContextTooLarge`."""

    def convert(rows: Iterator[Row]) -> None:
        visit_items(_require_row(rows, "conversation", id), rows, limits, visit)

    most = [ABOVE_ALL if limit is None else limit for limit in (limits.max_items, limits.max_bytes)]
    return Query(_ITEMS, (owner, id, *most), convert, is_slow=True)


def visit_items(
    first: Row, others: Iterable[Row], limits: ContextLimits, visit: Callable[[StoredItem], object]
) -> None:
    """Calls `visit` with each row's item. A row begins with the number and bytes of all items; then come the
    `ITEM_COLUMNS`, which are null if there are no items, or more than the limits allow. Raises `ContextTooLarge`, or
    `StoreDamaged`.
    """
    limits.check(first[0], first[1])
    for row in (first,) if first[2] is None else chain([first], others):
        if row[2] is not None:
            visit(item_of(row[2:]))


def context(dialect: SqlDialect, owner: str, id: str) -> Query[list[ChainTurn]]:
    """Returns the chain that ends with this response, oldest first. Raises `NotStored`."""

    def convert(rows: Iterator[Row]) -> list[ChainTurn]:
        return turns_of(chain([_require_row(rows, "response", id)], rows))

    return Query(dialect.context, (owner, id), convert)


# --- lists ----------------------------------------------------------------------------------------

_NEWEST: Final = f"""
{{select}} WHERE seq IN (
    SELECT seq FROM @{{kind}}s WHERE owner = ?1 AND NOT deleted AND seq < ?2 ORDER BY seq DESC LIMIT {MAX_SEARCHED}
) AND ({{id}} OR {{text}}) ORDER BY seq DESC LIMIT ?4"""


def newest(
    dialect: SqlDialect,
    kind: Kind,
    owner: str,
    search: str,
    before: int,
    limit: int,
    make: Callable[[Row], T],
) -> Query[Page[T]]:
    """Returns the newest objects before a row that contain the text `search`, and whether there are more."""
    select, text = (_RESPONSES, "json") if kind == "response" else (_CONVERSATIONS, "metadata")
    has_id, has_text = (dialect.has_text.format(each) for each in (dialect.as_bytes.format("id"), text))

    sql = _NEWEST.format(select=select, kind=kind, id=has_id, text=has_text)
    values = (owner, before, search.encode().lower(), limit + 1)
    return Query(sql, values, partial(make_page, make, limit))


_TREE: Final = f""", root AS (
    SELECT min(seq) AS seq FROM (SELECT seq FROM chain ORDER BY seq DESC LIMIT {MAX_TREE + 1}) AS nearest
), below (seq, id, parent, deleted) AS (
    SELECT responses.seq, id, parent, deleted FROM root JOIN @responses AS responses ON responses.seq = root.seq
    UNION ALL
    SELECT responses.seq, responses.id, responses.parent, responses.deleted
    FROM below JOIN @responses AS responses ON responses.parent = below.seq
)
SELECT nearest.id, above.id, nearest.deleted FROM (SELECT * FROM below LIMIT {MAX_TREE}) AS nearest
LEFT JOIN @responses AS above ON above.seq = nearest.parent ORDER BY nearest.seq"""


def tree(dialect: SqlDialect, owner: str, id: str) -> Query[list[TreeNode]]:
    """Returns the responses with the same first response, parents first. Raises `NotStored`."""

    def convert(rows: Iterator[Row]) -> list[TreeNode]:
        found = chain([_require_row(rows, "response", id)], rows)
        return [TreeNode(id, previous, bool(deleted)) for id, previous, deleted in found]

    return Query(f"{dialect.chain}{_TREE}", (owner, id), convert)


# The first row says that the response exists.
_FRAMES: Final = f"""
WITH found AS ({_SELECT_ROW.format(kind="response")})
SELECT seq, NULL, NULL FROM found UNION ALL SELECT * FROM (
    SELECT number, data, data_sum FROM @frames WHERE response = (SELECT seq FROM found) AND number > ?3
    ORDER BY number LIMIT ?4
) AS next"""


def frames(owner: str, id: str, after: int, limit: int, max_bytes: int | None) -> Query[list[Frame]]:
    """Returns rows after the number `after`, which a client may choose: any integer."""

    def convert(rows: Iterator[Row]) -> list[Frame]:
        _require_row(rows, "response", id)
        return frames_of(rows, id, max_bytes)

    return Query(_FRAMES, (owner, id, max(-ABOVE_ALL, min(after, ABOVE_ALL)), limit), convert)


# --- the step memory ------------------------------------------------------------------------------


def steps(owner: str, keys: Sequence[bytes], since: float) -> Query[dict[bytes, bytes]]:
    """Returns the entries saved after `since` (seconds since 1970). Raises `StoreDamaged`."""

    sql = f"""
SELECT key, value, value_sum FROM @steps WHERE owner = ?1 AND created > ?2 AND key IN ({_places(3, len(keys))})"""
    values = (owner, since, *keys)
    return Query(
        sql, values, lambda rows: {key: verify(value, stored, "a tool step") for key, value, stored in rows}
    )


# --- usage ----------------------------------------------------------------------------------------


def usage(query: UsageQuery) -> Query[list[UsageSum]]:
    whose, wanted = ("owner", "") if query.owner is None else ("''", "owner = ?4 AND")
    model = "model" if query.by_model else "''"
    sql = (
        f"SELECT hour - hour % ?1 AS start, {whose} AS whose, {model} AS name,"
        f" {', '.join(f'CAST(sum({name}) AS bigint)' for name in FIGURES)} FROM @usage"
        f" WHERE {wanted} hour >= ?2 AND hour < ?3 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )

    def convert(rows: Iterator[Row]) -> list[UsageSum]:
        return [UsageSum(start, model, Figures(*figures), owner) for start, owner, model, *figures in rows]

    values = (query.width, query.start, query.end)
    return Query(sql, values if query.owner is None else (*values, query.owner), convert)


# --- the whole store ------------------------------------------------------------------------------

_COUNT_NAMES: Final = (
    "responses",
    "unfinished",
    "conversations",
    "items",
    "frames",
    "steps",
    "records",
    "oldest",
)
COUNTS: Final[Query[dict[str, Any]]] = Query(
    """
SELECT (SELECT count(*) FROM @responses WHERE NOT deleted), (SELECT count(*) FROM @responses WHERE unfinished),
    (SELECT count(*) FROM @conversations WHERE NOT deleted), (SELECT count(*) FROM @items),
    (SELECT count(*) FROM @frames), (SELECT count(*) FROM @steps),
    (SELECT count(*) FROM @records WHERE NOT deleted),
    (SELECT min(created) FROM @responses WHERE NOT deleted)""",
    (),
    lambda rows: dict(zip(_COUNT_NAMES, next(rows), strict=True)),
)
"""The counts by their names in `StoreStats`."""


RESPONSES: Final[Query[int]] = Query("SELECT count(*) FROM @responses", (), lambda rows: int(next(rows)[0]))
"""The number of all responses, also deleted ones whose rows are still there."""


def older_kind(dialect: SqlDialect, before: float) -> Query[Removed]:
    """Returns the kind of the object that is the oldest that may be removed, from before `before` (seconds since
    1970).
    """
    sql = f"""
SELECT (SELECT min(created) FROM @responses WHERE {dialect.ended} AND NOT deleted AND created <= ?1),
    (SELECT min(touched) FROM @conversations WHERE NOT deleted AND touched <= ?1),
    (SELECT min(touched) FROM @records WHERE parent IS NULL AND NOT deleted AND NOT busy AND touched <= ?1)"""

    def convert(rows: Iterator[Row]) -> Removed:
        kinds: tuple[Removed, ...] = ("responses", "conversations", "records")
        ages = [(age, kind) for age, kind in zip(next(rows), kinds, strict=True) if age is not None]
        return min(ages, key=lambda each: each[0])[1] if ages else "responses"

    return Query(sql, (before,), convert)


LAST_USE: Final[Query[float | None]] = Query(
    """
SELECT (SELECT max(created) FROM @responses), (SELECT max(touched) FROM @conversations),
    (SELECT max(touched) FROM @records WHERE parent IS NULL), (SELECT max(hour) FROM @usage)""",
    (),
    lambda rows: max((float(each) for each in next(rows) if each is not None), default=None),
)
"""When the store was last used for a turn, in seconds since 1970; None: never."""


def next_to_export(kind: Kind, after: int, limit: int) -> tuple[Query[list[Row]], Query[list[Row]]]:
    """Returns queries for the next objects behind the row `after`, each with its row, and for their items, each with
    its object's row and its side.
    """
    select, side = (_RESPONSES, "side") if kind == "response" else (_CONVERSATIONS, str(INPUT_SIDE))
    next_rows = f"SELECT seq FROM @{kind}s WHERE seq > ?1 AND NOT deleted ORDER BY seq LIMIT ?2"
    objects = f"{select.replace('SELECT ', 'SELECT seq, ', 1)} WHERE seq IN ({next_rows}) ORDER BY seq"
    items = (
        f"SELECT {kind}, {side} AS side, {ITEM_COLUMNS}"
        f" FROM @{kind}_items AS held JOIN @items AS items ON items.seq = item"
        f" WHERE {kind} IN ({next_rows}) ORDER BY {kind}, {'side, ' if kind == 'response' else ''}position"
    )
    return Query(objects, (after, limit), list), Query(items, (after, limit), list)
