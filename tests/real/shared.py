"""Proxies that several tests share: a start of the real binary costs ten times what a turn does.

Every test finds them as if new: no thread is kept, nothing is remembered, the workspace is empty, and the model
server starts to count anew. A test that changes the home, or harms a process, makes a proxy of its own.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codex_proxy.core.step_memory import StepMemory
from tests.real.codex_home import CodexHome
from tests.real.proxy import Proxy, proxy
from tests.waiting import eventually

living_on = partial(pytest_asyncio.fixture, loop_scope="session")
"""A fixture in the event loop of all tests here."""

MAX_COUNT = 4
"""Proxies at a time; each has two processes of the agent."""

WAYS = ("kept", "replayed", pytest.param("restarted", marks=pytest.mark.exhaustive))
"""What happens to a conversation between its requests. A new proxy for each is slow, and seldom says more."""
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def _idle(running: Proxy) -> bool:
    return running.idle


class OwnSteps:
    """The proxy's own step memory, in which a test finds only what it remembered itself."""

    def __init__(self, steps: StepMemory, test: int) -> None:
        self._steps = steps
        self._test = test

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        await self._steps.remember(f"{owner} {self._test}", entries, durable=durable)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return await self._steps.recall(f"{owner} {self._test}", keys)


class Proxies:
    """Proxies on one home, by their settings."""

    def __init__(self, home: CodexHome) -> None:
        self.home = home
        self._running: OrderedDict[frozenset[tuple[str, Any]], tuple[Proxy, StepMemory, AsyncExitStack]] = (
            OrderedDict()
        )
        self._made = 0
        self._test = 0

    async def of(self, **settings: Any) -> Proxy:
        """The proxy with these settings."""
        key = frozenset(settings.items())
        if key not in self._running:
            if len(self._running) == MAX_COUNT:
                await self._end(next(iter(self._running)))
            self._running[key] = await self._start(settings)
        self._running.move_to_end(key)
        return self._running[key][0]

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[Proxy]:
        """The same for a block, behind which it goes on."""
        yield await self.of(**settings)

    def restarts(self, **settings: Any) -> Restarts:
        """Proxies with these settings, one after the other, on one store."""
        return Restarts(self.home, {"state_dir": self._new_state()} | settings)

    def begin_test(self) -> None:
        """Empties what the test before may have filled."""
        self._test += 1
        for each in self.home.workdir.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        for running, steps, _ in self._running.values():
            running.server.runs.services.memory = OwnSteps(steps, self._test)

    async def end_test(self) -> None:
        """Lets go of every thread. A proxy on which something still runs is ended, and the test has failed."""
        for key, (running, _, _) in list(self._running.items()):
            running.server.runs.services.idle_sessions.close()
            try:
                await eventually(partial(_idle, running))
            except AssertionError:
                await self._end(key)
                raise

    async def close(self) -> None:
        for key in list(self._running):
            await self._end(key)

    async def _start(self, settings: dict[str, Any]) -> tuple[Proxy, StepMemory, AsyncExitStack]:
        stack = AsyncExitStack()
        given = {"state_dir": self._new_state()} | settings
        running = await stack.enter_async_context(proxy(self.home, **given))
        steps = running.server.runs.services.memory
        assert steps is not None
        running.server.runs.services.memory = OwnSteps(steps, self._test)
        return running, steps, stack

    def _new_state(self) -> Path:
        self._made += 1
        return self.home.path.parent / f"state-{self._made}"

    async def _end(self, key: frozenset[tuple[str, Any]]) -> None:
        _, _, stack = self._running.pop(key)
        await stack.aclose()


class Restarts:
    """A proxy that is stopped, and another started in its place, as often as a test says."""

    def __init__(self, home: CodexHome, settings: dict[str, Any]) -> None:
        self._home = home
        self._settings = settings
        self._running = AsyncExitStack()

    async def next(self) -> Proxy:
        """A new proxy. The one before has stopped."""
        await self._running.aclose()
        return await self._running.enter_async_context(proxy(self._home, **self._settings))

    async def close(self) -> None:
        await self._running.aclose()
