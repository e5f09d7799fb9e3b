"""A WebSocket's key: how it comes, that each turn looks at it again, and that its limits count each turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tests.access.keyed import key_header, key_of, keyed_proxy, look_now, write_keys
from tests.http.serving import Proxy, fake_proxy, until
from tests.waiting import PATIENCE

KEY_PROTOCOL = "openai-insecure-api-key."


def open_socket(
    proxy: Proxy, headers: Mapping[str, str] | None = None, protocols: tuple[str, ...] = ()
) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
    return proxy.session.ws_connect(proxy.url + "/v1/responses", protocols=protocols, headers=headers)


async def ask(socket: aiohttp.ClientWebSocketResponse, input: Any = "Hello.", **fields: Any) -> None:
    await socket.send_json({"type": "response.create", "model": "codex-5", "input": input, **fields})


async def last_of(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """The frame that ends a turn."""
    while True:
        frame: dict[str, Any] = await socket.receive_json(timeout=PATIENCE)
        if frame["type"] in ("response.completed", "response.failed", "error"):
            return frame


async def answer_to(
    socket: aiohttp.ClientWebSocketResponse, input: Any = "Hello.", **fields: Any
) -> dict[str, Any]:
    await ask(socket, input, **fields)
    return await last_of(socket)


@pytest.fixture
async def keyed_proxy_server(tmp_path: Path) -> AsyncIterator[Proxy]:
    keys: dict[str, dict[str, Any]] = {"one": {}, "two": {}, "slow": {"rpm": 1}, "narrow": {"concurrency": 1}}
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with keyed_proxy(tmp_path, keys, environment) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (("responses", KEY_PROTOCOL + key_of("one")), "responses"),
        ((KEY_PROTOCOL + key_of("one"), "realtime", "openai-beta.realtime-v1"), "realtime"),
        ((KEY_PROTOCOL + key_of("one"),), None),
    ],
)
async def test_a_page_sends_its_key_as_a_subprotocol_and_it_is_not_repeated(
    keyed_proxy_server: Proxy, offered: tuple[str, ...], taken: str | None
) -> None:
    async with open_socket(keyed_proxy_server, protocols=offered) as socket:
        assert socket.protocol == taken
        assert (await answer_to(socket))["type"] == "response.completed"


@pytest.mark.parametrize(
    "offered", [(), ("responses",), (KEY_PROTOCOL,), (KEY_PROTOCOL + "wrong",), (key_of("one"),)]
)
async def test_without_a_key_there_is_no_connection(
    keyed_proxy_server: Proxy, offered: tuple[str, ...]
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with open_socket(keyed_proxy_server, protocols=offered):
            pass
    assert refused.value.status == 401


async def test_a_subprotocol_is_no_key_for_anything_but_a_connection(keyed_proxy_server: Proxy) -> None:
    headers = {"Sec-WebSocket-Protocol": KEY_PROTOCOL + key_of("one")}
    assert (await keyed_proxy_server.send("GET", "/v1/models", headers=headers)).status == 401


async def test_what_a_key_stored_is_continued_over_its_own_connection_alone(
    keyed_proxy_server: Proxy,
) -> None:
    async with open_socket(keyed_proxy_server, key_header("one")) as socket:
        response = (await answer_to(socket))["response"]["id"]
    async with open_socket(keyed_proxy_server, key_header("two")) as socket:
        refused = await answer_to(socket, previous_response_id=response)
        assert (refused["type"], refused["error"]["code"]) == ("error", "previous_response_not_found")
    async with open_socket(keyed_proxy_server, key_header("one")) as socket:
        assert (await answer_to(socket, previous_response_id=response))["type"] == "response.completed"


async def test_a_key_that_is_gone_ends_the_connection_at_its_next_turn(
    keyed_proxy_server: Proxy, tmp_path: Path
) -> None:
    async with open_socket(keyed_proxy_server, key_header("one")) as socket:
        assert (await answer_to(socket))["type"] == "response.completed"
        write_keys(tmp_path, two={})
        look_now(keyed_proxy_server.server)
        refused = await answer_to(socket)
        assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")
        assert (await socket.receive(timeout=PATIENCE)).type is WSMsgType.CLOSE
        assert socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_a_connection_without_a_key_ends_when_keys_are_wanted(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, open_socket(proxy) as socket:
        assert (await answer_to(socket))["type"] == "response.completed"
        write_keys(tmp_path, one={})
        look_now(proxy.server)
        assert (await answer_to(socket))["status"] == 401
        assert (await socket.receive(timeout=PATIENCE)).type is WSMsgType.CLOSE


async def test_limits_that_change_are_those_of_the_next_turn(
    keyed_proxy_server: Proxy, tmp_path: Path
) -> None:
    async with open_socket(keyed_proxy_server, key_header("one")) as socket:
        assert (await answer_to(socket))["type"] == "response.completed"
        write_keys(tmp_path, one={"models": ["gpt-x"], "plain_model": True})
        look_now(keyed_proxy_server.server)
        refused = await answer_to(socket)
        assert (refused["status"], refused["error"]["param"]) == (403, "model")
        assert (await answer_to(socket, model="gpt-x:agent"))["status"] == 403
        assert (await answer_to(socket, model="gpt-x"))["type"] == "response.completed"


async def test_each_turn_counts_against_the_requests_a_minute(keyed_proxy_server: Proxy) -> None:
    async with (
        open_socket(keyed_proxy_server, key_header("slow")) as socket,
        open_socket(keyed_proxy_server, key_header("one")) as other,
    ):
        assert (await answer_to(socket))["type"] == "response.completed"
        refused = await answer_to(socket)
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await answer_to(other))["type"] == "response.completed"


async def test_a_turn_counts_against_the_requests_at_once_while_it_runs(
    keyed_proxy_server: Proxy, tmp_path: Path
) -> None:
    async with (
        open_socket(keyed_proxy_server, key_header("narrow")) as first,
        open_socket(keyed_proxy_server, key_header("narrow")) as second,
    ):
        await ask(first, '[[fake:text say="a b" hold=1]]')
        await until(lambda: keyed_proxy_server.server.runs.running == 1)
        refused = await answer_to(second)
        assert (refused["status"], refused["error"]["code"]) == (429, "concurrency_exceeded")
        (tmp_path / "go").write_text("go")
        assert (await last_of(first))["type"] == "response.completed"
        assert (await answer_to(second))["type"] == "response.completed"
