"""A real `codex-proxy serve` whose standard streams, or whose terminal, are gone."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from codex_proxy.app.start_checks import reserve_port
from tests.http.serving import ENVIRONMENT, user
from tests.waiting import PATIENCE, poll


class RunningServer:
    """The server's process, and its address."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    def open(self, session: aiohttp.ClientSession, prompt: str) -> aiohttp.client._RequestContextManager:
        body = user(prompt, stream=True)
        return session.post(f"{self.url}/v1/chat/completions", json=body)


@asynccontextmanager
async def running_server(
    folder: Path, redirections: str, *flags: str, terminal: int | None = None, starter: tuple[str, ...] = ()
) -> AsyncIterator[tuple[RunningServer, aiohttp.ClientSession]]:
    """A server that a shell starts with these redirections, or as the first process of this terminal. `starter`: a
    command that executes the server's."""
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
    serve = [sys.executable, "-m", "codex_proxy", "serve", "--agent", "fake", "--port", str(port), *flags]
    prefix = ["setsid", "--ctty"] if terminal is not None else []
    process = await asyncio.create_subprocess_exec(
        *(*prefix, "/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *starter, *serve),
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        env={**ENVIRONMENT, "HOME": str(folder), "PROXY_STORE": "off"},
        cwd=folder,
    )
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    connector = aiohttp.TCPConnector(force_close=True)
    there = RunningServer(process, f"http://127.0.0.1:{port}")
    try:
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

            async def serves() -> bool:
                assert process.returncode is None
                try:
                    async with session.get(f"{there.url}/readyz") as reply:
                        return reply.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            if terminal is not None:
                os.close(terminal)
            await poll(serves)
            yield there, session
    finally:
        workers = psutil.Process(process.pid).children(recursive=True) if process.returncode is None else []
        for pid in (process.pid, *(worker.pid for worker in workers)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()


def finish_reason(stream: str) -> Any:
    """Why the answer of a whole stream has ended."""
    last, done = [line[6:] for line in stream.splitlines() if line.startswith("data: ")][-2:]
    assert done == "[DONE]"
    return json.loads(last)["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    "redirections",
    [
        "<&- >&- 2>&-",
        pytest.param(">/dev/full 2>/dev/full", marks=pytest.mark.exhaustive),
        pytest.param("2>&-", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_server_whose_output_cannot_be_written_serves_and_ends_well(
    redirections: str, tmp_path: Path
) -> None:
    async with running_server(tmp_path, redirections) as (there, session):
        for _ in range(2):
            async with there.open(session, "Hello.") as reply:
                assert finish_reason(await reply.text()) == "stop"
        there.process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await there.process.wait() == 0


WITH_WORKERS = pytest.param(("--workers", "2"), marks=[pytest.mark.exhaustive, pytest.mark.part("machines")])


@pytest.mark.parametrize("flags", [(), WITH_WORKERS])
async def test_a_server_whose_terminal_is_closed_ends_its_turns_and_then_itself(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    ours, its = pty.openpty()
    async with running_server(tmp_path, "", *flags, terminal=its) as (there, session):
        async with there.open(session, "[[fake:count n=20 delay=50]]") as reply:
            text = (await reply.content.readany()).decode()
            os.close(ours)
            text += (await reply.content.read()).decode()
        assert finish_reason(text) == "stop"
        async with asyncio.timeout(PATIENCE):
            assert await there.process.wait() == 0


CARELESS = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_what_a_starter_has_done_to_signals_keeps_no_server_from_its_children_and_its_end(
    tmp_path: Path,
) -> None:
    async with running_server(tmp_path, "", starter=(sys.executable, "-c", CARELESS)) as (there, session):
        async with there.open(session, "Hello.") as reply:
            assert finish_reason(await reply.text()) == "stop"
        there.process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await there.process.wait() == 0
