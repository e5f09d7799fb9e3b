"""Matches outputs of the client's tools with an agent's requests for them. Either may come first. A request waits
without a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from codex_proxy.agents.dialect import MAX_UNANSWERED, ToolReply, TooMuchHeld

R = TypeVar("R")


class PendingCalls(Generic[R]):
    """The calls of one turn that lack an output, or a request for it. `R`: the ids that an answer needs."""

    def __init__(self, answer: Callable[[R, ToolReply], bytes]) -> None:
        self.waiting: set[str] = set()
        """Ids of calls whose output the client has not sent yet."""
        self._answer = answer
        self._requests: dict[str, list[R]] = {}
        """Requests for missing outputs, by call id."""
        self._unanswered = 0
        self._replies: dict[str, ToolReply] = {}
        self._bypassed = False
        """Whether the agent has answered a call itself, and so does not wait for the client."""

    @property
    def can_resume(self) -> bool:
        """Whether the turn continues with the client's outputs."""
        return bool(self.waiting) and not self._bypassed

    def has_call(self, call_id: str) -> bool:
        return call_id in self.waiting or call_id in self._replies

    def add_calls(self, call_ids: Iterable[str]) -> None:
        """Adds calls that the client was asked for. Raises `TooMuchHeld`."""
        self.waiting.update(call_ids)
        if len(self.waiting) > MAX_UNANSWERED:
            raise TooMuchHeld(f"it called more than {MAX_UNANSWERED} tools at once")

    def add_request(self, call_id: str, request: R) -> bytes:
        """Adds the agent's request for an output. Returns the answer; empty if `add_reply` will return it. Raises
        `TooMuchHeld`.
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
        """Returns the answers to requests for this output, or keeps it. Ignores a call that does not wait."""
        if call_id not in self.waiting:
            return b""
        self.waiting.remove(call_id)
        requests = self._take_requests(call_id)
        if not requests:
            self._replies[call_id] = reply
            return b""
        return b"".join(self._answer(request, reply) for request in requests)

    def note_agent_answer(self, call_id: str) -> None:
        """Forgets a call that the agent has answered itself. A turn that waited for it cannot resume."""
        self._take_requests(call_id)
        self._replies.pop(call_id, None)
        self._bypassed |= call_id in self.waiting
        self.waiting.discard(call_id)

    def _take_requests(self, call_id: str) -> list[R]:
        requests = self._requests.pop(call_id, [])
        self._unanswered -= len(requests)
        return requests

    def clear(self) -> None:
        self.waiting.clear()
        self._requests.clear()
        self._unanswered = 0
        self._replies.clear()
        self._bypassed = False
