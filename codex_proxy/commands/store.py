"""`codex-proxy store`: statistics, removal, check and export of the store. Functions raise `UserError`,
and return a text.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.app.store_lifecycle import open_store, require_store
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from codex_proxy.core.safety import ProtectedPath, find_endangered
from codex_proxy.files.private import replace_file
from codex_proxy.parts import declared
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import STORE_FILE_ENDINGS, protected_paths
from codex_proxy.store.rows import TABLES, checksum, item_digest
from codex_proxy.store.store import Store
from codex_proxy.store.values import CheckResult, StoreStats, StoreUnavailable

CHECKED: Final = {
    "items": "the item",
    "response_bodies": "the response",
    "frames": "an event of the response",
    "conversations": "the metadata of the conversation",
    "steps": "the tool step",
    "records": "the record",
}
"""The tables whose rows have checksums, and what a row is called in messages."""


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
        f"removed: {gone.responses} responses, {gone.conversations} conversations, {gone.records} records, "
        f"{gone.frames} events, {gone.steps} tool steps, {gone.usage} sums of usage; {freed} bytes freed"
    )


async def check(settings: Settings) -> str:
    """Compares all rows with their checksums. Raises `UserError` with the damaged rows."""
    async with existing_store(settings) as store:
        found = await check_rows(store)
        place = (await store.stats()).location
    if found.damaged:
        raise UserError(
            f"{len(found.damaged)} of {found.rows} rows in {place} are damaged "
            "and are not returned to clients. Delete what they belong to, or restore a "
            "copy:\n" + "\n".join(found.damaged)
        )
    return f"{found.rows} rows are intact"


async def check_rows(store: Store) -> CheckResult:
    """Compares every row that has a checksum with it, in small reads."""
    rows, damaged = 0, []
    for table in filter(lambda table: table.name in CHECKED, TABLES):
        last = None
        while part := await store.rows_after(table, last):
            for last in part:
                row = dict(zip(table.columns, last, strict=True))
                if not _is_sound(row):
                    damaged.append(f"{CHECKED[table.name]} {await _id_of(row, store)}")
            rows += len(part)
    return CheckResult(rows, tuple(damaged))


def _is_sound(row: Mapping[str, Any]) -> bool:
    if "digest" in row:
        return bool(row["digest"] == item_digest(row["json"], row["raw"]))
    sums = [name for name in row if name.endswith("_sum")]
    return all(checksum(row[name.removesuffix("_sum")]) == row[name] for name in sums)


async def _id_of(row: Mapping[str, Any], store: Store) -> object:
    if "response" in row:
        [table] = (table for table in TABLES if table.name == "responses")
        found = await store.rows_from(table, (row["response"],), 1)
        ids = {seq: id for seq, _, id, *_ in found}
        return ids.get(row["response"], row["response"])  # it may have been deleted since
    return row["id"] if "id" in row else row["key"].hex().upper()


async def export(settings: Settings, write: Callable[[bytes], object], environ: Mapping[str, str]) -> int:
    """Calls `write` with a line of JSON for each object; returns their number."""
    more = {
        kind: fields
        for of_part in declared("exported")
        for kind, fields in of_part(settings, environ).items()
    }
    async with existing_store(settings) as store:
        return await store.export(write, more)


async def export_to(settings: Settings, output: Path, environ: Mapping[str, str]) -> int:
    """Exports into a file, replaced when complete. Raises `UserError` for one of the server's own files."""
    _check_output(settings, output, environ)
    try:
        with replace_file(output) as file:
            return await export(settings, file.write, environ)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror}") from error


def _check_output(settings: Settings, output: Path, environ: Mapping[str, str]) -> None:
    place = os.path.realpath(output)
    protected = list(protected_paths(settings, environ))
    if settings.in_file:
        store = os.path.realpath(settings.store_file)
        protected += [ProtectedPath("the store", store + end) for end in STORE_FILE_ENDINGS]
    if found := find_endangered(place, protected) or next(
        (each for each in protected if _is_same_file(place, each.path)), None
    ):
        raise UserError(
            f"{output} would replace what the server needs: {found.what} is {found.path}. Name a file elsewhere."
        )


def _is_same_file(one: str, other: str) -> bool:
    """Whether both paths are one file: a file system may take names in small and in capital letters for the same."""
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


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
