"""Keys in the store, and limits of a key, are those of all servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.commands.keys import (
    add_to_store,
    listing,
    remove_from_store,
    stored_keys,
)
from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import UserError
from codex_proxy.core.keys import KeysError
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS
from tests.http.serving import Proxy, fake_proxy, settings_of, user
from tests.waiting import eventually, poll


@pytest.fixture
async def two(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Proxy, Proxy]]:
    monkeypatch.setattr("codex_proxy.parts.machines.server_part.EXCHANGE_SECONDS", 0.05)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "release")}
    limits = {"rate_limit_rpm": 60, "key_concurrency": 2}
    async with (
        fake_proxy(tmp_path / "one", environment, store=postgres_url, **limits) as one,
        fake_proxy(tmp_path / "two", environment, store=postgres_url, **limits) as two,
    ):
        yield one, two


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def comes_to(proxy: Proxy, key: str, status: int) -> None:
    """Waits until a request with this key gets this status."""

    async def is_so() -> bool:
        return (await proxy.send("GET", "/v1/models", headers=bearer(key))).status == status

    await poll(is_so)


async def test_a_key_in_the_store_is_valid_on_every_server_and_dead_on_all_when_it_is_removed(
    two: tuple[Proxy, Proxy], tmp_path: Path, postgres_url: str
) -> None:
    settings = settings_of(tmp_path, store=postgres_url)
    key, note = await add_to_store(settings, "laptop", {"rpm": 7}, replace=False)
    assert key not in note
    for proxy in two:
        await comes_to(proxy, "another", 401)  # it knows that keys are required
        await comes_to(proxy, key, 200)
    assert "laptop  " in listing(settings, await stored_keys(settings), as_json=False)
    assert all("Authorization: Bearer KEY" in banner(proxy.server) for proxy in two)
    await remove_from_store(settings, "laptop")
    for proxy in two:
        await comes_to(proxy, key, 401)
    assert await stored_keys(settings) == ()


async def test_requests_on_one_server_count_on_the_other(two: tuple[Proxy, Proxy]) -> None:
    one, other = two

    async def remaining() -> int:
        return int((await other.ask(user(n=99))).headers["x-ratelimit-remaining-requests"])

    first = await remaining()
    for _ in range(20):
        assert (await one.ask(user(n=99))).status == 400

    async def fewer() -> bool:
        return await remaining() < first - 20

    await poll(fewer)


async def test_running_requests_of_one_server_count_on_the_other(
    two: tuple[Proxy, Proxy], tmp_path: Path
) -> None:
    one, other = two
    held = [asyncio.create_task(one.ask(user("[[fake:text hold=1]]", stream=True))) for _ in range(2)]
    running = other.app[REQUEST_LIMITS].running
    await eventually(lambda: sum(each.running for each in running.elsewhere.values()) == 2)
    answer = await other.ask(user())
    assert (answer.status, answer.error["code"]) == (429, "concurrency_exceeded")
    (tmp_path / "release").touch()
    assert [reply.status for reply in await asyncio.gather(*held)] == [200, 200]

    async def free() -> bool:
        return (await other.ask(user())).status == 200

    await poll(free)


async def test_a_server_for_other_machines_starts_with_a_key_in_the_store_and_without_any_it_does_not(
    tmp_path: Path, postgres_url: str
) -> None:
    settings = settings_of(tmp_path, store=postgres_url)
    everywhere: dict[str, Any] = {"store": postgres_url, "host": "0.0.0.0", "allowed_hosts": "127.0.0.1"}
    with pytest.raises(UserError, match="exposes a coding agent to other machines"):
        async with fake_proxy(tmp_path, **everywhere):
            pass
    key, _ = await add_to_store(settings, "laptop", {}, replace=False)
    async with fake_proxy(tmp_path, **everywhere) as proxy:
        url = f"http://127.0.0.1:{proxy.server.port}/v1/models"
        for given, expected in ((key, 200), ("another", 401)):
            async with proxy.session.get(url, headers=bearer(given)) as reply:
                assert reply.status == expected


async def test_a_store_in_a_file_has_no_keys(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="PROXY_STORE=postgresql"):
        await add_to_store(settings_of(tmp_path), "laptop", {}, replace=False)
