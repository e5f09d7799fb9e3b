"""The leases of records in PostgreSQL: one node holds a record, and its writes end with the lease; others follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.store.record_leases import NO_NODE, Following, RecordLease
from codex_proxy.store.values import NotStored, StoreConflict
from tests.store.stored import OWNER, Hands, record, session
from tests.waiting import poll

KEY = ("session", "s")
EXPIRE = "UPDATE codex_proxy.{} SET lease_until = '-infinity'"


@pytest.fixture
async def nodes(postgres_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    one, two = [await PostgresStore.open(postgres_url, clock=Hands()) for _ in range(2)]
    yield one, two
    for store in (one, two):
        await store.close()


async def held_by(store: PostgresStore) -> RecordLease:
    """A new record, which the node holds from its write on."""
    written = await store.write_records(OWNER, [session("s", busy=True)], hold=KEY)
    assert written.lease is not None
    return written.lease


async def taken_by(store: PostgresStore) -> RecordLease:
    lease = await store.leases.records.take(OWNER, *KEY)
    assert isinstance(lease, RecordLease)
    return lease


async def write(store: PostgresStore, lease: RecordLease, tell: bytes | None = None) -> bool:
    added = record(f"below {lease.epoch}", parent="s")
    return (await store.write_records(OWNER, [added], require=KEY, epoch=lease.epoch, tell=tell)).followed


async def free_again(connection: asyncpg.Connection) -> None:
    await poll(lambda: connection.fetchval("SELECT count(*) = 0 FROM codex_proxy.record_leases"))


async def test_only_one_node_holds_a_record(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection
) -> None:
    one, two = nodes
    lease = await held_by(one)
    assert await two.leases.records.take(OWNER, *KEY) == one.leases.id
    await write(one, lease)
    lease.release()
    await free_again(connection)
    await write(two, await taken_by(two))
    assert await one.leases.records.take(OWNER, *KEY) == two.leases.id


async def test_no_node_holds_a_record_that_is_not_there_or_of_another_owner(
    nodes: tuple[PostgresStore, PostgresStore],
) -> None:
    one, two = nodes
    await held_by(one)
    for owner, id in ((OWNER, "unknown"), ("other", "s")):
        with pytest.raises(NotStored):
            await two.leases.records.take(owner, "session", id)
        with pytest.raises(NotStored):
            await two.leases.records.follow(owner, "session", id)


@pytest.mark.parametrize("released", [False, True])
async def test_a_write_under_a_lease_that_another_node_has_taken_writes_nothing(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection, released: bool
) -> None:
    one, two = nodes
    lost = await held_by(one)
    await connection.execute(EXPIRE.format("record_leases"))
    following = await two.leases.records.follow(OWNER, *KEY)
    taken = await taken_by(two)
    if released:
        taken.release()
        await free_again(connection)
    with pytest.raises(StoreConflict) as raised:
        await write(one, lost, b"late")
    assert raised.value.reason == "lease"
    assert await one.record(OWNER, "item", f"below {lost.epoch}") is None
    assert await two.leases.records.receive() == []
    following.release()


async def test_an_earlier_lease_of_the_same_node_writes_nothing(
    nodes: tuple[PostgresStore, PostgresStore],
) -> None:
    one, _ = nodes
    earlier = await held_by(one)
    await write(one, await taken_by(one))
    with pytest.raises(StoreConflict):
        await write(one, earlier)
    earlier.release()
    await one.leases.records.close()
    assert isinstance(await one.leases.records.take(OWNER, *KEY), RecordLease)


async def test_a_lease_that_has_run_out_is_good_until_another_node_takes_it(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection
) -> None:
    one, two = nodes
    lease = await held_by(one)
    lost: list[str] = []
    lease.on_lost = lambda: lost.append("lease")
    await connection.execute(EXPIRE.format("record_leases"))
    assert [found.id for _, found in await two.busy_records("session")] == ["s"]
    await write(one, lease)
    await one.leases.renew(())
    assert await two.busy_records("session") == []
    assert await two.leases.records.take(OWNER, *KEY) == one.leases.id
    await connection.execute(EXPIRE.format("record_leases"))
    await taken_by(two)
    assert not lost
    await one.leases.renew(())
    assert lost == ["lease"]
    lease.release()
    await one.leases.records.close()
    assert await one.leases.records.take(OWNER, *KEY) == two.leases.id


async def test_who_follows_gets_a_message_with_each_write(
    nodes: tuple[PostgresStore, PostgresStore],
) -> None:
    one, two = nodes
    lease = await held_by(one)
    assert not await write(one, lease, b"before")
    following = await two.leases.records.follow(OWNER, *KEY)
    assert following.holder == one.leases.id
    watch = two.leases.watch(two.leases.id)
    assert await write(one, lease, b"one")
    await one.write_records(OWNER, [], require=KEY, epoch=lease.epoch, tell=b"two")
    await watch.wait()
    assert await two.leases.records.receive() == [b"one", b"two"]
    assert await two.leases.records.receive() == []
    assert await one.leases.records.receive() == []
    following.release()
    await two.leases.records.close()
    assert not await write(one, lease, b"after")
    assert await two.leases.records.receive() == []


async def test_who_follows_a_free_record_sees_no_holder_and_what_its_next_one_writes(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection
) -> None:
    one, two = nodes
    (await held_by(one)).release()
    await free_again(connection)
    following = await two.leases.records.follow(OWNER, *KEY)
    assert following.holder == NO_NODE
    assert await write(one, await taken_by(one), b"one")
    assert await two.leases.records.receive() == [b"one"]


async def test_who_was_stopped_for_too_long_learns_that_messages_may_be_missing(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection
) -> None:
    one, two = nodes
    lease = await held_by(one)
    following: Following = await two.leases.records.follow(OWNER, *KEY)
    lost: list[str] = []
    following.on_lost = lambda: lost.append("messages")
    await connection.execute(EXPIRE.format("record_followers"))
    assert await write(one, lease, b"one")
    await two.leases.renew(())
    assert not lost
    await connection.execute(EXPIRE.format("record_followers"))
    await one.leases.renew(())
    assert not await write(one, lease, b"two")
    await two.leases.renew(())
    assert lost == ["messages"]


async def test_a_node_that_ends_gives_up_its_records(
    nodes: tuple[PostgresStore, PostgresStore],
) -> None:
    one, two = nodes
    await held_by(one)
    await one.leases.records.follow(OWNER, *KEY)
    await two.leases.records.post(one.leases.id, b"unread")
    assert await two.busy_records("session") == []
    await one.leases.release()
    assert [found.id for _, found in await two.busy_records("session")] == ["s"]
    assert not await write(two, await taken_by(two), b"one")
    assert await one.leases.records.receive() == []
