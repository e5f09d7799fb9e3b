"""Observers of turns: the page's records, traces, and recorders. A turn that starts in a context with
`REQUEST_RECORDER` is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

import structlog

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.own_errors import trace_of
from codex_proxy.core.turn import Turn
from codex_proxy.runs.event_log import TurnObserver
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.runs.turn_records import TurnRecord

log = structlog.get_logger(__name__)


class TurnWatcher(Protocol):
    def begin(self, turn: Turn, agent: str) -> TurnObserver:
        """Returns the observer of a turn that starts now, in its context."""


class TurnRecorder(Protocol):
    on_written: Callable[[Path], None]

    def runner(self, runner: ToolRunner | None) -> ToolRunner | None:
        """Returns a runner that also records calls and outputs."""

    def on_session(self, session: AgentSession) -> None:
        """Records the session, before the turn begins or continues on it."""

    def on_failure(self, failure: Failure) -> None:
        """Called when this server ends the turn with a failure."""

    def on_end(self, end: TurnEnded) -> None:
        """Called when the turn is over."""


class RequestRecorder(Protocol):
    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnRecorder | None:
        """Returns the recorder of a turn that is about to start, if it is recorded. `first`: events before the
        agent's.
        """

    def on_final_object(self, body: bytes) -> None:
        """Takes the final object of a background response."""


REQUEST_RECORDER: ContextVar[RequestRecorder | None] = ContextVar("request_recorder", default=None)
"""Records the request that is being answered; None: not recorded."""


def observe(
    turn: Turn, agent: Agent, watchers: Sequence[TurnWatcher], first: Sequence[Event]
) -> tuple[list[TurnObserver], TurnRecorder | None]:
    """Begins the observers of a turn that starts now, and its recorder, if any, which tells the page's record its file.
    `first`: events before the agent's.
    """
    observers = [begun for watcher in watchers if (begun := _begin(watcher, turn, agent.name)) is not None]
    request = REQUEST_RECORDER.get()
    recorder = None if request is None else request.turn(turn, agent, first)
    record = next((each for each in observers if isinstance(each, TurnRecord)), None)
    if recorder is not None and record is not None:
        recorder.on_written = record.on_written
    return observers, recorder


def _begin(watcher: TurnWatcher, turn: Turn, agent: str) -> TurnObserver | None:
    try:
        return watcher.begin(turn, agent)
    except Exception as error:  # noqa: BLE001 - what looks on must not end a turn
        log.error("internal_error", **trace_of(error))
        return None
