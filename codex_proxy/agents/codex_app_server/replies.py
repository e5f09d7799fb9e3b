"""The agent's own requests: what they ask, and what we answer, in its shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from codex_proxy.agents.base import Decision
from codex_proxy.agents.codex_app_server.messages import UNREADABLE, Message, answer
from codex_proxy.agents.codex_app_server.shapes import one_line
from codex_proxy.core.events import ApprovalRequested, InputRequested
from codex_proxy.core.items import Part, TextPart


def tool_content(part: Part) -> dict[str, Any]:
    """One part of a tool's output, as `item/tool/call` wants it."""
    if isinstance(part, TextPart):
        return {"type": "inputText", "text": part.text}
    return {"type": "inputImage", "imageUrl": part.url}


def decision(ask_id: str, reply: Decision) -> dict[str, Any]:
    """The answer to a question; `ask_id` begins with the method that asked."""
    method = ask_id.partition(":")[0]
    if method == "mcpServer/elicitation/request":
        return {"action": "accept" if reply.approve else "decline", "content": None, "_meta": None}
    if method == "item/tool/requestUserInput":
        return {"answers": {}}
    return {"decision": "accept" if reply.approve else "decline"}


def custom_input(arguments: str) -> str:
    """The input of a custom tool, out of the arguments of the function that it travelled as."""
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any])
    except UNREADABLE:
        return arguments
    given = value.get("input")
    return given if isinstance(given, str) else arguments


def question(message: Message, ask_id: str) -> ApprovalRequested | InputRequested | None:
    """What the agent asks of a person; None where it is nothing that we know an answer to."""
    match message.method:
        case "item/commandExecution/requestApproval":
            return ApprovalRequested(ask_id, "command", one_line(message.params.command))
        case "item/fileChange/requestApproval":
            return ApprovalRequested(ask_id, "file_change", "")
        case "mcpServer/elicitation/request":
            return ApprovalRequested(ask_id, "mcp", message.params.message or "")
        case "item/tool/requestUserInput":
            return InputRequested(ask_id, "")
    return None


class Questions:
    """What the agent has asked of a person and got no answer to."""

    def __init__(self) -> None:
        self._open: dict[str, int | str] = {}

    def asked(self, message: Message, id: int | str) -> ApprovalRequested | InputRequested | None:
        """The event of a question; None where it is nothing that we know an answer to."""
        ask_id = f"{message.method}:{id}"
        asked = question(message, ask_id)
        if asked is not None:
            self._open[ask_id] = id
        return asked

    def reply(self, ask_id: str, reply: Decision) -> bytes:
        """The line that answers; none where nothing was asked, or it was answered before."""
        id = self._open.pop(ask_id, None)
        return b"" if id is None else answer(id, decision(ask_id, reply))

    def clear(self) -> None:
        """The turn is over; nobody waits any more."""
        self._open.clear()
