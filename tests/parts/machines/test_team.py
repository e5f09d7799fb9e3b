"""What the servers of one database share: keys, and the requests that count against their limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from codex_proxy.core.keys import Key, KeysError, digest_of
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.parts.machines.postgresql.team import PostgresTeam
from codex_proxy.store.team import NO_REQUESTS, KeyRequests, OtherNodes
from tests.store.stored import Hands


@asynccontextmanager
async def node(url: str) -> AsyncIterator[PostgresTeam]:
    store = await PostgresStore.open(url, clock=Hands())
    try:
        yield store.team
    finally:
        await store.close()


@pytest.fixture
async def teams(postgres_url: str) -> AsyncIterator[tuple[PostgresTeam, PostgresTeam]]:
    async with node(postgres_url) as one, node(postgres_url) as other:
        yield one, other


def key(name: str, rpm: int | None = None) -> Key:
    return Key(name=name, sha256=digest_of(name), rpm=rpm)


async def test_a_change_of_the_keys_raises_the_version_and_is_seen_by_all(
    teams: tuple[PostgresTeam, PostgresTeam],
) -> None:
    one, other = teams
    assert await other.exchange({}) == OtherNodes(0, {})
    assert not await one.put_key(key("b", rpm=3), replace=False)
    assert not await one.put_key(key("a"), replace=False)
    assert (await other.exchange({})).version == 2
    assert await other.keys() == (key("a"), key("b", rpm=3))
    assert await one.put_key(key("b"), replace=True)
    assert await other.remove_key("a")
    assert (await one.exchange({})).version == (await other.exchange({})).version == 4
    assert await one.keys() == (key("b"),)


async def test_a_write_that_changes_no_key_keeps_the_version(
    teams: tuple[PostgresTeam, PostgresTeam],
) -> None:
    one, _ = teams
    await one.put_key(key("a"), replace=False)
    with pytest.raises(KeysError, match="already a key 'a'"):
        await one.put_key(key("a", rpm=1), replace=False)
    assert not await one.remove_key("b")
    assert (await one.exchange({})).version == 1
    assert await one.keys() == (key("a"),)


async def test_the_number_of_stored_keys_is_limited(
    teams: tuple[PostgresTeam, PostgresTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.machines.postgresql.team.MAX_KEYS", 1)
    one, _ = teams
    await one.put_key(key("a"), replace=False)
    with pytest.raises(KeysError, match="the maximum"):
        await one.put_key(key("b"), replace=False)
    assert await one.put_key(key("a"), replace=True)


async def test_of_one_name_given_at_once_one_is_stored(teams: tuple[PostgresTeam, PostgresTeam]) -> None:
    for name in map(str, range(20)):  # two statements begin at the same moment in one of four rounds
        put = [team.put_key(key(name, rpm=number), replace=False) for number, team in enumerate(teams * 8, 1)]
        results = await asyncio.gather(*put, return_exceptions=True)
        assert [each for each in results if not isinstance(each, KeysError)] == [False]
        assert {str(each) for each in results if isinstance(each, KeysError)} == {
            f"there is already a key '{name}'; replace it with --replace"
        }
    assert (await teams[0].exchange({})).version == 20


async def test_requests_of_other_nodes_are_reported_once_and_own_ones_never(
    teams: tuple[PostgresTeam, PostgresTeam],
) -> None:
    one, other = teams
    assert (await one.exchange({"a": KeyRequests(3, 2), "b": KeyRequests(1, 0)})).others == {}
    assert (await other.exchange({"a": KeyRequests(10, 1)})).others == {
        "a": KeyRequests(3, 2),
        "b": KeyRequests(1, 0),
    }
    assert (await other.exchange({})).others == {"a": KeyRequests(0, 2), "b": NO_REQUESTS}
    await one.exchange({"a": KeyRequests(4, 0)})
    assert (await other.exchange({})).others["a"] == KeyRequests(4, 0)
    assert (await one.exchange({})).others == {"a": KeyRequests(0, 1)}


async def test_the_requests_of_several_nodes_are_added_up(postgres_url: str) -> None:
    async with node(postgres_url) as one, node(postgres_url) as two, node(postgres_url) as three:
        await one.exchange({"a": KeyRequests(1, 1)})
        await two.exchange({"a": KeyRequests(2, 1)})
        assert (await three.exchange({})).others == {"a": KeyRequests(3, 2)}


async def test_many_nodes_exchange_at_once_without_waiting_for_each_other(postgres_url: str) -> None:
    async with node(postgres_url) as one, node(postgres_url) as two, node(postgres_url) as three:
        nodes = (one, two, three)
        names = [f"key-{number}" for number in range(50)]
        for _ in range(5):
            orders = (names, names[::-1], sorted(names))
            reports = (dict.fromkeys(order, KeyRequests(1, 1)) for order in orders)
            await asyncio.gather(*(each.exchange(own) for each, own in zip(nodes, reports, strict=True)))
        found = await one.exchange({})
        assert set(found.others) == set(names)
        assert {requests.running for requests in found.others.values()} == {2}
