"""The states of a turn on a thread of `codex app-server`, and the table of the changes between them."""

from __future__ import annotations

from enum import Enum

from codex_proxy.core.states import StateTable


class State(Enum):
    """The state of a client's turn and of the agent's turn and thread that serve it. The client's turn runs in the
    state ACTIVE; it has ended in all others.
    """

    ACTIVE = "the agent is starting the turn, works on it, or waits for outputs of its calls"
    ABANDONED = "the client's turn has ended, while the agent may still work on it"
    REUSABLE = "the agent's turn ended well: another one can be started on the thread"
    UNUSABLE = "the agent's turn has ended, and no other can be started on the thread"
    CLOSING = "the thread is no longer needed, while the agent may still work on its turn"
    UNSUBSCRIBING = "the agent's turn has ended or was interrupted, and its thread is being unsubscribed"
    DONE = "nothing is left to read or write"


class Change(Enum):
    """An event that changes the state of a turn."""

    ENDED_WELL = "the agent has completed its turn"
    ENDED_BADLY = "the agent's turn has ended in any other way, or its thread cannot be resumed"
    GIVEN_UP = "the client's turn cannot continue, but the agent may still work on it"
    RESUMED = "another turn starts on the thread"
    UNWANTED = "the thread is no longer needed"
    INTERRUPTED = "the agent was asked to stop its turn"
    UNSUBSCRIBED = "the thread was unsubscribed, or never started"
    PROCESS_ENDED = "the agent's process has ended"


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
"""The transitions of a turn. ENDED_BADLY is possible in most states, because a turn that is begun on a thread that
cannot be resumed fails in whatever state the thread is."""

ACTIVE = State.ACTIVE
AGENT_MAY_WORK = frozenset({State.ACTIVE, State.ABANDONED, State.CLOSING})
"""The states in which the agent may still work on its turn."""
UNWANTED = frozenset({State.CLOSING, State.UNSUBSCRIBING, State.DONE})
"""The states in which the thread is no longer needed."""
