"""Clients that open connections and say nothing, or a little now and then: the server's patience has an end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from codex_proxy.app import server as app
from codex_proxy.http import body
from tests.http.serving import Proxy, fake_proxy, user
from tests.waiting import PATIENCE

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n"
)


async def send_pieces(proxy: Proxy, *pieces: bytes, until: bytes | None = None) -> bytes:
    """What comes back where this was sent, piece by piece, until these words, or until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(PATIENCE):
            return await (reader.read() if until is None else reader.readuntil(until))
    finally:
        writer.close()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "pieces",
    [(), (b"GET /v1/mod",), (HEAD[:-2],), (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /liv",)],
    ids=["nothing", "a part of a line", "a head without an end", "a part behind a whole request"],
)
async def test_a_connection_without_a_whole_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(app, "SILENT_SECONDS", 0.2)
    async with fake_proxy(tmp_path) as proxy:
        answered = await send_pieces(proxy, *pieces)
        assert answered.count(b"HTTP/1.1 200") == sum(b"\r\n\r\n" in piece for piece in pieces)
        assert (await proxy.ask(user())).status == 200


async def test_a_body_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.2)
    async with fake_proxy(tmp_path) as proxy:
        answered = await send_pieces(
            proxy, HEAD, b'{"mess', b'ages": [', until=b"was not received within 0.2 s"
        )
        assert answered.startswith(b"HTTP/1.1 400")
        assert (await proxy.ask(user())).status == 200
