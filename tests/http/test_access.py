"""Who may come in: names that a Host header may have, and what a supervisor may ask without a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.http.middleware.access import host_name
from tests.fuzz.raw import answers_in, exchange_bytes
from tests.http.serving import Proxy, fake_proxy, user


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "127.0.0.1.evil.example",
            "",
            "evil.example:80",
            "[::1]evil.com",
            "[::1]evil.com:80",
        ),
        *("localhost:80evil.com", "localhost:evil.com", "[::1]:evil.com", "user@localhost", "[localhost]"),
    ],
)
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


async def test_the_base_url_says_to_anybody_what_is_served_and_nothing_else(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="key") as proxy:
        answer = await proxy.send("GET", "/v1")
        assert answer.status == 200
        assert set(answer.body) == {"name", "openapi", "endpoints"}
        paths = {(each["method"], each["path"]) for each in answer.body["endpoints"]}
        assert {("POST", "/v1/chat/completions"), ("GET", "/v1/models/{id}"), ("GET", "/healthz")} <= paths
        assert (await proxy.send("GET", answer.body["openapi"])).status == 200


async def test_health_says_that_the_agent_is_the_fake_one_and_what_runs(proxy: Proxy) -> None:
    body = (await proxy.send("GET", "/healthz")).body
    assert body["status"] == "ok"
    assert body["agent"]["fake"] is True
    assert body["turns"] == {"running": 0, "queued": 0}
    assert "fake" in body["warning"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_client_without_a_key_sees_no_versions_no_load_and_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async with fake_proxy(tmp_path, api_key="key") as proxy:
        trouble = Failure(kind=FaultKind.AGENT_MISCONFIGURED, message=f"There is no {tmp_path}.")
        monkeypatch.setattr(proxy.server.agent, "trouble", lambda: trouble)
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            stranger = await proxy.send("GET", path, headers=headers)
            assert str(tmp_path) not in stranger.text
            assert not {"version", "turns"} & (set(stranger.body) | set(stranger.body.get("agent", {})))
        known = await proxy.send("GET", path, headers={"Authorization": "Bearer key"})
        assert str(tmp_path) in known.text
        assert (stranger.status, stranger.body["status"]) == (known.status, known.body["status"])


@pytest.mark.parametrize(("method", "path"), [("GET", "/livez"), ("GET", "/nowhere"), ("BREW", "/v1/models")])
async def test_no_reply_names_the_programs_below(proxy: Proxy, method: str, path: str) -> None:
    assert (await proxy.send(method, path)).headers["Server"] == "codex-proxy"
    assert b"Server: codex-proxy" in await exchange_bytes(proxy.server.port, b"nonsense\r\n\r\n")


async def test_a_websocket_s_handshake_names_them_neither(proxy: Proxy) -> None:
    async with proxy.session.ws_connect(proxy.url + "/v1/responses") as socket:
        assert socket._response.headers["Server"] == "codex-proxy"


@pytest.mark.parametrize("name", ["Host", "Origin", "Sec-Fetch-Site", "Authorization"])
async def test_a_header_that_says_who_asks_is_there_once(proxy: Proxy, name: str) -> None:
    """Of two, a proxy in front and this server might read one each."""
    good = {"Host": "localhost", "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    lines = [f"{each}: {value}" for each, value in (good | {"Authorization": "Bearer a"}).items()]
    for last in ("evil.example", (good | {"Authorization": "Bearer a"})[name]):
        head = "\r\n".join(
            ["GET /v1/models HTTP/1.1", *lines, f"{name}: {last}", "Connection: close", "", ""]
        )
        (answer,) = answers_in(await exchange_bytes(proxy.server.port, head.encode()))
        assert answer.status == 400
    head = "\r\n".join(["GET /v1/models HTTP/1.1", *lines, "Connection: close", "", ""])
    (answer,) = answers_in(await exchange_bytes(proxy.server.port, head.encode()))
    assert answer.status == 200


@pytest.mark.parametrize(
    ("header", "name"),
    [
        *(("a:80", "a"), ("A", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("::1", "::1"), ("", "")),
        *(("a:", "a"), ("[::1]a", ""), ("a:b", ""), ("[a", ""), ("a]", ""), ("a b", "")),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


async def test_no_cors_header_is_ever_sent(proxy: Proxy) -> None:
    for answer in (
        await proxy.ask(user(), headers={"Origin": "http://localhost:3000"}),
        await proxy.send("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://localhost:3000"}),
    ):
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
