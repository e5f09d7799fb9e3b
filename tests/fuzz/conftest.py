"""One server for all fuzzers of a process, in a thread of its own: Hypothesis and schemathesis do not await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_proxy.app import Server, make_server
from tests.http.serving import ENVIRONMENT, settings_of

PATIENCE = 20.0


class ServerThread:
    """A proxy on the fake agent, and the thread that it runs in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.server: Server | None = None

    async def _serve(self) -> None:
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
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where a server listens that keeps responses and conversations, and whose turns are quick."""
    with ServerThread(tmp_path_factory.mktemp("fuzz")) as found:
        yield found
