"""Records: the statements that read them, in the SQL that both engines share (as in `store.queries`), and the
conversions of their rows.

A record is gone as soon as one above it is: only that one is marked as deleted, so that a deletion is a short write
however many are below. So each statement looks at the marks of the rows above.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.store.queries import Query, SqlDialect, first_of, make_page
from codex_proxy.store.rows import Row, verify
from codex_proxy.store.values import (
    MAX_PARENTS_SEARCHED,
    MAX_RECORDS_FOUND,
    MAX_SEARCHED_BYTES,
    Order,
    Page,
    PageRequest,
    Record,
    RecordKey,
    TextSearch,
)

# Rows above are read by subqueries, and pages are selected before anything is joined to them: so every plan reads by an
# index, whatever the planner thinks of a table of which it has no statistics.
COLUMNS: Final = """
    records.kind, records.id, records.json, records.created,
    coalesce((SELECT above.id FROM @records AS above WHERE above.seq = records.parent), ''),
    records.busy, records.json_sum"""

LIVE: Final = """
WITH RECURSIVE named (record) AS ({}), up (record, seq) AS (
    SELECT record, record FROM named
    UNION ALL
    SELECT record, (SELECT above.parent FROM @records AS above WHERE above.seq = up.seq) FROM up
    WHERE seq IS NOT NULL
), live (record) AS (
    SELECT record FROM named WHERE record NOT IN (
        SELECT record FROM up WHERE (SELECT above.deleted FROM @records AS above WHERE above.seq = up.seq)
    )
)"""
"""The SQL that selects, of the rows of a statement, those that are not deleted, and not below a deleted one (`live`).
"""
BY_KEY: Final = "SELECT seq FROM @records WHERE owner = ?1 AND kind = ?2 AND id = ?3"
BY_ID: Final = "SELECT seq FROM @records WHERE owner = ?1 AND id = ?2"


def record_of(row: Iterable[Any]) -> Record:
    kind, id, json, created, parent, busy, stored = row
    verify(json, stored, f"the record {id}")
    return Record(kind=kind, id=id, json=json, created=created, parent=parent, busy=bool(busy))


def record(owner: str, kind: str, id: str) -> Query[Record | None]:
    sql = f"{LIVE.format(BY_KEY)} SELECT {COLUMNS} FROM @records AS records WHERE seq = (SELECT record FROM live)"
    return Query(sql, (owner, kind, id), partial(first_of, record_of))


def row_of(owner: str, kind: str, id: str) -> Query[int | None]:
    """Returns the number of a record's row."""
    sql = f"{LIVE.format(BY_KEY)} SELECT record FROM live"
    return Query(sql, (owner, kind, id), partial(first_of, _number))


def parent_row(owner: str, id: str) -> Query[int | None]:
    """Returns the row of the record with this id; of several kinds, the one that was written first."""
    sql = f"{LIVE.format(BY_ID)} SELECT record FROM live ORDER BY record LIMIT 1"
    return Query(sql, (owner, id), partial(first_of, _number))


def _number(row: Row) -> int:
    return int(row[0])


def _page(order: Order, *, below: bool, behind: bool) -> str:
    """Returns the statement for a page of the kind `?2`: below the record `?4`, if `below`; after the record of the
    next number, if `behind`.
    """
    live = f"{LIVE.format(BY_ID.replace('?2', '?4'))}, place (row) AS (SELECT min(record) FROM live)"
    place = "(SELECT row FROM place)"
    listed = f"owner = ?1 AND kind = ?2 AND parent {f'= {place}' if below else 'IS NULL'} AND NOT deleted"
    comparison, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
    # Found by its id, and not by the index of the list: hence no comparison with the parent alone.
    start = f"""
        SELECT seq FROM @records WHERE owner = ?1 AND kind = ?2 AND id = ?{5 if below else 4} AND NOT deleted
        AND coalesce(parent, 0) = {f"coalesce({place}, 0)" if below else "0"}"""
    bound = f"AND seq {comparison} ({start})" if behind else ""
    in_order = f"ORDER BY seq {direction}"
    return f"""
{live if below else ""}
SELECT {COLUMNS} FROM (
    SELECT * FROM @records WHERE {listed} {bound} {in_order} LIMIT ?3
) AS records {in_order}"""


def page_of(owner: str, kind: str, page: PageRequest, parent: str) -> Query[Page[Record]]:
    """Returns a page of the records of a kind. It is also empty if the record before it is missing."""
    sql = _page(page.order, below=bool(parent), behind=page.after is not None)
    values = (owner, kind, page.limit + 1, *([parent] if parent else []))
    if page.after is not None:
        values = (*values, page.after)
    return Query(sql, values, partial(make_page, record_of, page.limit))


BUSY: Final = "SELECT seq FROM @records WHERE busy AND kind = ?1"


def busy(kind: str, which: str = BUSY) -> Query[list[tuple[str, Record]]]:
    """Returns owner and record of all that are busy: those that the statement `which` selects."""
    sql = f"""
{LIVE.format(which)}
SELECT owner, {COLUMNS} FROM @records AS records WHERE seq IN (SELECT record FROM live) ORDER BY seq"""

    def convert(rows: Iterator[Row]) -> list[tuple[str, Record]]:
        return [(owner, record_of(columns)) for owner, *columns in rows]

    return Query(sql, (kind,), convert)


_OF_KIND: Final = f"""
SELECT seq, owner, {COLUMNS} FROM @records AS records
WHERE kind = ?1 AND parent IS NULL AND NOT deleted AND seq > ?2 ORDER BY seq LIMIT ?3"""


def of_kind(kind: str, after: int, limit: int) -> Query[list[tuple[int, str, Record]]]:
    """Returns row, owner and record of those without a parent behind the row `after`, of all owners."""

    def convert(rows: Iterator[Row]) -> list[tuple[int, str, Record]]:
        return [(row, owner, record_of(columns)) for row, owner, *columns in rows]

    return Query(_OF_KIND, (kind, after, limit), convert)


_WITH_TEXT: Final = f"""
SELECT {COLUMNS} FROM (
    SELECT below.* FROM (
        SELECT seq FROM @records WHERE owner = ?1 AND kind = ?2 AND parent IS NULL AND NOT deleted
        ORDER BY seq DESC LIMIT ?6
    ) AS newest JOIN @records AS below ON below.parent = newest.seq AND below.kind = ?4 AND NOT below.deleted
    WHERE length(below.json) <= ?7 AND {{of_type}} AND {{text}} ORDER BY below.seq DESC LIMIT ?8
) AS records ORDER BY seq DESC"""


def with_text(dialect: SqlDialect, owner: str, search: TextSearch) -> Query[list[Record]]:
    """Returns the newest records that a search finds. Their parents are in them."""
    text = dialect.has_text.format("below.json")
    sql = _WITH_TEXT.format(of_type=text.replace("?3", "?5"), text=text)
    sought = (search.above, search.text.lower(), search.kind, search.marker.lower())
    limits = (MAX_PARENTS_SEARCHED, MAX_SEARCHED_BYTES, MAX_RECORDS_FOUND)
    return Query(sql, (owner, *sought, *limits), lambda rows: [*map(record_of, rows)], is_slow=True)


# --- writing --------------------------------------------------------------------------------------


def to_write(records: Sequence[Record], gone: Collection[RecordKey]) -> list[Record]:
    """Returns what a write leaves of these records: each once, as it is at the end, in the place of the first."""
    found: dict[RecordKey, Record] = {}
    for each in records:
        before = found.get(each.key)
        kept = {} if before is None else {"created": before.created, "parent": before.parent}
        found[each.key] = msgspec.structs.replace(each, **kept)
    return [each for key, each in found.items() if key not in gone]


# --- an export ------------------------------------------------------------------------------------

_TO_EXPORT: Final = f"""
{LIVE.format("SELECT seq FROM (SELECT seq FROM @records WHERE seq > ?1 ORDER BY seq LIMIT ?2) AS next")}
SELECT seq, seq IN (SELECT record FROM live), owner, {COLUMNS}
FROM (SELECT * FROM @records WHERE seq > ?1 ORDER BY seq LIMIT ?2) AS records ORDER BY seq"""


def next_to_export(after: int, limit: int) -> Query[list[Row]]:
    """Returns the next rows behind the row `after`: each with its number, whether the record is there, its owner, and
    the columns of `record_of`.
    """
    return Query(_TO_EXPORT, (after, limit), list)


MoreFields: TypeAlias = Callable[[bytes], Mapping[str, object]]
"""Returns fields that are added to a record's line, of the record's JSON."""


def export_line(owner: str, columns: Iterable[Any], more: Mapping[str, MoreFields]) -> bytes:
    """Returns a record's line. `more`: by the kinds of records. Raises `StoreDamaged`."""
    record = record_of(columns)
    line: dict[str, object] = {
        "type": "record",
        "owner": owner,
        "kind": record.kind,
        "id": record.id,
        "parent": record.parent or None,
        "created": record.created,
        "record": msgspec.Raw(record.json),
    }
    if record.kind in more:
        line |= more[record.kind](record.json)
    return msgspec.json.encode(line) + b"\n"
