"""A session with an agent: a dialect, and the transport that carries its bytes to and from a child.

`Agent.open` gives one for a turn. It may serve several turns of one thread, one after the other. It carries each step
of the dialect both ways, and sees to it that the agent has finished with the turn before the transport is released.
What the events mean, and who reads them, is the affair of its listener.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from codex_proxy.agents.base import Dialect, Ended, Reply, Step
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.ids import Scheduler, TimerHandle
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn, without_content

log = structlog.get_logger(__name__)

FINISH_SECONDS = 5.0
"""How long an agent may take to finish with a turn that is over: it takes milliseconds unless it hangs."""


class TransportReader(Protocol):
    """What a transport calls, synchronously on the event loop. A session is one."""

    def received(self, messages: Sequence[Any], size: int) -> None:
        """What the child printed, as the dialect reads it; `size` in bytes."""
        ...

    def ended(self, ended: Ended) -> None:
        """The child is gone."""
        ...

    def fail(self, failure: Failure) -> None:
        """What the child prints is no longer to be trusted."""
        ...


class Transport(Protocol):
    """One session's way to a child, which may serve other sessions too."""

    @property
    def exclusive(self) -> bool:
        """The child serves no other session: it may be made to wait, and ended with the turn."""
        ...

    def attach(self, reader: TransportReader) -> None:
        """Sets who reads what the child prints. Called once, before anything is sent."""
        ...

    def send(self, writes: bytes) -> None: ...

    def close_stdin(self) -> None:
        """Ends the child's stdin behind everything sent. Raises `RuntimeError` where the child serves others too."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_idle(self, idle: bool) -> None:
        """Whether the session is only kept for a later turn, so that its process counts as idle without it."""
        ...

    async def release(self, *, finished: bool) -> None:
        """Gives the child back. Not `finished`: the agent may still be at work on the turn; the child is not to be
        used again."""
        ...


class SessionListener(Protocol):
    """Who is called with what the agent does, synchronously on the event loop."""

    def session_received(self, session: AgentSession, events: list[Event], size: int) -> None:
        """Events that the dialect read; `size` is that of the bytes it read them from."""
        ...

    def session_failed(self, session: AgentSession, failure: Failure) -> None:
        """The child is no longer to be trusted."""
        ...

    def session_broke(self, session: AgentSession) -> None:
        """An error in this server's code, which is in the log; nothing is known of the agent's state any more."""
        ...


class AgentSession:
    """Made by `Agent.open`, claimed by whoever wants it, then begun."""

    def __init__(self, turn: Turn, dialect: Dialect[Any], transport: Transport) -> None:
        """`turn` is the turn as the agent is to be given it."""
        self.transport = transport
        self.listener: SessionListener | None = None
        self.gone = False
        """The child has ended."""
        self.turn = turn
        """As it was opened for. Once it has begun, its settings alone: a session that is kept does not keep what a
        client has sent."""
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
        """Takes the session over from the agent that opened it. Whoever does must `close` it sooner or later:
        `released(session, finished)` is called once, when `Agent.release` is to be."""
        self.listener, self._scheduler, self._released = listener, scheduler, released

    def begin(self) -> None:
        """Starts the turn that the session was opened for."""
        self.transport.attach(self)
        turn, self.turn = self.turn, without_content(self.turn)
        self._do(self._dialect.begin, turn)

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        """Begins another turn on the same thread, which has not seen `new_items`; or gives it the outputs that it
        waits for."""
        self._do(self._dialect.resume, turn, new_items)

    def answer(self, ask_id: str, reply: Reply) -> None:
        self._do(self._dialect.answer, ask_id, reply)

    @property
    def exclusive(self) -> bool:
        """The child serves no other session."""
        return self.transport.exclusive

    @property
    def can_resume(self) -> bool:
        """The agent does nothing until `resume` is called: the session may be kept."""
        return not self.gone and not self._closing and self._dialect.can_resume

    def close(self) -> None:
        """Stops the agent, lets it finish with the turn, and releases the transport."""
        if self._closing:
            return
        self._closing = True
        self.resume_reading()
        self._do(self._dialect.interrupt)
        self._release_when_finished()

    def set_idle(self, idle: bool) -> None:
        """Whether the session is only kept for a later turn."""
        self.transport.set_idle(idle)

    def pause_reading(self) -> bool:
        """Makes the child wait; False where it serves other sessions too and cannot."""
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
        """Performs one step. An error of ours in it must not reach the other turns on the same child."""
        try:
            step = act(*given)
            if step.writes:
                self.transport.send(step.writes)
            if step.close_stdin:
                self.transport.close_stdin()
            if self.listener is not None and (step.events or size):
                self.listener.session_received(self, step.events, size)
        except Exception:
            log.exception("turn_broke")
            if self.listener is not None:
                self.listener.session_broke(self)
            self._release(finished=False)
        if self._closing:
            self._release_when_finished()

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
    """The failure of a turn whose child stopped speaking its protocol."""
    return Failure(
        kind=FaultKind.AGENT_PROTOCOL,
        message=f"The agent broke its own protocol: {reason}. Try again; if it stays, update the agent.",
    )
