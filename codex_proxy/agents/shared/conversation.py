"""The common part of dialects whose agents keep a conversation: the turns of one session, with a table of states,
and the outputs of the client's tools that answer an agent's requests. Without IO.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from codex_proxy.agents.dialect import (
    MAX_UNANSWERED,
    NOTHING,
    Decision,
    Ended,
    Reply,
    Step,
    ToolReply,
    TooMuchHeld,
)
from codex_proxy.agents.shared.failures import CONVERSATION_LOST, failure_from_exit
from codex_proxy.core.events import Event, RequestClosed, TurnEnded, TurnStarted
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem, HistoryOutput
from codex_proxy.core.states import StateTable
from codex_proxy.core.turn import Turn, without_content

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


S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=Enum)
Q = TypeVar("Q")
Id = TypeVar("Id", bound=Hashable)
M = TypeVar("M")


NO_TURN = Turn(model="", history=())


class ConversationStates(msgspec.Struct, Generic[S, C], frozen=True):
    table: StateTable[S, C]
    client_waits: frozenset[S]
    """The states in which the client's turn has not ended."""
    reusable: S
    process_ended: C


class ConversationTurn(ABC, Generic[S, C, Q]):
    """The turns of one session. `Q`: what the dialect keeps of an agent's question to the client."""

    stores_sessions = False
    """Whether the agent stores the sessions of turns that ask for it."""

    def __init__(self, states: ConversationStates[S, C], events: list[Event]) -> None:
        """`events` gets the next step's events; the dialect's readers append to the same list."""
        self._states = states
        self._state = states.table.start
        self._turn = NO_TURN
        self._session_id = ""
        self._model_name = ""
        """The model's name, as the agent reports it."""
        self._events = events
        self._writes: list[bytes] = []
        self._questions: dict[str, Q] = {}

    # --- the dialect ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def can_resume(self) -> bool: ...

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Starts another turn, or continues one that waits for outputs; fails if `can_resume` has become False."""
        if not self.can_resume:
            self._fail(CONVERSATION_LOST)
            return self._take_step()
        self._turn = without_content(turn)
        self._note_start(self._model_name or turn.model)
        if self._state is self._states.reusable:
            self._start_again(turn, new_items)
        else:
            self._take_outputs([item for item in new_items if isinstance(item, HistoryOutput)])
        return self._take_step()

    def answer(self, request_id: str, reply: Reply) -> Step:
        if isinstance(reply, ToolReply):
            self._give_output(request_id, reply)
        else:
            self._decide(request_id, reply)
        return self._take_step()

    def eof(self, ended: Ended) -> Step:
        if self._state in self._states.client_waits:
            self._close_items()
            self._events.append(TurnEnded.with_failure(failure_from_exit(ended)))
        self._change(self._states.process_ended)
        self._writes.clear()
        return self._take_step()

    # --- what a dialect adds --------------------------------------------------------------------

    @abstractmethod
    def _start_again(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        """Starts another turn; the session has not seen `new_items`."""

    @abstractmethod
    def _take_outputs(self, outputs: Sequence[HistoryOutput]) -> None: ...

    @abstractmethod
    def _give_output(self, call_id: str, reply: ToolReply) -> None: ...

    @abstractmethod
    def _write_answer(self, request_id: str, question: Q, reply: Decision) -> None: ...

    @abstractmethod
    def _fail(self, failure: Failure) -> None:
        """Ends the client's turn with a failure, and the session's use."""

    def _close_items(self) -> None: ...

    @property
    def _open_subagents(self) -> tuple[str, ...]:
        """The subagents of earlier turns that are still open."""
        return ()

    # --- for the dialect ------------------------------------------------------------------------

    def _decide(self, request_id: str, reply: Decision) -> None:
        question = self._questions.pop(request_id, None)
        if question is not None:
            self._write_answer(request_id, question, reply)

    def _withdraw(self, request_id: str) -> None:
        """Closes a question that the agent no longer asks."""
        if self._questions.pop(request_id, None) is not None:
            self._events.append(RequestClosed(request_id))

    def _deny_all(self) -> None:
        for request_id in list(self._questions):
            self._decide(request_id, Decision())

    def _note_start(self, model: str) -> None:
        """Tells that the agent's session has taken the turn."""
        stored = self.stores_sessions and self._turn.stored_session is not None
        self._events.append(TurnStarted(self._session_id, model, stored, self._open_subagents))

    def _change(self, change: C) -> None:
        self._state = self._states.table[self._state, change]

    def _take_step(self) -> Step:
        if not self._events and not self._writes:
            return NOTHING
        step = Step(self._events[:], b"".join(self._writes))
        self._events.clear()
        self._writes.clear()
        return step


class ChannelRequests(Generic[Id, M]):
    """The requests of one channel, with the handlers of their answers."""

    def __init__(
        self,
        writes: list[bytes],
        id_of: Callable[[int], Id],
        encode: Callable[[Id, str, dict[str, Any]], bytes],
    ) -> None:
        """`id_of` converts a request's number to its id. `encode` converts id, method and parameters to a line,
        which is appended to `writes`.
        """
        self._writes = writes
        self._id_of = id_of
        self._encode = encode
        self._count = 0
        self._handlers: dict[Hashable, Callable[[M], None]] = {}

    def __len__(self) -> int:
        """Returns how many requests wait for an answer that somebody handles."""
        return len(self._handlers)

    def send(self, method: str, params: dict[str, Any], on_answer: Callable[[M], None] | None = None) -> None:
        """Appends a request to the bytes to write. `on_answer` gets the answer; None: the answer is ignored."""
        self._writes.append(self._encode(self.expect(on_answer), method, params))

    def expect(self, on_answer: Callable[[M], None] | None) -> Id:
        """Sets the handler of the next request's answer, and returns its id."""
        self._count += 1
        id = self._id_of(self._count)
        if on_answer is not None:
            self._handlers[id] = on_answer
        return id

    def take_handler(self, id: Hashable) -> Callable[[M], None] | None:
        return self._handlers.pop(id, None)

    def clear(self) -> None:
        self._handlers.clear()
