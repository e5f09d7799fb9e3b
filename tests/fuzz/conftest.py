"""One server for all fuzzers of a process, in a thread of its own: Hypothesis and schemathesis do not await."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_proxy.app import Server, make_server
from tests.http.serving import ENVIRONMENT, settings_of

PATIENCE = 20.0


MAX_HOLD_SECONDS = 0.1
"""CPU time of one callback of the server's event loop: as long nobody else is served."""


class Holds:
    """Which callback held the loop of a thread longest, by CPU time: a busy machine makes none longer."""

    def __init__(self) -> None:
        self.thread = 0
        self.longest = 0.0
        self.who = ""
        self._run = asyncio.Handle._run

    def __enter__(self) -> Holds:
        holds, run = self, self._run

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != holds.thread:
                return run(handle)
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > holds.longest:
                holds.longest, holds.who = took, repr(handle)
            return None

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


class ServerThread:
    """A proxy on the fake agent, and the thread that it runs in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.server: Server | None = None
        self.holds = Holds()

    async def _serve(self) -> None:
        self.holds.thread = threading.get_ident()
        settings = settings_of(self._folder, fake_dialect="app-server")
        self.server = await make_server(settings, ENVIRONMENT)
        try:
            await self.server.start()
            self._ready.set()
            await self._stop.wait()
        finally:
            await self.server.stop()

    def __enter__(self) -> int:
        """Its port."""
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        assert self.server is not None
        return self.server.port

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._loop.close()


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Holds]]:
    """The port of a server that keeps responses and conversations, and whose turns are quick; and what holds it up."""
    thread = ServerThread(tmp_path_factory.mktemp("fuzz"))
    with thread.holds, thread as port:
        yield port, thread.holds


@pytest.fixture
def port(fuzzed: tuple[int, Holds]) -> Iterator[int]:
    """Where it listens. No request of a test may hold its event loop."""
    port, holds = fuzzed
    holds.longest = 0.0
    yield port
    assert holds.longest < MAX_HOLD_SECONDS, holds.who
