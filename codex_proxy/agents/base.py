"""The interface of a dialect (the protocol of one agent), and the names of agents' capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.items import HistoryItem, Part
from codex_proxy.core.turn import Turn


class Step(msgspec.Struct, frozen=True):
    """What a dialect returns from each call: events for the log, and bytes to write to the child."""

    events: list[Event] = []
    writes: bytes = b""
    close_stdin: bool = False
    """Whether to close the child's stdin after `writes`. For programs that read their prompt until stdin ends and
    serve one turn."""


NOTHING = Step()


class ToolReply(msgspec.Struct, frozen=True):
    """The answer to a `ToolCallRequested`: the output of the tool, and whether it succeeded."""

    parts: tuple[Part, ...]
    success: bool = True


class Decision(msgspec.Struct, frozen=True):
    """The answer to an `ApprovalRequested` or `InputRequested`. It is a refusal unless `approve` is set."""

    approve: bool = False


Reply = ToolReply | Decision


class Ended(msgspec.Struct, frozen=True):
    """How a child ended: its exit code or the number of the signal (the other is None), and the last part of its
    stderr.
    """

    code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""


L_contra = TypeVar("L_contra", contravariant=True)


class Dialect(Protocol[L_contra]):
    """Speaks an agent's protocol for one turn, without IO. `L_contra` is what it reads: a line, or a decoded message.

    Each method returns the events and the bytes that follow from the call. After its first `TurnEnded` a dialect
    returns no more events; it may still return bytes, which end the turn in the agent. No method raises on what a
    child writes: a message that cannot be understood becomes an event.
    """

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to read or write for the turn, so that the child or its thread can be
        released.
        """
        ...

    def begin(self, turn: Turn) -> Step:
        """Starts the turn: returns what to write for it. Called once, before all other methods."""
        ...

    @property
    def can_resume(self) -> bool:
        """Whether `resume` can be called: the turn has ended well, or waits for outputs of tool calls."""
        ...

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Starts another turn on the same thread, or continues the one that waits for outputs. `new_items` are the
        items of `turn.history` that the thread has not seen."""
        ...

    def receive(self, lines: Sequence[L_contra]) -> Step:
        """Reads what the child printed, in order."""
        ...

    def answer(self, ask_id: str, reply: Reply) -> Step:
        """Answers a `ToolCallRequested`, `ApprovalRequested` or `InputRequested`, which `ask_id` names."""
        ...

    def interrupt(self) -> Step:
        """Asks the agent to stop, since the client needs no more of the turn."""
        ...

    def eof(self, ended: Ended) -> Step:
        """Ends the turn, if it has not ended, because the child has ended."""
        ...


class Reopens(Protocol):
    """A dialect whose agent stores its sessions, so that it can open one again after it was closed."""

    @property
    def thread(self) -> str:
        """The agent's id of the session if it can be opened again as it is now; else empty."""
        ...

    @property
    def lost(self) -> bool:
        """Whether `reopen` has failed before the model was asked anything. The turn has then ended with a failure."""
        ...

    def reopen(self, turn: Turn, thread: str, new_items: Sequence[HistoryItem]) -> Step:
        """Opens the session `thread` again and starts a turn on it. Called once, in place of `begin`. `new_items` are
        the items of `turn.history` that the session has not seen."""
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
