"""The interfaces of recordings: what records a request tells of each of its turns, and a turn of each session.

Whatever records a request sets `REQUEST_TAPE` in its context; a turn that is started in that context is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import ToolRunner


class TurnTape(Protocol):
    """Records one turn."""

    on_written: Callable[[Path], None]
    """Called with the file of the recording when it is written."""

    def runner(self, runner: ToolRunner | None) -> ToolRunner | None:
        """Returns a runner that does the same as `runner`, and records the calls and their outputs."""
        ...

    def session(self, session: AgentSession) -> None:
        """Records what is said in this session from now on. Called before the turn begins or continues on it."""
        ...

    def failed(self, failure: Failure) -> None:
        """Called if this server ends the turn with a failure."""
        ...

    def ended(self, end: TurnEnded) -> None:
        """Called when the turn is over."""
        ...


class RequestTape(Protocol):
    """Records one request of a client."""

    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnTape | None:
        """Called before a turn of the request is started, with the turn as the client asks for it. Returns what records
        the turn, or None. `first` are the events that the client sees before those of the agent.
        """
        ...

    def answered(self, body: bytes) -> None:
        """Takes the final response object, which a client gets by another request if the response is made in the
        background.
        """
        ...


REQUEST_TAPE: ContextVar[RequestTape | None] = ContextVar("request_tape", default=None)
"""Records the request that is being answered; None if it is not recorded."""
