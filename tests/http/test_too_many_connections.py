"""Connections beyond those for which there are file descriptors."""

from __future__ import annotations

import asyncio
import json

from structlog.testing import capture_logs

from codex_proxy.http.server import _Server, connections_for
from tests.http.serving import Proxy, until


def test_a_quarter_of_the_descriptors_is_left_for_agents_and_the_store() -> None:
    assert connections_for(1024) == 720
    assert connections_for(32) == 8


async def test_connections_beyond_the_limit_get_a_503_until_others_are_closed(proxy: Proxy) -> None:
    runner = proxy.server.runner
    assert runner is not None
    listening = runner.server
    assert isinstance(listening, _Server)
    listening.max_connections = 3
    with capture_logs() as logged:
        idle = [await asyncio.open_connection("127.0.0.1", proxy.server.port) for _ in range(3)]
        await until(lambda: len(listening.connections) == 3)
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 5" in head
            assert "limit of open files" in json.loads(body)["error"]["message"]
            writer.close()
        for _, writer in idle:
            writer.close()
        await until(lambda: not listening.connections)
        assert (await proxy.send("GET", "/healthz")).status == 200
    assert [line["limit"] for line in logged if line["event"] == "connections_refused"] == [3]
