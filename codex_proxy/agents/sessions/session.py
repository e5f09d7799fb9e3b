"""A session with an agent: connects a dialect (without IO) with the transport for its bytes. It can serve several turns
of one conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import msgspec

from codex_proxy.agents.dialect import (
    Dialect,
    Ended,
    ReopeningDialect,
    Reply,
    SteerableDialect,
    Step,
    ToolReply,
    TooMuchHeld,
)
from codex_proxy.agents.shared.history_items import OriginMarks
from codex_proxy.core.damaged_json import is_torn
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.interfaces import TimerHandle, Timers
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, Part, TextPart
from codex_proxy.core.own_errors import break_off_on_error
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command, Exit, SpawnError
from codex_proxy.process.launch import find_program

FINISH_SECONDS = 5.0
"""Maximum seconds for an agent to stop its turn; milliseconds are usual."""

TOO_LARGE = (
    "The output is larger than {} bytes, and this agent would cut it. Call the tool so that it returns less."
)


class TransportReader(Protocol):
    """Receives a transport's output, on the event loop."""

    def on_messages(self, messages: Sequence[Any], size: int) -> None:
        """Takes output in the units that the dialect reads; `size` is its bytes."""

    def on_end(self, ended: Ended) -> None:
        """Handles the child's end. Called once."""

    def fail(self, failure: Failure) -> None:
        """Handles output that can no longer be read."""

    def on_long_line(self, fault: LineTooLong) -> None:
        """Handles output that can no longer be read because of this line."""


class Transport(Protocol):
    """Sends bytes to a child for one session, and receives its output. The child may serve others."""

    @property
    def exclusive(self) -> bool:
        """Whether the child serves only this session: its output may be paused, and it ends with the turn."""

    def attach(self, reader: TransportReader) -> None:
        """Sets the reader, once, before anything is sent."""

    def send(self, writes: bytes) -> None: ...

    def close_stdin(self) -> None:
        """Closes stdin after what was sent. Raises `RuntimeError` if the child serves other sessions."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_idle(self, idle: bool) -> None: ...

    async def release(self, *, finished: bool) -> None:
        """Ends the use of the child; ends a child of this session alone. `finished` False: the agent may still work, so
        a shared child gets no new turns.
        """


class SessionRecorder(Protocol):
    def on_step(self, act: str, given: Sequence[Any], events: Sequence[Event], size: int) -> None:
        """Takes the name of a dialect's method, its arguments, and its events, for `size` bytes of output."""


class SessionListener(Protocol):
    """The owner of a session. Called on the event loop."""

    def on_session_output(self, session: AgentSession, events: list[Event], size: int) -> None:
        """Takes the events for `size` bytes of output; there may be none."""

    def on_session_failure(self, session: AgentSession, failure: Failure) -> None:
        """Handles output that can no longer be read. The owner has to call `close`."""

    def on_session_error(self, session: AgentSession) -> None:
        """Handles an exception in this server's code. The session is released as not finished."""


class AgentSession:
    """A session from `Agent.open` to `Agent.release`. Its owner calls `claim`; perhaps `reopen`; `begin`; perhaps
    `resume`; and `close`.
    """

    def __init__(self, turn: Turn, dialect: Dialect[Any], transport: Transport) -> None:
        self.transport = transport
        self.listener: SessionListener | None = None
        self.recorder: SessionRecorder | None = None
        self.gone = False
        self.turn: Turn | None = turn
        """The turn for which the session was opened, until it begins."""
        self._model = turn.model
        stored = turn.stored_session
        self.stored_for = None if stored is None else (turn.owner, stored.conversation)
        """The owner and the conversation for which the agent stores its session; None if it stores none."""
        self.origin: OriginMarks | None = None
        """Marks this agent's encrypted content, if the server has several."""
        self.ran_before = not transport.exclusive
        """Whether the child ran before the turn. If it then ends without output, another can take the turn: the model
        was not asked.
        """
        self.serves_once = False
        """Whether it serves one turn alone, and is never kept for the next."""
        self.silence_hint = ""
        """What the agent is probably doing if it sends nothing for long, for the client."""
        self.max_output: int | None = None
        """Maximum bytes of a tool's output that the agent does not cut when the call waits for it; None: any."""
        self._dialect = dialect
        self._reopening: ReopeningDialect | None = (
            cast("ReopeningDialect", dialect) if hasattr(dialect, "reopen") else None
        )
        """The dialect, if its agent stores its sessions."""
        self._steerable: SteerableDialect | None = (
            cast("SteerableDialect", dialect) if hasattr(dialect, "steer") else None
        )
        """The dialect, if its agent takes input while it works."""
        self._steered: dict[str, Sequence[HistoryMessage]] = {}
        """The inputs that the agent was given in its turn and has not taken, by their ids."""
        self._closed: tuple[str, Sequence[HistoryItem]] | None = None
        """The closed session to reopen, and the items that it has not seen, if any."""
        self._timers: Timers | None = None
        self._released: Callable[[AgentSession, bool], None] | None = None
        self._timer: TimerHandle | None = None
        self._closing = False
        self._paused = False
        self._most_sent = 0
        """The bytes of the largest piece that the child was given."""

    # --- what its owner calls -------------------------------------------------------------------

    def claim(
        self, listener: SessionListener, timers: Timers, released: Callable[[AgentSession, bool], None]
    ) -> None:
        """Makes the caller the owner. `released(session, finished)` is called once, at the end; the owner then calls
        `Agent.release`.
        """
        self.listener, self._timers, self._released = listener, timers, released

    def begin(self) -> None:
        self.transport.attach(self)
        turn, self.turn = self.turn, None
        if self._reopening is not None and self._closed is not None:
            (reopen_id, new_items), self._closed = self._closed, None
            self._do(self._reopening.reopen, turn, reopen_id, self._unmark(new_items))
        else:
            self._do(self._dialect.begin, turn)

    def reopen(self, reopen_id: str, new_items: Sequence[HistoryItem]) -> None:
        """Makes `begin` open the closed session `reopen_id`, if the agent can."""
        if self._reopening is not None:
            self._closed = reopen_id, new_items

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        """Starts another turn, or continues one that waits for outputs. The session has not seen `new_items`."""
        if self.origin is not None:
            turn = msgspec.structs.replace(turn, model=self._model)
        if not any(isinstance(item, HistoryOutput) for item in new_items):
            self._steered.clear()  # the agent's turn is another one
        self._do(self._dialect.resume, turn, self._unmark(new_items))

    def _unmark(self, items: Sequence[HistoryItem]) -> Sequence[HistoryItem]:
        return items if self.origin is None else self.origin.unmark(items)

    def answer(self, request_id: str, reply: Reply) -> None:
        """Answers a request. An output that the agent would cut is replaced by a failed one that says so."""
        if isinstance(reply, ToolReply) and not self.takes_uncut(reply.parts):
            reply = ToolReply((TextPart(TOO_LARGE.format(self.max_output)),), success=False)
        self._do(self._dialect.answer, request_id, reply)

    def steer(self, id: str, messages: Sequence[HistoryMessage]) -> None:
        """Gives the agent further input, once for each id in a turn of the agent. The event `InputTaken` tells that it
        has taken it.
        """
        if self._steerable is not None and id not in self._steered:
            self._steered[id] = messages
            self._do(self._steerable.steer, id, messages)

    def taken_input(self, id: str) -> Sequence[HistoryMessage]:
        """Returns the input of which an `InputTaken` tells."""
        return self._steered.pop(id, ())

    def takes_uncut(self, output: Sequence[Part]) -> bool:
        """Whether the agent takes this output of a tool without cutting it."""
        most = self.max_output
        return most is None or all(
            4 * len(part.text) <= most or len(part.text.encode("utf-8", "surrogatepass")) <= most
            for part in output
            if isinstance(part, TextPart)
        )

    @property
    def can_resume(self) -> bool:
        """Whether the session may be kept for the client's next request."""
        return not (self.serves_once or self.gone or self._closing) and self._dialect.can_resume

    @property
    def reopen_id(self) -> str:
        """The id by which the agent can open the closed session again; empty if it cannot."""
        return "" if self._reopening is None else self._reopening.reopen_id

    @property
    def reopens(self) -> bool:
        return self._closed is not None

    @property
    def lost(self) -> bool:
        return self._reopening is not None and self._reopening.lost

    def close(self) -> None:
        """Ends the session, and interrupts its turn. A child that serves only this session is released at once; one
        with other sessions when the agent has ended the turn, or after `FINISH_SECONDS`.
        """
        if self._closing:
            return
        self._closing = True
        try:
            self._do(self._dialect.interrupt)
        except Exception:  # noqa: BLE001 - logged; nobody closes the session again
            break_off_on_error(self)

    def set_idle(self, idle: bool) -> None:
        self.transport.set_idle(idle)

    def pause_reading(self) -> bool:
        """Stops reading, so that the child waits. Returns False, and reads on, if the child serves other sessions."""
        if self.transport.exclusive and not self._paused and not self._closing:
            self._paused = True
            self.transport.pause_reading()
        return self.transport.exclusive

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    # --- what the transport calls ---------------------------------------------------------------

    def on_messages(self, messages: Sequence[Any], size: int) -> None:
        self._do(self._dialect.receive, messages, size=size)

    def on_end(self, ended: Ended) -> None:
        self.gone = True
        self._do(self._dialect.eof, ended)
        self._release(finished=True)

    def fail(self, failure: Failure) -> None:
        if self.listener is not None:
            self.listener.on_session_failure(self, failure)

    def on_long_line(self, fault: LineTooLong) -> None:
        if 2 * self._most_sent >= fault.limit:
            self.fail(too_large(f"{self._most_sent} bytes, and {fault}, in which it seems to repeat them"))
        else:
            self.fail(broken_protocol(str(fault)))

    # --- both ways ------------------------------------------------------------------------------

    def _do(self, act: Callable[..., Step], *given: Any, size: int = 0) -> None:
        """Calls a method of the dialect and handles its step. `size`: bytes of the output that is read. `TooMuchHeld`
        is the child's fault; another exception breaks the session off.
        """
        try:
            try:
                step = act(*given)
                events = step.events if self.origin is None else self.origin.mark(step.events)
                if self.recorder is not None:
                    self.recorder.on_step(act.__name__, given, events, size)
                if step.writes:
                    self._most_sent = max(self._most_sent, len(step.writes))
                    self.transport.send(step.writes)
                if step.close_stdin:
                    self.transport.close_stdin()
                if (events or size) and self.listener is not None:
                    self.listener.on_session_output(self, events, size)
            except TooMuchHeld as fault:
                self.fail(broken_protocol(str(fault)))
            if self._closing and self._released is not None:
                self._release_when_finished()
        except Exception:  # noqa: BLE001 - logged
            break_off_on_error(self)

    def break_off(self) -> None:
        """Tells the owner of an error in this server's code, and releases the session as not finished."""
        listener, self.listener = self.listener, None
        try:
            if listener is not None:
                listener.on_session_error(self)
        finally:
            self._release(finished=False)

    def _release_when_finished(self) -> None:
        if self.transport.exclusive or self._dialect.finished:
            self._release(finished=True)
        elif self._timer is None and self._timers is not None:
            when = self._timers.time() + FINISH_SECONDS
            self._timer = self._timers.call_at(when, lambda: self._release(finished=False))

    def _release(self, *, finished: bool) -> None:
        self._closing = True
        released, self._released = self._released, None
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.resume_reading()
        finally:
            if released is not None:
                released(self, finished)


# --- cutting the output of a child --------------------------------------------------------------

MAX_LINE_BYTES = 20 * 1024 * 1024
"""The longest line. 12 MB were seen (a message with images, repeated whole); decoding it takes up to 0.1 s."""


class LineTooLong(Exception):  # noqa: N818  (it says what happened, as the rest of the vocabulary does)
    """A line is longer than `limit`; the rest of the output cannot be read. `before` has the lines before it."""

    def __init__(self, limit: int, before: list[bytes]) -> None:
        super().__init__(f"a line is longer than {limit} bytes")
        self.limit = limit
        self.before = before


class LineFramer:
    """Cuts chunks into lines, without ends and empty lines. Only a newline ends a line: JSON may contain U+2028. The
    time is linear.
    """

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._broken = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that this chunk completes. Raises `LineTooLong`, also for all later chunks."""
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
        rest = b"".join(self._parts).removesuffix(b"\r")
        self._parts.clear()
        self._size = 0
        return rest or None

    def _refuse_too_long(self, lines: list[bytes]) -> None:
        whole = next((n for n, line in enumerate(lines) if len(line) > self._max_line), len(lines))
        if whole < len(lines) or self._size > self._max_line:
            self._broken = True
            self._parts.clear()
            raise LineTooLong(self._max_line, _clean(lines[:whole]))


class ChunkFramer:
    """Passes on chunks, of programs that print plain text."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk]

    def close(self) -> bytes | None:
        return None


def _clean(lines: list[bytes]) -> list[bytes]:
    return [line for line in (line.removesuffix(b"\r") for line in lines) if line]


def rest_of(framer: LineFramer | ChunkFramer, exit: Exit) -> list[bytes]:
    """Returns the last line of a child's output, if it has no line end. Nothing if the child failed in the middle of a
    line: its exit is then the error that the client gets.
    """
    rest = framer.close()
    return [] if rest is None or (exit.code != 0 and is_torn(rest)) else [rest]


def broken_protocol(reason: str) -> Failure:
    """Returns the failure of a turn whose child violated its protocol; `reason` says how."""
    return Failure(
        FaultKind.AGENT_PROTOCOL,
        f"The agent broke its own protocol: {reason}. Try again; if it happens again, the "
        "operator should update the agent.",
    )


def too_large(what: str) -> Failure:
    """Returns the failure of a turn whose agent cannot take so much at once; `what` says how much it was given."""
    return Failure(
        FaultKind.REQUEST_TOO_LARGE,
        f"The agent was given {what}. Send less, or fewer images, in one request.",
    )


def missing_program(command: Command) -> Failure | None:
    """Returns the failure if the command's program or folder is missing, or the program may not be executed."""
    try:
        find_program(command)
    except SpawnError as error:
        return error.failure
    return None


def ended_from(exit: Exit) -> Ended:
    return Ended(exit.code, exit.signal, exit.stderr_tail)
