"""The further input of a client for a turn that runs. Whoever starts a run gives it the inputs so far, adds later ones,
and is told by `InputTaken` in the log that the agent has made one a part of the turn. One that was not taken when the
turn has ended is still the client's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import Turn


def takes_input(turn: Turn, able: Collection[Capability]) -> bool:
    """Whether an agent with these capabilities takes input while it works on the turn. A text that is held to a schema
    is not interrupted.
    """
    return "steering" in able and turn.output_schema is None


class SteeredInputs:
    """The inputs of one run. Each is given to every session that the run has, until one takes it."""

    def __init__(self) -> None:
        self.said: list[HistoryMessage] = []
        """What follows the request's history: the answer up to the last input that was taken, and the inputs in it."""
        self._inputs: dict[str, Sequence[HistoryMessage]] = {}
        """By their ids; empty once taken."""
        self._session: AgentSession | None = None

    def __contains__(self, id: str) -> bool:
        return id in self._inputs

    def add(self, id: str, messages: Sequence[HistoryMessage]) -> None:
        """Adds an input, once for each id."""
        if id not in self._inputs:
            self._inputs[id] = messages
            if self._session is not None:
                self._session.steer(id, messages)

    # --- what the run calls -----------------------------------------------------------------------

    def on_resuming(self, session: AgentSession, new_items: Sequence[HistoryItem]) -> None:
        """Gives a session that waits for outputs what was not taken, before the agent goes on with these items."""
        if any(isinstance(item, HistoryOutput) for item in new_items):
            self.on_begun(session)

    def on_begun(self, session: AgentSession) -> None:
        """Gives a session, which works on the turn from now on, what was not taken."""
        self._session = session
        for id, messages in list(self._inputs.items()):
            if messages:
                session.steer(id, messages)

    def on_taken(self, id: str, answer: Sequence[HistoryMessage]) -> Sequence[HistoryMessage]:
        """Notes that the session has taken an input, behind this part of the answer. Returns the input, which an
        earlier run may have given.
        """
        self._inputs[id] = ()
        messages = () if self._session is None else self._session.taken_input(id)
        self.said += (*answer, *messages)
        return messages

    def on_ended(self) -> None:
        """Gives the session nothing more."""
        self._session = None
