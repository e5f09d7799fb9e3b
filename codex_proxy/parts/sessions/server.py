"""What a session needs of all sessions of its server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.sessions.streams import Streams
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.responses.service import ResponsesService

L_contra = TypeVar("L_contra", contravariant=True)
"""A session on this server (`running.LiveSession`)."""


class Server(Protocol[L_contra]):
    """What a session needs of all sessions of its server (`service.Sessions`)."""

    responses: ResponsesService
    streams: Streams

    @property
    def is_shared(self) -> bool:
        """Whether other servers may use the store."""

    @property
    def store(self) -> SessionStore: ...

    def now(self) -> int: ...

    def epoch(self) -> float: ...

    def new_id(self, prefix: str) -> str: ...

    async def prepare(
        self, owner: str, session: Session, items: Sequence[Mapping[str, Any]], new_items: int = 0
    ) -> PreparedResponse: ...

    def let_go(self, live: L_contra) -> None:
        """Forgets the session if nobody needs it."""

    def forget(self, live: L_contra) -> None: ...

    def give_up(self, live: L_contra) -> None:
        """Forgets a session whose turn met an internal error, and ends that turn as a restart would."""
