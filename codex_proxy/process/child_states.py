"""The states of a child process and what leads from one to another. Who pauses a child changes none of them."""

from __future__ import annotations

from enum import Enum

from codex_proxy.core.states import StateTable


class State(Enum):
    """Where a child is on its way to its end."""

    RUNNING = "it runs, and nobody has asked for its end"
    ENDING = "its stdin is closed, and it has a grace time"
    KILLING = "its warden ends it: SIGTERM, a grace time, SIGKILL for all that descends from it"
    EXITED = "it is gone by itself; its last output is read, unless its owner pauses"
    DRAINING = "it is gone as it was asked to; its last output is read for half a second at most"
    ABANDONED = "it could not be killed, and its owner knows"
    ENDED = "its owner knows how it ended"


class Change(Enum):
    """What leads to another state."""

    END = "its owner wants it to end, or it has closed its stdout"
    KILL = "its owner wants it killed, or the grace time is over"
    EXIT = "it has exited"
    DRAINED = "its output has ended, or the time for it is over"
    STUCK = "its warden was killed, and nothing has exited"


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
"""It has not been seen to exit."""
REPORTED = frozenset({State.ABANDONED, State.ENDED})
"""Its owner knows how it ended, or that it could not be killed."""
