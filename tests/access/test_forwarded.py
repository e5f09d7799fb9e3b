"""Requests that a reverse proxy has passed on: they come from anywhere, wherever the server listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codex_proxy.http.middleware.rate_limit import WRONG_KEYS
from tests.access.keyed import key_header, keyed_proxy, refusal_of
from tests.http.serving import Hands, Proxy, fake_proxy, user

HEADERS = [
    ("Forwarded", "for=192.0.2.1"),
    ("X-Forwarded-For", "192.0.2.1"),
    ("x-forwarded-for", "127.0.0.1"),
    ("X-Forwarded-Host", "my.host"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Anything", ""),
    ("Via", "1.1 nginx"),
]
PATHS = [
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/__test/conc"),
    ("GET", "/v1/responses"),
    ("OPTIONS", "/v1/chat/completions"),
]


@pytest.fixture
async def open_one(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy without keys, with everything that is for this machine only."""
    async with fake_proxy(tmp_path, metrics=True, test_endpoints=True, trusted_proxies="127.0.0.1") as proxy:
        yield proxy


@pytest.fixture
async def trusting_proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy with a key behind a reverse proxy on this machine, which has another one in front of it."""
    async with keyed_proxy(
        tmp_path,
        {"one": {}},
        metrics=True,
        metrics_key="mine",
        test_endpoints=True,
        trusted_proxies="127.0.0.1, ::1, 10.0.0.0/8",
    ) as proxy:
        yield proxy


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("name", "value"), HEADERS)
async def test_a_proxy_that_nobody_has_named_passes_nothing_on(tmp_path: Path, name: str, value: str) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}, trusted_proxies="10.0.0.0/8") as proxy:
        answer = await proxy.ask(user(), headers={name: value, **key_header("one")})
        assert refusal_of(answer) == (403, "not_allowed", None)
        assert "PROXY_TRUSTED_PROXIES" in answer.error["message"]
        assert (await proxy.ask(user(), headers=key_header("one"))).status == 200


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_server_without_keys_lets_nobody_in_through_a_proxy(
    open_one: Proxy, method: str, path: str
) -> None:
    answer = await open_one.send(method, path, headers={"X-Forwarded-For": "192.0.2.1"})
    assert refusal_of(answer) == (403, "not_allowed", None)
    assert "keys add" in answer.error["message"]


@pytest.mark.parametrize("path", ["/metrics", "/__test/conc", "/v1/usage"])
async def test_endpoints_for_this_machine_answer_without_a_key(open_one: Proxy, path: str) -> None:
    assert (await open_one.send("GET", path)).status == 200


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("name", "value"), HEADERS)
async def test_a_trusted_proxy_passes_on_what_has_a_key(trusting_proxy: Proxy, name: str, value: str) -> None:
    assert (await trusting_proxy.ask(user(), headers={name: value, **key_header("one")})).status == 200
    assert (await trusting_proxy.ask(user(), headers={name: value})).status == 401


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/metrics", "cpx_one", 401),
        ("/metrics", "mine", 200),
        ("/__test/conc", "cpx_one", 200),
        ("/__test/conc", "mine", 401),
        ("/v1/usage", "cpx_one", 200),
        ("/v1/usage", "mine", 401),
        ("/healthz", "", 200),
    ],
)
async def test_through_a_trusted_proxy_each_path_wants_its_own_key(
    trusting_proxy: Proxy, path: str, key: str, status: int
) -> None:
    headers = {"X-Forwarded-For": "192.0.2.1", "Authorization": f"Bearer {key}"}
    assert (await trusting_proxy.send("GET", path, headers=headers)).status == status


async def test_wrong_keys_are_counted_for_the_address_that_a_trusted_proxy_names(
    trusting_proxy: Proxy,
) -> None:
    attempts = trusting_proxy.app[WRONG_KEYS]._attempts
    attempts._clock = Hands()

    async def guess(*forwarded: str) -> None:
        headers = [*(("X-Forwarded-For", value) for value in forwarded), ("Authorization", "Bearer wrong")]
        async with trusting_proxy.session.get(trusting_proxy.url + "/v1/models", headers=headers) as reply:
            assert reply.status == 401

    await guess()
    await guess("192.0.2.1")
    await guess("198.51.100.9, 192.0.2.1")  # what a client itself wrote in front says nothing
    await guess("192.0.2.1, 10.1.2.3", "10.0.0.1")
    await guess("192.0.2.1, nonsense, 10.1.2.3")
    counts = {address: count for address, (count, _, _) in attempts._failed.items()}
    assert counts == {"127.0.0.1": 1, "192.0.2.1": 3, "10.1.2.3": 1}


async def test_who_is_no_trusted_proxy_names_nobody_else(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}) as proxy:
        headers = {"X-Forwarded-For": "192.0.2.1", "Authorization": "Bearer wrong"}
        assert (await proxy.send("GET", "/v1/models", headers=headers)).status == 403
        assert len(proxy.app[WRONG_KEYS]._attempts) == 0
