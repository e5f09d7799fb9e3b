"""The interface of a dialect, which converts between turns and the messages of one agent's protocol, and the names of
agents' capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.items import HistoryItem, Part
from codex_proxy.core.turn import Turn

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding a child's message as JSON can raise; RecursionError for one that is nested too deep."""


MAX_HELD: Final = 32 << 20
"""The most bytes or characters of a child's output that a dialect keeps until it can be passed on: as many as a turn
may generate (`core.limits.MAX_TURN_CHARS`).
"""
MAX_UNANSWERED: Final = 1000
"""The most calls of the client's tools, and requests for their outputs, that may wait in one turn at once."""


class TooMuchHeld(Exception):  # noqa: N818  (it says what happened, as the rest of the vocabulary does)
    """A child has sent more of something than a dialect keeps; the text says of what. The turn fails with it."""


class HeldSize:
    """Counts what a dialect keeps of a child's output until it can be passed on."""

    __slots__ = ("_left", "_what")

    def __init__(self, what: str) -> None:
        """`what` says in the error what is kept, such as `model items`."""
        self._what = what
        self._left = MAX_HELD

    def add(self, size: int) -> None:
        """Counts so many bytes or characters more. Raises `TooMuchHeld` if there are more than `MAX_HELD`."""
        self._left -= size
        if self._left < 0:
            raise TooMuchHeld(f"it sent more than {MAX_HELD >> 20} MiB of {self._what} without ending them")

    def clear(self) -> None:
        """Counts from 0 again, because everything was passed on or dropped."""
        self._left = MAX_HELD


class Step(msgspec.Struct, frozen=True):
    """The result of a call of a dialect's method: events for the log of the turn, in order, and bytes for the
    agent.
    """

    events: list[Event] = []
    writes: bytes = b""
    """The bytes to write to the child's stdin; for an upstream (a model server), the body of the next HTTP request
    to it."""
    close_stdin: bool = False
    """Whether to close the child's stdin after `writes`. For programs that read their prompt until stdin ends and
    serve one turn."""


NOTHING = Step()


class ToolReply(msgspec.Struct, frozen=True):
    """The answer to a `ToolCallRequested` event: the output of the tool, and whether the tool succeeded."""

    parts: tuple[Part, ...]
    success: bool = True


class Decision(msgspec.Struct, frozen=True):
    """The answer to an `ApprovalRequested` or `InputRequested` event. `approve`: allowed; False: refused."""

    approve: bool = False


Reply = ToolReply | Decision


class Ended(msgspec.Struct, frozen=True):
    """How a child ended: its exit code, or the number of its signal (the other is None), and the last part of its
    stderr.
    """

    code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""


class Received(msgspec.Struct, frozen=True):
    """What a connection with many sessions returns for some lines of its process: bytes to write, and pairs of a
    channel's number and its messages.
    """

    writes: bytes
    messages_by_channel: list[tuple[int, list[Any]]]
    limits: bytes | None = None
    """The account's limits as JSON, if they were reported; empty if the agent refused to report them; None if
    neither has happened."""


class ChannelConnection(Protocol):
    """The state of the connection to a process that serves many sessions, without IO. Each session has a channel."""

    fault: str | None
    """Why the process cannot be used; None if it can."""

    def close_channel(self, channel: int) -> bytes:
        """Closes a channel, and returns what has to be written then."""
        ...

    def receive(self, lines: Sequence[bytes], routed: dict[int, list[bytes]] | None = None) -> Received:
        """Assigns each message in the process's lines to its channel. Never raises. `routed` gets the lines by their
        channels.
        """
        ...


L_contra = TypeVar("L_contra", contravariant=True)


class Dialect(Protocol[L_contra]):
    """Converts turns to the messages of an agent's protocol, and its messages to events, without IO. `L_contra` is what
    it reads: lines, or decoded messages. Each method returns events, and bytes to write. After a turn's `TurnEnded`
    there are no more events of it; there may be bytes that stop it. A message that cannot be understood becomes an
    event: only `receive` raises, and only `TooMuchHeld`, after which the caller ends the turn and calls `interrupt`.
    """

    @property
    def finished(self) -> bool:
        """Whether nothing more has to be read or written for the turn, so that the child, or the thread on it, can
        be released.
        """
        ...

    def begin(self, turn: Turn) -> Step:
        """Starts the first turn: returns the bytes that start it. Called once, before all other methods."""
        ...

    @property
    def can_resume(self) -> bool:
        """Whether `resume` may be called: if the turn has ended successfully, or the agent waits for outputs of
        tool calls.
        """
        ...

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Starts another turn on the thread, or continues one that waits for outputs. `new_items` are what the thread
        has not seen of `turn.history`.
        """
        ...

    def receive(self, lines: Sequence[L_contra]) -> Step:
        """Reads what the child wrote to stdout: lines or messages, in order."""
        ...

    def answer(self, request_id: str, reply: Reply) -> Step:
        """Returns the bytes that answer a `ToolCallRequested`, `ApprovalRequested` or `InputRequested` event; none if
        it no longer waits.
        """
        ...

    def interrupt(self) -> Step:
        """Returns the bytes that stop the agent's work on the turn. `TurnEnded` (interrupted) comes at once or, if only
        the agent can end the turn, with a later `receive` or `eof`.
        """
        ...

    def eof(self, ended: Ended) -> Step:
        """Called when the child has ended. Ends the turn if it has not ended: with a failure, or as interrupted
        after `interrupt`.
        """
        ...


class RemakeContext(msgspec.Struct, frozen=True):
    """What a dialect that is made again, to read a recording, gets beside its facts."""

    model: str
    new_id: Callable[[str], str]
    """Returns a new id with the given prefix."""
    now: Callable[[], float]
    """Returns the seconds since 1970."""


class Remakeable:
    """The common part of dialects that can be made again, to read what one like them has read."""

    def facts(self) -> dict[str, Any]:
        """Returns what the dialect was made with, as JSON, without what is the default."""
        return {}

    @classmethod
    def remade(cls, facts: Mapping[str, Any], context: RemakeContext) -> Self:
        """Returns a dialect like the one with these facts. Raises `ValueError`, `TypeError` or `KeyError` for facts
        that it cannot have.
        """
        return cls(**facts)


class SingleTurn(Remakeable):
    """The common part of `Dialect`s that serve one turn. A subclass sets `_ended` when the turn has ended."""

    _ended = False

    @property
    def finished(self) -> bool:
        """Whether the turn has ended, so that its child or connection may be ended."""
        return self._ended

    @property
    def can_resume(self) -> bool:
        """Always False."""
        return False

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Does nothing. It is never called, because `can_resume` is False."""
        return NOTHING

    def answer(self, request_id: str, reply: Reply) -> Step:
        """Does nothing. A dialect whose agent requests outputs or decisions overrides it."""
        return NOTHING

    def interrupt(self) -> Step:
        """Does nothing: the caller then ends the child or closes the connection, which ends the turn."""
        return NOTHING


class ReopeningDialect(Protocol):
    """The additional interface of a dialect whose agent stores its sessions, so that a closed session can be opened
    again.
    """

    @property
    def thread(self) -> str:
        """The agent's id of the session if the session, once closed, could be opened again by `reopen`; empty if
        not.
        """
        ...

    @property
    def lost(self) -> bool:
        """Whether `reopen` has failed before the model was called. Then the turn has ended with a failure, and the
        caller can start it on a new session.
        """
        ...

    def reopen(self, turn: Turn, thread: str, new_items: Sequence[HistoryItem]) -> Step:
        """Opens the closed session `thread` (the agent's id), and starts a turn on it; once, instead of `begin`.
        `new_items` are what it has not seen.
        """
        ...


Capability = Literal[
    "history",
    "client_tools",
    "tool_replies",
    "structured_output",
    "images",
    "plain_model",
    "web_search",
    "verbosity",
    "service_tier",
    "sampling",
    "tool_choice",
    "max_tokens",
    "forwarding",
    "system_prompt",
    "sandbox",
    "exact_usage",
    "stop_reasons",
    "parallel_calls",
    "model_choice",
]
"""What an agent can do. `tool_replies`: the turn continues when it is given the outputs of its calls, so the server
can run tools in it. `structured_output`: the model's provider is sent the schema of the answer; without it the
schema is put into the model's instructions as text. `max_tokens`: the agent applies the limit itself. `forwarding`:
the agent's server speaks Chat Completions, and can be sent a request's fields that a `Turn` does not have.
`system_prompt`: the developer's instructions are sent as the system prompt, not as text of the user.
`parallel_calls`: the calls of one step are reported together. `model_choice`: the turn's model is used.

If an agent lacks one of the following, its answers say so in the header `x-codex-uncertain`. `sandbox`: the agent's
commands run in the turn's sandbox. `exact_usage`: the tokens of each request are counted by the provider.
`stop_reasons`: the agent reports why an answer was cut off."""
