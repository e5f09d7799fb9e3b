"""Bytes on a socket, and the answers that come back."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from tests.waiting import PATIENCE


class RawAnswer(NamedTuple):
    """One answer as it stood on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error that it is."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


async def said_to(port: int, data: bytes, *, patience: float | None = None) -> bytes:
    """Writes all of `data` and reads until the server closes, or for `patience` seconds: it may wait for more."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = b""
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(patience):
                while piece := await reader.read(65536):
                    found += piece
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()
        return found


def answers_in(data: bytes) -> list[RawAnswer]:
    """The answers, all of which have a length or chunks."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if headers.get("transfer-encoding") == "chunked":
            body, data = _unchunked(data)
        else:
            length = int(headers.get("content-length", 0))
            body, data = data[:length], data[length:]
        found.append(RawAnswer(int(lines[0].split()[1]), headers, body))
    return found


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            return body, data
