"""A session with an agent: a dialect, and the transport that carries its bytes to and from a child.

`Agent.open` returns one for a turn. It can serve several turns of one thread, one after the other. It performs the
steps of the dialect, and keeps the transport until the agent has finished with the turn. Its listener receives the
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from codex_proxy.agents.base import Dialect, Ended, Reply, Step
from codex_proxy.agents.origin_marks import OriginMarks
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.ids import Scheduler, TimerHandle
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn, without_content

log = structlog.get_logger(__name__)

FINISH_SECONDS = 5.0
"""How long an agent may take to end a turn that is over. It takes milliseconds unless the agent hangs."""


class TransportReader(Protocol):
    """What a transport calls, synchronously on the event loop. `AgentSession` implements it."""

    def received(self, messages: Sequence[Any], size: int) -> None:
        """Takes what the child printed, in the pieces that the dialect reads; `size` is their length in bytes."""
        ...

    def ended(self, ended: Ended) -> None:
        """Is called once, when the child has ended."""
        ...

    def fail(self, failure: Failure) -> None:
        """Is called when the output of the child can no longer be read, for example after a line that is too long."""
        ...


class Transport(Protocol):
    """Carries the bytes of one session to and from a child, which may serve other sessions too."""

    @property
    def exclusive(self) -> bool:
        """Whether the child serves this session only, so that it may be made to wait and may be ended with the turn."""
        ...

    def attach(self, reader: TransportReader) -> None:
        """Sets the reader of the child's output. Called once, before anything is sent."""
        ...

    def send(self, writes: bytes) -> None: ...

    def close_stdin(self) -> None:
        """Closes the child's stdin after everything sent. Raises `RuntimeError` where the child serves other sessions
        too."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_idle(self, idle: bool) -> None:
        """Says whether the session is only kept for a later turn, so that its process counts as idle."""
        ...

    async def release(self, *, finished: bool) -> None:
        """Gives the child back. Where not `finished`, the agent may still be working on the turn, and this part of
        the child is not used again."""
        ...


class SessionListener(Protocol):
    """Receives what happens in a session, synchronously on the event loop."""

    def session_received(self, session: AgentSession, events: list[Event], size: int) -> None:
        """Takes the events that the dialect made of `size` bytes."""
        ...

    def session_failed(self, session: AgentSession, failure: Failure) -> None:
        """Is called when the output of the child can no longer be read."""
        ...

    def session_broke(self, session: AgentSession) -> None:
        """Is called after an error in this server's own code, which is logged. The state of the agent is unknown
        then."""
        ...


class AgentSession:
    """A session between `Agent.open` and `Agent.release`: claimed by its owner, begun, perhaps resumed, then closed."""

    def __init__(self, turn: Turn, dialect: Dialect[Any], transport: Transport) -> None:
        """`turn` is what the agent is asked, after everything that the server changes in a request."""
        self.transport = transport
        self.listener: SessionListener | None = None
        self.gone = False
        """The child has ended."""
        self.turn = turn
        """The turn that the session was opened for. After `begin` it holds the settings alone, so that a kept session
        does not keep a client's texts."""
        self.origin: OriginMarks | None = None
        """Of an agent that is one of several: marks what only it can read."""
        self._dialect = dialect
        self._scheduler: Scheduler | None = None
        self._released: Callable[[AgentSession, bool], None] | None = None
        self._timer: TimerHandle | None = None
        self._closing = False
        self._paused = False

    # --- what its owner calls -------------------------------------------------------------------

    def claim(
        self,
        listener: SessionListener,
        scheduler: Scheduler,
        released: Callable[[AgentSession, bool], None],
    ) -> None:
        """Makes the caller the owner of the session, who must `close` it. `released(session, finished)` is called
        once, when `Agent.release` is due."""
        self.listener, self._scheduler, self._released = listener, scheduler, released

    def begin(self) -> None:
        """Starts the turn that the session was opened for."""
        self.transport.attach(self)
        turn, self.turn = self.turn, without_content(self.turn)
        self._do(self._dialect.begin, turn)

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        """Starts another turn on the same thread, or gives the outputs that it waits for. `new_items` are the items
        that the thread has not seen."""
        if self.origin is not None:
            turn, new_items = (
                msgspec.structs.replace(turn, model=self.turn.model),
                self.origin.own(new_items),
            )
        self._do(self._dialect.resume, turn, new_items)

    def answer(self, ask_id: str, reply: Reply) -> None:
        self._do(self._dialect.answer, ask_id, reply)

    @property
    def exclusive(self) -> bool:
        """Whether the child serves this session only."""
        return self.transport.exclusive

    @property
    def can_resume(self) -> bool:
        """Whether the agent waits for `resume`, so that the session may be kept."""
        return not self.gone and not self._closing and self._dialect.can_resume

    def close(self) -> None:
        """Interrupts the agent, waits until it has finished with the turn (`FINISH_SECONDS` at most), and releases
        the transport."""
        if self._closing:
            return
        self._closing = True
        self.resume_reading()
        self._do(self._dialect.interrupt)
        self._release_when_finished()

    def set_idle(self, idle: bool) -> None:
        """Says whether the session is only kept for a later turn."""
        self.transport.set_idle(idle)

    def pause_reading(self) -> bool:
        """Makes the child wait. Returns False where it serves other sessions too, and so cannot be made to."""
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
        self._do(self._dialect.receive, messages, size=size)

    def ended(self, ended: Ended) -> None:
        self.gone = True
        self._do(self._dialect.eof, ended)
        self._release(finished=True)

    def fail(self, failure: Failure) -> None:
        if self.listener is not None:
            self.listener.session_failed(self, failure)

    # --- both ways ------------------------------------------------------------------------------

    def _do(self, act: Callable[..., Step], *given: Any, size: int = 0) -> None:
        """Performs one step. An error in our code ends this session and leaves the other turns on the same child
        alone."""
        try:
            step = act(*given)
            if step.writes:
                self.transport.send(step.writes)
            if step.close_stdin:
                self.transport.close_stdin()
            if step.events or size:
                self._tell(step.events, size)
        except Exception:
            log.exception("turn_broke")
            if self.listener is not None:
                self.listener.session_broke(self)
            self._release(finished=False)
        if self._closing:
            self._release_when_finished()

    def _tell(self, events: list[Event], size: int) -> None:
        if self.listener is None:
            return
        if self.origin is not None:
            events = self.origin.on(events)
        self.listener.session_received(self, events, size)

    def _release_when_finished(self) -> None:
        if self._dialect.finished or self.transport.exclusive:
            self._release(finished=True)
        elif self._timer is None and self._released is not None and self._scheduler is not None:
            when = self._scheduler.time() + FINISH_SECONDS
            self._timer = self._scheduler.call_at(when, lambda: self._release(finished=False))

    def _release(self, *, finished: bool) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_reading()
        released, self._released = self._released, None
        if released is not None:
            released(self, finished)


def broken_protocol(reason: str) -> Failure:
    """Returns the failure of a turn whose child broke its protocol; `reason` is the end of a sentence."""
    return Failure(
        kind=FaultKind.AGENT_PROTOCOL,
        message=f"The agent broke its own protocol: {reason}. Try again; if it stays, update the agent.",
    )
