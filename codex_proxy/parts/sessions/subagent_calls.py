"""The items of what an agent does with its subagents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codex_proxy.core.items import SubagentAction


def call_fields(action: SubagentAction) -> Mapping[str, Any]:
    """Returns the fields of an item, besides those of every item. The ids are those that clients know."""
    one = {"sender_agent_id": action.sender, "recipient_agent_id": next(iter(action.recipients), "")}
    content = [{"type": "output_text", "text": action.text}] if action.text else []
    if action.kind == "create":
        asked = {"model": action.model, "reasoning_effort": action.effort}
        return {"type": "create_subagent_call", "agent_id": action.sender, "content": content, **asked}
    if action.kind == "wait":
        to = list(action.recipients)
        return {
            "type": "wait_for_subagents_call",
            "sender_agent_id": action.sender,
            "recipient_agent_ids": to,
        }
    if action.kind == "message":
        return {"type": "agent_message", **one, "content": content}
    if action.kind == "send":
        return {"type": "send_subagent_input_call", **one, "content": content}
    return {"type": f"{action.kind}_subagent_call", **one}
