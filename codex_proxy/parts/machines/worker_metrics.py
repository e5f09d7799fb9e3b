"""The metrics of all workers. The worker that is asked collects those of the others. Each writes its own to any process
of its user that connects to its socket: an abstract one (Linux), which a killed worker does not leave behind. Its name
has the supervisor's process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

ANSWER_SECONDS: Final = 2.0
"""Seconds for another worker to answer; then its metrics are missing."""
SOCKETS: Final = Path("/proc/net/unix")
CREDENTIALS: Final = struct.Struct("3i")
"""The form of SO_PEERCRED: process, user, group."""

log = structlog.get_logger(__name__)


class WorkerMetrics:
    """Serves this worker's metrics to the other workers, and collects theirs. `own` returns the metrics of this
    worker, whose number is `number`. `supervisor`: the supervisor's process id.
    """

    def __init__(self, own: Callable[[], Awaitable[bytes]], number: int, *, supervisor: int) -> None:
        self._own = own
        self._number = number
        self._prefix = f"codex-proxy-metrics-{supervisor}-"

    async def exposition(self) -> bytes:
        """Returns the metrics as `Metrics.exposition` does, each sample with the label `worker`."""
        own, sockets = await self._own(), self._sockets()
        found = await asyncio.gather(*map(_metrics_at, sockets.values()))
        return merge_metrics({**dict(zip(sockets, found, strict=True)), self._number: own})

    async def share(self, _: web.Application) -> AsyncIterator[None]:
        """For `Application.cleanup_ctx`: lets other workers read this one's metrics."""
        name = f"\0{self._prefix}{self._number}-{os.getpid()}"
        try:
            server = await asyncio.start_unix_server(self._answer, name)
        except OSError as error:
            log.warning("metrics_not_shared", reason=error.strerror)
            yield
            return
        async with server:
            yield

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if _is_of_this_user(writer):
                writer.write(await self._own())
                await writer.drain()
        writer.close()

    def _sockets(self) -> dict[int, str]:
        try:
            listed = SOCKETS.read_text("utf-8", "replace")
        except OSError:
            return {}
        found = re.findall(rf"@({self._prefix}(\d+)-(\d+))$", listed, re.MULTILINE)
        # Of two with one number, of which one replaces the other, the newer process is the later one here.
        found.sort(key=lambda each: int(each[2]))
        return {int(number): name for name, number, _ in found if int(number) != self._number}


async def _metrics_at(name: str) -> bytes:
    with contextlib.suppress(OSError):  # a TimeoutError, too
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(f"\0{name}")
            with contextlib.closing(writer):
                if _is_of_this_user(writer):
                    return await reader.read()
    return b""


def _is_of_this_user(writer: asyncio.StreamWriter) -> bool:
    other = writer.get_extra_info("socket")
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(credentials)[1] == os.geteuid())


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merge_metrics(texts: Mapping[int, bytes]) -> bytes:
    """Returns the metrics of workers, by number, as one text."""
    families: dict[str, Metric] = {}
    for number, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text.decode()):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "worker": str(number)}
                whole.samples.append(sample._replace(labels=labels))
    return generate_latest(_Families(families.values()))
