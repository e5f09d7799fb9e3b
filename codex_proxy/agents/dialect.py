"""The interface of a dialect, which converts between turns and one agent's protocol; and the names of capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.items import HistoryItem, HistoryMessage, Part
from codex_proxy.core.turn import Turn

MAX_HELD: Final = 32 << 20
"""Maximum bytes or characters of output that a dialect keeps until they can be passed on, as many as a turn may
generate.
"""
MAX_UNANSWERED: Final = 1000
"""Maximum waiting calls, or requests for outputs, of one turn."""


class TooMuchHeld(Exception):  # noqa: N818  (it says what happened, as the rest of the vocabulary does)
    """A child has sent more than a dialect keeps. The message says of what. The turn fails."""


class HeldSize:
    __slots__ = ("_left", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._left = MAX_HELD

    def add(self, size: int) -> None:
        """Adds to the size. Raises `TooMuchHeld` beyond `MAX_HELD`."""
        self._left -= size
        if self._left < 0:
            raise TooMuchHeld(f"it sent more than {MAX_HELD >> 20} MiB of {self._what} without ending them")

    def clear(self) -> None:
        self._left = MAX_HELD


class Step(msgspec.Struct, frozen=True):
    events: list[Event] = []
    writes: bytes = b""
    """Bytes for the child's stdin; for an upstream the body of its next HTTP request."""
    close_stdin: bool = False
    """Whether to close stdin after `writes`: a program may read its prompt until stdin ends."""


NOTHING = Step()


class ToolReply(msgspec.Struct, frozen=True):
    parts: tuple[Part, ...]
    success: bool = True


class Decision(msgspec.Struct, frozen=True):
    """An answer to a question for permission. `by_client`: whether the client has made it, not this server.
    `message`: what the model is told of a denial; empty: the agent's own words. `content`: the values of a form.
    """

    approve: bool = False
    by_client: bool = False
    message: str = ""
    content: dict[str, Any] = {}


Reply = ToolReply | Decision


class Ended(msgspec.Struct, frozen=True):
    """How a child ended: exit code or signal (the other is None), and its stderr's end."""

    code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""


class ReceivedMessages(msgspec.Struct, frozen=True):
    writes: bytes
    messages_by_channel: list[tuple[int, list[Any]]]
    limits: bytes | None = None
    """The account's limits as JSON; empty: refused; None: none came."""
    lost: str = ""
    """Why nobody knows whose a line is, as `broken_protocol` says it; empty if none was lost so."""


class ChannelConnection(Protocol):
    """The connection to a process with many sessions, one per channel. Without IO."""

    fault: str | None
    """Why the process cannot be used, if so."""

    def close_channel(self, channel: int) -> bytes: ...

    def receive(self, lines: Sequence[bytes]) -> ReceivedMessages:
        """Sorts lines by channel. Never raises."""


L_contra = TypeVar("L_contra", contravariant=True)


class Dialect(Protocol[L_contra]):
    """Converts turns to messages, and messages (`L_contra`: lines or decoded) to events, without IO. After `TurnEnded`
    there may be bytes that stop the turn, but no events of it. Only `receive` raises, and only `TooMuchHeld`, after
    which the caller ends the turn and calls `interrupt`.
    """

    @property
    def finished(self) -> bool:
        """Whether nothing is left to read or write, so that the child or session can be released."""

    def begin(self, turn: Turn) -> Step:
        """Starts the first turn. Called once, first."""

    @property
    def can_resume(self) -> bool:
        """Whether `resume` may be called: the turn has succeeded, or the agent waits for outputs."""

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Starts another turn, or continues one that waits for outputs. The session has not seen `new_items`."""

    def receive(self, lines: Sequence[L_contra]) -> Step: ...

    def answer(self, request_id: str, reply: Reply) -> Step:
        """Answers a request, if it still waits."""

    def interrupt(self) -> Step:
        """Stops the turn. `TurnEnded` comes at once or, if only the agent can end the turn, later."""

    def eof(self, ended: Ended) -> Step:
        """Handles the child's end: the turn has failed, or after `interrupt` was interrupted."""


class SingleTurn:
    """The common part of `Dialect`s that serve one turn. A subclass sets `ended` when it returns `TurnEnded`."""

    ended = False
    can_resume = False

    @property
    def finished(self) -> bool:
        return self.ended

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Is never called: a dialect of one turn is not kept for another."""
        return NOTHING

    def answer(self, request_id: str, reply: Reply) -> Step:
        """Does nothing; a dialect whose agent asks overrides it."""
        return NOTHING

    def interrupt(self) -> Step:
        """Does nothing: the caller ends the child or the connection, which ends the turn."""
        return NOTHING


class ReopeningDialect(Protocol):
    """A `Dialect` whose agent stores its sessions."""

    @property
    def reopen_id(self) -> str:
        """The agent's id of the session if `reopen` could open it once closed; else empty."""

    @property
    def lost(self) -> bool:
        """Whether `reopen` has failed before the model was called: a new session can take the turn."""

    def reopen(self, turn: Turn, reopen_id: str, new_items: Sequence[HistoryItem]) -> Step:
        """Starts the first turn on a closed session, which has not seen `new_items`. Replaces `begin`."""


class SteerableDialect(Protocol):
    """A `Dialect` whose agent takes further input of the client while it works on a turn."""

    def steer(self, id: str, messages: Sequence[HistoryMessage]) -> Step:
        """Gives the agent an input, or keeps it until the agent can take it. `InputTaken` with this id says that it is
        a part of the turn, after all inputs that were given before. Without that the turn's end, or that of the
        process, leaves it to the client: the agent will not act on it. Between two turns of the client it may be taken
        by the next, while calls wait for their outputs.
        """
