"""The states of a turn on a thread of `codex app-server`, and the table of the changes between them."""

from __future__ import annotations

from enum import Enum

from codex_proxy.agents.shared.conversation import ConversationStates
from codex_proxy.core.states import StateTable


class TurnState(Enum):
    """The client's turn runs in ACTIVE; in the others the agent's turn and thread may not have ended."""

    ACTIVE = "the agent is starting the turn, works on it, or waits for outputs of its calls"
    ABANDONED = "the client's turn has ended, while the agent may still work on it"
    REUSABLE = "the agent's turn ended well: another one can be started on the thread"
    UNUSABLE = "the agent's turn has ended, and no other can be started on the thread"
    CLOSING = "the thread is no longer needed, while the agent may still work on its turn"
    UNSUBSCRIBING = "the agent's turn has ended or was interrupted, and its thread is being unsubscribed"
    DONE = "nothing is left to read or write"


class TurnChange(Enum):
    ENDED_WELL = "the agent has completed its turn"
    ENDED_BADLY = "the agent's turn has ended in any other way, or its thread cannot be resumed"
    GIVEN_UP = "the client's turn cannot continue, but the agent may still work on it"
    RESUMED = "another turn starts on the thread"
    UNWANTED = "the thread is no longer needed"
    INTERRUPTED = "the agent was asked to stop its turn"
    UNSUBSCRIBED = "the thread was unsubscribed, or never started"
    PROCESS_ENDED = "the agent's process has ended"


TABLE = StateTable(
    TurnState.ACTIVE,
    {
        TurnState.ACTIVE: {
            TurnChange.ENDED_WELL: TurnState.REUSABLE,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.GIVEN_UP: TurnState.ABANDONED,
        },
        TurnState.ABANDONED: {
            TurnChange.GIVEN_UP: TurnState.ABANDONED,
            TurnChange.UNWANTED: TurnState.CLOSING,
        },
        TurnState.REUSABLE: {
            TurnChange.RESUMED: TurnState.ACTIVE,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.UNSUBSCRIBING,
        },
        TurnState.UNUSABLE: {
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.UNSUBSCRIBING,
        },
        TurnState.CLOSING: {
            TurnChange.GIVEN_UP: TurnState.CLOSING,
            TurnChange.INTERRUPTED: TurnState.UNSUBSCRIBING,
            TurnChange.UNSUBSCRIBED: TurnState.DONE,
        },
        TurnState.UNSUBSCRIBING: {
            TurnChange.ENDED_BADLY: TurnState.UNSUBSCRIBING,
            TurnChange.UNSUBSCRIBED: TurnState.DONE,
        },
        TurnState.DONE: {TurnChange.ENDED_BADLY: TurnState.DONE},
    },
    always={TurnChange.PROCESS_ENDED: TurnState.DONE},
)
"""The changes of state. ENDED_BADLY is possible in most states: a turn on a thread that cannot be resumed fails."""

STATES = ConversationStates(
    TABLE,
    client_waits=frozenset({TurnState.ACTIVE}),
    reusable=TurnState.REUSABLE,
    process_ended=TurnChange.PROCESS_ENDED,
)
ACTIVE = TurnState.ACTIVE
AGENT_MAY_WORK = frozenset({TurnState.ACTIVE, TurnState.ABANDONED, TurnState.CLOSING})
UNWANTED = frozenset({TurnState.CLOSING, TurnState.UNSUBSCRIBING, TurnState.DONE})
