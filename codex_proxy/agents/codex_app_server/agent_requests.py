"""The agent's own requests, and the proxy's answers: approvals, questions, and outputs of the client's tools.

A call of a client's tool is known from the model's raw items, all calls of a step together. The agent's requests for
the outputs come one by one, some only after an earlier one was answered (0.163), others only after the response is
over. So an output may come before or after the agent's request for it.
"""

from __future__ import annotations

from typing import Any

from codex_proxy.agents.base import Decision, ToolReply
from codex_proxy.agents.codex_app_server.wire import Message, answer, command_text
from codex_proxy.core.events import ApprovalRequested, InputRequested
from codex_proxy.core.items import Part, TextPart


def tool_content(part: Part) -> dict[str, Any]:
    """Converts one part of a tool's output for `item/tool/call`."""
    if isinstance(part, TextPart):
        return {"type": "inputText", "text": part.text}
    return {"type": "inputImage", "imageUrl": part.url}


def decision_result(ask_id: str, reply: Decision) -> dict[str, Any]:
    """Returns the result that answers an approval or question; `ask_id` begins with the request's method."""
    method = ask_id.partition(":")[0]
    if method == "mcpServer/elicitation/request":
        return {"action": "accept" if reply.approve else "decline", "content": None, "_meta": None}
    if method == "item/tool/requestUserInput":
        return {"answers": {}}
    return {"decision": "accept" if reply.approve else "decline"}


def question_event(message: Message, ask_id: str) -> ApprovalRequested | InputRequested | None:
    """Returns the event of an approval or question; None for a request that is not supported. `ask_id` becomes the
    id of the event.
    """
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
    """The agent's approval requests and questions that have no answer yet."""

    def __init__(self) -> None:
        self._open: dict[str, int | str] = {}

    def add(self, message: Message, id: int | str) -> ApprovalRequested | InputRequested | None:
        """Adds a request and returns its event; None for a request that is not supported."""
        ask_id = f"{message.method}:{id}"
        event = question_event(message, ask_id)
        if event is not None:
            self._open[ask_id] = id
        return event

    def answer(self, ask_id: str, reply: Decision) -> bytes:
        """Returns the line that answers the request; empty if there is no such request, or it is answered already."""
        id = self._open.pop(ask_id, None)
        return b"" if id is None else answer(id, decision_result(ask_id, reply))

    def clear(self) -> None:
        """Drops all requests: the turn is over."""
        self._open.clear()


class PendingCalls:
    """Calls of the client's tools that have no output yet, by call id."""

    def __init__(self) -> None:
        self._requests: dict[str, list[int | str]] = {}
        """The ids of the agent's requests for outputs that have not come yet, by call id."""
        self._replies: dict[str, ToolReply] = {}
        """The outputs that the agent has not requested yet, by call id."""
        self.waiting: set[str] = set()
        """The ids of calls whose outputs the client has not given yet."""
        self._bypassed = False
        """Whether the agent has answered one of the calls itself, so that it does not wait for the client."""

    @property
    def can_resume(self) -> bool:
        """Whether the agent's turn continues once the client gives the outputs."""
        return bool(self.waiting) and not self._bypassed

    def has_call(self, call_id: str) -> bool:
        """Returns whether the call waits for its output, or has an output that the agent has not requested yet."""
        return call_id in self.waiting or call_id in self._replies

    def add_request(self, call_id: str, id: int | str) -> bytes:
        """Handles the agent's request for an output. Returns the line that answers it; empty if there is no output
        yet.
        """
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            return _answer(id, reply)
        self._requests.setdefault(call_id, []).append(id)
        return b""

    def add_reply(self, call_id: str, reply: ToolReply) -> bytes:
        """Handles the output of a call. Returns the lines that answer the agent's requests for it; empty if there
        are none.
        """
        if call_id not in self.waiting:
            return b""
        self.waiting.remove(call_id)
        requests = self._requests.pop(call_id, None)
        if requests is None:
            self._replies[call_id] = reply
            return b""
        return b"".join(_answer(id, reply) for id in requests)

    def agent_answered(self, call_id: str) -> None:
        """Records that the agent itself has given the model an output of this call."""
        self._requests.pop(call_id, None)
        self._replies.pop(call_id, None)
        self._bypassed |= call_id in self.waiting
        self.waiting.discard(call_id)

    def clear(self) -> None:
        """Drops all calls: the turn is over."""
        self._requests.clear()
        self._replies.clear()
        self.waiting.clear()


def _answer(id: int | str, reply: ToolReply) -> bytes:
    """Encodes the answer to a request for an output."""
    content = [tool_content(part) for part in reply.parts]
    return answer(id, {"contentItems": content, "success": reply.success})
