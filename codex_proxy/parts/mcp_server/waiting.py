"""Waits for a session, and tells meanwhile what its agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.parts.mcp_server.texts import doing
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.sessions.stream import EncodedEvent, EventReader, MakeReader

_BEGUN: Final = "agent.session.turn.item.added"
_STATES: Final = frozenset(
    f"agent.session.{name}" for name in ("idle", "failed", "in_progress", "requires_action")
)


class StateReader(EventReader):
    """Reads that the session has another state, and which items begin."""

    def _shown(self, told: Sequence[EncodedEvent]) -> Sequence[EncodedEvent]:
        return [each for each in told if each[0] == _BEGUN or each[0] in _STATES]

    def _frame(self, event: bytes) -> bytes:
        return event + b"\n"

    def look(self) -> None:
        """Has the session looked at again."""
        self._wakeup.wake()


def works(session: Session) -> bool:
    """Whether a session is at work, and waits for nobody."""
    if session.status == "requires_action":
        return False
    return session.status == "in_progress" or bool(session.turn or session.queued)


async def wait(
    sessions: Sessions,
    owner: str,
    id: str,
    tell: Callable[[str], Awaitable[None]],
    seconds: float,
    goes_on: Callable[[Session], bool] = works,
    make: MakeReader = StateReader,
) -> Session:
    """Returns the session when it does not go on any more, or after some seconds. `tell` gets a line for each new thing
    that the agent does. `make`: makes the `StateReader`. Raises `Fault`.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    with sessions.streams.count(owner):
        reader = await sessions.follow(owner, id, make)
        try:
            session = await sessions.session(owner, id)
            while goes_on(session) and not reader.finished:
                try:
                    async with asyncio.timeout_at(deadline):
                        await reader.wait()
                except TimeoutError:
                    break
                if line := _newest(reader.take()):
                    await tell(line)
                session = await sessions.session(owner, id)
        finally:
            reader.close()
    return session


def _newest(lines: bytes) -> str:
    """Returns what the last item that has begun says of the agent; empty without one."""
    for line in reversed(lines.splitlines()):
        if line.startswith(b"{"):
            event: dict[str, Any] = msgspec.json.decode(line)
            if event["type"] == _BEGUN and (said := doing(event["item"])):
                return said
    return ""
