"""The keys of clients, and the requests of each key on every node, in PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from codex_proxy.core.keys import MAX_KEYS, Key, KeysError
from codex_proxy.parts.machines.postgresql.database import Database
from codex_proxy.store.team import NO_REQUESTS, KeyRequests, OtherNodes

ROW_SECONDS: Final = 60
"""Seconds after its last report for which a node's row for a key is kept: then the key's bucket is full again."""
RUNNING_SECONDS: Final = 10
"""Seconds after its last report for which a node's running requests count: it may have been killed."""

# A node writes and removes its own rows only, so that no two wait for each other; it removes what a dead one has left
# when no living node can write it.
_EXCHANGE: Final = f"""
WITH told AS (
    INSERT INTO codex_proxy.key_requests (owner, node, taken, running, seen)
    SELECT owner, $1, taken, running, clock_timestamp()
    FROM unnest($2::text[], $3::bigint[], $4::integer[]) AS given (owner, taken, running)
    ON CONFLICT (owner, node) DO UPDATE SET taken = key_requests.taken + excluded.taken,
        running = excluded.running, seen = excluded.seen
), gone AS (
    DELETE FROM codex_proxy.key_requests WHERE owner <> ALL ($2) AND seen < clock_timestamp()
        - CASE WHEN node = $1 THEN interval '{ROW_SECONDS} s' ELSE interval '{10 * ROW_SECONDS} s' END
)
SELECT version, owner, node, taken,
    CASE WHEN seen > clock_timestamp() - interval '{RUNNING_SECONDS} s' THEN running ELSE 0 END AS running
FROM (SELECT coalesce(max(version), 0) AS version FROM codex_proxy.key_changes) AS stored
LEFT JOIN codex_proxy.key_requests
    ON node <> $1 AND seen > clock_timestamp() - interval '{ROW_SECONDS} s'"""

_CHANGED: Final = """
changed AS (
    INSERT INTO codex_proxy.key_changes (version) SELECT 1 WHERE EXISTS (SELECT FROM {0})
    ON CONFLICT (single) DO UPDATE SET version = key_changes.version + 1
)"""
_PUT: Final = f"""
WITH before AS (
    SELECT EXISTS (SELECT FROM codex_proxy.keys WHERE name = $1) AS there, count(*) AS keys FROM codex_proxy.keys
), put AS (
    INSERT INTO codex_proxy.keys (name, key) SELECT $1, $2 FROM before WHERE CASE WHEN there THEN $3 ELSE keys < $4 END
    ON CONFLICT (name) DO UPDATE SET key = excluded.key WHERE $3 RETURNING 1
), {_CHANGED.format("put")}
SELECT there, keys < $4 AS has_room, EXISTS (SELECT FROM put) AS stored FROM before"""
_REMOVE: Final = f"""
WITH removed AS (
    DELETE FROM codex_proxy.keys WHERE name = $1 RETURNING 1
), {_CHANGED.format("removed")}
SELECT EXISTS (SELECT FROM removed) AS removed"""


class PostgresTeam:
    """The keys and requests of all nodes, in PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._node = os.urandom(16).hex()
        """This node's id in the table."""
        self._known: dict[tuple[str, str], int] = {}
        """The requests of each key on each other node, as of the last exchange."""

    async def exchange(self, own: Mapping[str, KeyRequests]) -> OtherNodes:
        taken, running = (
            [getattr(each, name) for each in own.values()] for name in KeyRequests.__struct_fields__
        )
        rows = await self._database.write(_EXCHANGE, self._node, list(own), taken, running)
        before, self._known = self._known, {}
        others: dict[str, KeyRequests] = {}
        for row in rows:
            if row["owner"] is None:
                continue
            key = row["owner"], row["node"]
            known = before.get(key, 0)
            # Fewer than before: the row was removed, and written anew.
            new = row["taken"] - known if row["taken"] >= known else row["taken"]
            self._known[key] = row["taken"]
            sum = others.get(row["owner"], NO_REQUESTS)
            others[row["owner"]] = KeyRequests(sum.taken + new, sum.running + row["running"])
        return OtherNodes(rows[0]["version"], others)

    async def keys(self) -> tuple[Key, ...]:
        rows = await self._database.read("SELECT key FROM codex_proxy.keys ORDER BY name")
        return tuple(msgspec.json.decode(row["key"], type=Key) for row in rows)

    async def put_key(self, key: Key, *, replace: bool) -> bool:
        (row,) = await self._database.write(_PUT, key.name, msgspec.json.encode(key), replace, MAX_KEYS)
        if row["stored"]:
            return bool(row["there"])
        if row["there"] or row["has_room"]:  # the latter: one was added at the same moment
            raise KeysError(f"there is already a key '{key.name}'; replace it with --replace")
        raise KeysError(f"there are {MAX_KEYS} keys in the store, which is the maximum")

    async def remove_key(self, name: str) -> bool:
        (row,) = await self._database.write(_REMOVE, name)
        return bool(row["removed"])
