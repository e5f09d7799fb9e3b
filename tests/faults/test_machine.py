"""The machine's faults: no program, no process, no descriptor, no disk. Each is told, and passes when it is mended."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerAgent
from codex_proxy.core.faults import FaultKind
from codex_proxy.process.warden import child_pids
from tests.faults.answers import is_broken_stream, is_good, is_status
from tests.faults.scene import MODES, Mode, Scene, write_program
from tests.faults.test_clients import line
from tests.http.serving import Answer, until
from tests.waiting import PATIENCE, out_of_patience, poll

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT, RESPONSES = MODES[:2], MODES[2:]


# --- the program ----------------------------------------------------------------------------------


def is_missing(there: Scene) -> None:
    there.program.unlink()


def is_not_executable(there: Scene) -> None:
    there.program.chmod(0o644)


def is_a_folder(there: Scene) -> None:
    there.program.unlink()
    there.program.mkdir()


def is_no_program(there: Scene) -> None:
    there.program.write_bytes(b"\x7fELF and nothing more")


def ends_in_its_start(there: Scene) -> None:
    there.program.write_text("#!/bin/sh\necho 'Error: no home' >&2\nexit 3\n")


def hangs_in_its_start(there: Scene) -> None:
    there.program.write_text("#!/bin/sh\nexec sleep 600\n")


@dataclass(frozen=True)
class Row:
    """What is the matter with the program, and what clients are told; `kept`: of an agent that is kept warm."""

    is_wrong: Callable[[Scene], None]
    kind: FaultKind = FaultKind.SPAWN_FAILED
    kept: FaultKind = FaultKind.SPAWN_FAILED

    def __str__(self) -> str:
        return self.is_wrong.__name__


ROWS = [
    Row(is_missing),
    Row(is_not_executable),
    Row(is_a_folder),
    Row(is_no_program, FaultKind.AGENT_CRASHED),
    Row(ends_in_its_start, FaultKind.AGENT_CRASHED),
    Row(hangs_in_its_start, FaultKind.TIMED_OUT),
]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_program_that_cannot_serve_is_reported_and_one_that_can_again_serves(
    there: Scene, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.agents.codex_app_server.agent.START_SECONDS", 0.3)
    kind = row.kept if there.dialect == "app-server" else row.kind
    with ExitStack() as mended:
        mended.callback(mend, there)
        row.is_wrong(there)
        await wait_for_end(there)
        for mode in MODES if kind is not FaultKind.TIMED_OUT else CHAT[:1]:
            asking = asyncio.create_task(there.ask(mode, "[[fake:text]]"))
            if kind is FaultKind.TIMED_OUT:
                await until(lambda: there.proxy.server.runs.running > 0)
                out_of_patience(there.proxy.server.runs)
            answer = await asking
            is_status(answer, mode, kind)
            if there.dialect == "app-server":
                assert int(answer.headers["Retry-After"]) >= 1
    monkeypatch.undo()
    await serves_again(there)


def mend(there: Scene) -> None:
    if there.program.is_dir():
        there.program.rmdir()
    write_program(there.program)


async def wait_for_end(there: Scene) -> None:
    """The process that is kept warm is gone, and its successor has failed; the server is not ready."""
    if not isinstance(there.agent, AppServerAgent):
        can_run = there.program.is_file() and os.access(there.program, os.X_OK)
        assert (await there.proxy.send("GET", "/readyz")).status == (200 if can_run else 503)
        return
    [process] = there.agent.pool.processes
    assert process.pid is not None
    for pid in child_pids(process.pid):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: there.agent.trouble() is not None)
    ready = await there.proxy.send("GET", "/readyz")
    assert (ready.status, ready.body["status"]) == (503, "unready")
    assert ready.body["reason"]


async def serves_again(there: Scene) -> None:
    """By itself: nobody has to ask for it."""
    await until(lambda: there.agent.trouble() is None)
    assert (await there.proxy.send("GET", "/readyz")).status == 200
    await there.good()
    await there.at_rest()


# --- what a process needs -------------------------------------------------------------------------


@contextmanager
def no_processes(there: Scene) -> Iterator[None]:
    """The limit of the user's processes is reached."""

    def refuse(*args: Any, **more: Any) -> NoReturn:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codex_proxy.process.launch.subprocess.Popen", refuse)
        patch.setattr("codex_proxy.process.spawner.SpawnerProcess.request", refuse)
        yield


@contextmanager
def no_descriptors(there: Scene) -> Iterator[None]:
    """Not one more may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("lack", [no_processes, no_descriptors])
async def test_a_machine_that_has_no_room_for_a_process_says_so_until_it_has(
    there: Scene, lack: Callable[[Scene], Any]
) -> None:
    async with open_connections(there, MODES) as ask:
        with lack(there):
            if isinstance(there.agent, AppServerAgent):
                [process] = there.agent.pool.processes
                process.kill()
                await until(lambda: there.agent.trouble() is not None)
            answers = [await ask(mode, "[[fake:text]]") for mode in MODES]
    for mode, answer in zip(MODES, answers, strict=True):
        is_status(answer, mode, FaultKind.UNAVAILABLE)
    await serves_again(there)


@asynccontextmanager
async def open_connections(there: Scene, modes: list[Mode]) -> AsyncIterator[Callable[[Mode, str], Any]]:
    """Asks on connections that are open already, one for each mode."""
    async with line(there) as one, line(there) as two, line(there) as three, line(there) as four:
        lines = dict(zip(modes, (one, two, three, four), strict=True))
        for each in lines.values():  # accepted, each with its handler
            each.writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await each.hears(b'"ok"}')

        async def ask(mode: Mode, prompt: str) -> Answer:
            lines[mode].send(mode, prompt)
            async with asyncio.timeout(PATIENCE):
                head, _, body = (await lines[mode].reader.read()).partition(b"\r\n\r\n")
            status, *headers = head.decode().split("\r\n")
            pairs = dict(header.split(": ", 1) for header in headers)
            return Answer(int(status.split()[1]), pairs, body.decode())

        yield ask


# --- the disk -------------------------------------------------------------------------------------


LOCKS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_store(there: Scene) -> Iterator[None]:
    """Another process is in the middle of a write."""
    argv = [sys.executable, "-S", "-c", LOCKS, str(there.proxy.server.settings.store_file)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        yield
        other.communicate()


@contextmanager
def full(there: Scene) -> Iterator[None]:
    """There is no room for one more page of the store."""
    mine = [each for each in there.opened if file_of(each) == str(there.proxy.server.settings.store_file)]
    writer = mine[0]
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    yield
    writer.execute("PRAGMA max_page_count = 1000000")


def file_of(connection: sqlite3.Connection) -> str:
    try:
        return str(connection.execute("PRAGMA database_list").fetchone()[2])
    except sqlite3.ProgrammingError:  # closed
        return ""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("trouble", [locked_store, full])
async def test_a_store_that_takes_nothing_fails_what_was_to_be_stored_and_nothing_else(
    there: Scene, trouble: Callable[[Scene], Any]
) -> None:
    long = "word " * 20_000
    prompt = f"{long} [[fake:text say=Stored?]]"
    with trouble(there):
        for mode in RESPONSES:
            answer = await there.ask(mode, prompt)
            if mode.stream:
                is_broken_stream(answer, mode, FaultKind.UNAVAILABLE, "Stored?")
            else:
                is_status(answer, mode, FaultKind.UNAVAILABLE)
            is_good(await there.ask(mode, prompt, store=False), mode, "Stored?")
        for mode in CHAT:
            is_good(await there.ask(mode, prompt), mode, "Stored?")
    for mode in RESPONSES:
        is_good(await there.ask(mode, prompt), mode, "Stored?")
    await there.at_rest()


@pytest.mark.exhaustive
@pytest.mark.parametrize("trouble", [locked_store, full])
async def test_a_server_whose_store_takes_nothing_is_not_ready_until_it_does(
    there: Scene, trouble: Callable[[Scene], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.store.health.FRESH_SECONDS", 0.0)
    monkeypatch.setattr("codex_proxy.store.health.FRESH_TROUBLE_SECONDS", 0.0)
    mode = RESPONSES[1]
    before = (await there.ask(mode, "[[fake:text say=Stored.]]")).body["id"]
    no_room_left(there)
    with trouble(there):
        await poll(lambda: unready(there))  # somebody may have asked a moment ago
        ready = await there.proxy.send("GET", "/readyz")
        assert (ready.status, ready.body["status"]) == (503, "unready")
        assert "store cannot be written" in ready.body["reason"]
        assert str(there.proxy.server.settings.store_file) not in ready.text
        assert (await there.proxy.send("GET", "/healthz")).body["status"] == "degraded"
        assert (await there.proxy.send("GET", "/livez")).status == 200
    assert (await there.proxy.send("GET", "/readyz")).status == 200
    assert (await there.proxy.send("GET", "/healthz")).body["status"] == "ok"
    after = (await there.ask(mode, "[[fake:text say=Stored.]]")).body["id"]
    for id in (before, after):
        assert (await there.proxy.send("GET", f"/v1/responses/{id}")).body["status"] == "completed"
    await there.at_rest()


async def unready(there: Scene) -> bool:
    return (await there.proxy.send("GET", "/readyz")).status == 503


def no_room_left(there: Scene) -> None:
    """The store's file has no empty pages, which a disk that is full would not keep it from filling."""
    mine = [each for each in there.opened if file_of(each) == str(there.proxy.server.settings.store_file)]
    mine[0].execute("PRAGMA incremental_vacuum").fetchall()
