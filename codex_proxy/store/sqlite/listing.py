"""Lists the responses and conversations of an owner, newest first, and the trees that responses form by continuing each
other: functions that run SQL statements on a connection.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final, Literal

from codex_proxy.store.interface import (
    MAX_SEARCHED,
    MAX_TREE,
    ConversationPage,
    ResponsePage,
    TreeNode,
)
from codex_proxy.store.rows import CONVERSATION, conversation_of, response_of
from codex_proxy.store.sqlite.items import row_of
from codex_proxy.store.sqlite.responses import SELECT

_NEWEST: Final = (
    "{select} WHERE seq IN (SELECT seq FROM {table} WHERE owner = ? AND deleted = 0 AND seq < ?"
    " ORDER BY seq DESC LIMIT ?)"
    " AND (? = '' OR id LIKE ? ESCAPE '\\' OR CAST({text} AS TEXT) LIKE ? ESCAPE '\\')"
    " ORDER BY seq DESC LIMIT ?"
)
_NEWEST_OF: Final = {
    "response": _NEWEST.format(select=SELECT, table="responses", text="json"),
    "conversation": _NEWEST.format(
        select=f"SELECT {CONVERSATION} FROM conversations", table="conversations", text="metadata"
    ),
}
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
    found = [response_of(row) for row in _rows(connection, "response", owner, search, after, limit)]
    return ResponsePage(tuple(found[:limit]), len(found) > limit)


def newest_conversations(
    connection: sqlite3.Connection, owner: str, search: str, after: str | None, limit: int
) -> ConversationPage:
    """See `Conversations.newest_conversations`."""
    found = [conversation_of(row) for row in _rows(connection, "conversation", owner, search, after, limit)]
    return ConversationPage(tuple(found[:limit]), len(found) > limit)


def _rows(
    connection: sqlite3.Connection,
    kind: Literal["response", "conversation"],
    owner: str,
    search: str,
    after: str | None,
    limit: int,
) -> list[Any]:
    """Returns the rows of a page, and one more if there is one."""
    before = row_of(connection, kind, owner, after) if after else (1 << 62)
    pattern = f"%{_escaped(search)}%"
    given = (owner, before, MAX_SEARCHED, search, pattern, pattern, limit + 1)
    return connection.execute(_NEWEST_OF[kind], given).fetchall()


def tree(connection: sqlite3.Connection, owner: str, id: str) -> list[TreeNode]:
    """See `Responses.response_tree`."""
    (root,) = connection.execute(_ROOT, (row_of(connection, "response", owner, id), MAX_TREE)).fetchone()
    rows = connection.execute(_BELOW, (root, MAX_TREE))
    return [TreeNode(id, previous, bool(deleted)) for id, previous, deleted in rows]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
