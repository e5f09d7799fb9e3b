"""A proxy before several upstreams, and an HTTP proxy before an upstream."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from codex_proxy.parts.upstream.openai_chat.pass_through import PassThrough
from tests.http.serving import Proxy, fake_proxy
from tests.stream_server import stream_server


def new_pass_through(**given: Any) -> PassThrough:
    """Passes an answer on, with the ids `call_0`, `call_1` and so on for calls that have none."""
    count = itertools.count()
    return PassThrough(**{"new_id": lambda prefix: f"{prefix}{next(count)}", **given})


@asynccontextmanager
async def several(
    folder: Path, environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A server whose first upstream is its default."""
    first = next(iter(settings["upstreams"]))
    async with fake_proxy(folder, environment, **({"agent": first} | settings)) as proxy:
        yield proxy


@asynccontextmanager
async def connecting_proxy(status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An HTTP proxy that knows CONNECT alone, or refuses it with this status. Its address, and the heads it gets."""
    heads: list[bytes] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        method, target, _ = head.split(b" ", 2)
        if status != 200 or method != b"CONNECT":
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)
            return
        host, _, port = target.decode().rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        try:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(copy(reader, back), copy(there, writer))
        finally:
            back.transport.abort()

    async with stream_server(connected) as port:
        yield f"http://127.0.0.1:{port}", heads
