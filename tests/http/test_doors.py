"""Who may come in: names that a Host header may have, and what a supervisor may ask without a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.http.middleware.doors import host_name
from tests.http.serving import Proxy, fake_proxy, user


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil.example:80"])
async def test_a_page_that_rebinds_its_name_to_us_is_turned_away(proxy: Proxy, host: str) -> None:
    answer = await proxy.ask(user(), headers={"Host": host})
    assert (answer.status, answer.error["type"]) == (403, "permission_error")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"])
async def test_names_of_this_machine_come_in(proxy: Proxy, host: str) -> None:
    assert (await proxy.send("GET", "/v1/models", headers={"Host": host})).status == 200


async def test_the_operator_can_allow_further_names(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, allowed_hosts="my.host, other") as proxy:
        assert (await proxy.send("GET", "/v1/models", headers={"Host": "my.host:8080"})).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_a_supervisor_needs_no_key(tmp_path: Path, path: str) -> None:
    async with fake_proxy(tmp_path, api_key="key") as proxy:
        assert (await proxy.send("GET", path)).status == 200
        assert (await proxy.send("GET", "/v1/models")).status == 401


async def test_health_says_that_the_agent_is_the_fake_one_and_what_runs(proxy: Proxy) -> None:
    body = (await proxy.send("GET", "/healthz")).body
    assert body["status"] == "ok"
    assert body["agent"]["fake"] is True
    assert body["turns"] == {"running": 0, "queued": 0}
    assert "fake" in body["warning"]


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:80", "a"), ("A", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("::1", "::1"), ("", "")],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


async def test_no_cors_header_is_ever_sent(proxy: Proxy) -> None:
    for answer in (
        await proxy.ask(user(), headers={"Origin": "http://localhost:3000"}),
        await proxy.send("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://localhost:3000"}),
    ):
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
