"""Leases of several nodes in one PostgreSQL, and what they tell each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from codex_proxy.parts.machines.postgresql.leases import MAX_PAYLOAD, payloads
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.store.leases import Node, Watch
from tests.store.stored import OWNER, Hands, conversation, response
from tests.waiting import PATIENCE, poll


@pytest.fixture
async def nodes(postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    """Three nodes of one store."""
    stores = [await PostgresStore.open(postgres_url, clock=Hands()) for _ in range(3)]
    yield stores
    for store in stores:
        await store.close()


async def test_of_responses_that_nobody_runs_each_is_claimed_by_one_node(nodes: list[PostgresStore]) -> None:
    first, *others = nodes
    ids = [f"resp_{number}" for number in range(40)]
    for id in ids:
        await first.add_response(response(id, background=True, status="queued"))
    assert await others[0].leases.claim_responses(100) == []
    await first.leases.release()
    claimed = await asyncio.gather(*(node.leases.claim_responses(5) for node in others * 6))
    assert sorted(lease.id for leases in claimed for lease in leases) == sorted(ids)


async def test_a_node_is_notified_of_a_change_that_another_has_made(
    nodes: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.store.leases.POLL_SECONDS", 3600.0)
    one, two, _ = nodes
    renewal = asyncio.create_task(two.leases.until_renewal())  # from now on it listens
    waiting = [asyncio.create_task(watch.wait()) for watch in watches(two, "resp_1", "resp_1")]

    async def noticed() -> bool:
        one.leases.report_change("resp_1")
        return all(task.done() for task in waiting)

    await poll(noticed)
    renewal.cancel()


async def test_a_turn_that_no_longer_waits_for_another_node_delays_none_of_its_own(
    nodes: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.store.leases.POLL_SECONDS", 0.02)
    one, two, _ = nodes
    await one.add_conversation(conversation("conv_1"))
    first = await one.leases.enter_conversation(OWNER, "conv_1")
    waiting = asyncio.create_task(two.leases.enter_conversation(OWNER, "conv_1"))
    await asyncio.sleep(0)  # from now on it asks the database
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.release()
    async with asyncio.timeout(PATIENCE):
        (await two.leases.enter_conversation(OWNER, "conv_1")).release()


def watches(node: PostgresStore, *ids: str) -> list[Watch]:
    return [node.leases.watch(id) for id in ids]


async def test_a_node_renews_its_leases_at_once_if_another_has_changed_what_it_holds(
    nodes: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.machines.postgresql.leases.RENEW_SECONDS", 3600.0)
    one, two, _ = nodes
    await two.add_response(response("resp_1", background=True, status="in_progress"))
    renewal = asyncio.create_task(two.leases.until_renewal())

    async def renewed() -> bool:
        await one.update_response(OWNER, "resp_1", status="cancelled", json=b"{}")
        return renewal.done()

    await poll(renewed)


async def test_nodes_that_were_seen_lately_are_listed_with_what_they_hold(
    nodes: list[PostgresStore], postgres_url: str
) -> None:
    for number, node in enumerate(nodes):
        await node.leases.announce(Node(name=f"{number}", url="", version="1", started=float(number)))
    await nodes[1].add_response(response("resp_1", background=True, status="queued"))
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("UPDATE codex_proxy.nodes SET seen = '-infinity' WHERE name = '0'")
    found = await nodes[0].leases.nodes()
    assert [(node.name, node.responses) for node in found] == [("1", 1), ("2", 0)]
    await connection.execute("DELETE FROM codex_proxy.nodes")
    await connection.close()
    await nodes[2].leases.renew(())
    assert [node.name for node in await nodes[0].leases.nodes()] == ["2"]


def test_every_id_is_in_one_notice_that_postgresql_takes() -> None:
    ids = [f"resp_{number:032}" for number in range(1000)]
    notices = payloads("node", ids)
    assert max(map(len, notices)) <= MAX_PAYLOAD
    assert [id for notice in notices for id in notice.split(" ")[1:]] == ids
