"""Streams of what happens in all sessions of a key: the events of each, and its summary whenever that has
changed. Source: docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from codex_proxy.core.faults import Fault
from codex_proxy.http.body import ByteBudget
from codex_proxy.parts.sessions.records import SESSION, SessionStore
from codex_proxy.parts.sessions.stream import (
    DELETED,
    FOR_OTHERS,
    MISSED,
    EncodedEvent,
    EventReader,
    encode_event,
)
from codex_proxy.parts.sessions.summaries import SessionSummary, ViewerNow, summary_of
from codex_proxy.responses.service import ServerTasks

log = structlog.get_logger(__name__)

SUMMARY_SECONDS: Final = 0.25
"""Seconds between two summaries of one session."""
_WITH_SESSION_ID: Final = ("agent.session.turn.", "agent.output.")
"""How the types of events begin that have the id of their session already."""


def _event(kind: str, **fields: Any) -> EncodedEvent:
    return kind, encode_event({"type": kind, **fields}, f"event_{secrets.token_hex(16)}")


def _with_session_id(session: str, event: EncodedEvent) -> EncodedEvent:
    kind, data = event
    if kind == DELETED:
        return _event("agent.session.deleted", session_id=session)
    if kind.startswith(_WITH_SESSION_ID) or kind == "error":
        return event
    return kind, b'{"session_id":"%b",%b' % (session.encode(), data[1:])


class FeedReader(EventReader):
    """One client's stream. It ends when the server stops, or the client leaves."""

    def __init__(
        self, owner: str, unread: ByteBudget, on_close: Callable[[EventReader], None], viewer: ViewerNow
    ) -> None:
        """`viewer`: for whom summaries are made, with the rights of the moment."""
        super().__init__("", owner, unread, on_close)
        self.viewer = viewer

    def begin(self, summaries: Sequence[SessionSummary]) -> None:
        """Puts the summaries before whatever has happened since the stream was opened."""
        _, data = _event("agent.session.summaries", data=list(summaries))
        self._events.insert(0, data)


class Feed:
    """The streams of one owner at this server."""

    def __init__(
        self,
        owner: str,
        unread: ByteBudget,
        store: SessionStore,
        tasks: ServerTasks,
        on_empty: Callable[[Feed], None],
    ) -> None:
        """`tasks` read the sessions whose summaries have changed."""
        self.owner = owner
        self._unread = unread
        self._store = store
        self._tasks = tasks
        self._on_empty = on_empty
        self._readers: set[FeedReader] = set()
        self._pausing: dict[str, bool] = {}
        """The sessions whose summaries were sent just now, each with whether it has changed since."""
        self._reading = asyncio.Lock()
        """Held while a summary is read and sent, so that an older one does not come behind it."""

    def new(self, viewer: ViewerNow) -> FeedReader:
        """Returns a reader of what happens from now on."""
        reader = FeedReader(self.owner, self._unread, self._on_closed, viewer)
        self._readers.add(reader)
        return reader

    def _on_closed(self, reader: EventReader) -> None:
        self._readers = {each for each in self._readers if each is not reader}
        if not self._readers:
            self._on_empty(self)

    def add(self, session: str, told: Sequence[EncodedEvent]) -> None:
        """Adds what has happened in a session."""
        events = [
            _with_session_id(session, each)
            for each in told
            if each[0] not in FOR_OTHERS or each[0] == DELETED
        ]
        for reader in tuple(self._readers):
            reader.add(events)

    def note(self, session: str) -> None:
        """Sends the summary of a session that has changed: at once, or when the pause since the last one is over."""
        if session in self._pausing:
            self._pausing[session] = True
            return
        self._pausing[session] = False
        self._tasks.spawn(self._send_summary(session))
        asyncio.get_running_loop().call_later(SUMMARY_SECONDS, self._end_pause, session)

    def _end_pause(self, session: str) -> None:
        if self._pausing.pop(session) and self._readers:
            self.note(session)

    async def _send_summary(self, id: str) -> None:
        async with self._reading:
            try:
                session = await self._store.find(self.owner, SESSION, id)
                if session is None:  # deleted meanwhile
                    return
                for reader in tuple(self._readers):
                    try:
                        viewer = reader.viewer()
                    except Fault:
                        continue  # its key is no longer valid, with which the stream ends
                    summary = await summary_of(self._store, self.owner, session, viewer)
                    reader.add([_event("agent.session.summary", summary=summary)])
            except Fault as fault:
                log.warning("session_summary_not_sent", session=id, reason=fault.failure.message)
                self.interrupt()

    def interrupt(self) -> None:
        """Ends all streams with an error, since something may be missing."""
        for reader in tuple(self._readers):
            reader.interrupt(MISSED)

    def end(self) -> None:
        for reader in tuple(self._readers):
            reader.end()
