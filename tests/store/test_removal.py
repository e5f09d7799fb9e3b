"""Large deletions: gone for every reader at once, removed in pieces, and other writes come in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codex_proxy.app.store_lifecycle import open_store_lifecycle
from codex_proxy.settings.fields import Settings
from codex_proxy.store.sqlite import removal
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    ContextLimits,
    ItemReference,
    NotStored,
    Retention,
)
from tests.store.conftest import SQLITE_ONLY, Connections, Make
from tests.store.stored import OWNER, Hands, context_ids, conversation, item, items, response, turn
from tests.waiting import PATIENCE

LARGE = 30_000


class Pieces:
    """How many rows of lists (items, events) each transaction of the writing connection has deleted."""

    def __init__(self, opened: Connections) -> None:
        self.sizes: list[int] = []
        self._size = 0
        opened[0].set_trace_callback(self._statement)

    def _statement(self, text: str) -> None:
        if text == "COMMIT":
            self.sizes.append(self._size)
            self._size = 0
        self._size += text.startswith(("DELETE FROM conversation_items", "DELETE FROM response_items"))
        self._size += text.startswith("DELETE FROM frames")


@pytest.fixture
async def file_store(path: Path, clock: Hands, connections: Connections) -> AsyncIterator[SqliteStore]:
    """A store that takes conversations of any length, as earlier versions did."""
    store = await SqliteStore.open(
        path, clock=clock, limits=ContextLimits(max_items=None), opener=connections
    )
    yield store
    await store.close()


async def fill_conversation(store: Store, id: str, count: int) -> None:
    await store.add_conversation(conversation(id))
    for start in range(0, count, 1000):
        await store.append_items(OWNER, id, [item(f"item_{start + each}") for each in range(1000)])


@pytest.mark.exhaustive
async def test_while_a_large_conversation_is_removed_every_other_write_waits_for_one_piece_at_most(
    file_store: SqliteStore, connections: Connections
) -> None:
    await fill_conversation(file_store, "conv_1", LARGE)
    pieces = Pieces(connections)
    assert await file_store.delete_conversation(OWNER, "conv_1")
    between = 0
    while (await file_store.stats()).items > 2 * between:
        await turn(file_store, f"resp_{between}")
        between += 1
    assert max(pieces.sizes) <= removal.PIECE
    assert between >= LARGE // removal.PIECE // 2  # a turn and a piece of the removal take turns


async def test_what_is_deleted_is_seen_by_nobody_while_its_rows_are_there(
    file_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PIECE", 1)
    await file_store.add_conversation(conversation("conv_1"), items("a", "b", "c", "d"))
    await file_store.add_conversation(conversation("conv_2"))
    deleting = asyncio.create_task(file_store.delete_conversation(OWNER, "conv_1"))
    referring = asyncio.create_task(file_store.append_items(OWNER, "conv_2", [ItemReference("d")]))
    assert await deleting
    with pytest.raises(NotStored):
        await referring
    assert await file_store.conversation(OWNER, "conv_1") is None
    assert await file_store.find_items(OWNER, ["a", "b", "c", "d"]) == {}
    assert (await file_store.stats()).conversations == 1
    lines: list[bytes] = []
    assert await file_store.export(lines.append) == 1
    assert not await file_store.delete_conversation(OWNER, "conv_1")
    await file_store.add_conversation(conversation("conv_1"))  # its id is free


async def test_what_a_process_has_left_is_removed_by_the_next_one(
    path: Path, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PIECE", 10)
    store = await SqliteStore.open(path, clock=clock)
    await fill_conversation(store, "conv_1", 1000)
    await turn(store, "resp_1")
    await store.delete_conversation(OWNER, "conv_1")
    await store.close()
    store = await SqliteStore.open(path, clock=clock)
    assert 2 < (await store.stats()).items < 1002
    await store.sweep()
    assert (await store.stats()).items == 2
    await store.close()


@pytest.mark.exhaustive
async def test_a_server_removes_at_its_start_what_the_last_one_has_left(
    path: Path, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PIECE", 10)
    store = await SqliteStore.open(path, clock=clock)
    await fill_conversation(store, "conv_1", 1000)
    await store.delete_conversation(OWNER, "conv_1")
    await store.close()
    lifecycle = await open_store_lifecycle(Settings(store=str(path)), clock)
    assert lifecycle is not None
    async with asyncio.timeout(PATIENCE):
        while (await lifecycle.store.stats()).items:
            pass
    await lifecycle.close()


@SQLITE_ONLY
async def test_retention_removes_large_objects_in_pieces_too(
    make: Make, clock: Hands, connections: Connections
) -> None:
    store = await make(Retention(age=10, conversation_age=10))
    await fill_conversation(store, "conv_1", 3000)
    await store.add_response(response("resp_1"), input=[item(f"in_{number}") for number in range(3000)])
    clock.now += 20
    pieces = Pieces(connections)
    pruned = await store.prune()
    assert (pruned.responses, pruned.conversations) == (1, 1)
    assert sum(pieces.sizes) >= 6000
    assert max(pieces.sizes) <= removal.PIECE
    assert (await store.stats()).items == 0


@SQLITE_ONLY
async def test_a_chain_whose_turns_were_all_deleted_goes_in_pieces(
    make: Make, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PIECE", 10)
    store = await make()
    for number in range(50):
        await turn(store, f"resp_{number}", after=f"resp_{number - 1}" if number else None)
    for number in range(49):
        await store.delete_response(OWNER, f"resp_{number}")
    assert len(await context_ids(store, "resp_49")) == 100
    pieces = Pieces(connections)
    await store.delete_response(OWNER, "resp_49")
    await store.sweep()
    assert (await store.stats()).items == 0
    assert max(pieces.sizes) <= 10 + 1  # the first piece, which the deletion removes, is smaller


@SQLITE_ONLY
async def test_the_stream_of_a_deleted_response_goes_in_pieces_though_others_continue_it(
    make: Make, connections: Connections
) -> None:
    store = await make()
    await store.add_response(response("resp_1", background=True), input=items("a"))
    await store.append_frames(OWNER, "resp_1", [(number, b"event") for number in range(2000)])
    await turn(store, "resp_2", after="resp_1", append=None)
    pieces = Pieces(connections)
    await store.delete_response(OWNER, "resp_1")
    await store.sweep()
    assert (await store.stats()).frames == 0
    assert max(pieces.sizes) <= removal.PIECE + removal.PIECE // 10
    assert await context_ids(store, "resp_2") == ["a", "in-resp_2", "out-resp_2"]


async def test_items_that_others_hold_stay_when_a_large_conversation_goes(store: Store) -> None:
    await fill_conversation(store, "conv_1", 2000)
    await store.add_conversation(conversation("conv_2"))
    await store.append_items(OWNER, "conv_2", [ItemReference("item_700"), ItemReference("item_1999")])
    await turn(store, "resp_1", append="conv_1")
    await store.delete_conversation(OWNER, "conv_1")
    await store.sweep()
    assert set(await store.find_items(OWNER, ["item_700", "item_701", "item_1999", "in-resp_1"])) == {
        "item_700",
        "item_1999",
        "in-resp_1",
    }
