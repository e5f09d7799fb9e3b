"""A server whose sessions ask their client, and the answers."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.parts.sessions.approvals import SessionAsk, session_ask
from codex_proxy.parts.sessions.service import SESSIONS
from tests.http.serving import Answer
from tests.parts.sessions.driving import AgentsClient

KEY: Final = "the key of the operator"
ASKING: Final[dict[str, Any]] = {
    "sandbox": "danger-full-access",  # the fake agent has no other
    "approvals": "ask",
    "api_key": KEY,
    "fake_dialect": "app-server",
}


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
