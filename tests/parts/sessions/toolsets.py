"""Sessions whose agent has a toolset, which no request of OpenAI's API can give them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from codex_proxy.app.server import Server
from codex_proxy.core.keys import DEFAULT_NAME
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.sessions.approvals import Approval, Choice
from codex_proxy.parts.sessions.commands import Change
from codex_proxy.parts.sessions.service import SESSIONS, Sessions
from codex_proxy.parts.sessions.sessions import AgentItem, Entry


def _sessions(server: Server) -> Sessions:
    assert server.app is not None
    return server.app[SESSIONS]


async def give_toolset(server: Server, id: str, toolset: Toolset, owner: str = DEFAULT_NAME) -> None:
    """Gives the agent of an idle session this toolset."""
    async with _sessions(server).live(owner, id) as live:
        changed = replace(live.session, agent=replace(live.session.agent, toolset=toolset))
        await live.change(Change.between(live.session, changed))


async def answer(
    server: Server, id: str, request_id: str, choice: Choice, denial: str = "", owner: str = DEFAULT_NAME
) -> None:
    """Answers a question, with words for a denial."""
    await _sessions(server).submit(owner, id, [Approval(request_id, choice, denial)], None)


async def calls(server: Server, id: str, owner: str = DEFAULT_NAME) -> list[tuple[Entry, Any]]:
    """The entries of the agent's own calls, with their events."""
    entries = await _sessions(server).store.all_entries(owner, id)
    found: list[tuple[Entry, Any]] = []
    for entry in entries:
        if isinstance(entry.item, AgentItem):
            events: Any = entry.item.events()
            if getattr(events[0].item, "details", None) is not None:
                found.append((entry, events))
    return found
