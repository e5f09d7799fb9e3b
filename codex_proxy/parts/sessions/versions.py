"""The versions of agents: an agent is changed under its lease, and what it was before stays below it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from codex_proxy.parts.sessions.agents import StoredAgent
from codex_proxy.parts.sessions.records import AGENT, agent_record, version_record
from codex_proxy.parts.sessions.service import Sessions


async def change_agent(
    sessions: Sessions, owner: str, id: str, change: Callable[[StoredAgent], StoredAgent]
) -> StoredAgent:
    """Changes an agent, when no other server does. With other settings or metadata it is a new version, and the one
    before is kept. Raises `Fault`: NOT_FOUND, and what `change` raises.
    """
    async with sessions.changing(owner, id), sessions.store.holding(owner, AGENT, id) as held:
        before = await sessions.store.get(owner, AGENT, id)
        agent, records = change(before), []
        if agent == before:
            return agent
        if (agent.settings, agent.metadata) != (before.settings, before.metadata):
            agent = replace(agent, version=before.version + 1)
            records.append(version_record(before, sessions.epoch()))
        agent = replace(agent, updated_at=sessions.now())
        await sessions.store.write(owner, [*records, agent_record(agent)], **held)
        return agent
