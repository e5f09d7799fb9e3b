"""One child process: what it says, how it ends, and that it does end.

Decides when a child counts as ended and in which order an end escalates: stdin closed, grace, then the
warden's SIGTERM, grace and kill. It does not know what the bytes mean, or who wants the child.

Exit and end of output are watched apart from each other: a grandchild may hold the pipe long after the exit,
and a child may close its stdout and live on. There is no task here: callbacks and timers of the loop only, so
nothing can be cancelled half-way.
"""

import asyncio
import contextlib
import os
import threading
from typing import Protocol

import msgspec

from codex_proxy.process.child_states import ALIVE, REPORTED, TABLE, Change, State
from codex_proxy.process.launch import Command, Launched, SpawnError, launch
from codex_proxy.process.orphans import sweep_after
from codex_proxy.process.pipes import PipeReader, PipeWriter

__all__ = ["Child", "Command", "Exit", "Sink", "SpawnError", "spawn"]

# Enough for the last words of an agent and their backtrace; stderr is for error messages, never parsed.
STDERR_TAIL_BYTES = 8 * 1024
# The most an ordinary process can make a pipe hold (/proc/sys/fs/pipe-max-size).
PIPE_BYTES = 1024 * 1024
# After the exit the pipe holds at most what fits into it, readable at once; who keeps it open is a stranger.
DRAIN_SECONDS = 0.5
# The warden's own bound for killing is 5 s; a warden that takes longer hangs and is killed itself.
WARDEN_SECONDS = 6.0
# A killed process that is not gone after this time is stuck in the kernel.
ABANDON_SECONDS = 1.0
# Shells tell "ended by signal n" as 128 + n, and so does the warden.
SIGNAL_BASE = 128
HIGHEST_SIGNAL = 64


class Exit(msgspec.Struct, frozen=True):
    """How a child ended: by exit code or by signal; neither when it could not be killed.

    A code above 128 counts as a signal, as in a shell. `stderr_tail` is the end of what it wrote to stderr.
    """

    code: int | None
    signal: int | None
    stderr_tail: str


class Sink(Protocol):
    """Who hears from a child. Called synchronously on the event loop."""

    def received(self, chunk: bytes) -> None:
        """Some bytes of stdout, as they came."""

    def ended(self, exit: Exit) -> None:
        """Nothing more will come, and the child is gone. Called exactly once, after the last `received`."""


class Child:
    """A running child. Its owner must see to it that it ends: `end`, or at least `kill`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, command: Command, launched: Launched, sink: Sink
    ) -> None:
        """Take over what `launch` started; `spawn` is the way to make one."""
        self.pid = launched.warden.pid
        """The warden's, which leads the child's session. For logs: signals go through `signal`."""
        self._loop = loop
        self._command = command
        self._warden = launched.warden
        self._sink = sink
        self._state = TABLE.start
        self._paused = False
        """Its owner takes no output; in any state."""
        self._code: int | None = None
        self._tail = bytearray()
        self._done: asyncio.Future[Exit] = loop.create_future()
        self._cut_timer: asyncio.TimerHandle | None = None
        self._bound_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._lifeline: int | None = launched.lifeline
        os.set_blocking(launched.lifeline, False)
        self._stdin = PipeWriter(loop, launched.stdin)
        self._stdout = PipeReader(loop, launched.stdout, sink.received, self._stdout_closed)
        self._stderr = PipeReader(loop, launched.stderr, self._keep_tail, lambda: None)
        self._watch_exit()

    @property
    def alive(self) -> bool:
        """Whether the child has not been seen to exit."""
        return self._state in ALIVE

    @property
    def unsent(self) -> int:
        """The bytes written that the child has not taken from its stdin yet."""
        return self._stdin.unsent

    def write(self, data: bytes) -> None:
        """Send to stdin. Never blocks or raises: what a dead child does not read is dropped."""
        self._stdin.write(data)

    def close_stdin(self) -> None:
        """Close stdin as soon as everything written is sent."""
        self._stdin.close_when_sent()

    def pause(self) -> None:
        """Stop reading stdout, so that the child must wait; nothing is received until `resume`.

        A pause outlives the child's exit; only the end of an `end` lifts it, for the last bytes in the pipe.
        """
        self._paused = True
        self._stdout.pause()
        self._settle()

    def resume(self) -> None:
        """Read stdout again; nothing is lost."""
        self._paused = False
        self._stdout.resume()
        self._settle()

    def clear_stderr(self) -> None:
        """Drop what the child has written to stderr so far: its end is not told with that."""
        self._stderr.take(PIPE_BYTES)
        self._tail.clear()

    def signal(self, signum: int) -> None:
        """Send a signal to the child's process group; without effect on a dead child."""
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._lifeline, bytes([signum]))

    async def end(self, *, grace: float | None = None) -> Exit:
        """End the child and return how it ended.

        Closes stdin, waits `grace` seconds (the command's eof_grace by default), then lets the warden end it:
        SIGTERM, term_grace, SIGKILL to all descendants. Takes at most grace + term_grace + 7.5 s. May be
        called several times at once, the shortest grace holds; cancelling a call does not stop the ending.
        """
        self._start_ending(self._command.eof_grace if grace is None else grace)
        return await asyncio.shield(self._done)

    def kill(self) -> None:
        """Let the warden end the child: SIGTERM now, SIGKILL to all descendants after term_grace.

        Synchronous, and works without a running loop: for the exit of the interpreter. The warden does its
        work also when the proxy is gone by then.
        """
        self._change(Change.KILL)
        if self._cut_timer is not None:
            self._cut_timer.cancel()
            self._cut_timer = None
        if self._lifeline is None:
            return
        os.close(self._lifeline)
        self._lifeline = None
        if self._loop.is_closed():
            return
        if self.alive:
            bound = self._command.term_grace + WARDEN_SECONDS
            self._bound_timer = self._loop.call_later(bound, self._kill_warden)
        self._settle()

    def _change(self, change: Change) -> None:
        self._state = TABLE.after(self._state, change)

    def _start_ending(self, grace: float) -> None:
        self._change(Change.END)
        self.close_stdin()
        if self._state is State.ENDING:
            when = self._loop.time() + grace
            if self._cut_timer is None or when < self._cut_timer.when():
                if self._cut_timer is not None:
                    self._cut_timer.cancel()
                self._cut_timer = self._loop.call_at(when, self.kill)
        self._settle()

    def _kill_warden(self) -> None:
        self._warden.kill()
        self._bound_timer = self._loop.call_later(ABANDON_SECONDS, self._abandon)

    def _abandon(self) -> None:
        self._finish(Change.STUCK if self.alive else Change.DRAINED)

    def _stdout_closed(self) -> None:
        if self.alive:
            self._start_ending(self._command.eof_grace)
        else:
            self._finish()

    def _keep_tail(self, chunk: bytes) -> None:
        self._tail += chunk
        del self._tail[:-STDERR_TAIL_BYTES]

    def _watch_exit(self) -> None:
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor to be had
            threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()
        else:
            self._loop.add_reader(descriptor, self._pidfd_readable, descriptor)

    def _pidfd_readable(self, descriptor: int) -> None:
        code = self._warden.poll()
        if code is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._exited(code)

    def _wait_in_thread(self) -> None:
        code = self._warden.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        self._change(Change.EXIT)
        self._code = code
        if code < 0:  # the warden itself was killed, and could not sweep
            sweep_after(self._loop, self.pid)
        self._settle()

    def _settle(self) -> None:
        """After the exit: wait for the end of stdout, but not for ever, and not while the owner pauses."""
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
        self._stdout.take(PIPE_BYTES)  # a busy loop may have come here first
        self._finish()

    def _finish(self, change: Change = Change.DRAINED) -> None:
        """Report the end, once."""
        if self._state in REPORTED:
            return
        self._change(change)
        self._stderr.take(PIPE_BYTES)
        self._stderr.close()
        self._stdout.close()
        self._stdin.close()
        for timer in (self._cut_timer, self._bound_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        exit = self._exit()
        self._done.set_result(exit)
        self._sink.ended(exit)

    def _exit(self) -> Exit:
        tail = self._tail.decode("utf-8", "replace")
        if self._code is None:
            return Exit(None, None, tail)
        if self._code < 0:  # the warden itself was killed
            return Exit(None, -self._code, tail)
        if SIGNAL_BASE < self._code <= SIGNAL_BASE + HIGHEST_SIGNAL:
            return Exit(None, self._code - SIGNAL_BASE, tail)
        return Exit(self._code, None, tail)


async def spawn(command: Command, sink: Sink) -> Child:
    """Start the command; the sink hears from it from the loop's next turn on.

    Raises SpawnError. There is no await inside, so that a cancellation cannot come between a started child
    and its owner.
    """
    loop = asyncio.get_running_loop()
    return Child(loop, command, launch(command), sink)
