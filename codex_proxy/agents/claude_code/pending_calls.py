"""Matches the program's requests for the outputs of the client's tools with the outputs.

A call is known from the model's stream; the program requests its output by `tools/call` on its MCP server, before
or after the step has ended. So the output may arrive before or after the request for it. A request is answered as
soon as there is an output, without a time limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from codex_proxy.agents.base import ToolReply
from codex_proxy.agents.claude_code.messages import rpc_answer
from codex_proxy.agents.claude_code.tool_names import output_content


class PendingCalls:
    """The calls of the client's tools that have no output yet, by call id."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        """The ids of calls whose outputs the client has not given yet."""
        self._requests: dict[str, tuple[str, int | str | None]] = {}
        """The program's requests for outputs: the ids of the control request and the JSON-RPC request, by call id."""
        self._replies: dict[str, ToolReply] = {}
        """Outputs that the program has not requested yet, by call id."""
        self._bypassed = False

    @property
    def can_resume(self) -> bool:
        """Whether the program's turn continues once the client sends the outputs."""
        return bool(self.waiting) and not self._bypassed

    def has_call(self, call_id: str) -> bool:
        """Returns whether the call waits for its output, or has an output that the program has not requested yet."""
        return call_id in self.waiting or call_id in self._replies

    def add_calls(self, call_ids: Iterable[str]) -> None:
        """Adds calls whose outputs the client was asked for."""
        self.waiting.update(call_ids)

    def add_request(self, call_id: str, request_id: str, rpc_id: int | str | None) -> bytes:
        """Handles the program's request for the output of a call. `request_id` and `rpc_id` are the ids that the
        answer must have. Returns the line that answers it; empty if there is no output yet.
        """
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            return _answer(request_id, rpc_id, reply)
        self._requests[call_id] = (request_id, rpc_id)
        return b""

    def add_reply(self, call_id: str, reply: ToolReply) -> bytes:
        """Handles the output of a call. Returns the line that answers the program's request for it; empty if the
        program has not requested it yet, or the call does not wait.
        """
        if call_id not in self.waiting:
            return b""
        self.waiting.remove(call_id)
        request = self._requests.pop(call_id, None)
        if request is None:
            self._replies[call_id] = reply
            return b""
        return _answer(*request, reply)

    def program_answered(self, call_id: str) -> None:
        """Records that the program itself has given the model an output of this call, so that it does not wait for
        the client's.
        """
        self._requests.pop(call_id, None)
        self._replies.pop(call_id, None)
        self._bypassed |= call_id in self.waiting
        self.waiting.discard(call_id)

    def clear(self) -> None:
        """Drops all calls: the turn is over."""
        self.waiting.clear()
        self._requests.clear()
        self._replies.clear()
        self._bypassed = False


def _answer(request_id: str, rpc_id: int | str | None, reply: ToolReply) -> bytes:
    result = {"content": output_content(reply.parts)}
    return rpc_answer(request_id, rpc_id, result if reply.success else result | {"isError": True})
