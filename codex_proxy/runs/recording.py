"""What records a request, each of its turns, and a turn of each session.

A turn that starts in a context with `REQUEST_TAPE` is recorded.
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
    """Called with the file of the written recording."""

    def runner(self, runner: ToolRunner | None) -> ToolRunner | None:
        """Returns a runner that also records calls and outputs."""
        ...

    def session(self, session: AgentSession) -> None:
        """Records the session from now on. Called before the turn begins or continues on it."""
        ...

    def failed(self, failure: Failure) -> None:
        """This server ends the turn with a failure."""
        ...

    def ended(self, end: TurnEnded) -> None:
        """The turn is over."""
        ...


class RequestTape(Protocol):
    """Records one request of a client."""

    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnTape | None:
        """Called before a turn starts, as the client asks for it; `first` are the events before the agent's. Returns
        what records it, if anything.
        """
        ...

    def answered(self, body: bytes) -> None:
        """Takes the final response object, which a client gets by another request if the response is made in the
        background.
        """
        ...


REQUEST_TAPE: ContextVar[RequestTape | None] = ContextVar("request_tape", default=None)
"""Records the request that is being answered, if anything."""
