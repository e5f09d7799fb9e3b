"""What has come of an answer while its client did not read is given when it reads again, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp.connector import Connection

from codex_proxy.parts.upstream.config import UpstreamConfig
from codex_proxy.parts.upstream.connections import UpstreamConnections
from codex_proxy.parts.upstream.exchange import Exchange, OutgoingRequest
from codex_proxy.parts.upstream.failures import Secrets, SecretsReader
from codex_proxy.parts.upstream.stream import End, Message
from tests.model_server import raw_upstream
from tests.parts.upstream.test_unasked_bytes import whole_json
from tests.waiting import PATIENCE, eventually

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = b"data: " + b"x" * 4_000 + b"\n\n"


class PausedReader:
    """Takes an answer; pauses its exchange when the first bytes have come."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.begun = asyncio.Event()
        self.body = b""
        self.end: End | None = None

    def take(self, messages: Sequence[Message], size: int) -> None:
        for message in messages:
            if isinstance(message, bytes):
                self.body += message
            elif isinstance(message, End):
                self.end = message
        if not self.begun.is_set() and self.body:
            assert self.exchange is not None
            self.exchange.pause()
            self.begun.set()


async def test_a_client_that_reads_again_gets_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
    rest = chunk * 149 + b"0\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole_json(reader)
        writer.write(HEAD + chunk)
        await reader.read()

    async with raw_upstream(talk) as url:
        connections = UpstreamConnections(url, proxy=None, connect_timeout=PATIENCE, keepalive=PATIENCE)
        opened, open_connection = list[Connection](), connections.open

        async def opening() -> Connection:
            opened.append(await open_connection())
            return opened[-1]

        monkeypatch.setattr(connections, "open", opening)
        body = b"{}"
        head = b"POST /v1 HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        reader = PausedReader()
        reader.exchange = exchange = Exchange(
            connections,
            OutgoingRequest(head, body),
            UpstreamConfig(url=url),
            SecretsReader(Secrets(())),
            reader.take,
        )
        await asyncio.wait_for(reader.begun.wait(), PATIENCE)
        (connection,) = opened
        assert connection.protocol is not None
        connection.protocol.data_received(rest)  # at once: the system may give it in parts
        assert reader.end is None
        exchange.resume()
        await eventually(lambda: reader.end)
        assert reader.end == End()
        assert reader.body == PIECE * 150
        await exchange.close()
        await connections.close()
