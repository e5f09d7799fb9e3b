"""One child process: its input and output, and its end in steps (`Child.end`).

The exit and the end of stdout are separate events: a grandchild may hold the pipe. All of it is callbacks and timers,
so no cancelled task leaves it half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Protocol

import msgspec

from codex_proxy.core.faults import misconfigured
from codex_proxy.core.own_errors import breaks_off, release_all
from codex_proxy.core.states import StateTable
from codex_proxy.process.launch import Command, LaunchedChild, SpawnError, StartSlot
from codex_proxy.process.own_process import kill_orphans_of
from codex_proxy.process.pipes import PipeReader, PipeWriter
from codex_proxy.process.spawner import call_at_exit, launch_under_warden, wait_for_unneeded


class ChildState(Enum):
    RUNNING = "it runs; its end was not requested"
    ENDING = "its stdin is closed, and it has a grace time to end by itself"
    KILLING = "its supervisor (the warden) kills it: SIGTERM, a grace time, then SIGKILL for it and all its descendants"
    EXITED = "it has exited by itself; its last output is read, unless its owner has paused reading"
    DRAINING = "it has exited on request; its last output is read for at most half a second"
    ABANDONED = "it could not be killed, and its owner was informed"
    ENDED = "its owner was informed how it ended"


class ChildChange(Enum):
    END = "its owner asks it to end, or it has closed its stdout"
    KILL = "its owner has it killed, or the grace time is over"
    EXIT = "it has exited"
    DRAINED = "its output was read to the end, or the time for that is over"
    STUCK = "it has not exited although its warden was killed"


TABLE = StateTable(
    ChildState.RUNNING,
    {
        ChildState.RUNNING: {
            ChildChange.END: ChildState.ENDING,
            ChildChange.KILL: ChildState.KILLING,
            ChildChange.EXIT: ChildState.EXITED,
        },
        ChildState.ENDING: {
            ChildChange.END: ChildState.ENDING,
            ChildChange.KILL: ChildState.KILLING,
            ChildChange.EXIT: ChildState.DRAINING,
        },
        ChildState.KILLING: {
            ChildChange.END: ChildState.KILLING,
            ChildChange.KILL: ChildState.KILLING,
            ChildChange.EXIT: ChildState.DRAINING,
            ChildChange.STUCK: ChildState.ABANDONED,
        },
        ChildState.EXITED: {
            ChildChange.END: ChildState.DRAINING,
            ChildChange.KILL: ChildState.DRAINING,
            ChildChange.DRAINED: ChildState.ENDED,
        },
        ChildState.DRAINING: {
            ChildChange.END: ChildState.DRAINING,
            ChildChange.KILL: ChildState.DRAINING,
            ChildChange.DRAINED: ChildState.ENDED,
        },
        ChildState.ABANDONED: {
            ChildChange.END: ChildState.ABANDONED,
            ChildChange.KILL: ChildState.ABANDONED,
            ChildChange.EXIT: ChildState.ENDED,
        },
        ChildState.ENDED: {ChildChange.END: ChildState.ENDED, ChildChange.KILL: ChildState.ENDED},
    },
)

ALIVE = frozenset({ChildState.RUNNING, ChildState.ENDING, ChildState.KILLING, ChildState.ABANDONED})
REPORTED = frozenset({ChildState.ABANDONED, ChildState.ENDED})
"""States in which the owner knows how the child ended, or that it could not be killed."""


__all__ = ["Child", "ChildListener", "Command", "Exit", "SpawnError", "run_short", "run_to_end", "spawn"]

# Enough for an agent's last error message with its backtrace.
STDERR_TAIL_BYTES = 8 * 1024
# Twice what all requests that run may hold together with 4 GiB of memory.
MAX_UNSENT_BYTES = 1 << 30
# What a child may print while more and more input waits: it asks for answers that it does not read.
MAX_UNHEEDING_BYTES = 32 << 20
UNREAD = b"\nThe process was killed because it did not read its input.\n"
# The largest pipe buffer that an unprivileged process can set (/proc/sys/fs/pipe-max-size).
PIPE_BYTES = 1024 * 1024
# After the exit, what the pipe holds can be read at once; if it stays open, another process holds it.
DRAIN_SECONDS = 0.5
# A child that ignores SIGTERM for so long may obey the end of its stdin, which would wake others in vain.
IGNORED_SECONDS = 0.1
# The warden gives itself 5 s to kill; one that takes longer hangs, and is killed itself.
WARDEN_SECONDS = 6.0
# A killed process that has not exited after this time is stuck in the kernel.
ABANDON_SECONDS = 1.0
# A shell reports "ended by signal n" as exit code 128 + n, and so does the warden.
SIGNAL_BASE = 128
HIGHEST_SIGNAL = 64
# What `run_short` waits for a program to print its version or models; 0.1 is usual.
ASK_SECONDS = 20.0
ANSWER_BYTES = 64 << 20


class Exit(msgspec.Struct, frozen=True):
    """How a child ended: exit code or signal (the other is None); both None if it could not be killed. An exit code of
    128 + n is signal n, as in a shell. `stderr_tail` is the last 8 KiB of stderr.
    """

    code: int | None
    signal: int | None
    stderr_tail: str


class ChildListener(Protocol):
    """Handles a child's output and end, on the event loop. Must not block."""

    def on_output(self, chunk: bytes) -> None:
        """Handles what one read of stdout returned; it may end within a line."""

    def on_end(self, exit: Exit) -> None:
        """Handles the child's end. Called once, last."""


class Child:
    """A running child. Its owner must call `end`, or at least `kill`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        command: Command,
        launched: LaunchedChild,
        listener: ChildListener,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        """Takes over what was launched from `command`. `on_stderr` gets each chunk of stderr."""
        self.pid = launched.warden.pid
        """The warden's process id, which is the child's session. For signals use `signal`."""
        self._loop = loop
        self._command = command
        self._warden = launched.warden
        self._listener = listener
        self._state = TABLE.start
        self._paused = False
        """Whether the owner has paused the output; possible in any state."""
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
        slot = launched.slot
        on_chunk = self._on_output if slot is None else partial(self._on_first_output, slot)
        self._stdout = PipeReader(loop, launched.stdout, on_chunk, self._on_stdout_closed)
        self._printed = self._unread_before = 0
        """The bytes that the child has printed while its input waits, and how much waited when that began."""
        self._stderr = PipeReader(loop, launched.stderr, self._keep_stderr_tail, lambda: None)
        call_at_exit(loop, launched.warden, self._on_exit)

    @property
    def alive(self) -> bool:
        """False if the child is known to have exited."""
        return self._state in ALIVE

    @property
    def unsent(self) -> int:
        """Bytes written that are not in the pipe yet."""
        return self._stdin.unsent

    def write(self, data: bytes) -> None:
        """Sends data to stdin; neither blocks nor raises. A child that leaves more than `MAX_UNSENT_BYTES` unread, or
        prints `MAX_UNHEEDING_BYTES` while no less input waits, is killed, and its `Exit` says so.
        """
        self._stdin.write(data)
        if self._stdin.unsent > MAX_UNSENT_BYTES:
            self._kill_unheeding()

    def _kill_unheeding(self) -> None:
        self._stdin.close()
        self._keep_stderr_tail(UNREAD)
        self.kill()

    def close_stdin(self) -> None:
        self._stdin.close_when_sent()

    def pause(self) -> None:
        """Stops reading stdout, so the child has to wait. Also delays `on_end`, until `resume`, `end` or `kill`."""
        self._paused = True
        self._stdout.pause()
        self._finish_when_drained()

    def resume(self) -> None:
        """Reads stdout again, first what the child has written meanwhile."""
        self._paused = False
        self._stdout.resume()
        self._finish_when_drained()

    def take_output(self) -> bytes:
        """Reads and returns what stdout holds now, without waiting; the listener does not get these bytes."""
        return self._stdout.take_available(PIPE_BYTES)

    def clear_stderr(self) -> None:
        """Forgets the stderr so far, for `Exit.stderr_tail`."""
        self._stderr.read_available(PIPE_BYTES)
        self._stderr_tail.clear()

    def signal(self, signum: int) -> None:
        """Sends a signal to the child's process group, unless the child has ended or is being killed."""
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._lifeline, bytes([signum]))

    async def end(self, *, grace: float | None = None) -> Exit:
        """Closes stdin, waits `grace` seconds (None: `eof_grace`; 0: does neither), then SIGTERM and after `term_grace`
        SIGKILL to the child and its descendants: at most grace + term_grace + 7.5 s. All calls return the same `Exit`;
        the earliest grace counts. Cancelling a call does not stop the end.
        """
        if grace is None:
            grace = self._command.eof_grace
        if grace:
            self._start_ending(grace)
        else:  # the end of stdin would wake the child in vain
            self.kill()
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Sends SIGTERM at once, closes stdin a moment later, and SIGKILLs the child and its descendants after
        `term_grace`. Does not wait, and works without an event loop and after the server's end.
        """
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)  # first: whatever breaks from here on, the child ends
        self._state = TABLE[self._state, ChildChange.KILL]
        if lifeline is None:
            return
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        if self._loop.is_closed():
            return
        if self.alive:
            bound = self._command.term_grace + WARDEN_SECONDS
            self._warden_timer = self._loop.call_later(bound, self._kill_warden)
            self._grace_timer = self._loop.call_later(IGNORED_SECONDS, self._stdin.close)
        self._finish_when_drained()

    def _start_ending(self, grace: float) -> None:
        """Closes stdin, and calls `kill` after `grace` seconds, or at an earlier time set before."""
        self._state = TABLE[self._state, ChildChange.END]
        self.close_stdin()
        if self._state is ChildState.ENDING:
            when = self._loop.time() + grace
            if self._grace_timer is None or when < self._grace_timer.when():
                if self._grace_timer is not None:
                    self._grace_timer.cancel()
                self._grace_timer = self._loop.call_at(when, self.kill)
        self._finish_when_drained()

    def _kill_warden(self) -> None:
        """Kills the warden. The child then ends too (parent-death signal), or is abandoned after `ABANDON_SECONDS`."""
        self._warden.kill()
        self._warden_timer = self._loop.call_later(ABANDON_SECONDS, self._abandon)

    def _abandon(self) -> None:
        self._finish(ChildChange.STUCK if self.alive else ChildChange.DRAINED)

    def _on_first_output(self, slot: StartSlot, chunk: bytes) -> None:
        slot.free()
        self._stdout.on_chunk = self._on_output
        self._on_output(chunk)

    def _on_output(self, chunk: bytes) -> None:
        if unsent := self._stdin.unsent:
            if not self._printed:
                self._unread_before = unsent
            self._printed += len(chunk)
            if self._printed > MAX_UNHEEDING_BYTES:
                self._printed = 0
                if unsent >= self._unread_before:
                    self._kill_unheeding()
        else:
            self._printed = 0
        self._listener.on_output(chunk)

    @breaks_off
    def _on_stdout_closed(self) -> None:
        if self.alive:
            self._start_ending(self._command.eof_grace)
        else:
            self._finish()

    def _keep_stderr_tail(self, chunk: bytes) -> None:
        self._stderr_tail += chunk
        del self._stderr_tail[:-STDERR_TAIL_BYTES]
        if self._on_stderr is not None:
            self._on_stderr(chunk)

    @breaks_off
    def _on_exit(self, code: int) -> None:
        """Notes the exit. `code` is the child's; negative: a signal killed the warden, which could not kill
        descendants.
        """
        self._state = TABLE[self._state, ChildChange.EXIT]
        self._status = code
        kill_orphans_of(self._loop, self.pid, code)
        self._finish_when_drained()

    def _finish_when_drained(self) -> None:
        """After the exit, calls `_finish` at the end of stdout, or after DRAIN_SECONDS if another process holds the
        pipe. No time limit while the owner has paused the output.
        """
        if self._state not in (ChildState.EXITED, ChildState.DRAINING):
            return
        if self._stdout.at_end:
            self._finish()
        elif self._paused and self._state is ChildState.EXITED:
            if self._drain_timer is not None:
                self._drain_timer.cancel()
                self._drain_timer = None
        elif self._drain_timer is None:
            self._stdout.resume()
            self._drain_timer = self._loop.call_later(DRAIN_SECONDS, self._on_drain_timeout)

    def _on_drain_timeout(self) -> None:
        self._stdout.read_available(PIPE_BYTES)  # a busy loop may run this timer before it reads the pipe
        self._finish()

    @breaks_off
    def _finish(self, change: ChildChange = ChildChange.DRAINED) -> None:
        if self._state not in REPORTED:
            self._state = TABLE[self._state, change]
            self._report_end()

    def break_off(self) -> None:
        """Kills the child, and reports it as ended."""
        release_all(self.kill, self._report_end)

    def _report_end(self) -> None:
        """Closes descriptors, cancels timers, and reports the end once."""
        if self._ended.done():
            return
        timers = (self._grace_timer, self._warden_timer, self._drain_timer)
        release_all(
            partial(self._stderr.read_available, PIPE_BYTES),
            self._stderr.close,
            self._stdout.close,
            self._stdin.close,
            *[timer.cancel for timer in timers if timer is not None],
        )
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)
        exit = self._make_exit()
        self._ended.set_result(exit)
        self._listener.on_end(exit)

    def _make_exit(self) -> Exit:
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
    """Starts a child. The listener is called in the loop's next iteration at the earliest. `on_stderr` gets each chunk
    of stderr. Raises `SpawnError`. If cancelled, no process is left.
    """
    launched = await launch_under_warden(command)
    loop = asyncio.get_running_loop()
    try:
        return Child(loop, command, launched, listener, on_stderr)
    except BaseException:
        # The loop may read a pipe of the half-made child already. The end of the lifeline ends the child.
        for descriptor in (launched.lifeline, launched.stdin, launched.stdout, launched.stderr):
            loop.remove_reader(descriptor)
            os.close(descriptor)
        wait_for_unneeded(loop, launched.warden)
        raise


class _Output:
    def __init__(self, max_bytes: int) -> None:
        self.out = bytearray()
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes

    def on_output(self, chunk: bytes) -> None:
        if len(self.out) < self._max_bytes:
            self.out += chunk

    def on_end(self, exit: Exit) -> None:
        self.exit.set_result(exit)


async def _run(command: Command, timeout_seconds: float, max_bytes: int) -> tuple[Exit, bytes]:
    """Runs a short command without input. Returns how it ended, and about the first `max_bytes` of stdout. Raises
    `SpawnError`, or `TimeoutError`; no process is left.
    """
    output = _Output(max_bytes)
    child = await spawn(command, output)
    child.close_stdin()
    try:
        async with asyncio.timeout(timeout_seconds):
            exit = await asyncio.shield(output.exit)
    finally:
        await child.end(grace=0)
    return exit, bytes(output.out)


async def run_short(command: Command) -> bytes:
    """Returns a short command's stdout. Raises `SpawnError`, or another `Fault` if it fails or takes too long."""
    try:
        exit, out = await _run(command, ASK_SECONDS, ANSWER_BYTES)
    except TimeoutError:
        raise misconfigured(f"{' '.join(command.argv)} did not answer within {ASK_SECONDS:g} s") from None
    if exit.code != 0:
        raise misconfigured(f"{' '.join(command.argv)} failed: {_reason(exit)}")
    return out


def _reason(exit: Exit) -> str:
    said = exit.stderr_tail.strip()
    error = re.search(r"^error: .*(?:\n.+)*", said, re.MULTILINE | re.IGNORECASE)
    if said:
        return " ".join(error[0].split()) if error else said.splitlines()[-1]
    return f"exit code {exit.code}" if exit.code else f"signal {exit.signal}"


async def run_to_end(command: Command, timeout_seconds: float) -> Exit | None:
    """Runs a short command without input or output; None if it could not be started or did not end in time."""
    try:
        exit, _ = await _run(command, timeout_seconds, 0)
    except (SpawnError, TimeoutError):
        return None
    return exit
