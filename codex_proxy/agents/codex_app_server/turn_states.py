"""The states of a turn over a thread of `codex app-server`, and what leads from one to another."""

from __future__ import annotations

from enum import Enum

from codex_proxy.core.states import StateTable


class State(Enum):
    """How far a turn and its thread are. In all states but ACTIVE the client has the end of its turn."""

    ACTIVE = "the agent works on the turn, waits for outputs of its calls, or is being asked to begin"
    ABANDONED = "the client has the end of its turn, while the agent may still work on it"
    REUSABLE = "the agent's turn ended well: another one can be started on the thread"
    UNUSABLE = "the agent's turn is over, and nobody can go on from it"
    CLOSING = "nobody wants the thread any more, on which the agent may still work"
    UNSUBSCRIBING = "the agent's turn is over or told to stop, and its thread is to be unsubscribed"
    DONE = "nothing is left to read or write"


class Change(Enum):
    """What leads to another state."""

    ENDED_WELL = "the agent has completed its turn"
    ENDED_BADLY = "the agent's turn is over in any other way, or its thread cannot be resumed"
    GIVEN_UP = "the turn cannot go on, though the agent may"
    RESUMED = "another turn starts on the thread"
    UNWANTED = "nobody wants the thread any more"
    INTERRUPTED = "the agent was told to stop its turn"
    UNSUBSCRIBED = "the agent has let go of the thread, or has none"
    PROCESS_ENDED = "the agent's process is gone"


TABLE = StateTable(
    State.ACTIVE,
    {
        State.ACTIVE: {
            Change.ENDED_WELL: State.REUSABLE,
            Change.ENDED_BADLY: State.UNUSABLE,
            Change.GIVEN_UP: State.ABANDONED,
            Change.PROCESS_ENDED: State.DONE,
        },
        State.ABANDONED: {
            Change.GIVEN_UP: State.ABANDONED,
            Change.UNWANTED: State.CLOSING,
            Change.PROCESS_ENDED: State.DONE,
        },
        State.REUSABLE: {
            Change.RESUMED: State.ACTIVE,
            Change.ENDED_BADLY: State.UNUSABLE,
            Change.UNWANTED: State.UNSUBSCRIBING,
            Change.PROCESS_ENDED: State.DONE,
        },
        State.UNUSABLE: {
            Change.ENDED_BADLY: State.UNUSABLE,
            Change.UNWANTED: State.UNSUBSCRIBING,
            Change.PROCESS_ENDED: State.DONE,
        },
        State.CLOSING: {
            Change.GIVEN_UP: State.CLOSING,
            Change.INTERRUPTED: State.UNSUBSCRIBING,
            Change.UNSUBSCRIBED: State.DONE,
            Change.PROCESS_ENDED: State.DONE,
        },
        State.UNSUBSCRIBING: {
            Change.ENDED_BADLY: State.UNSUBSCRIBING,
            Change.UNSUBSCRIBED: State.DONE,
            Change.PROCESS_ENDED: State.DONE,
        },
        State.DONE: {
            Change.ENDED_BADLY: State.DONE,
            Change.PROCESS_ENDED: State.DONE,
        },
    },
)
"""A turn that cannot be resumed ends once more, in whatever state its thread is."""

ACTIVE = State.ACTIVE
AGENT_MAY_WORK = frozenset({State.ACTIVE, State.ABANDONED, State.CLOSING})
"""The agent may work on its turn."""
UNWANTED = frozenset({State.CLOSING, State.UNSUBSCRIBING, State.DONE})
