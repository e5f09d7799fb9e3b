"""Calls of the client's tools that the agent waits for: their answers find their requests, in either order.

The calls are known from the model's raw items, all of a step at once; the agent's own requests for their outputs
come one by one, some of them only after an earlier one was answered (0.163), or not before the response is over.
"""

from __future__ import annotations

from codex_proxy.agents.base import ToolReply
from codex_proxy.agents.codex_app_server.messages import answer
from codex_proxy.agents.codex_app_server.replies import tool_content


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
    def resumable(self) -> bool:
        """Whether the agent's turn goes on as soon as the outputs are there that are waited for."""
        return bool(self.waiting) and not self._bypassed

    def knows(self, call_id: str) -> bool:
        """Whether an output of this call is due, or there already."""
        return call_id in self.waiting or call_id in self._replies

    def requested(self, call_id: str, id: int | str) -> bytes:
        """The agent asks for the output of a call."""
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            return _answer(id, reply)
        self._requests.setdefault(call_id, []).append(id)
        return b""

    def reply(self, call_id: str, reply: ToolReply) -> bytes:
        """The output of a call; of one that does not wait for it, nothing."""
        if call_id not in self.waiting:
            return b""
        self.waiting.remove(call_id)
        requests = self._requests.pop(call_id, None)
        if requests is None:
            self._replies[call_id] = reply
            return b""
        return b"".join(_answer(id, reply) for id in requests)

    def put_out(self, call_id: str) -> None:
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
