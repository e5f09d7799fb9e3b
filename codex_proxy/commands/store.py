"""`codex-proxy store`: shows statistics of the store (the SQLite file of responses and conversations), removes old
objects, checks it, and exports it as JSON lines.

Input: settings. Output: text, or lines to a file. The commands may run while a server uses the store. They raise
`StoreOpenError`, whose message says what to do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from codex_proxy.app import SystemClock
from codex_proxy.config import Settings
from codex_proxy.files.private import replacing
from codex_proxy.store.interface import Store, StoreStats, StoreUnavailable
from codex_proxy.store_lifecycle import StoreOpenError, open_store


async def show_stats(settings: Settings, *, as_json: bool) -> str:
    """Returns a text with the number of objects of each kind in the store; with `as_json` it is JSON."""
    async with existing_store(settings) as store:
        found = await store.stats()
    return msgspec.json.format(msgspec.json.encode(found)).decode() if as_json else _as_text(found)


async def prune(settings: Settings) -> str:
    """Removes the objects that exceed the age and number that the settings allow, and returns free space to the
    file system. Returns a text with the numbers of removed objects.
    """
    async with existing_store(settings) as store:
        gone = await store.prune()
        freed = await store.vacuum()
    return (
        f"removed: {gone.responses} responses, {gone.conversations} conversations, {gone.frames} events, "
        f"{gone.steps} tool steps, {gone.usage} sums of usage; {freed} bytes freed"
    )


async def check(settings: Settings) -> str:
    """Compares all stored rows with their checksums. Returns a text with the number of rows. Raises
    `StoreOpenError`, which lists the damaged rows, if there are any.
    """
    async with existing_store(settings) as store:
        found = await store.check()
    if found.damaged:
        raise StoreOpenError(
            f"{len(found.damaged)} of {found.rows} rows in {settings.store_file} are damaged "
            "and are not returned to clients. Delete what they belong to, or restore a copy of "
            "the file:\n" + "\n".join(found.damaged)
        )
    return f"{found.rows} rows are intact"


async def export(settings: Settings, write: Callable[[bytes], object]) -> int:
    """Calls `write` with one line of JSON for each response and conversation. Returns their number."""
    async with existing_store(settings) as store:
        return await store.export(write)


async def export_to(settings: Settings, output: Path) -> int:
    """Exports the whole store into the file `output`, which is replaced when the export is complete. Returns the
    number of responses and conversations. Raises `StoreOpenError`, also if the file cannot be written.
    """
    try:
        with replacing(output) as file:
            return await export(settings, file.write)
    except OSError as error:
        raise StoreOpenError(f"{output} cannot be written: {error.strerror}") from error


@asynccontextmanager
async def existing_store(settings: Settings) -> AsyncIterator[Store]:
    """Opens the store of these settings, which must exist, for the body of the `with`. Raises `StoreOpenError` if
    there is no file (as with a store in RAM), or if it cannot be opened. A `StoreUnavailable` in the body is raised
    as `StoreOpenError`.
    """
    if settings.store == "memory":
        raise StoreOpenError("with PROXY_STORE=memory there is no file: the store is in the server's memory")
    if not settings.store_file.is_file():
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
