"""How many bytes of bodies a server holds: one more is refused before it is read, and room comes back."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from pytest_aiohttp.plugin import AiohttpServer

from codex_proxy.http.body import BODY_BUDGET, body_budget
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.pictures import png_of
from tests.waiting import PATIENCE

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
KIB = 1024
LIMITS: dict[str, Any] = {"heartbeat_interval": 0.05}


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 150 KiB, and 100 KiB of one key."""
    monkeypatch.setattr("codex_proxy.app.application.body_budget", lambda memory: (150 * KIB, 100 * KIB))


@given(st.integers(min_value=1, max_value=1 << 45))
def test_the_room_for_bodies_follows_from_the_memory(memory: int) -> None:
    total, each = body_budget(memory)
    assert (total, each) == (max(64 << 20, memory // 8), total // 4)


def of_size(size: int, text: str = "Hello.", **fields: Any) -> bytes:
    body = json.dumps(user(text, **fields)).encode()
    return body + b" " * (size - len(body))


def held_bytes(proxy: Proxy) -> int:
    return proxy.app[BODY_BUDGET].held


@asynccontextmanager
async def turn_with_body(proxy: Proxy, size: int, key: str | None = None) -> AsyncIterator[None]:
    """A turn that holds a body of this size."""
    body = of_size(size, "[[fake:text misbehave=hang at=4]]")
    headers = key_header(key) if key else {}
    before = held_bytes(proxy)
    asking = asyncio.ensure_future(proxy.ask(body, headers=headers))
    await until(lambda: held_bytes(proxy) == before + size)
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def answer_before_body(proxy: Proxy, size: int) -> bytes:
    """The answer to a request that says how large its body is, and sends nothing of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {size}\r\n\r\n".encode())
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


async def test_a_body_that_is_too_much_for_its_key_is_refused_before_it_comes(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        async with turn_with_body(proxy, 80 * KIB):
            head = await answer_before_body(proxy, 30 * KIB)
            assert head.startswith(b"HTTP/1.1 429 ")
            assert b"Retry-After: 5\r\n" in head
            answer = await proxy.ask(of_size(30 * KIB))
            assert (answer.status, answer.error["code"]) == (429, "concurrency_exceeded")
            assert (
                f"this key's running requests have reached its limit of {100 * KIB} "
                in answer.error["message"]
            )
            assert (await proxy.ask(of_size(10 * KIB))).status == 200
        await proxy.settled()
        await until(lambda: held_bytes(proxy) == 0)
        assert (await proxy.ask(of_size(90 * KIB))).status == 200


async def test_bodies_of_all_keys_together_have_a_limit_too(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"one": {}, "two": {}}
    async with keyed_proxy(tmp_path, keys, **LIMITS) as proxy, turn_with_body(proxy, 90 * KIB, "one"):
        refused = await proxy.ask(of_size(70 * KIB), headers=key_header("two"))
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "5"
        assert "this server's limit" in refused.error["message"]
        assert (await proxy.ask(of_size(50 * KIB), headers=key_header("two"))).status == 200


@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_of_unknown_size_is_counted_as_it_comes(tmp_path: Path, packed: bool) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:

        async def chunks() -> AsyncIterator[bytes]:
            whole = of_size(60 * KIB)
            whole = gzip.compress(whole) if packed else whole
            for start in range(0, len(whole), KIB):
                yield whole[start : start + KIB]

        async def ask() -> int:
            headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if packed else {})
            async with proxy.session.post(proxy.url + CHAT, data=chunks(), headers=headers) as reply:
                return reply.status

        async with turn_with_body(proxy, 60 * KIB):
            assert await ask() == 429
        await proxy.settled()
        await until(lambda: held_bytes(proxy) == 0)
        assert await ask() == 200


async def test_what_a_response_in_the_background_was_asked_with_counts_until_it_has_ended(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        body = {"model": "codex-5", "input": "[[fake:text misbehave=hang at=4]]", "background": True}
        created = await proxy.send("POST", RESPONSES, json.dumps(body).encode() + b" " * (80 * KIB))
        assert created.status == 200
        assert held_bytes(proxy) >= 80 * KIB
        assert (await proxy.ask(of_size(30 * KIB))).status == 429
        await proxy.send("POST", f"{RESPONSES}/{created.body['id']}/cancel")
        await until(lambda: held_bytes(proxy) == 0)


async def test_frames_of_a_websocket_count_as_bodies(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        async with turn_with_body(proxy, 80 * KIB), proxy.session.ws_connect(proxy.url + RESPONSES) as socket:
            frame = {"type": "response.create", "model": "codex-5", "input": "x" * 30 * KIB}
            await socket.send_json(frame)
            error = await socket.receive_json()
            assert error["status"] == 429
            assert "of this key's running requests" in error["error"]["message"]
        await proxy.settled()
        await until(lambda: held_bytes(proxy) == 0)


@pytest.mark.parametrize(("path", "body"), [(CHAT, b"{"), ("/v1/nothing", b"{}"), (RESPONSES, b"[]")])
async def test_a_request_that_fails_holds_nothing_on(tmp_path: Path, path: str, body: bytes) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        assert (await proxy.send("POST", path, body + b" " * (50 * KIB))).status >= 400
        assert held_bytes(proxy) == 0


# --- stored contexts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {}),
        (RESPONSES, {"store": False}),
        (RESPONSES, {"stream": True}),
        (RESPONSES, {"background": True}),
        ("/v1/responses/compact", {}),
    ],
)
async def test_the_stored_context_of_a_turn_counts_as_its_body(
    tmp_path: Path, path: str, fields: dict[str, Any]
) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        first = await proxy.send("POST", RESPONSES, {"model": "codex-5", "input": "x" * 60 * KIB})
        more = {"model": "codex-5", "input": "Go on.", "previous_response_id": first.body["id"]}
        assert (await proxy.send("POST", path, {**more, **fields})).status == 200
        await until(lambda: held_bytes(proxy) == 0)
        held = {**more, "input": "[[fake:text misbehave=hang at=4]]", "background": True}
        running = await proxy.send("POST", RESPONSES, held)
        assert held_bytes(proxy) > 60 * KIB
        refused = await proxy.send("POST", path, {**more, **fields})
        assert (refused.status, refused.error["code"]) == (429, "concurrency_exceeded")
        await proxy.send("POST", f"{RESPONSES}/{running.body['id']}/cancel")
        await until(lambda: held_bytes(proxy) == 0)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_images_that_a_request_has_fetched_count_as_its_body(
    tmp_path: Path, path: str, aiohttp_server: AiohttpServer
) -> None:
    noise = b"".join(b"\0" + os.urandom(200) for _ in range(200))
    image = png_of(200, 200, zlib.compress(noise, 0))

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=image)

    host = web.Application()
    host.router.add_get("/", answer)
    server = await aiohttp_server(host)
    address = f"http://127.0.0.1:{server.port}"
    async with fake_proxy(tmp_path, image_fetch=address, **LIMITS) as proxy:
        hang, role = "[[fake:text misbehave=hang at=4]]", {"role": "user"}
        if path == CHAT:
            shown = {"type": "image_url", "image_url": {"url": f"{address}/"}}
            message = {**role, "content": [{"type": "text", "text": hang}, shown]}
            body = {"model": "codex-5", "messages": [message]}
        else:
            shown = {"type": "input_image", "image_url": f"{address}/"}
            message = {**role, "content": [{"type": "input_text", "text": hang}, shown]}
            body = {"model": "codex-5", "input": [message]}
        asking = asyncio.ensure_future(proxy.send("POST", path, body))
        await until(lambda: held_bytes(proxy) > len(image))
        refused = await proxy.send("POST", path, body)
        assert (refused.status, refused.error["code"]) == (429, "concurrency_exceeded")
        asking.cancel()
        await until(lambda: held_bytes(proxy) == 0)


# --- WebSockets -----------------------------------------------------------------------------------

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
LONG_FRAME = b"\x81\xff" + (1 << 20).to_bytes(8, "big") + bytes(4)
"""The head of a text of 1 MiB."""


async def test_a_message_that_never_ends_is_counted_as_it_comes(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, **LIMITS) as proxy,
        turn_with_body(proxy, 80 * KIB),
        asyncio.timeout(PATIENCE),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
        writer.write(HANDSHAKE)
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(LONG_FRAME + b"x" * 10 * KIB)
        await until(lambda: held_bytes(proxy) >= 90 * KIB)
        writer.write(b"x" * 30 * KIB)
        assert b'"status":429' in await reader.readuntil(b"}}")
        writer.close()
        await until(lambda: held_bytes(proxy) == 80 * KIB)


async def last_event(socket: Any, input: str, **fields: Any) -> dict[str, Any]:
    """The last event of a turn on a WebSocket, which is not stored."""
    turn = {"type": "response.create", "model": "codex-5", "input": input, "store": False, **fields}
    await socket.send_json(turn)
    while True:
        event: dict[str, Any] = await socket.receive_json(timeout=PATIENCE)
        if event["type"] in ("response.completed", "response.failed", "error"):
            return event


async def test_items_that_a_connection_keeps_count_as_long_as_it_keeps_them(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        async with proxy.session.ws_connect(proxy.url + RESPONSES) as socket:
            for _ in range(2):
                assert (await last_event(socket, "x" * 60 * KIB))["type"] == "response.completed"
                await until(lambda: 60 * KIB < held_bytes(proxy) < 62 * KIB)
                assert (await answer_before_body(proxy, 50 * KIB)).startswith(b"HTTP/1.1 429 ")
                assert (await last_event(socket, "Hello."))["type"] == "response.completed"
                await until(lambda: held_bytes(proxy) < 2 * KIB)
        await until(lambda: held_bytes(proxy) == 0)


async def test_turns_that_wait_when_a_client_leaves_hold_nothing_on(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        async with proxy.session.ws_connect(proxy.url + RESPONSES) as socket:
            for text in ("[[fake:text misbehave=hang at=4]]", "x" * 20 * KIB, "x" * 20 * KIB):
                await socket.send_json({"type": "response.create", "model": "codex-5", "input": text})
            await until(lambda: held_bytes(proxy) > 40 * KIB)
        await until(lambda: held_bytes(proxy) == 0)


async def test_the_stored_context_of_a_turn_on_a_websocket_counts(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy, turn_with_body(proxy, 50 * KIB):
        # The first one of another connection has room, since nothing of it is left.
        async with proxy.session.ws_connect(proxy.url + RESPONSES) as socket:
            stored = await last_event(socket, "x" * 45 * KIB, store=True)
        async with proxy.session.ws_connect(proxy.url + RESPONSES) as socket:
            more = {"previous_response_id": stored["response"]["id"]}
            refused = await last_event(socket, "x" * 20 * KIB, **more)
            assert refused["error"]["code"] == "concurrency_exceeded"
            await until(lambda: held_bytes(proxy) == 50 * KIB)


async def test_a_response_without_room_for_its_bytes_is_not_kept(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **LIMITS) as proxy:
        url = proxy.url + RESPONSES
        async with proxy.session.ws_connect(url) as first, proxy.session.ws_connect(url) as other:
            assert (await last_event(first, "x" * 50 * KIB))["type"] == "response.completed"
            echoed = await last_event(other, "[[fake:echo]]" + "x" * 30 * KIB)
            again = await last_event(other, "Again.", previous_response_id=echoed["response"]["id"])
            assert again["error"]["code"] == "previous_response_not_found"
            assert held_bytes(proxy) < 62 * KIB
