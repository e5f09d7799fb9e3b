"""A child at its worst: it hangs, is deaf to signals, and has left a process that holds its pipes. All of it goes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.process.children import have_ended
from tests.process_left.talk import Talk, assert_serves, talk
from tests.real.codex_home import CodexHome
from tests.real.proxy import ProxyProcess, chat_request, proxy_process
from tests.waiting import eventually

DIALECTS = pytest.mark.parametrize("dialect", ["proto", "app-server"])
FAULTS = pytest.mark.parametrize(
    "faults",
    [
        "grandchild,hang",
        pytest.param("plain_grandchild,hang", marks=pytest.mark.exhaustive),
        "grandchild,deaf,ignore_sigterm",
    ],
)


@dataclass
class Scene:
    """A proxy with a child that misbehaves, in the middle of a stream."""

    proxy: ProxyProcess
    talk: Talk
    child: int
    family: list[int]


@asynccontextmanager
async def misbehaving_scene(
    home: CodexHome, dialect: str, faults: str, drain: int = 0
) -> AsyncIterator[Scene]:
    """A stream has begun, and the child and its grandchild have written down their pids."""
    pids = home.user / "pids"
    environment = fake_environment(pids, dialect) | {"PROXY_DRAIN_MS": str(drain)}
    at = 5 if dialect == "proto" else 8
    prompt = f"[[fake:count n=50 misbehave={faults} at={at}]]"
    async with (
        proxy_process(home, "--agent", "fake", environment=environment) as proxy,
        talk(proxy.url, chat_request(prompt)) as client,
    ):
        await client.says(b'"content"')
        await eventually(lambda: len(read_pids(pids)) >= 2)
        [child, *_] = written = read_pids(pids)
        family = sorted({*proxy.family(), *written})
        assert not any(have_ended([pid]) for pid in written)
        yield Scene(proxy, client, child, family)


def zombies_of(parent: int) -> list[psutil.Process]:
    """Children of the process that have ended, and that it has not waited for."""
    found = []
    for child in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess):  # it was waited for just now
            found += [child] if child.status() == psutil.STATUS_ZOMBIE else []
    return found


def fake_environment(pids: Path, dialect: str) -> dict[str, str]:
    """What a fake agent is told that writes its process ids there, and takes the model names of the real one."""
    return {
        "FAKE_CODEX_PID_FILE": str(pids),
        "FAKE_CODEX_MODELS": "any",
        "PROXY_FAKE_DIALECT": dialect,
    }


def read_pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@FAULTS
async def test_a_client_that_leaves_ends_a_child_of_its_own(codex_home: CodexHome, faults: str) -> None:
    async with misbehaving_scene(codex_home, "proto", faults) as scene:
        await scene.talk.leave()
        await eventually(lambda: have_ended(scene.family))


@pytest.mark.exhaustive
async def test_a_client_that_leaves_ends_what_its_turn_left_on_a_shared_process(
    codex_home: CodexHome,
) -> None:
    """The process goes too, when it is idle: only its warden can end a process that belongs to nobody."""
    async with misbehaving_scene(codex_home, "app-server", "grandchild,hang") as scene:
        await scene.talk.leave()
        await eventually(lambda: have_ended(scene.family))
        await assert_serves(scene.proxy.url, "[[fake:text]]", "deterministic")


@pytest.mark.exhaustive
async def test_a_client_that_leaves_ends_a_shared_process_that_ignores_interrupts(
    codex_home: CodexHome,
) -> None:
    """It does not answer to the interrupt, so it is not used again."""
    async with misbehaving_scene(codex_home, "app-server", "grandchild,deaf,ignore_sigterm") as scene:
        await scene.talk.leave()
        await eventually(lambda: have_ended(scene.family))


@pytest.mark.sampled(every=2, first=1)
@DIALECTS
async def test_a_child_that_is_killed_ends_its_stream_with_an_error_and_leaves_nothing(
    codex_home: CodexHome, dialect: str
) -> None:
    async with misbehaving_scene(codex_home, dialect, "grandchild,hang") as scene:
        os.kill(scene.child, signal.SIGKILL)
        await eventually(lambda: have_ended(scene.family))
        await scene.talk.end()
        assert scene.talk.error_code == "agent_crashed"


@pytest.mark.sampled(every=2, first=1)
@DIALECTS
async def test_the_kill_of_a_warden_ends_all_its_processes_and_the_server_goes_on(
    codex_home: CodexHome, dialect: str
) -> None:
    async with misbehaving_scene(codex_home, dialect, "grandchild,hang") as scene:
        warden = psutil.Process(scene.child).ppid()
        os.kill(warden, signal.SIGKILL)
        await scene.talk.end()
        assert scene.talk.error_code == "agent_crashed"
        await eventually(lambda: have_ended(scene.family))
        await eventually(lambda: not zombies_of(scene.proxy.pid))
        await assert_serves(scene.proxy.url, "[[fake:text]]", "deterministic")


@pytest.mark.sampled(every=5)
@DIALECTS
@FAULTS
async def test_the_kill_of_the_proxy_ends_all_its_processes(
    codex_home: CodexHome, dialect: str, faults: str
) -> None:
    async with misbehaving_scene(codex_home, dialect, faults) as scene:
        os.kill(scene.proxy.pid, signal.SIGKILL)
        await scene.talk.end()
        assert scene.talk.broken
        await eventually(lambda: have_ended(scene.family))
