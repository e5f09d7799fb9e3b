"""A background response is written and runs, or it is not written: whoever leaves, and whatever cannot be written."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.responses.background import Recovery, create_in_background
from codex_proxy.responses.service import ServerTasks
from codex_proxy.store.health import UNAVAILABLE
from codex_proxy.store.rows import checksum
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import StoreUnavailable, UnsureWrite
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse
from tests.http.serving import Proxy, until
from tests.http_responses.asking import create, prompt_for, proxy_and_client
from tests.http_responses.leaving import CancelledAt

MAX_WAITS = 40
"""A creation waits less often."""


def statuses(proxy: Proxy) -> dict[str, str]:
    """Of all background responses in the store's file."""
    with closing(sqlite3.connect(proxy.server.settings.store_file)) as connection:
        return dict(connection.execute("SELECT id, status FROM responses WHERE background = 1"))


async def all_ended(proxy: Proxy) -> None:
    """Waits, bounded, until none is queued or runs."""
    await until(lambda: {"queued", "in_progress"}.isdisjoint(statuses(proxy).values()))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_at_any_moment_of_the_creation_leaves_nothing_queued(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    left: list[CancelledAt[Any]] = []

    async def create_and_leave(*given: Any) -> Any:
        left.append(CancelledAt(create_in_background(*given), len(left) + 1))
        return await left[-1]

    monkeypatch.setattr("codex_proxy.http.responses.create_in_background", create_and_leave)
    answers = 0
    while not left or left[-1].reached:
        assert len(left) < MAX_WAITS
        try:
            await create(proxy, prompt_for("Hello."), background=True, stream=stream)
            answers += 1
        except aiohttp.ServerDisconnectedError:
            pass
    assert answers == 1
    await all_ended(proxy)
    stored = statuses(proxy)
    assert set(stored.values()) == {"completed"}
    assert len(stored) > 1  # some left when it was written already
    await until(lambda: all(proxy.server.background.find("local", id) is None for id in stored))


async def test_a_creation_whose_write_is_too_slow_for_its_client_leaves_nothing_queued(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxy.server.store_lifecycle is not None
    store: Any = proxy.server.store_lifecycle.store
    write = store.add_response

    async def too_slow(*given: Any, **more: Any) -> None:
        await write(*given, **more)
        raise UnsureWrite("the store did not answer in time")

    monkeypatch.setattr(store, "add_response", too_slow)
    answer = await create(proxy, prompt_for("Hello."), background=True)
    assert answer.status == 503
    await until(lambda: statuses(proxy) == {})


async def test_a_failed_write_whose_client_has_left_is_no_unhandled_exception() -> None:
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    begun, fails = asyncio.Event(), asyncio.Event()

    async def fail_to_write() -> None:
        begun.set()
        await fails.wait()
        raise Fault(UNAVAILABLE)

    caller = loop.create_task(ServerTasks().run(fail_to_write()))
    await begun.wait()
    caller.cancel()
    loop.call_soon(fails.set)
    await asyncio.wait({caller})
    assert caller.cancelled()
    del caller
    gc.collect()
    assert unhandled == []


async def test_what_cannot_be_recovered_at_the_start_is_as_soon_as_the_store_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("background", "recovery"):
        monkeypatch.setattr(f"codex_proxy.responses.{module}.RETRY_SECONDS", 0.01)
    async with proxy_and_client(tmp_path) as (proxy, _):
        created = (await create(proxy, prompt_for("Hello."), background=True)).body["id"]
        await all_ended(proxy)
    with closing(sqlite3.connect(proxy.server.settings.store_file)) as connection, connection:
        connection.execute("UPDATE responses SET status = 'queued', unfinished = 1")

    full = asyncio.Event()
    write = SqliteStore.update_response

    async def refuse(self: SqliteStore, *given: Any, **more: Any) -> bool:
        if not full.is_set():
            raise StoreUnavailable("the disk is full")
        return await write(self, *given, **more)

    monkeypatch.setattr(SqliteStore, "update_response", refuse)
    async with proxy_and_client(tmp_path) as (proxy, _):
        assert statuses(proxy) == {created: "queued"}
        later = (await create(proxy, prompt_for("Hello."), background=True)).body["id"]
        full.set()
        await until(lambda: statuses(proxy) == {created: "failed", later: "completed"})


async def leave_queued(folder: Path, *recoveries: bytes) -> None:
    """Leaves a queued response for each recovery in the store, as a process that was killed does."""
    async with proxy_and_client(folder, background_recovery="rerun") as (proxy, _):
        for _ in recoveries:
            await create(proxy, prompt_for("Hello."), background=True, instructions="Be brief.")
        await all_ended(proxy)
    with closing(sqlite3.connect(proxy.server.settings.store_file)) as connection, connection:
        connection.execute("UPDATE responses SET status = 'queued', unfinished = 1")
        rows = connection.execute("SELECT seq FROM responses ORDER BY seq").fetchall()
        for (row,), recovery in zip(rows, recoveries, strict=True):
            connection.execute(
                "UPDATE response_bodies SET recovery = ?, recovery_sum = ? WHERE response = ?",
                (recovery, checksum(recovery), row),
            )


async def test_a_response_whose_recovery_is_not_understood_is_failed_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    await leave_queued(tmp_path, *2 * [b'{"from": "another version"}'])
    async with proxy_and_client(tmp_path, background_recovery="rerun") as (proxy, _):
        await all_ended(proxy)
        assert list(statuses(proxy).values()) == ["failed", "failed"]


def recovery_of(text: str) -> bytes:
    body = {"model": "codex-5", "input": prompt_for(text), "background": True, "instructions": "Be brief."}
    return msgspec.json.encode(Recovery(json.dumps(body), None, None, None))


async def test_a_response_whose_recovery_fails_in_this_server_is_failed_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_on_one(body: bytes, *given: Any, **more: Any) -> ParsedResponse:
        if b"Break." in body:
            raise RuntimeError("a bug")
        return parse(body, *given, **more)

    await leave_queued(tmp_path, recovery_of("Break."), recovery_of("Hello."))
    monkeypatch.setattr("codex_proxy.responses.recovery.parse", break_on_one)
    async with proxy_and_client(tmp_path, background_recovery="rerun") as (proxy, _):
        await all_ended(proxy)
        assert list(statuses(proxy).values()) == ["failed", "completed"]
