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


async def exchange_bytes(
    port: int, data: bytes, *, patience: float | None = None, one_answer: bool = False
) -> bytes:
    """Writes all of `data` and reads until the server closes, or for `patience` seconds: it may wait for more. With
    `one_answer` the end of an answer is enough."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = b""
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(patience):
                while piece := await reader.read(65536):
                    found += piece
                    if one_answer and _has_end(found):
                        break
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()
        return found


class CutOffError(Exception):
    """An answer has no end yet."""


def answers_in(data: bytes) -> list[RawAnswer]:
    """The answers, all of which have a length or chunks. What follows a change of protocol is its body. Raises
    `CutOffError`."""
    found = []
    while data:
        head, data = _split(data, b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if status == 101:
            body, data = data, b""
        elif headers.get("transfer-encoding") == "chunked":
            body, data = _join_chunks(data)
        else:
            body, data = _cut(data, int(headers.get("content-length", 0)))
        found.append(RawAnswer(status, headers, body))
    return found


def _has_end(data: bytes) -> bool:
    try:
        answers_in(data)
    except CutOffError:
        return False
    return True


def _join_chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, data = _split(data, b"\r\n")
        chunk, data = _cut(data, int(size, 16) + 2)
        body += chunk[:-2]
        if chunk == b"\r\n":
            return body, data


def _split(data: bytes, at: bytes) -> tuple[bytes, bytes]:
    before, there, behind = data.partition(at)
    if not there:
        raise CutOffError
    return before, behind


def _cut(data: bytes, length: int) -> tuple[bytes, bytes]:
    if len(data) < length:
        raise CutOffError
    return data[:length], data[length:]
