"""Words that must not be seen again, planted in everything that a client or an agent can say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.pictures import PNG, chunk, url_of
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"serves on (http://\S+)/v1")

PLANTED = re.compile(r"planted-[\w-]+")
"""Every planted word looks like this, and nothing else does."""

KEY = "planted-key"
METRICS_KEY = "planted-metrics-key"
WEBHOOK_SECRET = "planted-webhook-secret"


def picture(word: str) -> str:
    """A picture that has the word in its name and in a note, as a data URL."""
    noted = PNG[:33] + chunk(b"tEXt", b"Title\0" + word.encode()) + PNG[33:]
    return url_of(noted, f"image/png;name={word}")


@dataclass
class Scene:
    """A server of its own, and a client that holds its key."""

    process: asyncio.subprocess.Process
    url: str
    session: aiohttp.ClientSession
    log: Path
    said: Path

    @property
    def written(self) -> str:
        """All that the server has written so far, wherever to."""
        return self.log.read_text("utf-8") + self.said.read_text("utf-8")

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        """Any body, as JSON unless it is bytes; the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers}
        async with self.session.post(f"{self.url}{path}", data=data, headers=sent) as reply:
            return reply.status, await reply.text()

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}{path}", headers=headers) as reply:
            return reply.status, await reply.text()

    async def raw(self, data: bytes) -> bytes:
        """Whatever bytes; what comes back until the server closes."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        try:
            async with asyncio.timeout(PATIENCE):
                return await reader.read()
        except ConnectionResetError:  # it closed before it had read all of this
            return b""
        finally:
            writer.close()

    async def stop(self) -> int:
        """Tells it to stop; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def planted_server(folder: Path, *arguments: str, **environment: str) -> AsyncIterator[Scene]:
    """A server that has begun to serve. Every word it writes goes into files."""
    log, said = folder / "stderr", folder / "stdout"
    workdir = folder / "work"
    workdir.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PROXY_API_KEY": KEY,
        "PROXY_METRICS": "true",
        "PROXY_METRICS_KEY": METRICS_KEY,
        "PROXY_DRAIN_MS": "0",
        "PROXY_QUEUE_WAIT": str(PATIENCE),
        **environment,
    }
    command = (sys.executable, "-m", "codex_proxy", "serve", "--port", "0", "--agent", "fake")
    with log.open("wb") as stderr, said.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            *(*command, "--workdir", str(workdir), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=ROOT,
        )
    headers = {
        "Authorization": f"Bearer {KEY}",
        "Cookie": "planted-cookie=planted-cookie-value",
        "User-Agent": "planted-user-agent",
        "X-Planted": "planted-header",
        "OpenAI-Organization": "planted-organization",
    }
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            yield Scene(process, await _address(process, said), session, log, said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process, said: Path) -> str:
    found = await eventually(
        lambda: ADDRESS.search(said.read_text("utf-8")) or process.returncode is not None, within=PATIENCE
    )
    assert isinstance(found, re.Match), "the server ended before it served"
    return str(found[1])
