"""How many modules a piece of text and a whole request pass. A layer that only hands on costs time, and reading."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import codex_proxy
from tests.http.serving import Proxy, fake_proxy, user
from tests.waiting import eventually

PACKAGE = f"{Path(codex_proxy.__file__).parent}/"

MAX_OF_A_DELTA = 14
"""From the pipe of the agent to the socket of the client, by the call that reads the pipe."""
MAX_OF_A_REQUEST = {"proto": 55, "app-server": 60}
"""By dialect, of a short request to a server that has answered one before."""


@contextmanager
def modules_passed() -> Iterator[set[str]]:
    """The modules of the server whose functions run meanwhile on the event loop, by their paths in the package. A
    coroutine runs whenever something that it awaits goes on."""
    found: set[str] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            found.add(name.removeprefix(PACKAGE))

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.fixture(params=MAX_OF_A_REQUEST)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def proxy(dialect: str, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as running:
        await running.ask(user("[[fake:text]]"))
        yield running


async def test_a_piece_of_text_passes_few_modules(proxy: Proxy) -> None:
    passed: list[set[str]] = []
    async with proxy.open(user("[[fake:text delay=30]]", stream=True)) as reply:
        while len(passed) < 4:
            with modules_passed() as found:
                frame = await reply.content.readuntil(b"\n\n")
            assert frame, "the stream is over: too many of its frames came together"
            if found and b'"content":"' in frame:  # nothing runs for a frame that came with the one before it
                passed.append(found)
    always = set.intersection(*passed)  # without what runs by a timer
    assert 0 < len(always) <= MAX_OF_A_DELTA, sorted(always)


async def test_a_short_request_passes_few_modules(proxy: Proxy, dialect: str) -> None:
    passed: list[set[str]] = []
    while len(passed) < 3:
        with modules_passed() as found:
            await proxy.ask(user("Say hello. [[fake:text]]", stream=True))
            await eventually(lambda: proxy.server.runs.running == 0 and proxy.streams == 0)
        passed.append(found)
    always = set.intersection(*passed)  # without what runs by a timer
    assert 0 < len(always) <= MAX_OF_A_REQUEST[dialect], sorted(always)
