"""Row 3: many streams at the pace of a model: the delay that the proxy adds to a delta, and what a stream costs the
proxy.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from scripts.bench_lib import direct
from scripts.bench_lib.children import make_paced_child
from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.servers import BenchError, chat_request, clean_environment, proxy

EVERY = 0.05
PER_PROCESS = 64
"""Maximum turns that the pool gives one process."""
AT_ONCE = 32
"""Number of streams that are begun together."""
PATIENCE = 60.0
AGAINST = "reading the children directly"
REQUEST = chat_request("Go.")
MOMENT = re.compile(rb'(?:"content"|"delta"):"(\d+\.\d{6}) "')


@dataclass
class StreamDelays:
    """The delays of one stream's deltas since the child sent them, in seconds."""

    delays: list[float] = field(default_factory=list)
    measuring: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, data: bytes, _decoded: object = None) -> None:
        now = time.monotonic()
        for said in MOMENT.findall(data):
            self.begun.set()
            if self.measuring:
                self.delays.append(now - float(said))


@dataclass(frozen=True)
class Side:
    """The results of one side: delays by stream, CPU seconds of the proxy per second, and its memory in bytes."""

    streams: list[list[float]]
    cpu: float = 0.0
    memory: float = 0.0

    @property
    def delays(self) -> list[float]:
        return [delay for stream in self.streams for delay in stream]


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    for count in (1, 4) if quick else (1, 16, 256, 1000):
        window = 0.5 if quick else 8.0
        place = folder / str(count)
        program = make_paced_child(place / "child", deltas=0, every=EVERY)
        ours = asyncio.run(_ours(place, program, count, window))
        theirs = asyncio.run(_theirs(place, program, count, window))
        yield from _figures(count, window, ours, theirs)


def _figures(count: int, window: float, ours: Side, theirs: Side) -> Iterator[Figure]:
    name = f"{count:,} streams of 20 deltas a second"
    samples = len(ours.delays)
    for label, share, goal in (("p50", 0.5, ""), ("p99", 0.99, "< 50 ms")):
        mine, direct_ = quantile(ours.delays, share), quantile(theirs.delays, share)
        value = f"{(mine - direct_) * 1000:.1f} ms added"
        yield Figure("3", f"delay of a delta, {name}, {label}", AGAINST, mine / direct_, goal, samples, value)
    slowest = max(median(stream) for stream in ours.streams) / median(ours.delays)
    least = min(map(len, ours.streams)) / (window / EVERY)
    fair = f"{least:.0%} of its deltas to the least served"
    yield Figure(
        "3", f"fairness, {name}, the slowest's median", "all streams' median", slowest, "", samples, fair
    )
    yield Figure("3", f"CPU, {name}", "", None, "< 1 core", samples, f"{ours.cpu:.2f} cores")
    each = f"{ours.memory / count / 1000:.0f} KB each"
    yield Figure("3", f"memory, {name}", "", None, "<= 100 KB each", samples, each)


async def _ours(folder: Path, program: Path, count: int, window: float) -> Side:
    processes = max(2, math.ceil(count / PER_PROCESS))
    limits = {
        "PROXY_MAX_RUNNING_TURNS": str(count + 1),
        "PROXY_KEY_CONCURRENCY": str(count + 1),
        "PROXY_KEPT_THREADS": str(16 * processes),
        "PROXY_QUEUE_WAIT": str(PATIENCE),
    }
    flags = ("--agent", "codex-app-server", "--codex-bin", str(program))
    with proxy(folder, *flags, **limits) as server:
        once = StreamDelays()
        first_reader = await _read(server.port, once)
        await _wait_until_begun([once], [first_reader])
        first_reader.transport.close()
        streams = [StreamDelays() for _ in range(count)]
        before = server.memory()
        readers: list[_Reader] = []
        for first in range(0, count, AT_ONCE):  # the pool starts its processes one after the other
            some = streams[first : first + AT_ONCE]
            readers += [await _read(server.port, each) for each in some]
            await _wait_until_begun(some, readers)
        await asyncio.sleep(0.5)  # the burst of starts is not what is measured
        cpu, began = server.cpu(), time.monotonic()
        await _measure(streams, window)
        used = (server.cpu() - cpu) / (time.monotonic() - began)
        memory = server.memory() - before
        for reader in readers:
            reader.transport.close()
        return Side([each.delays for each in streams], used, memory)


class _Reader(asyncio.Protocol):
    """A client that costs little: a thousand of them share two cores with the processes that they measure."""

    def __init__(self, delays: StreamDelays) -> None:
        self._delays = delays
        self.broke_off = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._delays.take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broke_off = True


async def _read(port: int, delays: StreamDelays) -> _Reader:
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: _Reader(delays), "127.0.0.1", port)
    return reader


async def _wait_until_begun(streams: list[StreamDelays], readers: list[_Reader]) -> None:
    waiting = asyncio.gather(*(each.begun.wait() for each in streams))
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            if any(reader.broke_off for reader in readers):
                raise BenchError("a stream broke off")
            await asyncio.sleep(0.01)


async def _measure(streams: list[StreamDelays], window: float) -> None:
    for each in streams:
        each.measuring = True
    await asyncio.sleep(window)
    for each in streams:
        each.measuring = False


async def _theirs(folder: Path, program: Path, count: int, window: float) -> Side:
    """Measures the same children without the proxy: each line is decoded, nothing else is done."""
    environment = clean_environment({})
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(
                direct.app_server([str(program), "app-server"], environment, str(folder))
            )
            for _ in range(max(2, math.ceil(count / PER_PROCESS)))
        ]
        streams = [StreamDelays() for _ in range(count)]
        for number, each in enumerate(streams):
            await children[number % len(children)].listen(each.take)
        await _wait_until_begun(streams, [])
        await _measure(streams, window)
    return Side([each.delays for each in streams])
