"""Creations of sessions whose answer may be lost: the same request with the same `Idempotency-Key` within a day gets
the session that was created before. Source: docs/agents-api.md#a-creation-whose-answer-is-lost.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from codex_proxy.core.faults import bad_request
from codex_proxy.http.middleware.request_context import NOTES
from codex_proxy.parts.sessions.commands import conflict
from codex_proxy.parts.sessions.records import SESSION, Kind
from codex_proxy.parts.sessions.request_values import sessions_at
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.store.values import Record
from codex_proxy.surfaces.requests.options import SANDBOX_HEADER, WORKTREE_HEADER

KEY_HEADER: Final = "Idempotency-Key"
MAX_KEY: Final = 256
"""Maximum characters of an `Idempotency-Key`."""
KEPT_SECONDS: Final = 24 * 3600
"""How long a creation is known by its key."""


class Created(msgspec.Struct, frozen=True):
    """That a session was created. `digest`: that of the request; `at`: seconds since 1970."""

    session: str
    digest: str
    at: int


CREATED: Final = Kind("session_creation", Created, "Creation")


def idempotency_key(request: web.Request) -> str | None:
    """Returns the key of a request, if it has one. Raises `Fault` for one that cannot be kept."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and not 1 <= len(key) <= MAX_KEY:
        raise bad_request(f"The header {KEY_HEADER} must have 1 to {MAX_KEY} characters.", KEY_HEADER)
    if key is not None and not key.isprintable():  # also where its bytes are no UTF-8
        raise bad_request(f"The header {KEY_HEADER} must be printable text in UTF-8.", KEY_HEADER)
    return key


class Creation(NamedTuple):
    """A request for a new session. `known`: the session that it has created before; `id` and `digest` are empty for a
    request without a key.
    """

    id: str = ""
    digest: str = ""
    known: Session | None = None

    def records(self, session: Session) -> list[Record]:
        """Returns what is stored with a new session, so that the same request finds it."""
        if not self.id:
            return []
        json = msgspec.json.encode(Created(session.id, self.digest, session.created_at))
        created = float(session.created_at)
        return [Record(kind=CREATED.name, id=self.id, json=json, created=created, parent=session.id)]


@contextlib.asynccontextmanager
async def creation(request: web.Request, body: bytes) -> AsyncIterator[Creation]:
    """Yields what is known of a request for a new session; meanwhile the same key waits. Raises `Fault` CONFLICT for a
    key that was used for another request.
    """
    key = idempotency_key(request)
    if key is None:
        yield Creation()
        return
    sessions, owner = sessions_at(request)
    id = hashlib.sha256(key.encode()).hexdigest()
    asked = [request.path, request.headers.get(SANDBOX_HEADER, "")]
    if worktree := request.headers.get(WORKTREE_HEADER):
        asked.append(worktree)
    digest = hashlib.sha256(msgspec.json.encode(asked) + body).hexdigest()
    async with sessions.changing(owner, id):
        found, known = await sessions.store.find(owner, CREATED, id), None
        if found is not None and sessions.now() - found.at < KEPT_SECONDS:
            if found.digest != digest:
                raise conflict(f"The {KEY_HEADER} was used for another session: send another key.")
            known = await sessions.store.find(owner, SESSION, found.session)
        if known is not None:
            request[NOTES] |= {"session": known.id, "model": known.agent.model}
        yield Creation(id, digest, known)
