"""Row 12: the CPU time of a turn, of the server and the agent together, with and without a recording of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import Proxy, chat_request, drain, provider, proxy, responses_request
from tests.real.codex_home import KEY, KEY_NAME, make_codex_home
from tests.real.release import codex_path

MEMORY = Path("/dev/shm")
"""The folder of the recordings: ext4 takes long to find a free inode after files were deleted, as in the last run."""
DELTAS = 200


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    turns, rounds = (4, 1) if quick else (50, 14)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as memory:
        yield from _fake(folder / "fake", f"{memory}/fake", turns, rounds)
        yield from _codex(folder / "codex", f"{memory}/codex", 2 if quick else 10, rounds)


def _fake(folder: Path, cassettes: str, turns: int, rounds: int) -> Iterator[Figure]:
    """Measures the fake agent, which takes next to no time itself."""
    flags = ("--agent", "fake")
    with (
        proxy(folder / "a", *flags, "--record", cassettes, PROXY_FAKE_DIALECT="app-server") as recording,
        proxy(folder / "b", *flags, PROXY_FAKE_DIALECT="app-server") as plain,
    ):
        prompt = f"Say what you have to say. [[fake:count n={DELTAS}]]"
        yield from _compare("the fake agent", recording, plain, prompt, turns, rounds, goal="")


def _codex(folder: Path, cassettes: str, turns: int, rounds: int) -> Iterator[Figure]:
    """Measures the real Codex with a scripted model."""
    with provider() as base_url:
        home = make_codex_home(folder, base_url)
        variables = {KEY_NAME: KEY, "HOME": str(home.user)}
        flags = (
            "--agent",
            "codex-app-server",
            "--codex-bin",
            str(codex_path()),
            "--workdir",
            str(home.workdir),
        )
        codex_home = str(home.path)
        with (
            proxy(
                folder / "a", *flags, "--record", cassettes, codex_home=codex_home, **variables
            ) as recording,
            proxy(folder / "b", *flags, codex_home=codex_home, **variables) as plain,
        ):
            prompt = f"[[model:text n={DELTAS}]]"
            yield from _compare("Codex", recording, plain, prompt, turns, rounds, goal="<= 1.1")


def _compare(
    agent: str, recording: Proxy, plain: Proxy, prompt: str, turns: int, rounds: int, *, goal: str
) -> Iterator[Figure]:
    """Yields the figures of both APIs, from rounds of so many turns that both servers run in turns."""
    for api, request in (("chat", chat_request(prompt)), ("responses", responses_request(prompt))):
        seconds: dict[Proxy, list[float]] = {recording: [], plain: []}
        for ours in seconds:  # so that neither pays for what happens once
            asyncio.run(drain(ours.port, request, count=None))
        for _ in range(rounds):
            for ours, found in seconds.items():
                before = _cpu(ours)
                for _ in range(turns):
                    asyncio.run(drain(ours.port, request, count=None))
                found.append((_cpu(ours) - before) / turns)
        recorded, not_recorded = map(median, seconds.values())
        yield Figure(
            row="12",
            what=f"CPU of a recorded turn of {DELTAS} deltas, {api}, server and {agent}",
            against="the same turn, not recorded",
            ratio=recorded / not_recorded,
            goal=goal,
            samples=rounds * turns,
            value=f"{recorded * 1000:.1f} ms",
        )


def _cpu(ours: Proxy) -> float:
    """Returns the CPU seconds of a server and of its agent's processes."""
    seconds = ours.cpu()
    for process in psutil.Process(ours.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it asked the agent for its models, and has ended
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
