"""A server's memory under requests that go wrong: it does not grow with their number. The server is a process of its
own, so that nothing of a test is counted."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.http.serving import ENVIRONMENT, user
from tests.waiting import PATIENCE, eventually

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
MIB = 1 << 20
AT_ONCE = 8
LONG = "x" * MIB + " "
"""What a conversation with images weighs."""
ALLOWED_MIB = 30.0
STATM = Path("/proc/self/statm")

pytestmark = pytest.mark.skipif(not STATM.exists(), reason="needs /proc")


class Victim:
    """A server, and what is done to it."""

    def __init__(self, pid: int, port: int, session: aiohttp.ClientSession) -> None:
        self.pid = pid
        self._port = port
        self._session = session
        self._faults: list[Callable[[], Awaitable[None]]] = [
            lambda: self._send(CHAT, b"{", 400),
            lambda: self._send("/v1/nothing", b"{}", 404),
            lambda: self._send(CHAT, b'{"a": "%s"}' % (b"x" * MIB), 400),
            lambda: self._send(CHAT, b" " * (3 * MIB), 413),
            lambda: self._send(CHAT, chat_body("Hello.", n=99), 400),
            lambda: self._send(CHAT, chat_body(LONG + "[[fake:text misbehave=crash at=3]]")),
            lambda: self._send(CHAT, chat_body(LONG + "[[fake:text misbehave=crash at=6]]", stream=True)),
            lambda: self._send(CHAT, chat_body("[[fake:text misbehave=garbage at=2]]")),
            lambda: self._send(CHAT, chat_body(LONG + "[[fake:error]]")),
            lambda: self._send(RESPONSES, response_body(LONG + "[[fake:error]]", stream=True)),
            lambda: self._send(RESPONSES, response_body("Hello.", previous_response_id="resp_none")),
            lambda: self._send(CHAT, chat_body("Hello."), 401, key=""),
            self._leave_in_body,
            self._leave_in_stream,
        ]

    @property
    def mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    async def faults(self, count: int) -> None:
        """So many of them, a few at once."""
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await self._faults[number % len(self._faults)]()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def _send(self, path: str, body: bytes, status: int | None = None, key: str = "right") -> None:
        async with self._post(path, body, key) as reply:
            await reply.read()
            assert reply.status == status or status is None

    async def _leave_in_stream(self) -> None:
        async with self._post(CHAT, chat_body(LONG + "[[fake:text n=1000 delay=5]]", stream=True)) as reply:
            await reply.content.readany()

    async def _leave_in_body(self) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer right\r\n"
        rest = f"Content-Type: application/json\r\nContent-Length: {MIB}\r\n\r\n"
        writer.write((head + rest).encode() + b" " * (MIB // 2))
        await writer.drain()
        writer.close()

    def _post(self, path: str, body: bytes, key: str = "right") -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        return self._session.post(
            f"http://127.0.0.1:{self._port}{path}", data=io.BytesIO(body), headers=headers
        )


def chat_body(text: str, **fields: Any) -> bytes:
    return json.dumps(user(text, **fields)).encode()


def response_body(text: str, **fields: Any) -> bytes:
    return json.dumps({"model": "codex-5", "input": text, **fields}).encode()


@asynccontextmanager
async def victim(folder: Path, dialect: str) -> AsyncIterator[Victim]:
    settings = {
        "STATE_DIR": folder,
        "WORKDIR": folder,
        "FAKE_DIALECT": dialect,
        "BODY_LIMIT": 2 * MIB,
        "PORT": 0,
    }
    environment = {**ENVIRONMENT, **{f"PROXY_{name}": str(value) for name, value in settings.items()}}
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "codex_proxy", "serve", "--agent", "fake", "--api-key", "right"),
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        found = await eventually(
            lambda: (
                re.search(rb"http://127\.0\.0\.1:(\d+)", log.read_bytes()) or process.returncode is not None
            )
        )
        assert isinstance(found, re.Match), log.read_text()
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield Victim(process.pid, int(found[1]), session)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dialect", ["proto", "app-server"])
async def test_a_few_hundred_faulted_requests_cost_no_memory_each(tmp_path: Path, dialect: str) -> None:
    async with victim(tmp_path, dialect) as server:
        await server.faults(300)  # what is loaded and kept once
        before = server.mib
        await server.faults(300)
        assert server.mib - before < ALLOWED_MIB / 2  # it was 50 to 140 while turns held themselves


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
async def test_thousands_of_faulted_requests_leave_the_memory_as_it_was(tmp_path: Path) -> None:
    async with victim(tmp_path, "app-server") as server:
        await server.faults(300)  # what is loaded and kept once, and room for as many bodies as come at once
        before = server.mib
        sizes = []
        for _ in itertools.repeat(None, 10):
            await server.faults(200)
            sizes.append(round(server.mib - before, 1))
        assert sizes[-1] < ALLOWED_MIB, sizes
