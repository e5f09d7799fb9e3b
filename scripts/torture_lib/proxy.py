"""A proxy process that is killed and started again, with the same port and files.

Every process that a proxy starts stays a descendant of this program, also when its parent is killed: the program makes
itself their reaper (Linux). So what is left of a proxy can be counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp
import psutil

from scripts.bench_lib.servers import PATIENCE, ROOT, clean_environment, port_in
from scripts.torture_lib.watched_server import NUMBER, Census

PR_SET_CHILD_SUBREAPER = 36
SAMPLE = re.compile(r"^(\w+)(\{[^}]*\})? ([^ \n]+)$", re.MULTILINE)
METRICS_KEY = "metrics-of-a-tortured-server"


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_port() -> int:
    """Returns a port of loopback on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Served(Protocol):
    """What clients know of a server, or of several with one database."""

    @property
    def url(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def keys(self) -> Sequence[str]:
        """The keys of two clients."""

    @property
    def models(self) -> Sequence[str]:
        """The models of its agents."""

    @property
    def evil_models(self) -> Sequence[str]:
        """Those of its evil upstream."""

    @property
    def undisturbed(self) -> int | None:
        """How often it has been disturbed, where several servers are and none is killed, stopped or paused now."""

    @property
    def life(self) -> int:
        """A number that changes when a request can have been cut off."""

    @property
    def up(self) -> asyncio.Event:
        """Set while it accepts requests and is not about to be stopped."""

    async def at_rest(self, session: aiohttp.ClientSession, *, within: float) -> bool:
        """Waits until no turn runs or waits, and no stream is open. Returns False if that takes longer than `within`
        seconds.
        """


class Proxy:
    """`codex-proxy serve` in a folder of its own, as a `watched_server`. `plant`: a fault of `plants`, or `none`.
    `keys`: two that its database has already; without them it adds two.
    """

    def __init__(
        self,
        folder: Path,
        variables: Mapping[str, str],
        *,
        models: Sequence[str],
        evil_models: Sequence[str] = (),
        plant: str = "none",
        keys: Sequence[str] = (),
    ) -> None:
        self.models = models
        self.evil_models = evil_models
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.life = 0
        """How many times it was started."""
        self.up = asyncio.Event()
        self.undisturbed: int | None = None
        self._folder = folder
        self._census = folder / "census.json"
        self._plant = plant
        self._variables = {
            "PROXY_STATE_DIR": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PROXY_METRICS": "true",
            "PROXY_METRICS_KEY": METRICS_KEY,
            "PROXY_LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "work").mkdir(parents=True)
        self.keys = keys or [self._new_key(name) for name in ("first", "second")]

    def _new_key(self, name: str) -> str:
        argv = [sys.executable, "-P", "-m", "codex_proxy", "keys", "add", name]
        argv += ["--store"] if "PROXY_STORE" in self._variables else []
        made = subprocess.run(argv, env=self._environment(), capture_output=True, check=True, text=True)
        return made.stdout.strip()

    def _environment(self) -> dict[str, str]:
        return clean_environment(self._variables)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """The log of all its processes, one after the other."""
        return self._folder / "log"

    async def start(self, *flags: str) -> None:
        """Returns when it serves. Raises `RuntimeError` if it does not."""
        if not await asyncio.to_thread(self._serves, flags):
            raise RuntimeError(f"the proxy did not start: {self.log.read_text()[-2000:]}")
        self.life += 1
        self.up.set()

    def _serves(self, flags: tuple[str, ...]) -> bool:
        """Starts the process. Returns whether it serves."""
        module = "scripts.torture_lib.watched_server"
        argv = [sys.executable, "-P", "-m", module, str(self._census), self._plant, "serve", *flags]
        argv += ["--port", str(self.port), "--codex-home", str(self._folder / "codex-home")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv, cwd=self._folder / "work", env=self._environment(), stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        return port_in(self._process.stdout) is not None

    async def end(self, signal_: signal.Signals) -> int:
        """Sends the signal, waits for the end, and returns the exit code."""
        assert self._process is not None
        self.up.clear()
        self._process.send_signal(signal_)
        code = await asyncio.to_thread(self._process.wait, PATIENCE)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """Kills the server, if it has not ended; its wardens end its children."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def children(self) -> list[psutil.Process]:
        """Returns the descendants of the server: wardens and agents."""
        try:
            return list(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def commands(self) -> Counter[str]:
        """Returns the number of descendants of the server by command."""
        found: Counter[str] = Counter()
        for process in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found[NUMBER.sub("N", " ".join(process.cmdline())[:120])] += 1
        return found

    def resident(self) -> int:
        """Returns the server's resident bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    async def census(self) -> Census:
        """Returns what the server has open, and how late its loop was since the last census. Raises `RuntimeError` if
        the server does not answer in time.
        """
        self._census.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE
        while not self._census.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server does nothing for {PATIENCE:.0f} s: its loop is held")
            await asyncio.sleep(0.02)
        found: Census = json.loads(self._census.read_text())
        return found

    async def metrics(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Returns every sample of `GET /metrics`, by name and labels."""
        headers = {"Authorization": f"Bearer {METRICS_KEY}"}
        async with session.get(f"{self.url}/metrics", headers=headers) as answer:
            answer.raise_for_status()
            text = await answer.text()
        return {found[1] + (found[2] or ""): float(found[3]) for found in SAMPLE.finditer(text)}

    async def at_rest(self, session: aiohttp.ClientSession, *, within: float) -> bool:
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError):
                now = await self.metrics(session)
                names = ("turns_running", "turns_queued", "active_streams")
                if not any(now[f"codex_proxy_{name}"] for name in names):
                    return True
            await asyncio.sleep(0.1)
        return False


async def still_running_after(processes: set[int], seconds: float) -> set[int]:
    """Returns which of these processes still run after at most `seconds`."""
    deadline = time.monotonic() + seconds
    left = {pid for pid in processes if runs(pid)}
    while left and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        left = {pid for pid in left if runs(pid)}
    return left


def runs(pid: int) -> bool:
    """Whether the process has not ended. Collects a process that has ended and was not collected."""
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return True
    except psutil.NoSuchProcess:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return False


def descendants() -> set[int]:
    """Returns the ids of all descendants of this process."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def command_of(pid: int) -> str:
    """Returns the process's command line, and whose child it is."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return f"{' '.join(process.cmdline())} (parent {process.ppid()}, {process.status()})"
    return "gone"
