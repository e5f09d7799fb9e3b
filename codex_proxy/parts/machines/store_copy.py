"""`codex-proxy store copy`: copies a store into another one of any engine. All rows, with their numbers and checksums,
in the order of their keys, so that an interrupted copy goes on where it ended.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from codex_proxy.app.store_lifecycle import open_store, require_store
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from codex_proxy.store.rows import TABLES, CopiedTable, Row
from codex_proxy.store.sqlite.opening import StoreLock
from codex_proxy.store.store import Store
from codex_proxy.store.values import StoreError, StoreInUse, StoreRefused


async def copy_store(settings: Settings, source: str, target: str, tell: Callable[[str, int], object]) -> str:
    """Copies one store (path or URL) into another. Calls `tell` with each table and its number of rows. Raises
    `UserError` also while a server uses one.
    """
    require_store(_place(settings, source))
    async with _unused_store(settings, source) as one, _unused_store(settings, target) as other:
        try:
            count = await copy(one, other, tell)
        except StoreError as error:
            raise UserError(f"{error}. What was copied stays: the same command goes on there") from error
    return f"{count} rows copied{_uploads_left(_place(settings, source), _place(settings, target))}"


def _uploads_left(source: Settings, target: Settings) -> str:
    """Returns what is to be done with the bytes of uploaded files, which are no rows of a store that is a file."""
    folder = source.uploads_folder
    if not source.in_file or not folder.is_dir() or not any(folder.iterdir()):
        return ""
    if target.in_file:
        return f". Copy the uploaded files, too: {folder} to {target.uploads_folder}"
    return f", without the bytes of the uploaded files in {folder}: upload these files anew"


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


def _place(settings: Settings, place: str) -> Settings:
    store = place if "://" in place else os.path.abspath(place)
    return settings.model_copy(update={"store": store})


async def copy(source: Store, target: Store, on_copied: Callable[[str, int], object]) -> int:
    """Copies what the target does not have, and returns how many rows. Calls `on_copied` with a table and its number of
    copied rows. Raises `StoreRefused`, before any change, if the target has other data.
    """
    lasts = [await target.last_row(table) for table in TABLES]
    for table, last in zip(TABLES, lasts, strict=True):
        if last is not None:
            await _require_same(source, table, last)
    total = 0
    for table, last in zip(TABLES, lasts, strict=True):
        copied = 0
        while rows := await source.rows_after(table, last):
            await target.add_rows(table, rows)
            last, copied = rows[-1], copied + len(rows)
            on_copied(table.name, copied)
        total += copied
    return total


async def _require_same(source: Store, table: CopiedTable, last: Row) -> None:
    found = await source.rows_from(table, last[: len(table.key)], 1)
    if not found or list(found[0]) != list(last):
        raise StoreRefused(
            f"the target has {table.name} that are not of the source; copy into an empty store, or into one to which "
            "a copy of this source was begun and that no server has used"
        )
