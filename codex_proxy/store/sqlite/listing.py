"""Lists the responses of an owner, newest first, and the trees that they form by continuing each other: functions
that run SQL statements on a connection.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from codex_proxy.store.interface import MAX_SEARCHED, MAX_TREE, ResponsePage, StoredResponse, TreeNode
from codex_proxy.store.rows import response_of
from codex_proxy.store.sqlite.items import row_of
from codex_proxy.store.sqlite.responses import SELECT

_NEWEST: Final = (
    f"{SELECT} WHERE seq IN (SELECT seq FROM responses WHERE owner = ? AND deleted = 0 AND seq < ?"
    " ORDER BY seq DESC LIMIT ?)"
    " AND (? = '' OR id LIKE ? ESCAPE '\\' OR CAST(json AS TEXT) LIKE ? ESCAPE '\\')"
    " ORDER BY seq DESC LIMIT ?"
)
_ROOT: Final = (
    "WITH RECURSIVE above (seq, parent, depth) AS ("
    "  SELECT seq, parent, 0 FROM responses WHERE seq = ?"
    "  UNION ALL"
    "  SELECT responses.seq, responses.parent, depth + 1 FROM above JOIN responses ON responses.seq = above.parent"
    "  WHERE depth < ?"
    ") SELECT seq FROM above ORDER BY depth DESC LIMIT 1"
)
_BELOW: Final = (
    "WITH RECURSIVE below (seq, id, parent, deleted) AS ("
    "  SELECT seq, id, parent, deleted FROM responses WHERE seq = ?"
    "  UNION ALL"
    "  SELECT responses.seq, responses.id, responses.parent, responses.deleted FROM below"
    "  JOIN responses ON responses.parent = below.seq"
    "  LIMIT ?"
    ") SELECT below.id, up.id, below.deleted FROM below LEFT JOIN responses AS up ON up.seq = below.parent"
    " ORDER BY below.seq"
)


def newest(
    connection: sqlite3.Connection, owner: str, search: str, after: str | None, limit: int
) -> ResponsePage:
    """See `Responses.newest_responses`."""
    before = row_of(connection, "response", owner, after) if after else (1 << 62)
    pattern = f"%{_escaped(search)}%"
    rows = connection.execute(
        _NEWEST, (owner, before, MAX_SEARCHED, search, pattern, pattern, limit + 1)
    ).fetchall()
    found: list[StoredResponse] = [response_of(row) for row in rows]
    return ResponsePage(tuple(found[:limit]), len(found) > limit)


def tree(connection: sqlite3.Connection, owner: str, id: str) -> list[TreeNode]:
    """See `Responses.response_tree`."""
    (root,) = connection.execute(_ROOT, (row_of(connection, "response", owner, id), MAX_TREE)).fetchone()
    rows = connection.execute(_BELOW, (root, MAX_TREE))
    return [TreeNode(id, previous, bool(deleted)) for id, previous, deleted in rows]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
