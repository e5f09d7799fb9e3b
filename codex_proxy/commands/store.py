"""`codex-proxy store`: statistics, removal, check and export of the store, also while a server uses it. Raises
`StoreOpenError`, which says what to do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from codex_proxy.app.store_lifecycle import StoreOpenError, open_store
from codex_proxy.app.system import SystemClock
from codex_proxy.files.private import replacing
from codex_proxy.settings.fields import Settings
from codex_proxy.store.interface import Store, StoreStats, StoreUnavailable


async def show_stats(settings: Settings, *, as_json: bool) -> str:
    """Returns the number of objects of each kind, as text or JSON."""
    async with existing_store(settings) as store:
        found = await store.stats()
    return msgspec.json.format(msgspec.json.encode(found)).decode() if as_json else _as_text(found)


async def prune(settings: Settings) -> str:
    """Removes what exceeds the settings, and frees space. Returns the numbers as text."""
    async with existing_store(settings) as store:
        gone = await store.prune()
        freed = await store.vacuum()
    return (
        f"removed: {gone.responses} responses, {gone.conversations} conversations, {gone.frames} events, "
        f"{gone.steps} tool steps, {gone.usage} sums of usage; {freed} bytes freed"
    )


async def check(settings: Settings) -> str:
    """Compares all rows with their checksums; returns a text. Raises `StoreOpenError` with the damaged rows."""
    async with existing_store(settings) as store:
        found = await store.check()
        place = (await store.stats()).location
    if found.damaged:
        raise StoreOpenError(
            f"{len(found.damaged)} of {found.rows} rows in {place} are damaged "
            "and are not returned to clients. Delete what they belong to, or restore a "
            "copy:\n" + "\n".join(found.damaged)
        )
    return f"{found.rows} rows are intact"


async def export(settings: Settings, write: Callable[[bytes], object]) -> int:
    """Calls `write` with a line of JSON for each response and conversation; returns their number."""
    async with existing_store(settings) as store:
        return await store.export(write)


async def export_to(settings: Settings, output: Path) -> int:
    """Exports the store into a file, replaced when complete; returns the number of objects. Raises `StoreOpenError`."""
    try:
        with replacing(output) as file:
            return await export(settings, file.write)
    except OSError as error:
        raise StoreOpenError(f"{output} cannot be written: {error.strerror}") from error


@asynccontextmanager
async def existing_store(settings: Settings) -> AsyncIterator[Store]:
    """Opens the existing store for the body of the `with`. Raises `StoreOpenError` if there is no file, it cannot be
    opened, or for a `StoreUnavailable` in the body. The tables of a database are made if they are missing.
    """
    if settings.store == "memory":
        raise StoreOpenError("with PROXY_STORE=memory there is no file: the store is in the server's memory")
    if not settings.in_database and not settings.store_file.is_file():
        raise StoreOpenError(
            f"there is no store at {settings.store_file}: a server creates it at its first "
            "start (PROXY_STATE_DIR)"
        )
    store = await open_store(settings, SystemClock())
    try:
        yield store
    except StoreUnavailable as error:
        raise StoreOpenError(str(error)) from error
    finally:
        await store.close()


def _as_text(found: StoreStats) -> str:
    return "\n".join(f"{name:<15} {value}" for name, value in msgspec.structs.asdict(found).items())
