"""The state machine of a child process. Pausing its output is not part of it."""

from __future__ import annotations

from enum import Enum

from codex_proxy.core.states import StateTable


class State(Enum):
    """Where a child is on its way to its end."""

    RUNNING = "it runs, and nobody has asked it to end"
    ENDING = "its stdin is closed, and it has a grace time to end by itself"
    KILLING = "its warden ends it: SIGTERM, a grace time, then SIGKILL for it and all its descendants"
    EXITED = "it has exited by itself; its last output is read, unless its owner has paused it"
    DRAINING = "it has exited on request; its last output is read for at most half a second"
    ABANDONED = "it could not be killed, and its owner was informed"
    ENDED = "its owner was informed how it ended"


class Change(Enum):
    """What moves a child from one state to another."""

    END = "its owner asks it to end, or it has closed its stdout"
    KILL = "its owner has it killed, or the grace time is over"
    EXIT = "it has exited"
    DRAINED = "its output was read to the end, or the time for that is over"
    STUCK = "it has not exited although its warden was killed"


TABLE = StateTable(
    State.RUNNING,
    {
        State.RUNNING: {
            Change.END: State.ENDING,
            Change.KILL: State.KILLING,
            Change.EXIT: State.EXITED,
        },
        State.ENDING: {
            Change.END: State.ENDING,
            Change.KILL: State.KILLING,
            Change.EXIT: State.DRAINING,
        },
        State.KILLING: {
            Change.END: State.KILLING,
            Change.KILL: State.KILLING,
            Change.EXIT: State.DRAINING,
            Change.STUCK: State.ABANDONED,
        },
        State.EXITED: {
            Change.END: State.DRAINING,
            Change.KILL: State.DRAINING,
            Change.DRAINED: State.ENDED,
        },
        State.DRAINING: {
            Change.END: State.DRAINING,
            Change.KILL: State.DRAINING,
            Change.DRAINED: State.ENDED,
        },
        State.ABANDONED: {
            Change.END: State.ABANDONED,
            Change.KILL: State.ABANDONED,
            Change.EXIT: State.ENDED,
        },
        State.ENDED: {
            Change.END: State.ENDED,
            Change.KILL: State.ENDED,
        },
    },
)

ALIVE = frozenset({State.RUNNING, State.ENDING, State.KILLING, State.ABANDONED})
"""The states in which the child has not been seen to exit."""
REPORTED = frozenset({State.ABANDONED, State.ENDED})
"""The states in which the owner was informed how the child ended, or that it could not be killed."""
