"""The event streams of the Managed Agents API: what is logged from the moment at which a reader begins, and previews of
messages on request. Nothing is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import encode_json
from codex_proxy.http.body import ByteBudget
from codex_proxy.parts.managed_agents.events import (
    EventObject,
    LogOf,
    event_id,
    event_of,
    previews_of,
)
from codex_proxy.parts.managed_agents.pages import time_text
from codex_proxy.parts.sessions.stream import (
    DELETED,
    LOG,
    PIECE,
    EncodedEvent,
    EventReader,
    LoggedNow,
    SubagentEvent,
)

PREVIEWS: Final = ("agent.message", "agent.thinking")
PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
PING_SECONDS: Final = 10.0

_logged: Final = msgspec.json.Decoder(LoggedNow)
_piece: Final = msgspec.json.Decoder(SubagentEvent)


class ManagedReader(EventReader):
    """One client's stream of a session, or of one of its threads. It also ends when the session is deleted."""

    def __init__(
        self,
        session: str,
        owner: str,
        unread: ByteBudget,
        on_close: Callable[[EventReader], None],
        *,
        log: LogOf,
        previews: frozenset[str],
    ) -> None:
        """`previews`: the types of events of which there are previews."""
        super().__init__(session, owner, unread, on_close)
        self._log = log
        self._thread = "" if log.id == log.session else log.id
        self._previews = previews

    def _shown(self, told: Sequence[EncodedEvent]) -> Sequence[EncodedEvent]:
        return [
            (event["type"], _frame_of(event)) for kind, data in told for event in self._events_of(kind, data)
        ]

    def _events_of(self, kind: str, data: bytes) -> Iterator[EventObject]:
        if kind == LOG:
            now = _logged.decode(data)
            if now.thread == self._thread:
                (logged,) = now.page.logged
                entries = {} if now.entry is None else {now.entry.id: now.entry}
                yield event_of(logged, now.page, self._log, entries)
        elif kind == DELETED:
            at = time_text(msgspec.json.decode(data, type=float))
            yield {"type": "session.deleted", "id": event_id(f"{self._log.id}_deleted"), "processed_at": at}
        elif self._previews and (kind == PIECE) is bool(self._thread):
            yield from previews_of(self._piece_of(kind, data), self._previews)

    def _piece_of(self, kind: str, data: bytes) -> Any:
        if kind != PIECE:
            return msgspec.json.decode(data)
        piece = _piece.decode(data)
        return msgspec.json.decode(piece.event) if piece.thread == self._thread else {"type": ""}

    def _frame(self, event: bytes) -> bytes:
        return event

    def _error(self, code: str, message: str) -> bytes:
        kind = "authentication_error" if code == "invalid_api_key" else "api_error"
        return _frame_of({"type": "error", "error": {"type": kind, "message": message}})


def _frame_of(event: EventObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode_json(event))
