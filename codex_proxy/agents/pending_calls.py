"""Matches the outputs of the client's tools with an agent's requests for them. Without IO.

A dialect knows a call from the model's stream; the agent requests the call's output by a separate message, before
or after the model's answer has ended, and some agents request an output only after an earlier one was given. So the
output may come before or after the request for it. A request is answered as soon as there is an output, without a
time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from codex_proxy.agents.dialect import MAX_UNANSWERED, ToolReply, TooMuchHeld

R = TypeVar("R")


class PendingCalls(Generic[R]):
    """The calls of the client's tools in one turn whose outputs the client has not given or the agent has not
    requested, by call id. `R` is the type of the ids that the answer to a request needs.
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
        """Whether the agent's turn continues once the client has given the outputs. False if no call waits for an
        output, or the agent has answered one of the calls itself.
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
        """Handles the agent's request for the output of the call `call_id`; `request` has the request's ids.
        Returns the line that answers it; empty if there is no output yet, and `add_reply` then returns the answer.
        Raises `TooMuchHeld` if too many requests wait already.
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
        """Handles the output of the call `call_id`. Returns the lines that answer the agent's requests for it. If
        there are no requests yet, stores the output for `add_request` and returns no bytes. If the call does not
        wait for an output, ignores it and returns no bytes.
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
        """Records that the agent itself has given the model an output of this call, so that the client's output is
        not used. If the call was waiting, the turn can no longer continue with outputs of the client
        (`can_resume`).
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
