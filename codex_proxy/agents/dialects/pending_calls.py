"""Matches the outputs of the client's tools with an agent's requests for them, without IO. The output may come before
the request, because the agent requests it by a separate message. A request waits without a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from codex_proxy.agents.dialect import MAX_UNANSWERED, ToolReply, TooMuchHeld

R = TypeVar("R")


class PendingCalls(Generic[R]):
    """The calls of the client's tools in one turn that lack an output, or the agent's request for it, by call id. `R`:
    the ids that an answer to a request needs.
    """

    def __init__(self, answer: Callable[[R, ToolReply], bytes]) -> None:
        """`answer` returns the line that answers an agent's request, given its ids and the output."""
        self.waiting: set[str] = set()
        """The ids of calls whose outputs the client has not given yet."""
        self._answer = answer
        self._requests: dict[str, list[R]] = {}
        """The agent's requests for outputs that have not come yet, by call id."""
        self._unanswered = 0
        """The number of these requests."""
        self._replies: dict[str, ToolReply] = {}
        """The outputs that the agent has not requested yet, by call id."""
        self._bypassed = False
        """Whether the agent has answered one of the calls itself, so that it does not wait for the client."""

    @property
    def can_resume(self) -> bool:
        """Whether the agent's turn continues with the client's outputs: False if no call waits for one, or the agent
        has answered one itself.
        """
        return bool(self.waiting) and not self._bypassed

    def has_call(self, call_id: str) -> bool:
        """Returns whether the call waits for its output, or has an output that the agent has not requested yet."""
        return call_id in self.waiting or call_id in self._replies

    def add_calls(self, call_ids: Iterable[str]) -> None:
        """Adds the ids of calls for whose outputs the client is asked. Raises `TooMuchHeld` if there are too many."""
        self.waiting.update(call_ids)
        if len(self.waiting) > MAX_UNANSWERED:
            raise TooMuchHeld(f"it called more than {MAX_UNANSWERED} tools at once")

    def add_request(self, call_id: str, request: R) -> bytes:
        """Handles the agent's request for a call's output. Returns the line that answers it, or empty: then `add_reply`
        does. Raises `TooMuchHeld` if too many wait.
        """
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            return self._answer(request, reply)
        if self._unanswered >= MAX_UNANSWERED:
            raise TooMuchHeld(f"it requested more than {MAX_UNANSWERED} outputs of tools at once")
        self._unanswered += 1
        self._requests.setdefault(call_id, []).append(request)
        return b""

    def add_reply(self, call_id: str, reply: ToolReply) -> bytes:
        """Handles a call's output. Returns the lines that answer the requests for it; without one, keeps it for
        `add_request`. Ignores a call that does not wait.
        """
        if call_id not in self.waiting:
            return b""
        self.waiting.remove(call_id)
        requests = self._take_requests(call_id)
        if not requests:
            self._replies[call_id] = reply
            return b""
        return b"".join(self._answer(request, reply) for request in requests)

    def agent_answered(self, call_id: str) -> None:
        """Records that the agent itself has answered this call, so that the client's output is not used, and the turn
        cannot resume if it waited for it.
        """
        self._take_requests(call_id)
        self._replies.pop(call_id, None)
        self._bypassed |= call_id in self.waiting
        self.waiting.discard(call_id)

    def _take_requests(self, call_id: str) -> list[R]:
        requests = self._requests.pop(call_id, [])
        self._unanswered -= len(requests)
        return requests

    def clear(self) -> None:
        """Drops all calls and requests. Called when the turn has ended."""
        self.waiting.clear()
        self._requests.clear()
        self._unanswered = 0
        self._replies.clear()
        self._bypassed = False
