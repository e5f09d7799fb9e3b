"""Lists the responses and conversations of an owner, newest first, and the trees that responses form by continuing each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from codex_proxy.store.interface import (
    MAX_SEARCHED,
    MAX_TREE,
    ConversationPage,
    NotStored,
    ResponsePage,
    TreeNode,
)
from codex_proxy.store.postgresql.database import Row
from codex_proxy.store.postgresql.responses import CHAIN, SELECT
from codex_proxy.store.postgresql.writing import StorePart
from codex_proxy.store.rows import CONVERSATION, conversation_of, response_of

_BEFORE: Final = "SELECT seq FROM codex_proxy.{table} WHERE owner = $1 AND id = $2 AND NOT deleted"
# As Latin-1 every byte is a character, and "C" has lower case for ASCII only.
_NEWEST: Final = """{select} WHERE seq IN (
    SELECT seq FROM codex_proxy.{table}
    WHERE owner = $1 AND NOT deleted AND ($2::bigint IS NULL OR seq < $2) ORDER BY seq DESC LIMIT {searched}
) AND ($3 = ''::bytea OR strpos(lower(convert_from(convert_to(id, 'UTF8'), 'LATIN1') COLLATE "C"),
    convert_from($3, 'LATIN1')) > 0
    OR strpos(lower(convert_from({text}, 'LATIN1') COLLATE "C"), convert_from($3, 'LATIN1')) > 0)
ORDER BY seq DESC LIMIT $4"""
_BEFORE_OF: Final = {
    "response": _BEFORE.format(table="responses"),
    "conversation": _BEFORE.format(table="conversations"),
}
_NEWEST_OF: Final = {
    "response": _NEWEST.format(select=SELECT, table="responses", text="json", searched=MAX_SEARCHED),
    "conversation": _NEWEST.format(
        select=f"SELECT {CONVERSATION} FROM codex_proxy.conversations",
        table="conversations",
        text="metadata",
        searched=MAX_SEARCHED,
    ),
}
_TREE: Final = f"""{CHAIN}, root AS (
    SELECT min(seq) AS seq FROM (SELECT seq FROM chain ORDER BY seq DESC LIMIT {MAX_TREE + 1}) AS nearest
), below (seq, id, parent, deleted) AS (
    SELECT responses.seq, id, parent, deleted FROM root JOIN codex_proxy.responses ON responses.seq = root.seq
    UNION ALL
    SELECT responses.seq, responses.id, responses.parent, responses.deleted
    FROM below JOIN codex_proxy.responses ON responses.parent = below.seq
)
SELECT nearest.id, above.id, nearest.deleted FROM (SELECT * FROM below LIMIT {MAX_TREE}) AS nearest
LEFT JOIN codex_proxy.responses AS above ON above.seq = nearest.parent
ORDER BY nearest.seq"""


class PostgresLists(StorePart):
    """The lists of `store.interface.Responses` and `Conversations`."""

    async def newest_responses(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ResponsePage:
        found = [response_of(row) for row in await self._newest("response", owner, search, after, limit)]
        return ResponsePage(tuple(found[:limit]), len(found) > limit)

    async def newest_conversations(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ConversationPage:
        rows = await self._newest("conversation", owner, search, after, limit)
        found = [conversation_of(row) for row in rows]
        return ConversationPage(tuple(found[:limit]), len(found) > limit)

    async def _newest(
        self,
        kind: Literal["response", "conversation"],
        owner: str,
        search: str,
        after: str | None,
        limit: int,
    ) -> Sequence[Row]:
        """Returns the rows of a page, and one more if there is one."""
        before = None
        if after is not None:
            rows = await self._database.read(_BEFORE_OF[kind], owner, after)
            if not rows:
                raise NotStored(kind, after)
            before = rows[0]["seq"]
        return await self._database.read(_NEWEST_OF[kind], owner, before, search.encode().lower(), limit + 1)

    async def response_tree(self, owner: str, id: str) -> list[TreeNode]:
        rows = await self._database.read(_TREE, owner, id)
        if not rows:
            raise NotStored("response", id)
        return [TreeNode(*row) for row in rows]
