"""A server whose sessions ask their client, and the answers."""

from __future__ import annotations

from typing import Any, Final

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
