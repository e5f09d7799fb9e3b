"""Rows that were damaged on the disk: whoever reads one is told so, and everything else is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from codex_proxy.commands.store import check_rows
from codex_proxy.store.sqlite.opening import connect, migrate
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.values import PageRequest, StoreDamaged
from tests.store.conftest import Overwrite
from tests.store.stored import OWNER, Hands, conversation, item, response, session

WORD, FLIPPED = b"a secret word", b"a secret worm"

Read = Callable[[Store], Awaitable[object]]


def context(store: Store) -> Awaitable[object]:
    return store.context(OWNER, "resp_1")


def conversation_context(store: Store) -> Awaitable[object]:
    return store.scan_conversation(OWNER, "conv_1", print)


READS: dict[str, tuple[str, str, bytes | str, Read]] = {
    "a response": (
        "response_bodies",
        "json",
        "no bytes",
        lambda store: store.response(OWNER, "resp_1"),
    ),
    "how it goes on": (
        "response_bodies",
        "recovery",
        b"\x00",
        lambda store: store.response(OWNER, "resp_1"),
    ),
    "an item of a chain": ("items", "json", b"{}", context),
    "an item of a conversation": ("items", "json", b"{}", conversation_context),
    "what the model said": ("items", "raw", b"{}", context),
    "an item of a list": (
        "items",
        "json",
        b"{}",
        lambda store: store.items(OWNER, "conv_1", PageRequest()),
    ),
    "an item that is referred to": (
        "items",
        "json",
        b"{}",
        lambda store: store.find_items(OWNER, ["item_1"]),
    ),
    "an event": ("frames", "data", b"\x00", lambda store: store.frames(OWNER, "resp_1")),
    "metadata": (
        "conversations",
        "metadata",
        b'{"a":"c"}',
        lambda store: store.conversation(OWNER, "conv_1"),
    ),
    "a record": ("records", "json", b"{}", lambda store: store.record(OWNER, "session", "s")),
    "a listed record": (
        "records",
        "json",
        "no bytes",
        lambda store: store.records(OWNER, "session", PageRequest()),
    ),
    "a tool step": ("steps", "value", b"\x00", lambda store: store.recall(OWNER, [b"key"])),
}


async def fill(store: Store) -> None:
    await store.add_response(
        response("resp_1", background=True, status="in_progress"), input=[item("item_1", "word")]
    )
    await store.append_frames(OWNER, "resp_1", [(0, b"event")])
    await store.add_conversation(conversation("conv_1", a="b"), [item("item_1", "word")])
    await store.remember(OWNER, {b"key": b"value"})
    await store.write_records(OWNER, [session("s")])


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("damage", READS)
async def test_damaged_rows_are_reported_and_never_returned(
    store: Store, overwrite: Overwrite, damage: str
) -> None:
    table, column, value, read = READS[damage]
    await fill(store)
    await read(store)
    before = await check_rows(store)
    assert before.rows == 6
    assert before.damaged == ()
    await overwrite(table, column, value)
    with pytest.raises(StoreDamaged, match="is damaged"):
        await read(store)
    (named,) = (await check_rows(store)).damaged
    assert named.rpartition(" ")[2] in ("resp_1", "item_1", "conv_1", "s", b"key".hex().upper())


async def test_a_bit_that_flips_in_the_file_is_noticed(path: Path) -> None:
    store = await SqliteStore.open(path, clock=Hands())
    await store.add_response(response("resp_1"), output=[item("item_1", WORD.decode())])
    await store.add_response(response("resp_2"), output=[item("item_2")])
    await store.close()
    data = path.read_bytes()
    assert data.count(WORD) == 1
    path.write_bytes(data.replace(WORD, FLIPPED))
    store = await SqliteStore.open(path, clock=Hands())
    with pytest.raises(StoreDamaged, match="the item item_1"):
        await store.scan_context(OWNER, "resp_1", print)
    await store.scan_context(OWNER, "resp_2", print)
    assert (await check_rows(store)).damaged == ("the item item_1",)
    assert await store.delete_response(OWNER, "resp_1")
    assert (await check_rows(store)).damaged == ()
    await store.close()


async def test_rows_of_earlier_versions_get_their_checksums(path: Path) -> None:
    path.parent.mkdir()
    connection = connect(str(path), 0.0)
    migrate(connection, to=6)
    connection.execute("INSERT INTO steps (owner, key, created, value) VALUES (?, x'01', 0, x'02')", (OWNER,))
    connection.execute(
        "INSERT INTO conversations (owner, id, created, touched, version, next_position, metadata)"
        " VALUES (?, 'conv_1', 0, 0, 0, 0, CAST('{}' AS BLOB))",
        (OWNER,),
    )
    connection.execute(
        "INSERT INTO responses (seq, owner, id, status, background, created, unfinished)"
        " VALUES (1, ?, 'resp_1', 'completed', 1, 0, 0)",
        (OWNER,),
    )
    connection.execute("INSERT INTO response_bodies VALUES (1, CAST('{}' AS BLOB), x'')")
    connection.execute("INSERT INTO frames VALUES (1, 0, x'03')")
    connection.close()
    store = await SqliteStore.open(path, clock=Hands())
    checked = await check_rows(store)
    assert (checked.rows, checked.damaged) == (4, ())
    assert await store.response(OWNER, "resp_1") is not None
    await store.close()
