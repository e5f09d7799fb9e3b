"""`codex-proxy store`: statistics, removal, check and export of the store. Functions raise `UserError`,
and return a text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from codex_proxy.app.store_lifecycle import open_store, require_store
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from codex_proxy.files.private import replace_file
from codex_proxy.settings.fields import Settings
from codex_proxy.store import checking
from codex_proxy.store.store import Store
from codex_proxy.store.values import StoreStats, StoreUnavailable


async def show_stats(settings: Settings, *, as_json: bool) -> str:
    async with existing_store(settings) as store:
        found = await store.stats()
    return msgspec.json.format(msgspec.json.encode(found)).decode() if as_json else _as_text(found)


async def prune(settings: Settings) -> str:
    """Removes what exceeds the settings, and frees disk space."""
    async with existing_store(settings) as store:
        gone = await store.prune()
        freed = await store.vacuum()
    return (
        f"removed: {gone.responses} responses, {gone.conversations} conversations, {gone.frames} events, "
        f"{gone.steps} tool steps, {gone.usage} sums of usage; {freed} bytes freed"
    )


async def check(settings: Settings) -> str:
    """Compares all rows with their checksums. Raises `UserError` with the damaged rows."""
    async with existing_store(settings) as store:
        found = await checking.check(store)
        place = (await store.stats()).location
    if found.damaged:
        raise UserError(
            f"{len(found.damaged)} of {found.rows} rows in {place} are damaged "
            "and are not returned to clients. Delete what they belong to, or restore a "
            "copy:\n" + "\n".join(found.damaged)
        )
    return f"{found.rows} rows are intact"


async def export(settings: Settings, write: Callable[[bytes], object]) -> int:
    """Calls `write` with a line of JSON for each object; returns their number."""
    async with existing_store(settings) as store:
        return await store.export(write)


async def export_to(settings: Settings, output: Path) -> int:
    """Exports into a file, replaced when complete."""
    try:
        with replace_file(output) as file:
            return await export(settings, file.write)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror}") from error


@asynccontextmanager
async def existing_store(settings: Settings) -> AsyncIterator[Store]:
    """Opens the existing store for the `with`, and makes missing tables of a database. Raises `UserError`, also
    for a `StoreUnavailable` in the body.
    """
    require_store(settings)
    store = await open_store(settings, SystemClock())
    try:
        yield store
    except StoreUnavailable as error:
        raise UserError(str(error)) from error
    finally:
        await store.close()


def _as_text(stats: StoreStats) -> str:
    found: dict[str, object] = msgspec.structs.asdict(stats)
    if stats.oldest is not None:
        found["oldest"] = datetime.fromtimestamp(stats.oldest).isoformat(" ", "seconds")
    return "\n".join(f"{name:<15} {value}" for name, value in found.items())
