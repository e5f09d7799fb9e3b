"""One child process: its input and output, and its reliable end.

An end escalates: close stdin, wait a grace time, then let the warden send SIGTERM, wait again, and kill. The exit and
the end of stdout are watched separately: a grandchild may hold the pipe long after the exit, and a child may close
its stdout and run on. Everything happens in callbacks and timers of the event loop, so that there is no task that
could be cancelled half-way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import msgspec

from codex_proxy.core.states import StateTable
from codex_proxy.process.launch import Command, Launched, SpawnError, launch
from codex_proxy.process.own_process import kill_orphans_of
from codex_proxy.process.pipes import PipeReader, PipeWriter


class State(Enum):
    """The states of a child, from its start to its end."""

    RUNNING = "it runs, and nobody has asked it to end"
    ENDING = "its stdin is closed, and it has a grace time to end by itself"
    KILLING = "its warden ends it: SIGTERM, a grace time, then SIGKILL for it and all its descendants"
    EXITED = "it has exited by itself; its last output is read, unless its owner has paused it"
    DRAINING = "it has exited on request; its last output is read for at most half a second"
    ABANDONED = "it could not be killed, and its owner was informed"
    ENDED = "its owner was informed how it ended"


class Change(Enum):
    """An event that moves a child from one state to another."""

    END = "its owner asks it to end, or it has closed its stdout"
    KILL = "its owner has it killed, or the grace time is over"
    EXIT = "it has exited"
    DRAINED = "its output was read to the end, or the time for that is over"
    STUCK = "it has not exited although its warden was killed"


TABLE = StateTable(
    State.RUNNING,
    {
        State.RUNNING: {
            Change.END: State.ENDING,
            Change.KILL: State.KILLING,
            Change.EXIT: State.EXITED,
        },
        State.ENDING: {
            Change.END: State.ENDING,
            Change.KILL: State.KILLING,
            Change.EXIT: State.DRAINING,
        },
        State.KILLING: {
            Change.END: State.KILLING,
            Change.KILL: State.KILLING,
            Change.EXIT: State.DRAINING,
            Change.STUCK: State.ABANDONED,
        },
        State.EXITED: {
            Change.END: State.DRAINING,
            Change.KILL: State.DRAINING,
            Change.DRAINED: State.ENDED,
        },
        State.DRAINING: {
            Change.END: State.DRAINING,
            Change.KILL: State.DRAINING,
            Change.DRAINED: State.ENDED,
        },
        State.ABANDONED: {
            Change.END: State.ABANDONED,
            Change.KILL: State.ABANDONED,
            Change.EXIT: State.ENDED,
        },
        State.ENDED: {
            Change.END: State.ENDED,
            Change.KILL: State.ENDED,
        },
    },
)

ALIVE = frozenset({State.RUNNING, State.ENDING, State.KILLING, State.ABANDONED})
"""The states in which the child is not known to have exited."""
REPORTED = frozenset({State.ABANDONED, State.ENDED})
"""The states in which the owner was informed how the child ended, or that it could not be killed."""


__all__ = ["Child", "ChildListener", "Command", "Exit", "SpawnError", "run_to_end", "spawn"]

# Enough for an agent's last error message with its backtrace.
STDERR_TAIL_BYTES = 8 * 1024
# The largest pipe buffer that an unprivileged process can set (/proc/sys/fs/pipe-max-size).
PIPE_BYTES = 1024 * 1024
# After the exit, what the pipe holds can be read at once; if it stays open, another process holds it.
DRAIN_SECONDS = 0.5
# The warden gives itself 5 s to kill; one that takes longer hangs, and is killed itself.
WARDEN_SECONDS = 6.0
# A killed process that has not exited after this time is stuck in the kernel.
ABANDON_SECONDS = 1.0
# A shell reports "ended by signal n" as exit code 128 + n, and so does the warden.
SIGNAL_BASE = 128
HIGHEST_SIGNAL = 64


class Exit(msgspec.Struct, frozen=True):
    """How a child ended: by exit code or by signal (the other is None); both are None if it could not be killed.

    An exit code above 128 counts as a signal, as in a shell. `stderr_tail` is the last part of what it wrote to
    stderr.
    """

    code: int | None
    signal: int | None
    stderr_tail: str


class ChildListener(Protocol):
    """Receives a child's output and its end. Its methods are called on the event loop and must not block."""

    def received(self, chunk: bytes) -> None:
        """Handles a chunk of stdout, as it was read from the pipe."""

    def ended(self, exit: Exit) -> None:
        """Handles the end of the child. Called exactly once, after the last `received`."""


class Child:
    """A running child process, as `spawn` returns it. Its owner must end it, by `end` or at least by `kill`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        command: Command,
        launched: Launched,
        listener: ChildListener,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        """Takes over the process and descriptors of `launched`. Use `spawn` to make one. `on_stderr` is called with
        what the child writes to stderr.
        """
        self.pid = launched.warden.pid
        """The warden's process id, which is also the id of the child's session. For signals use `signal`."""
        self._loop = loop
        self._command = command
        self._warden = launched.warden
        self._listener = listener
        self._state = TABLE.start
        self._paused = False
        """Whether the owner has paused the output. This is possible in any state."""
        self._status: int | None = None
        self._stderr_tail = bytearray()
        self._on_stderr = on_stderr
        self._ended: asyncio.Future[Exit] = loop.create_future()
        self._grace_timer: asyncio.TimerHandle | None = None
        self._warden_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._lifeline: int | None = launched.lifeline
        os.set_blocking(launched.lifeline, False)
        self._stdin = PipeWriter(loop, launched.stdin)
        self._stdout = PipeReader(loop, launched.stdout, listener.received, self._stdout_closed)
        self._stderr = PipeReader(loop, launched.stderr, self._keep_stderr_tail, lambda: None)
        self._watch_exit()

    @property
    def alive(self) -> bool:
        """Whether the child is not known to have exited."""
        return self._state in ALIVE

    @property
    def unsent(self) -> int:
        """The number of bytes written that the child has not yet read from its stdin."""
        return self._stdin.unsent

    def write(self, data: bytes) -> None:
        """Sends bytes to stdin. Neither blocks nor raises: what a dead child does not read is dropped."""
        self._stdin.write(data)

    def close_stdin(self) -> None:
        """Closes stdin once everything written is sent."""
        self._stdin.close_when_sent()

    def pause(self) -> None:
        """Stops reading stdout until `resume`, so that a child that writes on has to wait.

        A pause also delays the report of the child's exit, until `resume` or until `end` is called.
        """
        self._paused = True
        self._stdout.pause()
        self._finish_when_drained()

    def resume(self) -> None:
        """Reads stdout again. Nothing is lost."""
        self._paused = False
        self._stdout.resume()
        self._finish_when_drained()

    def clear_stderr(self) -> None:
        """Forgets what the child has written to stderr so far: `Exit.stderr_tail` will contain only what comes
        later.
        """
        self._stderr.read_available(PIPE_BYTES)
        self._stderr_tail.clear()

    def signal(self, signum: int) -> None:
        """Sends the signal with the number `signum` to the child's process group. Does nothing if the child is
        dead.
        """
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._lifeline, bytes([signum]))

    async def end(self, *, grace: float | None = None) -> Exit:
        """Ends the child and returns how it ended.

        Closes stdin, waits `grace` seconds (by default the command's eof_grace), then has the warden end it: SIGTERM,
        term_grace, SIGKILL to all descendants. Takes at most grace + term_grace + 7.5 s. Concurrent calls share one
        end, with the shortest grace. Cancelling a call does not stop the end.
        """
        self._start_ending(self._command.eof_grace if grace is None else grace)
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Has the warden end the child: SIGTERM now, and SIGKILL to all descendants after term_grace.

        It does not wait, and works without a running event loop, so also while the interpreter exits: the warden
        does its work even after the proxy has ended.
        """
        self._change(Change.KILL)
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        if self._lifeline is None:
            return
        os.close(self._lifeline)
        self._lifeline = None
        if self._loop.is_closed():
            return
        if self.alive:
            bound = self._command.term_grace + WARDEN_SECONDS
            self._warden_timer = self._loop.call_later(bound, self._kill_warden)
        self._finish_when_drained()

    def _change(self, change: Change) -> None:
        """Moves to the state that the table gives for this change."""
        self._state = TABLE[self._state, change]

    def _start_ending(self, grace: float) -> None:
        """Closes stdin and has the child killed after `grace` seconds, or earlier if that was already planned."""
        self._change(Change.END)
        self.close_stdin()
        if self._state is State.ENDING:
            when = self._loop.time() + grace
            if self._grace_timer is None or when < self._grace_timer.when():
                if self._grace_timer is not None:
                    self._grace_timer.cancel()
                self._grace_timer = self._loop.call_at(when, self.kill)
        self._finish_when_drained()

    def _kill_warden(self) -> None:
        """Kills a warden that has not ended its child in time."""
        self._warden.kill()
        self._warden_timer = self._loop.call_later(ABANDON_SECONDS, self._abandon)

    def _abandon(self) -> None:
        """Gives up waiting for a child whose warden was killed."""
        self._finish(Change.STUCK if self.alive else Change.DRAINED)

    def _stdout_closed(self) -> None:
        """Handles the end of stdout: the child must end too."""
        if self.alive:
            self._start_ending(self._command.eof_grace)
        else:
            self._finish()

    def _keep_stderr_tail(self, chunk: bytes) -> None:
        """Keeps the last part of stderr."""
        self._stderr_tail += chunk
        del self._stderr_tail[:-STDERR_TAIL_BYTES]
        if self._on_stderr is not None:
            self._on_stderr(chunk)

    def _watch_exit(self) -> None:
        """Arranges that `_exited` is called at the exit: by a pidfd, or by a thread if the system has none."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor to be had
            threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()
        else:
            self._loop.add_reader(descriptor, self._pidfd_readable, descriptor)

    def _pidfd_readable(self, descriptor: int) -> None:
        """Handles the exit as reported by the pidfd. `descriptor` is the pidfd."""
        code = self._warden.poll()
        if code is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._exited(code)

    def _wait_in_thread(self) -> None:
        """Waits for the exit in a thread."""
        code = self._warden.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the exit any more
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        """Handles the exit of the warden, whose exit code is the child's."""
        self._change(Change.EXIT)
        self._status = code
        if code < 0:  # the warden itself was killed, and could not kill the child's descendants
            kill_orphans_of(self._loop, self.pid)
        self._finish_when_drained()

    def _finish_when_drained(self) -> None:
        """After the exit, finishes when stdout is read to its end, at the latest after DRAIN_SECONDS.

        While the owner has paused, that time does not run, unless the owner has asked for the end.
        """
        if self._state not in (State.EXITED, State.DRAINING):
            return
        if self._stdout.at_end:
            self._finish()
        elif self._paused and self._state is State.EXITED:
            if self._drain_timer is not None:
                self._drain_timer.cancel()
                self._drain_timer = None
        elif self._drain_timer is None:
            self._stdout.resume()
            self._drain_timer = self._loop.call_later(DRAIN_SECONDS, self._drained)

    def _drained(self) -> None:
        """Finishes, because the time for reading the last output is over."""
        self._stdout.read_available(PIPE_BYTES)  # a busy loop may run this timer before it reads the pipe
        self._finish()

    def _finish(self, change: Change = Change.DRAINED) -> None:
        """Closes everything and reports the end to the listener and to callers of `end`, once. `change` is the
        reason.
        """
        if self._state in REPORTED:
            return
        self._change(change)
        self._stderr.read_available(PIPE_BYTES)
        self._stderr.close()
        self._stdout.close()
        self._stdin.close()
        for timer in (self._grace_timer, self._warden_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        exit = self._make_exit()
        self._ended.set_result(exit)
        self._listener.ended(exit)

    def _make_exit(self) -> Exit:
        """Returns how the child ended, from the warden's exit code."""
        tail = self._stderr_tail.decode("utf-8", "replace")
        if self._status is None:
            return Exit(None, None, tail)
        if self._status < 0:  # the warden itself was killed
            return Exit(None, -self._status, tail)
        if SIGNAL_BASE < self._status <= SIGNAL_BASE + HIGHEST_SIGNAL:
            return Exit(None, self._status - SIGNAL_BASE, tail)
        return Exit(self._status, None, tail)


async def spawn(
    command: Command, listener: ChildListener, *, on_stderr: Callable[[bytes], None] | None = None
) -> Child:
    """Starts the command. From the next iteration of the event loop on, the listener is called, and `on_stderr`
    with each chunk that the child writes to stderr; None: only the last part of that is kept, for `Exit`.

    Raises `SpawnError` if the program cannot be found or started. It contains no await, so that it cannot be
    cancelled between the start and the return.
    """
    loop = asyncio.get_running_loop()
    return Child(loop, command, launch(command), listener, on_stderr)


class _End:
    """Receives a child's output, ignores it, and waits for the child's end."""

    def __init__(self) -> None:
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    def received(self, chunk: bytes) -> None:
        """Ignores the output."""

    def ended(self, exit: Exit) -> None:
        self.exit.set_result(exit)


async def run_to_end(command: Command, timeout_seconds: float) -> Exit | None:
    """Runs a short command and returns its exit; None where it could not start or did not end in time. No process is
    left."""
    end = _End()
    try:
        child = await spawn(command, end)
    except SpawnError:
        return None
    child.close_stdin()
    try:
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.shield(end.exit)
    except TimeoutError:
        return None
    finally:
        await child.end(grace=0)
