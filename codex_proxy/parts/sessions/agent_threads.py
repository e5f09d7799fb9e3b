"""The sessions that agents store for a session (`AgentThread`): what other programs do on them becomes turns of the
session, and they are deleted with it. Raises `Fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.events import TurnElsewhere
from codex_proxy.core.faults import Fault
from codex_proxy.parts.sessions.conversation import MANY_ENTRIES
from codex_proxy.parts.sessions.sessions import MAX_THREADS, AgentThread
from codex_proxy.parts.sessions.state import SessionState
from codex_proxy.runs.services import RunServices

log = structlog.get_logger(__name__)


class AgentThreads:
    """Those of one session."""

    def __init__(self, services: RunServices, owner: str, state: SessionState) -> None:
        self._services, self._owner, self._state = services, owner, state

    async def turns_elsewhere(self) -> Sequence[TurnElsewhere]:
        """Returns the turns that other programs have run on the agent's own session of an idle session."""
        session, id = self._state.session, self._state.session.id
        thread = session.thread
        if thread is None or self._state.turn is not None or session.queued:
            return ()
        return await self._services.turns_elsewhere(self._owner, id, thread.agent, thread.id, thread.imported)

    async def add_turns(
        self, elsewhere: Sequence[TurnElsewhere], new_id: Callable[[str], str], now: Callable[[], int]
    ) -> bool:
        """Makes these turns ones of the session. Returns whether they are long."""

        def add() -> None:
            for found in elsewhere:
                self._state.import_turn(found, new_id("turn_"), now())

        long = sum(len(found.parts) for found in elsewhere) > MANY_ENTRIES
        await beside_the_loop(add, long=long)
        return long

    async def delete_all(self) -> None:
        """Has agents delete their sessions. Raises `Fault` CONFLICT while another program uses one."""
        session = self._state.session
        for thread in session.threads:
            await self._services.delete_stored(self._owner, session.id, thread.agent, thread.id)

    async def delete_old(self) -> bool:
        """Has agents delete their oldest sessions, where an idle session has many. Returns whether it has changed. One
        that another program uses is kept, to be deleted later.
        """
        session = self._state.session
        old = session.threads[:-MAX_THREADS]
        if self._state.turn is not None or not old:
            return False
        gone = list[AgentThread]()
        for thread in old:
            try:
                await self._services.delete_stored(self._owner, session.id, thread.agent, thread.id)
            except Fault as fault:  # another program goes on with it
                log.warning("agent_session_left", agent=thread.agent, reason=fault.failure.unquoted)
            else:
                gone.append(thread)
        self._state.forget_threads(gone)
        return bool(gone)
