"""The state machine of a turn on a session of an agent that speaks ACP."""

from __future__ import annotations

from enum import Enum

from codex_proxy.agents.dialects.conversation import ConversationStates
from codex_proxy.core.states import StateTable


class TurnState(Enum):
    OPENING = "the session is being opened and set up, and nothing was asked yet"
    PROMPTING = "the agent works on the prompt, or waits for outputs of its calls"
    REUSABLE = "the agent's turn ended well: the session takes another prompt"
    UNUSABLE = "the agent's turn has ended, and no other is begun on the session"
    CANCELLING = "the turn is not wanted any more, and the agent has yet to stop"
    DONE = "nothing is left to read or write"


class TurnChange(Enum):
    PROMPTED = "the prompt was sent"
    ENDED_WELL = "the agent has answered the prompt, and that was a success"
    ENDED_BADLY = "the session could not be opened, or the agent's turn ended in any other way, or goes on"
    UNWANTED = "the session is no longer needed"
    STOPPED = "after UNWANTED, the agent has answered all requests that were still open"
    PROCESS_ENDED = "the agent's process has ended"


TABLE = StateTable(
    TurnState.OPENING,
    {
        TurnState.OPENING: {
            TurnChange.PROMPTED: TurnState.PROMPTING,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.CANCELLING,
        },
        TurnState.PROMPTING: {
            TurnChange.ENDED_WELL: TurnState.REUSABLE,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.CANCELLING,
        },
        TurnState.REUSABLE: {
            TurnChange.PROMPTED: TurnState.PROMPTING,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.DONE,
        },
        TurnState.UNUSABLE: {TurnChange.UNWANTED: TurnState.DONE},
        TurnState.CANCELLING: {TurnChange.STOPPED: TurnState.DONE},
        TurnState.DONE: {TurnChange.UNWANTED: TurnState.DONE},
    },
    always={TurnChange.PROCESS_ENDED: TurnState.DONE},
)

STATES = ConversationStates(
    TABLE,
    client_waits=frozenset({TurnState.OPENING, TurnState.PROMPTING}),
    reusable=TurnState.REUSABLE,
    process_ended=TurnChange.PROCESS_ENDED,
)
