"""What a session needs of all sessions of its server."""

from __future__ import annotations

from typing import Protocol, TypeVar

from codex_proxy.parts.sessions import SessionsSettings
from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.parts.sessions.streams import Streams
from codex_proxy.parts.sessions.turn_requests import TurnRequests
from codex_proxy.responses.service import ResponsesService

L_contra = TypeVar("L_contra", contravariant=True)
"""A session on this server (`running.LiveSession`)."""


class Server(Protocol[L_contra]):
    """What a session needs of all sessions of its server (`service.Sessions`)."""

    responses: ResponsesService
    settings: SessionsSettings
    turn_requests: TurnRequests
    streams: Streams

    @property
    def is_shared(self) -> bool:
        """Whether other servers may use the store."""

    @property
    def store(self) -> SessionStore: ...

    def now(self) -> int: ...

    def epoch(self) -> float: ...

    def new_id(self, prefix: str) -> str: ...

    def let_go(self, live: L_contra) -> None:
        """Forgets the session if nobody needs it."""

    def forget(self, live: L_contra) -> None: ...

    def give_up(self, live: L_contra) -> None:
        """Forgets a session whose turn met an internal error, and ends that turn as a restart would."""
