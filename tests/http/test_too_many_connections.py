"""Connections beyond those for which there are file descriptors."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from structlog.testing import capture_logs

from codex_proxy.http.server import _Server, connections_for
from tests.http.serving import Proxy, until, user
from tests.waiting import PATIENCE


def test_a_quarter_of_the_descriptors_is_left_for_agents_and_the_store() -> None:
    assert connections_for(1024) == 720
    assert connections_for(32) == 8


@pytest.fixture
def small_server(proxy: Proxy) -> _Server:
    """The server, which takes three connections."""
    assert proxy.server.runner is not None
    server = proxy.server.runner.server
    assert isinstance(server, _Server)
    server.max_connections = 3
    return server


async def connect(proxy: Proxy, request: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, which has sent a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
    writer.write(request)
    return reader, writer


async def test_connections_beyond_the_limit_get_a_503_until_others_are_closed(
    proxy: Proxy, small_server: _Server
) -> None:
    body = json.dumps(user("[[fake:text misbehave=hang at=4]]", stream=True)).encode()
    held = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    held += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with capture_logs() as logged:
        busy = [await connect(proxy, held) for _ in range(3)]
        await until(lambda: proxy.streams == 3)
        for _ in range(2):
            reader, writer = await connect(proxy)
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 5" in head
            assert "limit of open files" in json.loads(answer)["error"]["message"]
            writer.close()
        for _, writer in busy:
            writer.close()
        await until(lambda: not small_server.connections)
        assert (await proxy.send("GET", "/healthz")).status == 200
    assert [line["limit"] for line in logged if line["event"] == "connections_refused"] == [3]


async def test_of_idle_connections_beyond_the_limit_the_oldest_are_closed(
    proxy: Proxy, small_server: _Server
) -> None:
    ask = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    idle = [await connect(proxy, ask) for _ in range(3)]
    for reader, _ in idle:
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
    for _ in range(2):
        reader, writer = await connect(proxy, ask)
        idle.append((reader, writer))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
    for reader, _ in idle[:2]:
        async with asyncio.timeout(PATIENCE):
            await reader.read()  # until it is closed
    await until(lambda: len(small_server.connections) == 3)
    idle[2][1].write(ask)
    assert b"HTTP/1.1 200 " in await idle[2][0].readuntil(b"HTTP/1.1 200 ")
    at_once = [socket.create_connection(("127.0.0.1", proxy.server.port)) for _ in range(5)]
    await until(lambda: small_server.connections)
    loop = asyncio.get_running_loop()
    for each in at_once:
        each.setblocking(False)
    answers = [asyncio.create_task(loop.sock_recv(each, 12)) for each in at_once]
    await until(lambda: any(answer.done() for answer in answers))  # each idle one makes room for one
    assert {answer.result() for answer in answers if answer.done()} == {b"HTTP/1.1 503"}
    for answer in answers:
        answer.cancel()
    for each in at_once:
        each.close()
    for _, writer in idle:
        writer.close()
