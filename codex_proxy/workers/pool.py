"""Processes that answer questions which may take long. A pool starts up to two when needed, and ends them after
`IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import sys
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from codex_proxy.core.faults import STOPPING, Fault
from codex_proxy.workers.slots import Slots
from codex_proxy.workers.worker_process import LENGTH_BYTES, frame

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

MAX_WORKERS: Final = 2
WAIT_SECONDS: Final = 10.0
"""Seconds that a question waits for a worker (`NoAnswer.BUSY`)."""
IDLE_SECONDS: Final = 60.0


class NoAnswer(enum.Enum):
    """Why a question has no answer."""

    GAVE_UP = "gave up"
    """The question took too much time or memory, or the process died."""
    BUSY = "busy"
    """No worker was free within `WAIT_SECONDS`."""
    STOPPING = "stopping"
    """The pool was closed."""
    NOT_STARTED = "not started"
    """The operating system could not start a process."""


class WorkerPool(Generic[Q, A]):
    """The workers for one kind of question."""

    def __init__(
        self, module: str, answers: type[A], *, wall_seconds: float, owners: Callable[[], int] = lambda: 1
    ) -> None:
        """`module` has the worker's `main`; `answers` is the type of answers. After `wall_seconds` a worker is killed.
        `owners`: how many keys share the workers; of several none gets all.
        """
        self._module = module
        self._answers: msgspec.msgpack.Decoder[A] = msgspec.msgpack.Decoder(answers)
        self._wall_seconds = wall_seconds
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._slots = Slots(MAX_WORKERS, owners)
        self._closed = False

    @property
    def workers(self) -> list[int]:
        return [worker.pid for worker in (*self._idle, *self._busy) if worker.runs]

    async def ask(self, question: Q, owner: str = "", *, wait_seconds: float = WAIT_SECONDS) -> A | NoAnswer:
        """Returns the answer of a worker; waits up to `wait_seconds` for one of the `owner`'s share."""
        if self._closed:
            return NoAnswer.STOPPING
        try:
            slot = await self._slots.take(owner, wait_seconds)
        except TimeoutError:
            return NoAnswer.BUSY
        except Fault:
            return NoAnswer.STOPPING
        try:
            return await self._ask_worker(question)
        finally:
            slot.give_back()

    async def close(self) -> None:
        """Kills every worker. Each question without an answer gets `NoAnswer.STOPPING`."""
        self._closed = True
        self._slots.stop(Fault(STOPPING))
        workers = (*self._idle, *self._busy)
        self._idle.clear()
        for worker in workers:
            worker.kill()
        await asyncio.gather(*(worker.wait() for worker in workers))

    async def _ask_worker(self, question: Q) -> A | NoAnswer:
        try:
            worker = self._take_idle() or await _Worker.start(self._module)
        except OSError as error:
            log.warning("worker_not_started", worker=self._module, reason=os.strerror(error.errno or 0))
            return NoAnswer.NOT_STARTED
        if self._closed:
            worker.kill()
            await worker.wait()
            return NoAnswer.STOPPING
        worker.cancel_idle_end()
        self._busy.add(worker)
        body = None
        try:
            async with asyncio.timeout(self._wall_seconds):
                body = await worker.ask(question)
        except (TimeoutError, EOFError, ConnectionError):
            log.info("worker_gave_up", worker=self._module)
        finally:
            if body is None or self._closed:
                worker.kill()
                ended = asyncio.ensure_future(worker.wait())
                # Not before: `close` waits for it too, also where this task is cancelled.
                ended.add_done_callback(lambda _: self._busy.discard(worker))
                await asyncio.shield(ended)
            else:
                self._busy.discard(worker)
                self._idle.append(worker)
                worker.end_later(self._end_idle)
        if body is None:
            return NoAnswer.STOPPING if self._closed else NoAnswer.GAVE_UP
        return self._answers.decode(body)

    def _take_idle(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.runs:
                return worker
            worker.cancel_idle_end()
        return None

    def _end_idle(self, worker: _Worker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
            worker.end()


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, module: str) -> _Worker:
        """Starts a worker with an empty environment. Raises `OSError`."""
        start = f"import sys; sys.path[:] = sys.argv[1:]; from {module} import main; main()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-X", "utf8", "-c", start, *map(os.path.abspath, sys.path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        return cls(process)

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    async def ask(self, question: Any) -> bytes:
        """Returns the encoded answer. If this raises anything, the caller must kill the worker."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(frame(question))
        await stdin.drain()
        length = int.from_bytes(await stdout.readexactly(LENGTH_BYTES), "big")
        return await stdout.readexactly(length)

    def end_later(self, end: Callable[[_Worker], None]) -> None:
        """Calls `end` with this worker after `IDLE_SECONDS`, unless `cancel_idle_end` is called."""
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, end, self)

    def cancel_idle_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        self.cancel_idle_end()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self.cancel_idle_end()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        await self._process.wait()
