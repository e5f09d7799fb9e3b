"""A store that is copied into another one, of any engine: everything is there, under the same numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from codex_proxy.commands.store import check_rows
from codex_proxy.core.tokens import Figures
from codex_proxy.parts.machines import store_copy
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.parts.machines.store_copy import copy
from codex_proxy.store.rows import TABLES, CopiedTable, Row
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.usage import UsageEntry, UsageQuery
from codex_proxy.store.values import (
    PageRequest,
    PendingWebhook,
    StoreRefused,
    StoreUnavailable,
)
from tests.postgres import PostgresServer, empty
from tests.store.stored import (
    OTHER,
    OWNER,
    Hands,
    context_ids,
    conversation,
    hidden_item,
    item,
    record,
    response,
    session,
    turn,
)

HOUR = UsageQuery(owner=None, start=0, end=7200, width=3600, by_model=True)


@pytest.fixture
async def database(postgres_server: PostgresServer) -> AsyncIterator[PostgresStore]:
    await empty(postgres_server.url)
    store = await PostgresStore.open(postgres_server.url, clock=Hands())
    yield store
    await store.close()


@pytest.fixture(params=["file to database", "database to file", "file to file"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path, database: PostgresStore
) -> AsyncIterator[tuple[Store, Store]]:
    """A source and an empty target."""
    files = [await SqliteStore.open(tmp_path / name, clock=Hands()) for name in ("one.db", "two.db")]
    pairs: dict[str, tuple[Store, Store]] = {
        "file to database": (files[0], database),
        "database to file": (database, files[0]),
        "file to file": (files[0], files[1]),
    }
    yield pairs[request.param]
    for store in files:
        await store.close()


async def fill_store(store: Store) -> None:
    await store.add_conversation(conversation("conv_1", a="b"))
    await turn(store, "root")
    await turn(store, "leaf", after="root", append="conv_1")
    await turn(store, "aside", after="root")
    await store.delete_response(OWNER, "root")
    await store.add_response(
        response("theirs", owner=OTHER), input=[hidden_item("secret"), item("a\0b", raw=b"raw")]
    )
    await store.add_response(response("running", background=True, status="in_progress"))
    await store.append_frames(OWNER, "running", [(number, b"event") for number in range(1200)])
    await store.add_response(response("ended", background=True, status="in_progress"))
    told = PendingWebhook("evt_1", "https://a.example", b"{}", tries=2)
    await store.update_response(OWNER, "ended", status="completed", json=b"{}", webhooks=[told])
    await store.remember(OWNER, {b"key": b"value"})
    await store.write_records(OWNER, [session("s"), *(record(f"r{n}", parent="s") for n in range(20))])
    await store.write_records(OTHER, [session("s", busy=True), session("gone")], gone=[("session", "gone")])
    await store.add_usage([UsageEntry(OWNER, "model", 3600, Figures(turns=2, input=1 << 40))])


async def exported_lines(store: Store) -> list[bytes]:
    lines: list[bytes] = []
    await store.export(lines.append)
    return lines


async def test_a_copy_has_everything_and_goes_on_as_the_first_would(
    stores: tuple[Store, Store],
) -> None:
    source, target = stores
    await fill_store(source)
    told: list[tuple[str, int]] = []
    count = await copy(source, target, lambda table, copied: told.append((table, copied)))
    assert dict(told)["frames"] == 1200
    assert count == sum(dict(told).values())
    assert await exported_lines(target) == await exported_lines(source)
    assert (await check_rows(target)).damaged == ()
    assert await target.response(OWNER, "running") == await source.response(OWNER, "running")
    assert len(await target.frames(OWNER, "running", limit=2000)) == 1200
    (claimed,) = await target.claim_webhooks(9)
    expected = PendingWebhook("evt_1", "https://a.example", b"{}", tries=2)
    assert msgspec.structs.replace(claimed, claim=None) == expected
    assert await target.recall(OWNER, [b"key"]) == {b"key": b"value"}
    assert await target.usage(HOUR) == await source.usage(HOUR)
    assert await target.busy_records("session") == [(OTHER, session("s", busy=True))]
    await target.write_records(OWNER, [record("next", parent="s")])
    newest = (await target.records(OWNER, "item", PageRequest(limit=2), parent="s")).items
    assert [each.id for each in newest] == ["next", "r19"]
    assert await context_ids(target, "leaf") == ["in-root", "out-root", "in-leaf", "out-leaf"]
    assert await target.response_tree(OWNER, "leaf") == await source.response_tree(OWNER, "leaf")
    await turn(target, "next", after="leaf", append="conv_1")
    assert (await context_ids(target, "next"))[:2] == ["in-root", "out-root"]
    for id in ("next", "leaf", "aside"):
        await target.delete_response(OWNER, id)
    await target.sweep()
    assert await target.response_tree(OWNER, "running") == await source.response_tree(OWNER, "running")
    assert (await target.stats()).items == 6, "the conversation's and the other owner's"


async def test_a_copy_that_was_interrupted_goes_on_where_it_ended(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    await fill_store(source)
    small = tuple(table._replace(at_once=3 if table.name != "frames" else 500) for table in TABLES)
    monkeypatch.setattr(store_copy, "TABLES", small)
    add_rows, left = target.add_rows, 0

    async def add_until_it_fails(table: CopiedTable, rows: Sequence[Row]) -> None:
        nonlocal left
        left -= len(rows)
        if left < 0:
            raise StoreUnavailable("no more")
        await add_rows(table, rows)

    monkeypatch.setattr(target, "add_rows", add_until_it_fails)
    again = 0
    while True:
        left = 600
        try:
            await copy(source, target, lambda table, copied: None)
            break
        except StoreUnavailable:
            again += 1
    assert again == 2
    assert await exported_lines(target) == await exported_lines(source)
    assert await copy(source, target, lambda table, copied: None) == 0


async def test_a_target_with_data_of_its_own_is_left_as_it_is(stores: tuple[Store, Store]) -> None:
    source, target = stores
    await fill_store(source)
    await turn(target, "own")
    before = await exported_lines(target)
    with pytest.raises(StoreRefused, match="not of the source"):
        await copy(source, target, lambda table, copied: None)
    assert await exported_lines(target) == before
