"""The client's faults: it leaves at any moment, stops reading, or takes its time. Its turn ends, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.faults.scene import MODES, Mode, Scene, request_of
from tests.http.serving import until
from tests.process.children import have_ended
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="package")

BEFORE_THE_FIRST_WORD = "[[fake:text first=600000]]"
IN_THE_MIDDLE = "[[fake:text hold=1]]"
MORE_THAN_ANY_BUFFER = "[[fake:count n=200000 size=100]]"


class Line:
    """A connection of a client that sends and reads as it likes."""

    def __init__(self, there: Scene, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.there = there
        self.reader = reader
        self.writer = writer

    def send(self, mode: Mode, prompt: str, *, upto: float = 1.0) -> bytes:
        """Sends this share of a request; what is left of it comes back."""
        path, body = request_of(mode, prompt)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
        cut = int(len(whole) * upto)
        self.writer.write(whole[:cut])
        return whole[cut:]

    async def hears(self, words: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.reader.readuntil(words)

    async def runs(self) -> None:
        """The turn has its slot, and a place at the agent."""
        await until(lambda: self.there.proxy.server.runs.running == 1)

    def hang_up(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def line(there: Scene) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", there.proxy.server.port)
    try:
        yield Line(there, reader, writer)
    finally:
        writer.transport.abort()


async def while_it_sends(client: Line, mode: Mode) -> None:
    client.send(mode, IN_THE_MIDDLE, upto=0.8)
    await client.writer.drain()


async def at_once(client: Line, mode: Mode) -> None:
    client.send(mode, IN_THE_MIDDLE)
    await client.writer.drain()


async def before_the_first_word(client: Line, mode: Mode) -> None:
    client.send(mode, BEFORE_THE_FIRST_WORD)
    await client.runs()


async def in_the_middle(client: Line, mode: Mode) -> None:
    client.send(mode, IN_THE_MIDDLE)
    await (client.hears(b"Hello") if mode.stream else client.runs())


async def without_reading(client: Line, mode: Mode) -> None:
    """It reads the first words and then no more, until the server cannot write any further."""
    client.send(mode, MORE_THAN_ANY_BUFFER)
    await client.hears(b"HTTP/1.1 200")
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.runs()


@dataclass(frozen=True)
class Row:
    """When the client leaves."""

    leaves: Callable[[Line, Mode], Awaitable[None]]
    streamed_only: bool = False

    def __str__(self) -> str:
        return self.leaves.__name__


ROWS = [
    Row(while_it_sends),
    Row(at_once),
    Row(before_the_first_word),
    Row(in_the_middle),
    Row(without_reading, streamed_only=True),
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_client_that_leaves_ends_its_turn_and_leaves_nothing(there: Scene, row: Row) -> None:
    for mode in MODES:
        if mode.stream or not row.streamed_only:
            async with line(there) as client:
                await row.leaves(client, mode)
                client.hang_up()
            await there.at_rest()
    await there.good()
    await there.at_rest()


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_client_that_sends_slowly_is_waited_for_and_answered(there: Scene, mode: Mode) -> None:
    async with line(there) as client:
        rest = client.send(mode, "[[fake:text say=Slowly.]]", upto=0.5)
        for start in range(0, len(rest), 16):
            await client.writer.drain()
            await asyncio.sleep(0)
            client.writer.write(rest[start : start + 16])
        async with asyncio.timeout(PATIENCE):
            answer = await client.reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"Slowly." in answer
    await there.at_rest()


async def test_a_client_that_leaves_while_it_waits_for_a_slot_never_gets_one(there: Scene) -> None:
    scheduler = there.proxy.server.runs
    async with line(there) as leaving:
        busy = [asyncio.create_task(there.ask(MODES[0], IN_THE_MIDDLE)) for _ in range(8)]
        await until(lambda: scheduler.running == 8)
        leaving.send(MODES[1], "[[fake:text]]")
        await until(lambda: scheduler.queued == 1)
        leaving.hang_up()
        await until(lambda: scheduler.queued == 0)
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    await there.at_rest()
    await there.good()


async def test_a_client_that_leaves_ends_only_its_own_turn(there: Scene) -> None:
    async with line(there) as leaving, line(there) as staying:
        for client in (leaving, staying):
            client.send(MODES[0], "[[fake:text delay=20 n=10]]")
        await leaving.hears(b"word0")
        leaving.hang_up()
        await staying.hears(b"[DONE]")
    await there.at_rest()


async def test_a_child_whose_client_leaves_is_gone_with_all_that_it_started(there: Scene) -> None:
    if there.dialect != "proto":
        pytest.skip("there the process serves others")
    for faults in ("grandchild,hang", "plain_grandchild,deaf,ignore_sigterm"):
        async with line(there) as client:
            client.send(MODES[0], f"[[fake:text misbehave={faults} at=4]]")
            await client.hears(b"Hello")
            pids = there.newest_pids(2)
            assert not any(have_ended([pid]) for pid in pids)
            assert os.getpid() not in pids
            client.hang_up()
        await there.at_rest()
        assert have_ended(pids)
