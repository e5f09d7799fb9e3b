"""Row 5: from the start of the process to its first 200, and its memory when idle."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import psutil

from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import PATIENCE, BenchError, proxy, running_process

IMPORTED = "import aiohttp; print('imported', flush=True); input()"


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    rounds = 2 if quick else 15
    ours, theirs = [], []
    for _ in range(1 + rounds):
        ours.append(_proxy(folder))
        theirs.append(_import(folder))
    del ours[0], theirs[0]  # these may have compiled what later starts read
    against = 'python -c "import aiohttp"'
    seconds = median(time for time, _ in ours) / median(time for time, _ in theirs)
    memory = median(size for _, size in ours) / median(size for _, size in theirs)
    yield Figure("5", "start to the first 200", against, seconds, "<= 3", rounds)
    yield Figure("5", "resident memory when idle", against, memory, "", rounds)


def _proxy(folder: Path) -> tuple[float, float]:
    """Returns the seconds to the first 200, and the bytes of memory."""
    begun = time.perf_counter()
    with proxy(folder, "--agent", "fake") as server:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("GET", "/livez")
        status = connection.getresponse().status
        took = time.perf_counter() - begun
        connection.close()
        if status != 200:
            raise BenchError(f"/livez says {status}")
        return took, _memory(server.process)


def _import(folder: Path) -> tuple[float, float]:
    begun = time.perf_counter()
    with running_process([sys.executable, "-c", IMPORTED], folder, {}) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise BenchError("aiohttp cannot be imported")
        return time.perf_counter() - begun, _memory(process)


def _memory(process: subprocess.Popen[bytes]) -> float:
    return float(psutil.Process(process.pid).memory_info().rss)
