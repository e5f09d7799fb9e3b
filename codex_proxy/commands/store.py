"""`codex-proxy store`: statistics, removal, check, export and copies of the store. Functions raise `UserError`,
and return a text.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from codex_proxy.app.store_lifecycle import open_store
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from codex_proxy.files.private import replace_file
from codex_proxy.settings.fields import Settings
from codex_proxy.store import checking, copying
from codex_proxy.store.lock import StoreLock
from codex_proxy.store.store import Store
from codex_proxy.store.values import StoreError, StoreInUse, StoreRefused, StoreStats, StoreUnavailable


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


async def copy_store(settings: Settings, source: str, target: str, tell: Callable[[str, int], object]) -> str:
    """Copies one store (path or URL) into another. Calls `tell` with each table and its number of rows. Raises
    `UserError` also while a server uses one.
    """
    _require_store(_place(settings, source))
    async with _unused_store(settings, source) as one, _unused_store(settings, target) as other:
        try:
            count = await copying.copy(one, other, tell)
        except StoreError as error:
            raise UserError(f"{error}. What was copied stays: the same command goes on there") from error
    return f"{count} rows copied"


@asynccontextmanager
async def _unused_store(settings: Settings, place: str) -> AsyncIterator[Store]:
    placed = _place(settings, place)
    async with AsyncExitStack() as stack:
        if not placed.in_database:
            try:
                lock = await StoreLock.take(placed.store_file)
            except StoreInUse as error:
                raise UserError(f"{error}: stop it first") from error
            except StoreRefused as error:
                raise UserError(str(error)) from error
            stack.callback(lock.release)
        store = await open_store(placed, SystemClock())
        stack.push_async_callback(store.close)
        running = await store.leases.nodes()
        if running:
            names = ", ".join(node.name for node in running)
            raise UserError(f"servers use {place} ({names}): stop them first")
        yield store


def _require_store(settings: Settings) -> None:
    if settings.store == "memory":
        raise UserError("with PROXY_STORE=memory there is no file: the store is in the server's memory")
    if not settings.in_database and not settings.store_file.is_file():
        raise UserError(
            f"there is no store at {settings.store_file}: a server creates it at its first "
            "start (PROXY_STATE_DIR)"
        )


def _place(settings: Settings, place: str) -> Settings:
    store = place if "://" in place else os.path.abspath(place)
    return settings.model_copy(update={"store": store})


@asynccontextmanager
async def existing_store(settings: Settings) -> AsyncIterator[Store]:
    """Opens the existing store for the `with`, and makes missing tables of a database. Raises `UserError`, also
    for a `StoreUnavailable` in the body.
    """
    _require_store(settings)
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
