"""The step memory, the sums of usage, and the pending webhooks: rows that are found by a key, and to which no other row
refers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import astuple

from codex_proxy.core.tokens import FIGURES
from codex_proxy.parts.machines.postgresql.writing import StorePart
from codex_proxy.store.checksums import checksum
from codex_proxy.store.usage import UsageEntry
from codex_proxy.store.values import DELIVERY_SECONDS, PendingWebhook

_REMEMBER: Final = """
INSERT INTO codex_proxy.steps (owner, key, created, value, value_sum)
SELECT $1, given.key, $2, given.value, given.value_sum
FROM unnest($3::bytea[], $4::bytea[], $5::bigint[]) AS given (key, value, value_sum) ORDER BY key
ON CONFLICT (owner, key) DO UPDATE
SET created = excluded.created, value = excluded.value, value_sum = excluded.value_sum"""
# In order, since two statements that lock the same rows in another order would wait for each other.
_ADD_USAGE: Final = f"""
INSERT INTO codex_proxy.usage (owner, hour, model, {", ".join(FIGURES)})
SELECT owner, hour, model, {", ".join(f"sum({name})" for name in FIGURES)}
FROM unnest($1::text[], $2::bigint[], $3::text[], {", ".join(f"${n}::bigint[]" for n in range(4, 4 + len(FIGURES)))})
    AS given (owner, hour, model, {", ".join(FIGURES)})
GROUP BY owner, hour, model ORDER BY owner, hour, model
ON CONFLICT (owner, hour, model) DO UPDATE
SET {", ".join(f"{name} = usage.{name} + excluded.{name}" for name in FIGURES)}"""
_CLAIM: Final = """
UPDATE codex_proxy.webhooks SET due = clock_timestamp() + $2::float8 * interval '1 second' WHERE seq IN (
    SELECT seq FROM codex_proxy.webhooks WHERE due <= clock_timestamp() ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING seq, event_id, url, body, tries, due::text"""
_RETRY: Final = """
UPDATE codex_proxy.webhooks SET tries = $3, due = clock_timestamp() + $4::float8 * interval '1 second'
WHERE event_id = $1 AND url = $2 AND ($5::text IS NULL OR due = $5::text::timestamptz)"""
_DROP: Final = "DELETE FROM codex_proxy.webhooks WHERE event_id = $1 AND url = $2"


class PostgresKeyedRows(StorePart):
    async def _save_steps(self, owner: str, entries: Mapping[bytes, bytes]) -> None:
        columns = list(entries), list(entries.values()), [checksum(each) for each in entries.values()]
        await self._database.read(_REMEMBER, owner, self._now, *columns)

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        rows = [(entry.owner, entry.hour, entry.model, *astuple(entry.figures)) for entry in entries]
        if rows:
            await self._database.write(_ADD_USAGE, *(list(column) for column in zip(*rows, strict=True)))

    async def claim_webhooks(self, limit: int) -> list[PendingWebhook]:
        rows = await self._database.write(_CLAIM, limit, DELIVERY_SECONDS)
        return [PendingWebhook(*columns) for _, *columns in sorted(rows)]

    async def retry_webhook(self, pending: PendingWebhook, delay: float) -> None:
        await self._database.read(_RETRY, pending.event_id, pending.url, pending.tries, delay, pending.claim)

    async def drop_webhook(self, event_id: str, url: str) -> None:
        await self._database.read(_DROP, event_id, url)
