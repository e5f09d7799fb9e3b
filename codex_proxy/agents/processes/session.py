"""A session with an agent: connects a dialect (without IO) with the transport for its bytes.

`Agent.open` returns a session for a turn; it can serve several turns of one thread. It writes what the dialect returns,
passes its events to a listener, and keeps the transport until the agent has finished. A transport splits the output of
its child (the agent's process) into what the dialect reads, usually lines by a `LineFramer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import msgspec
import structlog

from codex_proxy.agents.dialect import Dialect, Ended, ReopeningDialect, Reply, Step, ToolReply, TooMuchHeld
from codex_proxy.agents.dialects.marks import OriginMarks
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.interfaces import TimerHandle, Timers
from codex_proxy.core.items import HistoryItem, Part, TextPart
from codex_proxy.core.turn import Turn, without_content
from codex_proxy.process.child import Exit, SpawnError

log = structlog.get_logger(__name__)

FINISH_SECONDS = 5.0
"""The most seconds to wait for an agent to stop its turn. It takes milliseconds unless the agent hangs."""

TOO_LARGE = (
    "The output is larger than {} bytes, and this agent would cut it. Call the tool so that it returns less."
)


class TransportReader(Protocol):
    """Receives the output of a transport, synchronously on the event loop. `AgentSession` implements it."""

    def received(self, messages: Sequence[Any], size: int) -> None:
        """Takes new output of the child, as a sequence of the units that the dialect reads (such as lines); `size`
        is their length in bytes.
        """
        ...

    def ended(self, ended: Ended) -> None:
        """Called once, when the child has ended. `ended` has its exit code or signal, and the end of its stderr."""
        ...

    def fail(self, failure: Failure) -> None:
        """Called when the child's output can no longer be read, for example because a line is too long. Nothing is
        received after that.
        """
        ...


class Transport(Protocol):
    """Sends bytes to a child (a process of the agent) for one session, and receives its output. The child may serve
    other sessions, too.
    """

    @property
    def exclusive(self) -> bool:
        """Whether the child serves only this session. If so, its output may be paused, and the child ends with the
        turn.
        """
        ...

    def attach(self, reader: TransportReader) -> None:
        """Sets the reader of the child's output. Called once, before anything is sent."""
        ...

    def send(self, writes: bytes) -> None: ...

    def close_stdin(self) -> None:
        """Closes the child's stdin once everything sent so far is written. Raises `RuntimeError` if the child
        serves other sessions, too.
        """
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_idle(self, idle: bool) -> None:
        """Sets whether the session waits for a later turn (`idle`). A child whose sessions are all idle counts as
        idle.
        """
        ...

    async def release(self, *, finished: bool) -> None:
        """Ends the use of the child, and a child that serves only this session. `finished` False: the agent may still
        be working on the turn, so a shared child gets no new ones.
        """
        ...


class SessionTape(Protocol):
    """Records a session: what its dialect is asked to do, writes and reads, and how the agent ends."""

    def did(self, dialect: Dialect[Any], act: str, given: Sequence[Any], writes: bytes) -> None:
        """Takes the name of a method of the dialect (not `receive`), its arguments, and what it has written."""
        ...

    def wrote(self, writes: bytes) -> None:
        """Takes what the dialect has written because of what it read."""
        ...

    def read(self, messages: Sequence[Any]) -> None:
        """Takes what the dialect is about to read. Messages that were decoded from a line come as a line, too."""
        ...

    def read_lines(self, lines: list[bytes]) -> None:
        """Takes lines of the agent of which decoded messages are about to be read."""
        ...

    def ended(self, ended: Ended) -> None: ...


class SessionListener(Protocol):
    """The interface for the owner of a session. Its methods are called synchronously on the event loop."""

    def session_received(self, session: AgentSession, events: list[Event], size: int) -> None:
        """Takes the events that the dialect returned for `size` bytes of output. `events` may be empty."""
        ...

    def session_failed(self, session: AgentSession, failure: Failure) -> None:
        """Called when the child's output can no longer be read. The session is not released by itself: the owner
        has to call `close`.
        """
        ...

    def session_broke(self, session: AgentSession) -> None:
        """Called after an exception in this server's own code, which was logged. The state of the agent is unknown,
        so the session is released as not finished.
        """
        ...


def _can_reopen(dialect: object) -> TypeGuard[ReopeningDialect]:
    # Asked at every read of a pipe: isinstance takes 13 us for a protocol.
    return hasattr(dialect, "reopen")


class AgentSession:
    """A session from `Agent.open` to `Agent.release`. Its owner calls `claim`; perhaps `reopen`; `begin`; perhaps
    `resume`; and `close`. The events of the turn go to the listener.
    """

    def __init__(self, turn: Turn, dialect: Dialect[Any], transport: Transport) -> None:
        """`turn` is the turn as the agent gets it, after all changes by this server."""
        self.transport = transport
        self.listener: SessionListener | None = None
        self.tape: SessionTape | None = None
        """Records the session; None if it is not recorded."""
        self.gone = False
        """Whether the child has ended."""
        self.turn = turn
        """The turn that the session was opened for. After `begin` it holds the settings alone, so that a kept session
        does not keep a client's texts."""
        self.origin: OriginMarks | None = None
        """Marks encrypted content of this agent, if the server has several; else None."""
        self.ran_before = not transport.exclusive
        """Whether the child ran before the turn. If it ends before it prints anything of the turn, another child can
        take the turn: the model was not asked.
        """
        self.silence_hint = ""
        """A sentence for the client about what the agent is probably doing if it sends nothing for long; empty if
        nothing is known."""
        self.max_output: int | None = None
        """The most bytes of a tool's output that the agent gives to its model whole in a waiting call; None: any. In
        the prompt of a new session there is no such limit.
        """
        self._dialect = dialect
        self._closed: tuple[str, Sequence[HistoryItem]] | None = None
        """The closed session to open again, and the items that it has not seen; None for a new one."""
        self._timers: Timers | None = None
        self._released: Callable[[AgentSession, bool], None] | None = None
        self._timer: TimerHandle | None = None
        self._closing = False
        self._paused = False

    # --- what its owner calls -------------------------------------------------------------------

    def claim(
        self,
        listener: SessionListener,
        timers: Timers,
        released: Callable[[AgentSession, bool], None],
    ) -> None:
        """Makes the caller the owner, which must call `close`. `listener` gets the events; `timers` is the event loop.
        `released(session, finished)` is called once, at the end; the owner then calls `Agent.release`.
        """
        self.listener, self._timers, self._released = listener, timers, released

    def begin(self) -> None:
        """Starts the turn that the session was opened for. Its events go to the listener."""
        self.transport.attach(self)
        turn, self.turn = self.turn, without_content(self.turn)
        if _can_reopen(self._dialect) and self._closed is not None:
            (thread, new_items), self._closed = self._closed, None
            self._do(self._dialect.reopen, turn, thread, self._own(new_items))
        else:
            self._do(self._dialect.begin, turn)

    def reopen(self, thread: str, new_items: Sequence[HistoryItem]) -> None:
        """Makes `begin` open the agent's closed session `thread` again, if the agent can. `new_items` are what that has
        not seen of the history.
        """
        if _can_reopen(self._dialect):
            self._closed = thread, new_items

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        """Starts another turn on the thread, or continues one that waits for outputs of calls. `new_items` are what the
        thread has not seen, such outputs included.
        """
        if self.origin is not None:
            turn = msgspec.structs.replace(turn, model=self.turn.model)
        self._do(self._dialect.resume, turn, self._own(new_items))

    def _own(self, items: Sequence[HistoryItem]) -> Sequence[HistoryItem]:
        return items if self.origin is None else self.origin.unmark(items)

    def answer(self, request_id: str, reply: Reply) -> None:
        """Gives the agent the answer to one of its requests. In place of an output that the agent would cut, it gets a
        failed one that says so."""
        if isinstance(reply, ToolReply) and not self.takes_whole(reply.parts):
            reply = ToolReply((TextPart(TOO_LARGE.format(self.max_output)),), success=False)
        self._do(self._dialect.answer, request_id, reply)

    def takes_whole(self, output: Sequence[Part]) -> bool:
        """Returns whether the agent gives this output of a waiting call to its model whole."""
        most = self.max_output
        return most is None or all(
            4 * len(part.text) <= most or len(part.text.encode("utf-8", "surrogatepass")) <= most
            for part in output
            if isinstance(part, TextPart)
        )

    @property
    def can_resume(self) -> bool:
        """Whether the agent waits for `resume`, so that the session may be kept idle for the client's next request."""
        return not self.gone and not self._closing and self._dialect.can_resume

    @property
    def thread(self) -> str:
        """The id by which the agent can open the session again after it was closed; empty if it cannot."""
        return self._dialect.thread if _can_reopen(self._dialect) else ""

    @property
    def reopens(self) -> bool:
        """Whether `begin` will reopen a closed session of the agent instead of starting a new one."""
        return self._closed is not None

    @property
    def lost(self) -> bool:
        """Whether `begin` was to reopen a closed session of the agent, and the agent could not."""
        return _can_reopen(self._dialect) and self._dialect.lost

    def close(self) -> None:
        """Interrupts the agent. The session is released at once if the child serves only this session; otherwise
        when the agent has finished with the turn, or after `FINISH_SECONDS`.
        """
        if self._closing:
            return
        self._closing = True
        self.resume_reading()
        self._do(self._dialect.interrupt)
        self._release_when_finished()

    def set_idle(self, idle: bool) -> None:
        """Marks the session as waiting for a later turn (`idle`), or as in use again."""
        self.transport.set_idle(idle)

    def pause_reading(self) -> bool:
        """Stops reading the child's output, so that the child has to wait. Returns False, and goes on reading, if
        the child serves other sessions, too.
        """
        if self.transport.exclusive and not self._paused and not self._closing:
            self._paused = True
            self.transport.pause_reading()
        return self.transport.exclusive

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    # --- what the transport calls ---------------------------------------------------------------

    def received(self, messages: Sequence[Any], size: int) -> None:
        if self.tape is not None:
            self.tape.read(messages)
        self._do(self._dialect.receive, messages, size=size)

    def ended(self, ended: Ended) -> None:
        self.gone = True
        if self.tape is not None:
            self.tape.ended(ended)
        self._do(self._dialect.eof, ended)
        self._release(finished=True)

    def fail(self, failure: Failure) -> None:
        if self.listener is not None:
            self.listener.session_failed(self, failure)

    # --- both ways ------------------------------------------------------------------------------

    def _do(self, act: Callable[..., Step], *given: Any, size: int = 0) -> None:
        """Calls the dialect's method `act`, writes the bytes of its step to the child, and passes its events on.
        `size`: bytes of the output that is read. An exception ends only this session; `TooMuchHeld` is the child's
        fault.
        """
        try:
            step = act(*given)
            if self.tape is not None:
                self._record(act, given, step)
            if step.writes:
                self.transport.send(step.writes)
            if step.close_stdin:
                self.transport.close_stdin()
            if step.events or size:
                self._emit(step.events, size)
        except TooMuchHeld as fault:
            self.fail(broken_protocol(str(fault)))
        except Exception:
            log.exception("turn_broke")
            if self.listener is not None:
                self.listener.session_broke(self)
            self._release(finished=False)
        if self._closing:
            self._release_when_finished()

    def _record(self, act: Callable[..., Step], given: Sequence[Any], step: Step) -> None:
        assert self.tape is not None
        name = act.__name__
        if name in ("receive", "eof"):
            if step.writes:
                self.tape.wrote(step.writes)
        else:
            self.tape.did(self._dialect, name, given, step.writes)

    def _emit(self, events: list[Event], size: int) -> None:
        if self.listener is None:
            return
        if self.origin is not None:
            events = self.origin.mark(events)
        self.listener.session_received(self, events, size)

    def _release_when_finished(self) -> None:
        if self._dialect.finished or self.transport.exclusive:
            self._release(finished=True)
        elif self._timer is None and self._released is not None and self._timers is not None:
            when = self._timers.time() + FINISH_SECONDS
            self._timer = self._timers.call_at(when, lambda: self._release(finished=False))

    def _release(self, *, finished: bool) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_reading()
        released, self._released = self._released, None
        if released is not None:
            released(self, finished)


# --- cutting the output of a child --------------------------------------------------------------

MAX_LINE_BYTES = 20 * 1024 * 1024
"""The longest line of a child. The longest one seen has 12 MB (a final message is repeated whole), as large images may.
Decoding it blocks the server for up to 0.1 s.
"""


class LineTooLong(Exception):  # noqa: N818  (it says what happened, as the rest of the vocabulary does)
    """A line exceeds the maximum (`limit` bytes), so that the rest cannot be read. `before` has the whole lines before
    it in the chunk.
    """

    def __init__(self, limit: int, before: list[bytes]) -> None:
        super().__init__(f"a line is longer than {limit} bytes")
        self.limit = limit
        self.before = before


class LineFramer:
    r"""Turns chunks of bytes into whole lines, without ends, empty lines and decoding.

    Only b"\n" ends a line: JSON may contain U+2028, at which `str.splitlines` splits. The time is linear: the parts of
    a long line are joined once.
    """

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        """`max_line` is the longest line in bytes; a carriage return counts, the newline does not."""
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._broken = False

    def feed(self, chunk: bytes) -> list[bytes]:
        r"""Returns the lines that this chunk completes, each without its b"\n" and without one b"\r" before that.

        Raises `LineTooLong`, also for every chunk after that.
        """
        if self._broken:
            raise LineTooLong(self._max_line, [])
        may_be_too_long = self._size + len(chunk) > self._max_line
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if may_be_too_long:
            self._refuse_too_long(lines)
        # JSON holds no bare carriage return: where there is none at all, no line has to be looked at for one.
        if lines and b"\r" not in chunk and not lines[0].endswith(b"\r") and all(lines):
            return lines
        return _clean(lines)

    def close(self) -> bytes | None:
        """Returns the unfinished last line and forgets it; None if there is none."""
        rest = _clean([b"".join(self._parts)])
        self._parts.clear()
        self._size = 0
        return rest[0] if rest else None

    def _refuse_too_long(self, lines: list[bytes]) -> None:
        whole = next((n for n, line in enumerate(lines) if len(line) > self._max_line), len(lines))
        if whole < len(lines) or self._size > self._max_line:
            self._broken = True
            self._parts.clear()
            raise LineTooLong(self._max_line, _clean(lines[:whole]))


class ChunkFramer:
    """A replacement for `LineFramer` that returns the bytes as they arrive, for programs that print plain text."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns a list with the chunk alone."""
        return [chunk]

    def close(self) -> bytes | None:
        """Returns None, because no bytes are held back."""
        return None


def _clean(lines: list[bytes]) -> list[bytes]:
    return [line for line in (line.removesuffix(b"\r") for line in lines) if line]


def broken_protocol(reason: str) -> Failure:
    """Returns the failure (AGENT_PROTOCOL) of a turn whose child violated its protocol; `reason` is the part of the
    message that says how.
    """
    return Failure(
        kind=FaultKind.AGENT_PROTOCOL,
        message=f"The agent broke its own protocol: {reason}. Try again; if it happens again, the "
        "operator should update the agent.",
    )


def spawn_failure(error: SpawnError) -> Failure:
    """Returns the failure of a turn whose process could not be started: UNAVAILABLE if another attempt may succeed,
    else SPAWN_FAILED.
    """
    kind = FaultKind.UNAVAILABLE if error.temporary else FaultKind.SPAWN_FAILED
    return Failure(kind=kind, message=str(error))


def ended_from(exit: Exit) -> Ended:
    """Converts an `Exit`, which describes the end of a child, to an `Ended`, which dialects read."""
    return Ended(exit.code, exit.signal, exit.stderr_tail)
