"""Lists the responses of an owner, newest first, and the trees that they form by continuing each other."""

from __future__ import annotations

from typing import Final

from codex_proxy.store.interface import MAX_SEARCHED, MAX_TREE, NotStored, ResponsePage, TreeNode
from codex_proxy.store.postgresql.responses import CHAIN, SELECT
from codex_proxy.store.postgresql.writing import StorePart
from codex_proxy.store.rows import response_of

_BEFORE: Final = "SELECT seq FROM codex_proxy.responses WHERE owner = $1 AND id = $2 AND NOT deleted"
# As Latin-1 every byte is a character, and "C" has lower case for ASCII only.
_NEWEST: Final = f"""{SELECT} WHERE seq IN (
    SELECT seq FROM codex_proxy.responses
    WHERE owner = $1 AND NOT deleted AND ($2::bigint IS NULL OR seq < $2) ORDER BY seq DESC LIMIT {MAX_SEARCHED}
) AND ($3 = ''::bytea OR strpos(lower(convert_from(convert_to(id, 'UTF8'), 'LATIN1') COLLATE "C"),
    convert_from($3, 'LATIN1')) > 0
    OR strpos(lower(convert_from(json, 'LATIN1') COLLATE "C"), convert_from($3, 'LATIN1')) > 0)
ORDER BY seq DESC LIMIT $4"""
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
    """The lists of `store.interface.Responses`."""

    async def newest_responses(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ResponsePage:
        before = None
        if after is not None:
            rows = await self._database.read(_BEFORE, owner, after)
            if not rows:
                raise NotStored("response", after)
            before = rows[0]["seq"]
        rows = await self._database.read(_NEWEST, owner, before, search.encode().lower(), limit + 1)
        found = [response_of(row) for row in rows]
        return ResponsePage(tuple(found[:limit]), len(found) > limit)

    async def response_tree(self, owner: str, id: str) -> list[TreeNode]:
        rows = await self._database.read(_TREE, owner, id)
        if not rows:
            raise NotStored("response", id)
        return [TreeNode(*row) for row in rows]
