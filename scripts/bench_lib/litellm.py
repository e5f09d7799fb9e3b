"""Row 11: this server and LiteLLM's proxy, each before the same server of Chat Completions.

It runs if LiteLLM is installed in an environment of its own:

    python3 -m venv .cache/litellm-1.106.2
    .cache/litellm-1.106.2/bin/pip install 'litellm[proxy]==1.106.2'
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from threading import Thread

from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.passing import SIDES, request_for
from scripts.bench_lib.servers import ROOT, BenchError, first_delta, proxy, running_process, side_server

RELEASE = "1.106.2"
PROGRAM = ROOT / ".cache" / f"litellm-{RELEASE}" / "bin" / "litellm"
AGAINST = f"LiteLLM's proxy {RELEASE}"
DELTAS = 20
AT_ONCE = 16


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    if not PROGRAM.exists():
        print(f"row 11: {PROGRAM} is not installed: left out", file=sys.stderr)
        return
    requests, rounds, firsts = (AT_ONCE, 1, 3) if quick else (96, 7, 150)
    with side_server(SIDES, "upstream") as (_, port):
        url = f"http://127.0.0.1:{port}"
        flags = ("--agent", "openai-chat", "--upstream-url", url)
        with proxy(folder, *flags) as ours, litellm(folder / "litellm", url) as theirs:
            ports = (ours.port, theirs, int(port))
            yield from asyncio.run(_compare(ports, requests, rounds, firsts))


@contextmanager
def litellm(folder: Path, url: str) -> Iterator[int]:
    """Runs LiteLLM's proxy with one model behind it, without keys, log and accounting. Yields its port."""
    folder.mkdir(parents=True)
    model = {"model": "openai/bench", "api_base": f"{url}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "bench", "litellm_params": model}]}
    (folder / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False")
    variables = {
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with running_process([str(PROGRAM), *flags], folder, variables) as process:
        assert process.stdout is not None
        Thread(target=process.stdout.read, daemon=True).start()  # else it waits for somebody to read its log
        asyncio.run(_answers(port, process))
        yield port


async def _answers(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until the process answers a request on this port."""
    async with asyncio.timeout(120):
        while True:
            try:
                await first_delta(port, request_for(1, 0))
            except OSError:  # it takes some seconds before it listens
                if process.poll() is not None:
                    raise BenchError("LiteLLM's proxy ended before it served") from None
                await asyncio.sleep(0.2)
            else:
                return


async def _compare(ports: tuple[int, int, int], requests: int, rounds: int, firsts: int) -> list[Figure]:
    """Returns the figures for the ports of this server, of LiteLLM, and of the server behind both."""
    took: dict[int, list[float]] = {port: [] for port in ports}
    many: dict[int, list[float]] = {port: [] for port in ports}
    single: dict[int, list[float]] = {port: [] for port in ports}
    for port in ports:
        await _first_deltas(port, AT_ONCE)
    for _ in range(rounds):
        for port in ports:
            began = time.perf_counter()
            many[port] += await _first_deltas(port, requests)
            took[port].append(time.perf_counter() - began)
    for _ in range(firsts):
        for port in ports:
            single[port].append(await first_delta(port, request_for(1, 0)))
    ours, theirs = (requests / median(took[port]) for port in ports[:2])
    return [
        Figure(
            "11",
            f"requests per second passed on, {AT_ONCE} at once, {DELTAS} deltas each",
            AGAINST,
            ours / theirs,
            ">= 10",
            rounds,
            f"{ours:,.0f}/s and {theirs:,.0f}/s",
        ),
        _added(f"{AT_ONCE} at once", *many.values()),
        _added("one at once", *single.values()),
    ]


def _added(name: str, ours: list[float], theirs: list[float], direct: list[float]) -> Figure:
    """Returns what both add to the first delta, from its seconds by each way."""
    mine, other, plain = (quantile(waited, 0.5) * 1000 for waited in (ours, theirs, direct))
    if other <= plain:
        raise BenchError("LiteLLM's proxy answers before the server behind it")
    return Figure(
        "11",
        f"added to the first delta, {name}, p50",
        AGAINST,
        (mine - plain) / (other - plain),
        "<= 0.05",
        len(ours),
        f"{mine - plain:.2f} ms and {other - plain:.2f} ms",
    )


async def _first_deltas(port: int, requests: int) -> list[float]:
    """Returns the seconds until the first delta of so many requests, `AT_ONCE` at once."""
    numbers = iter(range(requests))

    async def work() -> list[float]:
        return [await first_delta(port, request_for(DELTAS, 0)) for _ in numbers]

    return list(chain.from_iterable(await asyncio.gather(*(work() for _ in range(AT_ONCE)))))
