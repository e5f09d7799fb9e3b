"""Starts children through one warm process, the spawner, which forks a warden for each (`process/warden.py`); the
wardens are children of the server. Where such forks are impossible (other systems than Linux, some kernels and
containers), `process/launch.py` starts each warden. An event loop has at most one spawner, which starts with the first
child, ends with the last server, and is replaced if it ends or does not answer.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Final
from weakref import WeakKeyDictionary

import msgspec
import structlog

from codex_proxy.process.launch import (
    WARDEN,
    ChildLimits,
    Command,
    LaunchedChild,
    Pipes,
    SpawnError,
    StartSlot,
    Warden,
    environment_of,
    find_program,
    launch,
    open_pipes,
    start_errors,
)
from codex_proxy.process.own_process import kill_orphans_of
from codex_proxy.process.warden import MESSAGE_BYTES, Limit, parse_limits

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Maximum seconds for a fork, after which the spawner is replaced. A fork takes a millisecond, at a start on a busy
machine some tenths of a second.
"""
LONGEST_ARGUMENT: Final = 32 * os.sysconf("SC_PAGE_SIZE")
"""The bytes that an argument or a variable must stay below (Linux's MAX_ARG_STRLEN)."""

MAX_STARTS_AT_ONCE: Final = 2 * (os.cpu_count() or 1)
"""The children that start at once. A start takes little but CPU time, so more at once would all be ready late: of 16 on
two CPUs half print something after two thirds of the time, and the last hardly later.
"""
START_SECONDS: Final = 0.05
"""The time after which a child that has printed nothing no longer counts as starting: it may wait for something else
than a CPU.
"""

FORBIDDEN: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EINVAL})
"""Errors of a fork that this machine does not allow at all."""

SILENT = (
    f"the process that starts children did not answer within {ANSWER_SECONDS:g} s and was replaced; try again"
)


class ForkedWarden:
    """A `Warden` that the spawner has forked: a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self._wait(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def call_at_exit(loop: asyncio.AbstractEventLoop, process: Warden, exited: Callable[[int], None]) -> None:
    """Calls `exited` with a child's exit code when it has ended: by a pidfd, or else a thread."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor to be had
        waiting = threading.Thread(
            target=_wait_in_thread, args=(loop, process, exited), name=f"wait-{process.pid}", daemon=True
        )
        waiting.start()
        return

    def readable() -> None:
        code = process.poll()
        if code is not None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            exited(code)

    loop.add_reader(descriptor, readable)


def _wait_in_thread(loop: asyncio.AbstractEventLoop, process: Warden, exited: Callable[[int], None]) -> None:
    code = process.wait()
    try:
        loop.call_soon_threadsafe(exited, code)
    except RuntimeError:
        return  # the loop is closed: nobody waits for the exit any more


def wait_for_unneeded(loop: asyncio.AbstractEventLoop, warden: Warden) -> None:
    """Waits for a warden that nobody needs. It ends by itself, since its lifeline is closed."""
    call_at_exit(loop, warden, partial(kill_orphans_of, loop, warden.pid))


def start_spawner(control: int) -> Warden:
    """Starts the program of the spawner, which reads requests from the descriptor `control`. Raises `OSError`."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", WARDEN, str(control)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(control,),
        env={"LD_BIND_NOW": "1"},  # so that no fork has to look symbols up
        cwd="/",
        start_new_session=True,
    )


class SpawnerProcess:
    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[SpawnerProcess], None]) -> None:
        """Starts the process. `on_end` is called when it takes no more requests. Raises `OSError`."""
        self._loop = loop
        self._on_end = on_end
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            try:
                self._process = start_spawner(theirs.fileno())
            except BaseException:
                self._socket.close()
                raise
        self.pid = self._process.pid
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self.exited = loop.create_future()
        """Done when the process has ended."""
        self._ended = loop.create_future()
        """Done when no reply can come any more."""
        call_at_exit(loop, self._process, self._on_exit)
        loop.add_reader(self._socket, self._read_replies)

    def request(self, descriptors: list[int], grace: float, size: int) -> asyncio.Future[int]:
        """Requests a fork with the descriptors (see `warden.DESCRIPTORS`). `grace`: seconds between SIGTERM and
        SIGKILL; `size`: bytes of the file with the `Program`. The future gets the warden's pid, `OSError` if the
        fork failed, or `ConnectionError` if the spawner ended before. If it is cancelled, the warden is waited for
        here. Raises `OSError` if the request cannot be sent.
        """
        number = next(self._numbers)
        socket.send_fds(self._socket, [b"%d %d %d" % (number, grace * 1000, size)], descriptors)
        future = self._waiting[number] = self._loop.create_future()
        return future

    def replace(self) -> None:
        """Kills the process, and takes no more requests. Requests whose forks have happened are still answered."""
        self._process.kill()
        self._on_end(self)

    async def close(self) -> None:
        """Lets the process end, and waits for that."""
        self._on_end(self)
        self._socket.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.shield(self.exited)
        except TimeoutError:
            self._process.kill()
            await self.exited
        self._read_replies()  # the event loop may end before it does so
        with suppress(TimeoutError):  # forks that have not replied yet hold their end of the socket
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ended
        self._fail_waiting()

    def _read_replies(self) -> None:
        while True:
            try:
                answer = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the spawner has left requests unread; replies that came before are still to be read
            except OSError:
                answer = b""
            if not answer:
                self._fail_waiting()
                return
            number, pid, fault = map(int, answer.split())
            future = self._waiting.pop(number)
            if fault and not future.done():
                future.set_exception(OSError(fault, os.strerror(fault)))
            elif pid and not future.done():
                future.set_result(pid)
            elif pid:
                wait_for_unneeded(self._loop, ForkedWarden(pid))

    def _fail_waiting(self) -> None:
        """Closes the socket, unless it is closed, and fails waiting requests: no further reply can come."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._ended.set_result(None)
        self._on_end(self)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError())
        self._waiting.clear()

    def _on_exit(self, code: int) -> None:
        self.exited.set_result(code)


class Spawner:
    """Starts child processes by a spawner process. An event loop has at most one, which all servers on it share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.process: SpawnerProcess | None = None
        """The process that takes requests; None before the first child, and after its end."""
        self._forbidden = "" if sys.platform == "linux" else "only Linux has what it needs"
        """Why this machine does not allow such forks; empty if it does, or that is not yet known."""
        self.users = 1
        """Number of servers on this event loop."""
        self._starts = asyncio.Semaphore(MAX_STARTS_AT_ONCE)

    async def launch(self, command: Command) -> LaunchedChild:
        """Starts the command under a warden, when fewer than `MAX_STARTS_AT_ONCE` others start. Raises `SpawnError`. If
        cancelled, ends the child.
        """
        await self._starts.acquire()
        slot = StartSlot(self._starts.release)
        try:
            launched = await self._launch(command)
        except BaseException:
            slot.free()
            raise
        self._loop.call_later(START_SECONDS, slot.free)
        return msgspec.structs.replace(launched, slot=slot)

    async def _launch(self, command: Command) -> LaunchedChild:
        """Starts the command by the spawner, or by `launch.launch` if `_fork` returns None."""
        if not self._forbidden:
            program = find_program(command)
            with start_errors(program), open_pipes() as pipes:
                warden = await self._fork(program, command, pipes)
                if warden is not None:
                    return pipes.child_of(warden)
        return launch(command)

    async def _fork(self, program: str, command: Command, pipes: Pipes) -> Warden | None:
        """Returns the warden of `program` with the child's ends of the pipes; None if there can be no spawner, or
        it ended before it had forked. Raises `OSError`, `ValueError` or `SpawnError`.
        """
        with _arguments_file(program, command) as (file, size):
            *stdio, lifeline = pipes.child_ends
            process, answer = self._request([*stdio, file, lifeline], command.term_grace, size)
        pipes.close_child_ends()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return ForkedWarden(await answer)
        except TimeoutError:
            process.replace()
            raise SpawnError(program, SILENT, temporary=True) from None
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                wait_for_unneeded(
                    self._loop, ForkedWarden(answer.result())
                )  # it was forked in the moment of the cancellation
            raise
        except ConnectionError:  # a fork replies before it runs the program: nothing has run
            log.warning("spawner_ended")
        except OSError as error:
            if error.errno not in FORBIDDEN:
                raise
            self._forbidden = error.strerror or ""
            log.warning("spawner_not_allowed", reason=self._forbidden)
        return None

    def _request(
        self, descriptors: list[int], grace: float, size: int
    ) -> tuple[SpawnerProcess, asyncio.Future[int]]:
        if self.process is not None:
            try:
                return self.process, self.process.request(descriptors, grace, size)
            except ConnectionError:  # it has ended, which this loop has not noticed yet
                self.process = None
        process = self.process = SpawnerProcess(self._loop, self._on_process_end)
        return process, process.request(descriptors, grace, size)

    def _on_process_end(self, process: SpawnerProcess) -> None:
        if self.process is process:
            self.process = None

    async def close(self) -> None:
        """Ends the spawner process, unless another server uses it. Running children are not affected."""
        self.users -= 1
        if self.users:
            return
        if _spawners.get(self._loop) is self:
            del _spawners[self._loop]
        if self.process is not None:
            await self.process.close()


@contextmanager
def _arguments_file(program: str, command: Command) -> Iterator[tuple[int, int]]:
    """Opens a file in RAM with the `warden.Program`, which may be too much for a message. Yields its descriptor and
    size. Raises `ValueError` for text that no system can pass, `OSError` for too many arguments.
    """
    argv = [os.fsencode(text) for text in (program, *command.argv[1:])]
    env = {os.fsencode(name): os.fsencode(value) for name, value in environment_of(command).items()}
    texts = [*argv, *map(b"=".join, env.items())]
    if b"\0" in b"".join(texts):
        raise ValueError("embedded null byte")
    sizes = [len(text) + 1 for text in texts]
    # The kernel counts a pointer for each text, too.
    if max(sizes) > LONGEST_ARGUMENT or sum(sizes) + 8 * len(sizes) > os.sysconf("SC_ARG_MAX"):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    file = os.memfd_create("arguments")
    try:
        data = marshal.dumps((argv, env, os.fsencode(command.cwd), _limits(command.limits)))
        written = 0
        while written < len(data):
            written += os.write(file, data[written:] if written else data)
        yield file, len(data)
    finally:
        os.close(file)


@cache
def _limits(limits: ChildLimits) -> list[Limit]:
    return parse_limits(limits.warden_arguments())


_spawners: WeakKeyDictionary[asyncio.AbstractEventLoop, Spawner] = WeakKeyDictionary()


def use_spawner() -> Spawner:
    """Lets `child.spawn` use a spawner on the running event loop, until the returned one is closed. Servers on one loop
    share it, and each closes it.
    """
    loop = asyncio.get_running_loop()
    spawner = _spawners.get(loop)
    if spawner is None:
        spawner = _spawners[loop] = Spawner(loop)
    else:
        spawner.users += 1
    return spawner


async def launch_under_warden(command: Command) -> LaunchedChild:
    """Starts the command by the running event loop's spawner, if there is one. Raises `SpawnError`, after which no
    process and no descriptor is left.
    """
    spawner = _spawners.get(asyncio.get_running_loop())
    return launch(command) if spawner is None else await spawner.launch(command)


async def why_no_spawner() -> str:
    """Starts and ends a spawner, for `doctor`. Returns why that is impossible, as a phrase; empty if it is not."""
    loop = asyncio.get_running_loop()
    spawner = Spawner(loop)
    if spawner._forbidden:
        return spawner._forbidden
    nothing = Command((sys.executable, "-I", "-S", "-c", ""), {}, "/")
    try:
        with open_pipes() as pipes:
            warden = await spawner._fork(sys.executable, nothing, pipes)
        if warden is None:
            return spawner._forbidden or "it ended at once"
        exited: asyncio.Future[int] = loop.create_future()
        call_at_exit(loop, warden, exited.set_result)
        await exited
    except (OSError, SpawnError) as error:
        return str(error)
    finally:
        await spawner.close()
    return ""
