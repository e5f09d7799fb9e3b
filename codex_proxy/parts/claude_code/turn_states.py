"""The state machine of a turn in a Claude Code process."""

from __future__ import annotations

from enum import Enum

from codex_proxy.agents.dialects.conversation import ConversationStates
from codex_proxy.core.states import StateTable


class TurnState(Enum):
    STARTING = "the program is given the prompt, the tools and the settings"
    FEEDING = "the program is given the history, message by message"
    ACTIVE = "the model works on the turn, or waits for outputs of its calls"
    REUSABLE = "the program's turn ended well: another one can follow on it"
    ENDED = "nothing more is read"


class TurnChange(Enum):
    READY = "the program has taken the settings and listed the tools"
    ASKED = "the program was given the message that it answers"
    ENDED_WELL = "the program has reported the end of its turn"
    ENDED_BADLY = "the turn failed, was given up, or the process ended"
    RESUMED = "another turn begins"


TABLE = StateTable(
    TurnState.STARTING,
    {
        TurnState.STARTING: {TurnChange.READY: TurnState.FEEDING},
        TurnState.FEEDING: {TurnChange.ASKED: TurnState.ACTIVE},
        TurnState.ACTIVE: {TurnChange.ENDED_WELL: TurnState.REUSABLE},
        TurnState.REUSABLE: {TurnChange.RESUMED: TurnState.FEEDING},
        TurnState.ENDED: {},
    },
    always={TurnChange.ENDED_BADLY: TurnState.ENDED},
)

STATES = ConversationStates(
    TABLE,
    client_waits=frozenset({TurnState.STARTING, TurnState.FEEDING, TurnState.ACTIVE}),
    reusable=TurnState.REUSABLE,
    process_ended=TurnChange.ENDED_BADLY,
)
