"""Clients that stop reading: what they hold is bounded, they are cut in time, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.http import sse
from codex_proxy.runs.event_log import HIGH_WATER
from codex_proxy.runs.run import Run
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.waiting import PATIENCE

FLOOD = "[[fake:count n=60000 size=100]]"
"""More than the buffers of both ends of a connection hold, and than a log may hold."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is cut before a test has seen what there is to be seen, and sets a shorter time."""
    monkeypatch.setattr(sse, "STALL_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(sse, "CHECK_SECONDS", 0.05)


@asynccontextmanager
async def stalled_client(proxy: Proxy, body: dict[str, Any]) -> AsyncIterator[socket.socket]:
    """A client that sends a request, sees that an answer has begun, and reads no further."""
    payload = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", proxy.server.port))
        await loop.sock_sendall(client, head.encode() + payload)
        async with asyncio.timeout(PATIENCE):
            assert (await loop.sock_recv(client, 15)).startswith(b"HTTP/1.1 200")
        yield client


async def rest_of(client: socket.socket) -> bytes:
    """What still reaches a client that reads at last; it ends with the connection."""
    loop, read = asyncio.get_running_loop(), bytearray()
    async with asyncio.timeout(PATIENCE):
        try:
            while chunk := await loop.sock_recv(client, 1 << 16):
                read += chunk
        except ConnectionError:
            pass
    return bytes(read)


def runs_of(proxy: Proxy) -> list[Run]:
    return list(proxy.server.runs._runs)


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize("dialect", ["proto", "app-server"])
async def test_a_stream_that_is_not_read_is_bounded_and_cut_and_others_go_on_meanwhile(
    tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        async with stalled_client(proxy, user(FLOOD, stream=True)) as client:
            [run] = runs_of(proxy)
            if dialect == "proto":  # its child waits; a shared one has said it all
                await until(lambda: run.log.backlog > HIGH_WATER)
                assert run.log.backlog < 2 * HIGH_WATER
            other = await proxy.ask(user("[[fake:text]]", stream=True))
            assert other.frames[-1] == "[DONE]"
            assert proxy.streams == 1, "the other one did not have to wait for its end"
            monkeypatch.setattr(sse, "STALL_SECONDS", 0.05)
            await proxy.settled()
            assert b"[DONE]" not in await rest_of(client)
        assert (await proxy.ask(user("[[fake:text]]"))).status == 200


async def test_a_client_that_waits_for_a_silent_agent_is_not_taken_for_one_that_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, check = 0, sse.EventStream._check

    def count_check(stream: sse.EventStream) -> None:
        nonlocal checks
        checks += 1
        check(stream)

    monkeypatch.setattr(sse.EventStream, "_check", count_check)
    release = tmp_path / "go"
    async with (
        fake_proxy(tmp_path, {"STREAM_RELEASE_FILE": str(release)}, heartbeat_interval=0.2) as proxy,
        stalled_client(proxy, user("[[fake:text hold=1]]", stream=True)) as client,
    ):
        await _read_until(b"\r\n: ", client)
        monkeypatch.setattr(sse, "STALL_SECONDS", 0.0)
        seen = checks
        await until(lambda: checks >= seen + 2)
        monkeypatch.setattr(sse, "STALL_SECONDS", 10 * PATIENCE)
        release.touch()
        await _read_until(b"[DONE]", client)


async def _read_until(end: bytes, client: socket.socket) -> None:
    """Reads up to these bytes. Fails if the connection ends before."""
    loop, data = asyncio.get_running_loop(), bytearray()
    async with asyncio.timeout(PATIENCE):
        while end not in data:
            chunk = await loop.sock_recv(client, 1 << 16)
            assert chunk
            data += chunk


@pytest.mark.skipif(sse.USER_TIMEOUT is None, reason="the system has no such bound")
async def test_a_whole_answer_that_is_not_read_is_cut_too(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, stalled_client(proxy, user(FLOOD)) as client:
        runner = proxy.server.runner
        assert runner is not None
        assert runner.server is not None
        server = runner.server
        [connection] = server.connections
        assert connection.transport is not None
        bounded = connection.transport.get_extra_info("socket")
        assert bounded.getsockopt(socket.IPPROTO_TCP, sse.USER_TIMEOUT) == 10 * PATIENCE * 1000
        bounded.setsockopt(socket.IPPROTO_TCP, sse.USER_TIMEOUT, 500)
        await until(lambda: not server.connections)
        assert len(await rest_of(client)) < 60_000 * 100
