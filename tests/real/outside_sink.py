"""Where the child's connections to the outside end up: a proxy on loopback that lets nothing through.

A child that has it in its proxy variables asks it for every host but loopback, and the first line of each
request says for which. That proves the absence of connections only for a child that honours these variables,
so a test must also show one that is caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.stream_server import stream_server
from tests.waiting import PATIENCE


class OutsideSink:
    """What was asked for, as first lines such as ``CONNECT github.com:443 HTTP/1.1``."""

    def __init__(self) -> None:
        self.port = 0
        self.attempts: list[str] = []
        self._seen = asyncio.Condition()

    @property
    def environment(self) -> dict[str, str]:
        """The proxy variables for the child, in both spellings."""
        address = f"http://127.0.0.1:{self.port}"
        values = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "ALL_PROXY": address}
        values["NO_PROXY"] = "127.0.0.1,localhost"
        return values | {name.lower(): value for name, value in values.items()}

    async def attempt(self) -> str:
        """The first attempt, as soon as there is one."""
        async with asyncio.timeout(PATIENCE), self._seen:
            await self._seen.wait_for(lambda: bool(self.attempts))
        return self.attempts[0]

    async def refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        async with self._seen:
            self.attempts.append(line.decode("latin-1").strip() or "(connected and said nothing)")
            self._seen.notify_all()
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()


@asynccontextmanager
async def outside_sink() -> AsyncIterator[OutsideSink]:
    """A listening sink on a free port of loopback."""
    sink = OutsideSink()
    async with stream_server(sink.refuse) as sink.port:
        yield sink
