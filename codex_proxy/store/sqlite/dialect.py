"""Runs the statements of `store.queries` on a connection."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Final, TypeVar

from codex_proxy.store.queries import Query, SqlDialect
from codex_proxy.store.rows import ITEM

T = TypeVar("T")

CHAIN: Final = (
    "WITH RECURSIVE chain (seq, id, parent) AS ("
    "  SELECT seq, id, parent FROM responses WHERE owner = ?1 AND id = ?2 AND NOT deleted"
    "  UNION ALL"
    "  SELECT responses.seq, responses.id, responses.parent FROM chain"
    "  JOIN responses ON responses.seq = chain.parent"
    ")"
)
"""Selects the chain from a response to its root; row numbers increase along it."""

DIALECT: Final = SqlDialect(
    prefix="",
    parameter="?",
    listed="?",
    chain=CHAIN,
    context=f"{CHAIN} SELECT chain.id, side, {ITEM} FROM chain"
    " LEFT JOIN response_items ON response = chain.seq"
    " LEFT JOIN items ON items.seq = item"
    " ORDER BY chain.seq, side, position",
    has_text="instr(lower(CAST({0} AS TEXT)), CAST(?3 AS TEXT)) > 0",
    as_bytes="{0}",
    ended="children = 0 AND unfinished = 0",
)


def ask(connection: sqlite3.Connection, query: Query[T]) -> T:
    with contextlib.closing(connection.execute(DIALECT.write(query.sql), query.values)) as rows:
        return query.convert(rows)
