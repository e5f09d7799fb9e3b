"""One server for all fuzzers of a process, in a thread of its own: Hypothesis and schemathesis do not await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.server import Server, make_server
from tests.cpu_time import slowness
from tests.fuzz.holds import MAX_HOLD_SECONDS, Holds
from tests.http.serving import ENVIRONMENT, settings_of
from tests.waiting import PATIENCE


class ServerThread:
    """A proxy on the fake agent, or with other settings, and the thread that it runs in."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = ENVIRONMENT, **settings: Any) -> None:
        self._settings = settings_of(folder, **(settings or {"fake_dialect": "app-server"}))
        self._environment = environment
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.server: Server | None = None
        self.holds = Holds()

    async def _serve(self) -> None:
        self.holds.thread = threading.get_ident()
        self.server = await make_server(self._settings, self._environment)
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

    def finish_callback(self) -> None:
        """Returns when the callback that runs now, which may have answered already, is over and was measured."""
        over = threading.Event()
        self._loop.call_soon_threadsafe(over.set)
        assert over.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._loop.close()


@pytest.fixture(scope="session")
def port_and_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, ServerThread]]:
    """A server that keeps responses and conversations, and whose turns are quick; and the port that it listens on."""
    thread = ServerThread(tmp_path_factory.mktemp("fuzz"))
    with thread.holds, thread as port:
        yield port, thread


@pytest.fixture
def port(port_and_server: tuple[int, ServerThread]) -> Iterator[int]:
    """Where it listens. No request of a test may hold its event loop. A test is not tried again, so that the limit has
    room.
    """
    port, thread = port_and_server
    holds = thread.holds
    thread.finish_callback()
    holds.forget()
    yield port
    thread.finish_callback()
    limit = 2 * MAX_HOLD_SECONDS
    assert holds.longest < limit or holds.longest / slowness() < limit, holds.who
