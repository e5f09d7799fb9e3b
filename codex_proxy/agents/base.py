"""What every agent's dialect looks like, and what an agent declares that it can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.items import HistoryItem, Part
from codex_proxy.core.turn import Turn


class Step(msgspec.Struct, frozen=True):
    """What a dialect makes of one thing that happened: events for the log, bytes for the child."""

    events: list[Event] = []
    writes: bytes = b""
    close_stdin: bool = False
    """Nothing more will be written: the child's stdin ends behind `writes`. For programs that read their prompt to
    the end of stdin and serve one turn; a child that serves several turns has no such step."""


NOTHING = Step()


class ToolReply(msgspec.Struct, frozen=True):
    """The answer to a `ToolCallRequested`."""

    parts: tuple[Part, ...]
    success: bool = True


class Decision(msgspec.Struct, frozen=True):
    """The answer to an `ApprovalRequested` or `InputRequested`: no, unless the operator said otherwise."""

    approve: bool = False


Reply = ToolReply | Decision


class Ended(msgspec.Struct, frozen=True):
    """How a child ended: its exit code or its signal, and the last of what it said on stderr."""

    code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""


L_contra = TypeVar("L_contra", contravariant=True)


class Dialect(Protocol[L_contra]):
    """One turn of one agent, sans-IO. `L_contra` is what it reads: a line, or a decoded message.

    Every method returns what it wants done; nothing must be called next by rule. After the first
    `TurnEnded` it returns no events, but perhaps writes: the agent has yet to forget the turn. None of
    the methods raises on what a child says: a child's nonsense is an event.
    """

    @property
    def finished(self) -> bool:
        """Nothing is left to read or to write: the child, or its thread, may be let go."""
        ...

    def begin(self, turn: Turn) -> Step:
        """Starts the turn. Called once, first."""
        ...

    @property
    def can_resume(self) -> bool:
        """The turn is over, or waits for outputs of calls, in such a way that `resume` can take it up."""
        ...

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Another turn on the thread of a dialect that can resume. `new_items`: those of `turn.history` that it has
        not seen."""
        ...

    def receive(self, lines: Sequence[L_contra]) -> Step:
        """What the child printed, in order."""
        ...

    def answer(self, ask_id: str, reply: Reply) -> Step:
        """The reply to a `ToolCallRequested`, `ApprovalRequested` or `InputRequested`."""
        ...

    def interrupt(self) -> Step:
        """The client wants no more: what to write so that the agent stops and forgets the turn."""
        ...

    def eof(self, ended: Ended) -> Step:
        """The child is gone. Ends the turn if it had not ended."""
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
]
"""`tool_replies`: a turn goes on with the outputs of its calls, so that a server can run tools in it."""
