"""The agent's own requests: what they ask, and what we answer, in its shapes."""

from __future__ import annotations

from typing import Any

from codex_proxy.agents.base import Decision, ToolReply
from codex_proxy.agents.codex_app_server.messages import Message, answer
from codex_proxy.agents.codex_app_server.payloads import command_text
from codex_proxy.core.events import ApprovalRequested, InputRequested
from codex_proxy.core.items import Part, TextPart


def tool_content(part: Part) -> dict[str, Any]:
    """One part of a tool's output, as `item/tool/call` wants it."""
    if isinstance(part, TextPart):
        return {"type": "inputText", "text": part.text}
    return {"type": "inputImage", "imageUrl": part.url}


def decision_result(ask_id: str, reply: Decision) -> dict[str, Any]:
    """The answer to a question; `ask_id` begins with the method that asked."""
    method = ask_id.partition(":")[0]
    if method == "mcpServer/elicitation/request":
        return {"action": "accept" if reply.approve else "decline", "content": None, "_meta": None}
    if method == "item/tool/requestUserInput":
        return {"answers": {}}
    return {"decision": "accept" if reply.approve else "decline"}


def question_event(message: Message, ask_id: str) -> ApprovalRequested | InputRequested | None:
    """What the agent asks of a person; None where it is nothing that we know an answer to."""
    match message.method:
        case "item/commandExecution/requestApproval":
            return ApprovalRequested(ask_id, "command", command_text(message.params.command))
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

    def add(self, message: Message, id: int | str) -> ApprovalRequested | InputRequested | None:
        """The event of a question; None where it is nothing that we know an answer to."""
        ask_id = f"{message.method}:{id}"
        event = question_event(message, ask_id)
        if event is not None:
            self._open[ask_id] = id
        return event

    def answer(self, ask_id: str, reply: Decision) -> bytes:
        """The line that answers; none where nothing was asked, or it was answered before."""
        id = self._open.pop(ask_id, None)
        return b"" if id is None else answer(id, decision_result(ask_id, reply))

    def clear(self) -> None:
        """The turn is over; nobody waits any more."""
        self._open.clear()


class PendingCalls:
    """By call id. What gives bytes gives what to write."""

    def __init__(self) -> None:
        self._requests: dict[str, list[int | str]] = {}
        self._replies: dict[str, ToolReply] = {}
        self.waiting: set[str] = set()
        """Calls that were asked of us and have no answer yet."""
        self._bypassed = False
        """The agent answered one of them by itself: from then on it does not wait for us."""

    @property
    def can_resume(self) -> bool:
        """Whether the agent's turn goes on as soon as the outputs are there that are waited for."""
        return bool(self.waiting) and not self._bypassed

    def has_call(self, call_id: str) -> bool:
        """Whether an output of this call is due, or there already."""
        return call_id in self.waiting or call_id in self._replies

    def add_request(self, call_id: str, id: int | str) -> bytes:
        """The agent asks for the output of a call."""
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            return _answer(id, reply)
        self._requests.setdefault(call_id, []).append(id)
        return b""

    def add_reply(self, call_id: str, reply: ToolReply) -> bytes:
        """The output of a call; of one that does not wait for it, nothing."""
        if call_id not in self.waiting:
            return b""
        self.waiting.remove(call_id)
        requests = self._requests.pop(call_id, None)
        if requests is None:
            self._replies[call_id] = reply
            return b""
        return b"".join(_answer(id, reply) for id in requests)

    def agent_answered(self, call_id: str) -> None:
        """The agent has given the model an output of this call."""
        self._requests.pop(call_id, None)
        self._replies.pop(call_id, None)
        self._bypassed |= call_id in self.waiting
        self.waiting.discard(call_id)

    def clear(self) -> None:
        """The turn is over; nobody waits any more."""
        self._requests.clear()
        self._replies.clear()
        self.waiting.clear()


def _answer(id: int | str, reply: ToolReply) -> bytes:
    content = [tool_content(part) for part in reply.parts]
    return answer(id, {"contentItems": content, "success": reply.success})
