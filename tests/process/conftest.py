"""Checks after each test that every child has reported its end once, and that no descriptor is left open."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from codex_proxy.process.child import Child, Command, spawn
from codex_proxy.process.spawner import use_spawner
from tests.forked_fake import no_forks
from tests.process.children import Recorder, open_descriptors
from tests.waiting import eventually

Start = Callable[[Command], Awaitable[tuple[Child, Recorder]]]


@pytest.fixture(autouse=True)
def real_spawner() -> Iterator[None]:
    """These are its tests."""
    with no_forks():
        yield


@pytest.fixture(params=["spawner", "direct"])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """Starts children, by a spawner and without one, and after the test ends those that still run and checks what they
    must not leave.
    """
    children: list[tuple[Child, Recorder]] = []
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    gc.collect()  # what earlier tests have left to the collector is closed now, and not during this test
    gc.freeze()  # what is left is not looked at again before the next test
    before = open_descriptors()
    spawner = use_spawner() if request.param == "spawner" else None

    async def start_one(command: Command) -> tuple[Child, Recorder]:
        recorder = Recorder()
        child = await spawn(command, recorder)
        children.append((child, recorder))
        return child, recorder

    yield start_one
    for child, recorder in children:
        await child.end(grace=0)
        assert len(recorder.exits) == 1, "its end was reported exactly once"
        assert not recorder.received_after_end, "nothing received after the end"
    if spawner is not None:
        await spawner.close()
    assert not faults, "no callback failed"
    # Fewer where a thread of an earlier test has closed its own meanwhile.
    await eventually(lambda: open_descriptors() <= before)
