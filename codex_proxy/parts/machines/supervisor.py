"""`codex-proxy serve --workers N`: N processes on one port, and their supervisor (docs/machines.md). A worker's banner
says that it serves; its stdin ends with the supervisor. After the banner it answers each line with the line `ALIVE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from codex_proxy.agents.process_pool.plan import RestartBackoff
from codex_proxy.app.start_checks import listen_error, reserve_port
from codex_proxy.parts import own_settings
from codex_proxy.parts.machines import MachinesSettings
from codex_proxy.settings.fields import Settings

STOP_SECONDS: Final = 15.0
"""Seconds that a worker has to stop, after the time for its turns, before it is killed."""

ASK_SECONDS: Final = 10.0
"""Seconds between two questions whether a worker is alive."""
MAX_UNANSWERED: Final = 3
"""Questions without an answer after which a worker is killed. They are counted, and not the time, so that a supervisor
that was stopped for an hour (Ctrl-Z) kills no worker.
"""
MAX_UNANSWERED_AT_START: Final = 60
"""The same before it serves: agents and a large store may take minutes."""
ALIVE: Final = "alive"
STDIN, STDOUT = 0, 1
"""The descriptors on which a worker is asked whether it is alive, and answers."""

log = structlog.get_logger(__name__)


def serve(settings: Settings, arguments: Sequence[str], say: Callable[..., None]) -> int | None:
    """See `Part.serve`."""
    count = own_settings(settings, MachinesSettings).workers
    if count == 1:
        return None
    gc.enable()
    return asyncio.run(supervise(settings, count, arguments, say))


def answer_supervisor(stop_wanted: asyncio.Event) -> None:
    """Answers the supervisor of this worker from now on, and sets `stop_wanted` when it has ended."""
    loop = asyncio.get_running_loop()

    def on_question() -> None:
        if os.read(STDIN, 1024):
            with contextlib.suppress(BrokenPipeError):  # the supervisor has ended since
                os.write(STDOUT, f"{ALIVE}\n".encode())
        else:
            loop.remove_reader(STDIN)
            stop_wanted.set()

    loop.add_reader(STDIN, on_question)  # also while it stops, which may take long


async def supervise(
    settings: Settings, count: int, arguments: Sequence[str], say: Callable[..., None]
) -> int:
    """Runs the supervisor. Returns 0 after SIGINT or SIGTERM (a second one kills the workers), else a status if no
    worker could start. `arguments`: this command's; `say` prints.
    """
    try:
        reserved = reserve_port(settings.host, settings.port)
    except OSError as error:
        say(f"codex-proxy: {listen_error(settings, error)}", err=True)
        return 1
    with reserved:
        port = reserved.getsockname()[1]
        fixed = ["--port", str(port), "--workers", str(count)]
        command = [sys.executable, "-P", "-m", "codex_proxy", *arguments, *fixed, "--worker"]
        within = settings.drain_ms / 1000 + STOP_SECONDS
        supervisor = Supervisor(command, count, within, say)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, supervisor.stop)
        has_terminal = sys.stderr.isatty()

        def on_hangup() -> None:
            if not has_terminal or sys.stderr.isatty():
                supervisor.reload()
            elif not supervisor.is_stopping:  # of a closed terminal the signal comes twice
                supervisor.stop()

        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        return await supervisor.run()


class Worker:
    def __init__(
        self, number: int, process: asyncio.subprocess.Process, say: Callable[[str], object] | None
    ) -> None:
        """`say` prints the process's standard output; None: nobody does."""
        self.number = number
        self.pid = process.pid
        self.serves_since = math.inf
        """When it began to serve, by the monotonic clock; infinity before."""
        self._process = process
        self._told_to_stop = False
        self._decided = asyncio.Event()
        self._unanswered = 0
        self._reading = asyncio.create_task(self._read(say))
        self._watching = asyncio.create_task(self._kill_when_it_hangs())

    async def _read(self, say: Callable[[str], object] | None) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode("utf-8", "replace").rstrip("\n")
            if text == ALIVE:
                self._unanswered = 0
                continue
            if not self.serves:
                self.serves_since = time.monotonic()
                self._unanswered = 0
                self._decided.set()
            if say is not None:
                say(text)
        self._decided.set()
        self._watching.cancel()

    async def _kill_when_it_hangs(self) -> None:
        assert self._process.stdin is not None
        while self._unanswered < (MAX_UNANSWERED if self.serves else MAX_UNANSWERED_AT_START):
            self._unanswered += 1
            self._process.stdin.write(b"\n")
            await asyncio.sleep(ASK_SECONDS)
        seconds = self._unanswered * ASK_SECONDS
        log.error("worker_hangs", number=self.number, pid=self.pid, unanswered_seconds=seconds)
        self.kill()

    @property
    def serves(self) -> bool:
        """Whether the process serves requests, or has."""
        return self.serves_since < math.inf

    async def wait_started(self) -> bool:
        """Waits until the process serves or has ended; returns whether it serves."""
        await self._decided.wait()
        return self.serves

    async def wait(self) -> int:
        """Returns the exit status at the end; negative for a signal."""
        return await self._process.wait()

    async def stop(self, within: float) -> None:
        """Asks the process to end, kills it after `within` seconds, and waits for its end."""
        if not self._told_to_stop:  # a second signal would end its turns
            self._told_to_stop = True
            self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                await self.wait()
        except TimeoutError:
            log.error("worker_killed", number=self.number, seconds=within)
            self.kill()
            await self.wait()

    def kill(self) -> None:
        """Kills the process; the wardens end what its agents have started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


class Supervisor:
    """Keeps `count` workers running. `command` starts a worker, with its number as the last argument. `within`:
    seconds for a worker to stop.
    """

    def __init__(self, command: Sequence[str], count: int, within: float, say: Callable[..., None]) -> None:
        self._command = command
        self._numbers = range(1, count + 1)
        self._within = within
        self._say = say
        self._workers: dict[int, Worker] = {}
        """The worker of each number that serves or will."""
        self._processes: set[Worker] = set()
        """All workers that have not ended, replaced ones included."""
        self._stopping = asyncio.Event()
        self._killing = False
        self._reload_wanted = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> int:
        """Runs until `stop`. Returns 0, or the status of the first worker if it could not start."""
        # One before the others, so that what keeps them all from starting is said once.
        first = self._workers[1] = await self._start(1, self._say)
        if await self._until_stopping(first.wait_started()) and not first.serves:
            return await first.wait() or 1
        tasks = [asyncio.create_task(self._keep_running(number)) for number in self._numbers]
        reloading = asyncio.create_task(self._reload_when_wanted())
        await self._stopping.wait()
        reloading.cancel()
        await asyncio.gather(reloading, *tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop(self._within) for worker in self._processes))
        return 0

    def reload(self) -> None:
        """Replaces the workers one by one, when a successor serves; stops at one that does not start."""
        self._reload_wanted.set()

    def stop(self) -> None:
        """Stops all workers; called again, kills them."""
        if self._stopping.is_set():
            self._killing = True
            for worker in self._processes:
                worker.kill()
            return
        self._say("codex-proxy: stopping (interrupt again to stop at once)", err=True)
        self._stopping.set()

    async def _start(self, number: int, say: Callable[[str], object] | None = None) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            str(number),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops them
        )
        worker = Worker(number, process, say)
        self._processes.add(worker)
        if self._killing:
            worker.kill()  # `stop` was called again during its start
        log.info("worker_started", number=number, pid=worker.pid)
        return worker

    async def _keep_running(self, number: int) -> None:
        backoff = RestartBackoff()
        while not self._stopping.is_set():
            try:
                worker = self._workers.get(number) or await self._start(number)
            except OSError as error:  # the machine lacks memory or processes, which passes
                serves_since = math.inf
                facts: dict[str, Any] = {"reason": error.strerror}
            else:
                self._workers[number] = worker
                if not await self._until_stopping(worker.wait()):
                    return
                self._processes.discard(worker)
                if self._workers[number] is not worker:
                    continue  # it was replaced
                del self._workers[number]
                serves_since, facts = worker.serves_since, {"status": await worker.wait()}
            now = time.monotonic()
            backoff = backoff.after_failure(now, now - serves_since)
            pause = backoff.pause_seconds(now)
            log.error("worker_ended", number=number, restart_after=pause, **facts)
            await self._until_stopping(asyncio.sleep(pause))

    async def _until_stopping(self, waiting: Coroutine[Any, Any, object]) -> bool:
        task, stop = asyncio.create_task(waiting), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.done()
        finally:
            task.cancel()
            stop.cancel()

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            await self._reload()

    async def _reload(self) -> None:
        for number in self._numbers:
            try:
                new = await self._start(number)
            except OSError as error:
                log.error("not_reloaded", number=number, text=f"No process can be started: {error.strerror}.")
                return
            if not await new.wait_started():
                self._processes.discard(new)
                log.error(
                    "not_reloaded", number=number, text="The new process has not started; see its error."
                )
                return
            old, self._workers[number] = self._workers.get(number), new
            if old is not None:
                await old.stop(self._within)
        log.info("reloaded", workers=len(self._numbers))
