"""`serve --workers N`: several processes on one port, and the supervisor that keeps them running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from codex_proxy.app.server import make_server
from codex_proxy.core.faults import UserError
from codex_proxy.http.body import BODY_BUDGET, body_budget
from codex_proxy.parts.machines import supervisor
from codex_proxy.parts.machines.server_part import server_part
from codex_proxy.parts.machines.supervisor import Supervisor
from tests.forking import run_command
from tests.http.serving import ENVIRONMENT, settings_of
from tests.http_responses.asking import prompt_for
from tests.waiting import PATIENCE, eventually, poll

ROOT = Path(__file__).parents[3]
ADDRESS = re.compile(rb"serves on (http://\S+)/v1")

SERVES = """
import os, signal, sys
number, folder = sys.argv[-1], sys.argv[1]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.path.exists(f"{folder}/broken"):
    sys.exit(3)
if os.path.exists(f"{folder}/slow"):
    signal.pause()
open(f"{folder}/{number}-{os.getpid()}", "w").close()
print(f"worker {number} serves", flush=True)
for line in sys.stdin:
    print("alive", flush=True)
"""
"""A worker that does nothing but serve."""


class WorkerSupervisor:
    """A supervisor of workers that do nothing, and what it has printed."""

    def __init__(
        self, folder: Path, program: str = SERVES, count: int = 2, interpreter: str = sys.executable
    ) -> None:
        self.folder = folder
        self.said: list[str] = []
        command = (interpreter, "-I", "-S", "-c", program, str(folder))
        self.supervisor = Supervisor(command, count, PATIENCE, lambda text, **_: self.said.append(text))
        self.running = asyncio.create_task(self.supervisor.run())

    def pids(self, number: int) -> list[int]:
        """Every process that worker `number` has had, oldest first."""
        found = sorted(self.folder.glob(f"{number}-*"), key=lambda file: file.stat().st_mtime_ns)
        return [int(file.name.partition("-")[2]) for file in found]

    async def serving(self, number: int, processes: int = 1) -> int:
        """The newest process of worker `number`, when it has had so many."""
        return (await eventually(lambda: self.pids(number)[processes - 1 :]))[-1]

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.running


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[WorkerSupervisor]:
    started = WorkerSupervisor(tmp_path)
    for number in (1, 2):
        await started.serving(number)
    yield started
    if not started.running.done():
        started.supervisor.stop()
        assert await started.ended() == 0


async def test_the_banner_of_the_first_worker_is_that_of_the_command(two: WorkerSupervisor) -> None:
    await eventually(lambda: two.said)
    assert two.said == ["worker 1 serves"]


async def test_a_worker_that_was_killed_is_started_again(two: WorkerSupervisor) -> None:
    other = await two.serving(1)
    os.kill(await two.serving(2), signal.SIGKILL)
    assert psutil.pid_exists(await two.serving(2, processes=2))
    assert two.pids(1) == [other]


async def test_a_worker_that_does_not_answer_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ASK_SECONDS", 0.01)
    with capture_logs() as logs:
        started = WorkerSupervisor(tmp_path, SERVES.partition("for line")[0] + "signal.pause()", count=1)
        first = await started.serving(1)
        await started.serving(1, processes=2)
        started.supervisor.stop()
        assert await started.ended() == 0
    assert next(line["pid"] for line in logs if line["event"] == "worker_hangs") == first
    assert not psutil.pid_exists(first)


async def test_a_worker_that_hangs_while_it_starts_is_killed_and_a_reload_says_so(
    two: WorkerSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (two.folder / "slow").touch()
    monkeypatch.setattr(supervisor, "ASK_SECONDS", 0.01)
    with capture_logs() as logs:
        two.supervisor.reload()
        await eventually(lambda: any(line["event"] == "not_reloaded" for line in logs))
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "worker_hangs",
        "not_reloaded",
    ]


async def test_a_worker_that_answers_every_question_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = asyncio.sleep

    async def until_answered(seconds: float) -> None:
        answers = len(started.said)
        if seconds == supervisor.ASK_SECONDS:
            await eventually(lambda: len(started.said) > answers)
        else:
            await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", until_answered)
    with capture_logs() as logs:
        started = WorkerSupervisor(tmp_path, SERVES + "    print('answered', flush=True)", count=1)
        first = await started.serving(1)
        await eventually(lambda: started.said.count("answered") > 2 * supervisor.MAX_UNANSWERED)
        started.supervisor.stop()
        assert await started.ended() == 0
    assert "worker_hangs" not in [line["event"] for line in logs]
    assert started.pids(1) == [first]
    assert supervisor.ALIVE not in started.said


async def test_a_reload_replaces_one_worker_after_the_other(two: WorkerSupervisor) -> None:
    before = [await two.serving(number) for number in (1, 2)]
    two.supervisor.reload()
    second = await two.serving(2, processes=2)
    assert not psutil.pid_exists(before[0])  # the first was replaced before the second one's turn
    await eventually(lambda: not psutil.pid_exists(before[1]))
    assert psutil.pid_exists(await two.serving(1, processes=2))
    assert psutil.pid_exists(second)


async def test_a_reload_with_what_does_not_start_leaves_the_workers_as_they_are(
    two: WorkerSupervisor,
) -> None:
    before = [await two.serving(number) for number in (1, 2)]
    (two.folder / "broken").touch()
    with capture_logs() as logs:
        two.supervisor.reload()
        await eventually(lambda: any(line["event"] == "not_reloaded" for line in logs))
    assert [two.pids(number) for number in (1, 2)] == [[pid] for pid in before]
    assert all(map(psutil.pid_exists, before))


async def test_a_worker_that_cannot_be_started_is_tried_again_and_a_reload_says_so(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.symlink_to(sys.executable)
    with capture_logs() as logs:
        started = WorkerSupervisor(tmp_path, interpreter=str(interpreter))
        first, second = await started.serving(1), await started.serving(2)
        interpreter.unlink()
        started.supervisor.reload()
        await eventually(lambda: [line for line in logs if line["event"] == "not_reloaded"])
        os.kill(second, signal.SIGKILL)
        await eventually(lambda: [line for line in logs if "reason" in line])
        interpreter.symlink_to(sys.executable)
        assert psutil.pid_exists(await started.serving(2, processes=2))
        started.supervisor.reload()
        await eventually(lambda: not psutil.pid_exists(first))
        started.supervisor.stop()
        assert await started.ended() == 0


async def test_stopping_ends_every_worker(two: WorkerSupervisor) -> None:
    pids = [await two.serving(number) for number in (1, 2)]
    two.supervisor.stop()
    assert await two.ended() == 0
    assert not any(map(psutil.pid_exists, pids))


async def test_a_worker_that_keeps_ending_is_started_again_after_a_pause(tmp_path: Path) -> None:
    with capture_logs() as logs:
        started = WorkerSupervisor(tmp_path, SERVES.partition("for line")[0], count=1)
        pauses = await eventually(
            lambda: [line["restart_after"] for line in logs if line["event"] == "worker_ended"][1:]
        )
        started.supervisor.stop()
        assert await started.ended() == 0
    assert pauses[0] > 0


DEAF = SERVES.replace("sys.exit(0))", "None)") + "\nwhile True: signal.pause()"
"""A worker that SIGTERM does not end."""


async def test_stopping_twice_kills_workers_that_do_not_stop(tmp_path: Path) -> None:
    started = WorkerSupervisor(tmp_path, DEAF)
    pids = [await started.serving(number) for number in (1, 2)]
    started.supervisor.stop()
    await eventually(lambda: started.said[-1].startswith("codex-proxy: stopping"))
    assert all(map(psutil.pid_exists, pids))
    started.supervisor.stop()
    assert await started.ended() == 0
    assert not any(map(psutil.pid_exists, pids))


async def test_stopping_twice_kills_a_worker_that_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def start_and_stop(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        if command[-1] == "2":
            await started.serving(2)
            started.supervisor.stop()
            started.supervisor.stop()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_stop)
    started = WorkerSupervisor(tmp_path, DEAF)
    assert await started.ended() == 0
    assert not any(map(psutil.pid_exists, (*started.pids(1), *started.pids(2))))


async def test_if_the_first_worker_does_not_start_the_command_ends_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    started = WorkerSupervisor(tmp_path)
    assert await started.ended() == 3
    assert not started.said


@pytest.mark.parametrize(("store", "ours"), [("sqlite", "a file"), ("memory", "memory")])
def test_a_store_of_one_process_is_refused_for_several(tmp_path: Path, store: str, ours: str) -> None:
    with pytest.raises(
        UserError, match=f"^--workers 2: a store in {ours} belongs to one process.*PROXY_STORE"
    ):
        server_part(settings_of(tmp_path, workers=2, store=store), {})
    assert server_part(settings_of(tmp_path, workers=2, store="off"), {})
    assert server_part(settings_of(tmp_path, workers=1, store=store), {}) is None


async def test_each_of_two_workers_takes_half_of_the_memory_for_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.machines.server_part.memory_bytes", lambda: 64 << 30)
    server = await make_server(settings_of(tmp_path, workers=2, store="off"), ENVIRONMENT, worker=1)
    try:
        await server.start()
        assert server.app is not None
        assert server.app[BODY_BUDGET].total == body_budget(32 << 30)[0]
    finally:
        await server.stop()


def test_a_port_that_another_server_has_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as other workers of this user do
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_command(
            ("serve", "--agent", "fake", "--workers", "2", "--port", str(port)),
            env={**ENVIRONMENT, "PROXY_STORE": "off", "PROXY_STATE_DIR": str(tmp_path)},
            cwd=tmp_path,
        )
    assert done.returncode == 1
    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use. Give another --port".encode()
        in done.stderr
    )


# --- the real workers ------------------------------------------------------------------------------


class Serving:
    """`codex-proxy serve --workers 2`."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log

    async def get(self, path: str, **more: Any) -> Any:
        """A GET on a connection of its own: JSON, or text."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session,
            session.get(self.url + path, **more) as reply,
        ):
            assert reply.status == 200
            return await (reply.json() if reply.content_type == "application/json" else reply.text())

    async def post(self, session: aiohttp.ClientSession, **body: Any) -> Any:
        async with session.post(f"{self.url}/v1/responses", json={"model": "codex-5", **body}) as reply:
            assert reply.status == 200
            return await reply.json()

    def pids(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    async def worker_of(self, session: aiohttp.ClientSession) -> int:
        """The worker at the other end of the session's connection."""
        async with session.get(f"{self.url}/healthz") as reply:
            return int((await reply.json())["worker"])

    async def worker(self, number: int) -> None:
        """Waits until this worker answers."""

        async def seen() -> bool:
            return bool((await self.get("/healthz"))["worker"] == number)

        await poll(seen)


@asynccontextmanager
async def two_workers(folder: Path, **settings: str) -> AsyncIterator[Serving]:
    environment = {
        **ENVIRONMENT,
        "HOME": str(folder),
        "PROXY_STORE": "off",
        "PROXY_METRICS": "true",
        "PROXY_DRAIN_MS": str(int(PATIENCE * 1000)),
        **settings,
    }
    log = folder / "log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "codex_proxy",
                "serve",
                "--agent",
                "fake",
                "--port",
                "0",
                "--workers",
                "2",
            ),
            *("--log-format", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        found = ADDRESS.search(await process.stdout.readline())
        assert found, log.read_text()
        yield Serving(process, found[1].decode(), log)
    finally:
        workers = psutil.Process(process.pid).children() if process.returncode is None else []
        for pid in (process.pid, *(worker.pid for worker in workers)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()


@pytest.mark.exhaustive
async def test_requests_reach_all_workers_and_each_is_named(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as serving:
        for number in (1, 2):
            await serving.worker(number)
        text = await serving.get("/metrics")
        infos = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "codex_proxy_info"
        ]
        assert sorted(sample.labels["worker"] for sample in infos) == ["1", "2"]
        workers = serving.pids()
        assert len(workers) == 2
        serving.process.kill()
        await serving.process.wait()
        await eventually(lambda: not any(map(psutil.pid_exists, workers)))  # they see it, and stop
    lines = serving.log.read_text()
    assert all(f'"worker": {number}' in lines for number in (1, 2))


async def test_a_worker_answers_its_supervisor_also_while_it_waits_for_its_turns(tmp_path: Path) -> None:
    release = tmp_path / "release"
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "codex_proxy", "serve", "--agent", "fake", "--port", "0"),
        *("--workers", "2", "--worker", "1"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **ENVIRONMENT,
            "HOME": str(tmp_path),
            "PROXY_STORE": "off",
            "PROXY_DRAIN_MS": str(int(PATIENCE * 1000)),
            "STREAM_RELEASE_FILE": str(release),
        },
        cwd=ROOT,
    )
    stdin, stdout, stderr = worker.stdin, worker.stdout, worker.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    found = ADDRESS.search(await stdout.readline())
    assert found

    async def ask() -> None:
        stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE):
            while await stdout.readline() != f"{supervisor.ALIVE}\n".encode():
                assert not stdout.at_eof()

    await ask()
    held = {"model": "codex-5", "input": '[[fake:text say="one two" hold=1]]', "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{found[1].decode()}/v1/responses", json=held) as reply,
    ):
        while b"output_text.delta" not in await reply.content.readline():
            pass
        worker.terminate()
        while b"stopping" not in await stderr.readline():
            pass
        await ask()
        stdin.close()  # as when the supervisor ends
        release.touch()
        assert b"response.completed" in await reply.content.read()
    async with asyncio.timeout(PATIENCE):
        assert await worker.wait() == 0


@pytest.mark.exhaustive
async def test_a_reload_loses_no_stream_and_refuses_nobody_for_long(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as serving:
        await serving.worker(2)
        before = serving.pids()
        ask = {
            "model": "codex-5",
            "messages": [{"role": "user", "content": "[[fake:count n=200]]"}],
            "stream": True,
        }
        ends: list[bytes] = []
        reloaded = asyncio.Event()

        async def keep_asking() -> None:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                while not reloaded.is_set():
                    # The system may give a connection to a socket at the moment of its closing.
                    with suppress(aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                        async with session.post(f"{serving.url}/v1/chat/completions", json=ask) as reply:
                            end = (await reply.read())[-16:]
                            if reply.status != 503:  # a worker that stops says so
                                ends.append(end)

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        serving.process.send_signal(signal.SIGHUP)
        await eventually(lambda: '"event": "reloaded"' in serving.log.read_text())
        reloaded.set()
        await asyncio.gather(*asking)
        assert before.isdisjoint(serving.pids())
        assert ends
        assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)


@asynccontextmanager
async def at_worker(serving: Serving, number: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose one connection is to this worker."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    for _ in range(1000):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), timeout=timeout) as session:
            if await serving.worker_of(session) == number:
                yield session
                return
    raise AssertionError(f"worker {number} has not answered")


@pytest.mark.exhaustive
async def test_workers_on_one_database_serve_on_through_a_kill_a_reload_and_their_end(
    tmp_path: Path, postgres_url: str
) -> None:
    release = tmp_path / "release"
    settings = {"PROXY_STORE": postgres_url, "STREAM_RELEASE_FILE": str(release)}
    async with two_workers(tmp_path, **settings) as serving:
        async with at_worker(serving, 1) as one, at_worker(serving, 2) as two:
            first = await serving.post(one, input=prompt_for("Blue."))
            second = await serving.post(two, input="[[fake:echo]]", previous_response_id=first["id"])
            assert "Blue." in str(second["output"])
        nodes = [node["name"] for node in (await serving.get("/v1/cluster"))["data"]]
        assert sorted(name.rpartition("/")[2] for name in nodes) == ["worker 1", "worker 2"]
        port = serving.url.rpartition(":")[2]
        doctor = await asyncio.to_thread(
            run_command, ("doctor", "--agent", "fake", "--port", port), env=ENVIRONMENT, cwd=tmp_path
        )
        assert re.search(rb"worker [12]\s+has\s+answered", doctor.stdout)

        before = serving.pids()
        os.kill(before.pop(), signal.SIGKILL)
        await eventually(lambda: len(serving.pids()) == 2)
        for number in (1, 2):
            await serving.worker(number)
        assert (await serving.get(f"/v1/responses/{second['id']}"))["status"] == "completed"

        before = serving.pids()
        async with at_worker(serving, 1) as one:
            ask = {"model": "codex-5", "input": '[[fake:text say="one two" hold=1]]', "stream": True}
            async with one.post(f"{serving.url}/v1/responses", json=ask) as reply:
                streamed = b""
                while b"output_text.delta" not in streamed:
                    streamed += await reply.content.readany()
                serving.process.send_signal(signal.SIGHUP)
                await eventually(lambda: len(serving.pids()) == 3)
                release.touch()
                streamed += await reply.content.read()
        assert b"response.completed" in streamed
        await eventually(lambda: '"event": "reloaded"' in serving.log.read_text())
        assert before.isdisjoint(serving.pids())

        workers = serving.pids()
        serving.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await serving.process.wait() == 0
        assert not any(map(psutil.pid_exists, workers))
