"""How many modules a piece of text and a whole request pass. A layer that only hands on costs time, and reading."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import codex_proxy
from tests.http.serving import Proxy, fake_proxy, user
from tests.waiting import eventually

PACKAGE = f"{Path(codex_proxy.__file__).parent}/"
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Wire:
    """One way to ask for a streamed answer, and the most modules that it may pass."""

    path: str
    body: Callable[[str], Body]
    """The request's body for a prompt."""
    text: bytes
    """What the frame of a piece of text has in it, and no other."""
    max_of_a_delta: int
    """From the pipe of the agent to the socket of the client, by the call that reads the pipe."""
    max_of_a_request: Mapping[str, int]
    """By dialect, of a short request to a server that has answered one before."""


WIRES = {
    "chat": Wire(
        "/v1/chat/completions",
        lambda text: user(text, stream=True),
        b'"content":"',
        14,
        {"proto": 55, "app-server": 60},
    ),
    "messages": Wire(
        "/v1/messages", lambda text: user(text, stream=True, max_tokens=1000), b"text_delta",
        15, {"proto": 59, "app-server": 64},
    ),
    "responses": Wire(
        "/v1/responses", lambda text: {"model": "codex-5", "input": text, "stream": True},
        b"output_text.delta", 18, {"proto": 72, "app-server": 77},
    ),
}  # fmt: skip


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


@pytest.fixture(params=["proto", "app-server"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


@pytest.fixture
async def proxy(dialect: str, wire: Wire, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as running:
        await running.send("POST", wire.path, wire.body("[[fake:text]]"))
        yield running


async def test_a_piece_of_text_passes_few_modules(proxy: Proxy, wire: Wire) -> None:
    passed: list[set[str]] = []
    body = wire.body("[[fake:text delay=30]]")
    async with proxy.session.post(proxy.url + wire.path, json=body) as reply:
        while len(passed) < 4:
            with modules_passed() as found:
                frame = await reply.content.readuntil(b"\n\n")
            assert frame, "the stream is over: too many of its frames came together"
            if found and wire.text in frame:  # nothing runs for a frame that came with the one before it
                passed.append(found)
    always = set.intersection(*passed)  # without what runs by a timer
    assert 0 < len(always) <= wire.max_of_a_delta, sorted(always)


async def test_a_short_request_passes_few_modules(proxy: Proxy, wire: Wire, dialect: str) -> None:
    passed: list[set[str]] = []
    while len(passed) < 3:
        with modules_passed() as found:
            await proxy.send("POST", wire.path, wire.body("Say hello. [[fake:text]]"))
            await eventually(lambda: proxy.server.runs.running == 0 and proxy.streams == 0)
        passed.append(found)
    always = set.intersection(*passed)  # without what runs by a timer
    assert 0 < len(always) <= wire.max_of_a_request[dialect], sorted(always)
