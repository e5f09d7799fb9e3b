"""Calls of the client's tools that the agent waits for: their answers find their requests, in either order.

The calls are known from the model's raw items, all of a step at once; the agent's own requests for their outputs
come one by one, some of them only after an earlier one was answered (0.163), or not before the response is over.
"""

from __future__ import annotations

from codex_proxy.agents.base import ToolReply
from codex_proxy.agents.codex_app_server.messages import answer
from codex_proxy.agents.codex_app_server.replies import tool_content


class PendingCalls:
    """By call id. Every method gives the bytes to write."""

    def __init__(self) -> None:
        self._requests: dict[str, int | str] = {}
        self._replies: dict[str, ToolReply] = {}
        self.waiting: set[str] = set()
        """Calls that were asked of us and have no answer yet."""

    def requested(self, call_id: str, id: int | str) -> bytes:
        """The agent asks for the output of a call."""
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            return _answer(id, reply)
        self._requests[call_id] = id
        return b""

    def reply(self, call_id: str, reply: ToolReply) -> bytes:
        """The output of a call."""
        self.waiting.discard(call_id)
        id = self._requests.pop(call_id, None)
        if id is not None:
            return _answer(id, reply)
        self._replies[call_id] = reply
        return b""

    def clear(self) -> None:
        """The turn is over; nobody waits any more."""
        self._requests.clear()
        self._replies.clear()
        self.waiting.clear()


def _answer(id: int | str, reply: ToolReply) -> bytes:
    content = [tool_content(part) for part in reply.parts]
    return answer(id, {"contentItems": content, "success": reply.success})
