"""A server of bytes, of which nothing is left when its test ends.

`asyncio.start_server` alone leaves a connection open whose handler has returned at the end of its input, or was never
begun. Such a connection outlives its loop, and fails whichever test runs when it is collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def stream_server(talk: Talk, socket: Path | None = None) -> AsyncIterator[int]:
    """Listens on loopback, and yields the port; or on this Unix socket, and yields 0. What `talk` does with a
    connection ends quietly when the other side leaves; then the connection is closed."""
    writers: set[asyncio.StreamWriter] = set()
    talks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        talks.add(asyncio.create_task(serve(reader, writer)))

    if socket is None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)  # noqa: TID251 - the one place
        port = int(server.sockets[0].getsockname()[1])
    else:
        server = await asyncio.start_unix_server(accept, socket)  # noqa: TID251 - the one place
        port = 0
    try:
        yield port
    finally:
        server.close()
        for each in talks:
            each.cancel()
        ended = await asyncio.gather(*talks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
