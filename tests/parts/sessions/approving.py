"""Servers whose sessions ask their client, and the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from codex_proxy.app.server import make_server
from codex_proxy.commands.serve import page_of
from codex_proxy.core.keys import digest_of
from codex_proxy.parts.sessions.approvals import SessionAsk, session_ask
from codex_proxy.parts.sessions.service import SESSIONS
from tests.http.serving import ENVIRONMENT, Answer, Proxy, running_proxy, settings_of
from tests.parts.sessions.driving import AgentsClient

KEY: Final = "the key of the operator"
ASKING: Final[dict[str, Any]] = {
    "sandbox": "danger-full-access",  # the fake agent has no other
    "approvals": "ask",
    "api_key": KEY,
    "fake_dialect": "app-server",
}
START_KEY: Final = "cpx_the-key-of-this-start"


@asynccontextmanager
async def keyless_proxy(folder: Path, **more: Any) -> AsyncIterator[Proxy]:
    """A server without keys, as one that was started in a terminal, which shows `START_KEY`."""
    settings = settings_of(folder, **(ASKING | {"api_key": None, "ui": True} | more))
    digest = digest_of(START_KEY)
    async with running_proxy(await make_server(settings, ENVIRONMENT, page_of, start_digest=digest)) as proxy:
        yield proxy


def answer_to(action: dict[str, Any], decision: str = "approve") -> dict[str, Any]:
    """An event with the answer to a required action."""
    return {
        "type": "agent.session.input.mcp_approval_request_result",
        "request_id": action["request_id"],
        "response": {"type": "mcp_tool_call", "decision": decision},
    }


async def shown(client: AgentsClient, session: str, owner: str = "default") -> list[SessionAsk]:
    """The open questions of a session, as a person is shown them."""
    found = await client.proxy.app[SESSIONS].session(owner, session)
    return [*map(session_ask, found.open_asks)]


async def answer(client: AgentsClient, session: str, ask: SessionAsk, decision: str, **more: Any) -> Answer:
    """A person's answer to a question."""
    body = {"decision": decision, "digest": ask["digest"], **more}
    return await client.ask("POST", f"/sessions/{session}/asks/{ask['request_id']}", body)
