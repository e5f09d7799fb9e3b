"""A process of an agent, as the pool sees it: what it has served, what it uses, and how it ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.dialects.failures import exit_of
from codex_proxy.agents.processes.session import ended_from
from codex_proxy.process.child import Child, Exit
from codex_proxy.process.descendants import children_of, descendants_of, resident_bytes, seconds_since_boot

RENEWED = Ended(stderr_tail="The process was renewed before the turn began on it.")
"""How a process ended for a session that has to go on in another one."""


class PooledProcess:
    """A process in a pool. A subclass starts it, opens sessions on it, and says which of its turns are running."""

    def __init__(self) -> None:
        self.exit: Exit | None = None
        """How the process ended; None before that."""
        self.unhealthy = False
        """Whether the process gets no further turns, because it violated the protocol or did not finish a turn."""
        self.on_change: Callable[[], None] | None = None
        """Called when the process has ended, becomes unhealthy, or a turn on it begins or ends."""
        self.turns_served = 0
        """The number of sessions that were opened on the process."""
        self.has_waited = False
        """Whether the process was ready before its newest turn asked for one."""
        self.completed_turn = False
        """Whether a turn on the process has ended without a failure of the process."""
        self.ended_during_turn = False
        """Whether the process ended while a turn was running on it."""
        self.last_used = -math.inf
        """When a turn last began or ended on the process, in seconds of the event loop's clock."""
        self._child: Child | None = None
        self._turn_starts: dict[int, float] = {}
        """When each running turn began, by its channel, in seconds since boot."""
        self._agent_pids: frozenset[int] = frozenset()
        """The process ids of the agent itself: the children of the warden (its supervisor) before the first turn."""
        self._agent_processes: dict[int, float] = {}
        """The agent and any wrapper it was started through: pid to start time."""

    @property
    def alive(self) -> bool:
        return self.exit is None and self._child is not None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def turns_running(self) -> int:
        """The number of turns that are running on the process. Sessions that wait for a later turn do not count."""
        return len(self._turn_starts)

    @property
    def signed_in(self) -> bool:
        """Whether somebody was signed in to the agent when the process was started, as far as the process says."""
        return True

    @property
    def is_held(self) -> bool:
        """Whether the process can take no turn although none is running, since its session waits for outputs."""
        return False

    @property
    def is_taken(self) -> bool:
        """Whether the process has its only session. It ends with that session, and is not the pool's to replace."""
        return False

    @property
    def exit_suffix(self) -> str:
        """The end of a sentence about the process: how it ended, such as ` (exit code 3).` or ` (signal 9).`; only
        `.` if it still runs.
        """
        return "." if self.exit is None else f"{exit_of(ended_from(self.exit))}."

    @property
    def memory(self) -> int:
        """The agent's resident memory in bytes; 0 if it does not run. It is read from /proc at each access, so do
        not use it for every turn.
        """
        return resident_bytes(self._agent_processes) if self.alive else 0

    @property
    def has_orphans(self) -> bool:
        """Whether a process that an ended turn has left behind is still running. Such a process has lost its
        parent, and was started before every turn that is running now.
        """
        if self._child is None or not self.alive:
            return False
        oldest_turn = min(self._turn_starts.values(), default=math.inf)
        return any(
            started_at < oldest_turn
            for pid, started_at in children_of(self._child.pid).items()
            if pid not in self._agent_pids
        )

    def end_idle_channels(self) -> None:
        """Ends the sessions that only wait for a later turn, because the process takes no further turns."""

    def end_silent_channels(self) -> None:
        """Ends the sessions on which nothing has come since their turn began."""

    async def end(self) -> None:
        """Closes stdin and returns when the process and all its descendants have ended; they are killed if they do
        not end within a grace period.
        """
        if self._child is not None:
            await self._child.end()

    def kill(self) -> None:
        """Kills the process at once, and does not wait until it has ended."""
        if self._child is not None:
            self._child.kill()

    # --- for the subclass -----------------------------------------------------------------------

    def _note_agent(self, child: Child) -> None:
        """Records which processes are the agent itself. Called when the agent is ready for its first turn."""
        self._agent_pids = frozenset(children_of(child.pid))
        self._agent_processes = descendants_of(child.pid)

    def _turn_began(self, channel: int) -> None:
        self._turn_starts[channel] = seconds_since_boot()
        self.last_used = asyncio.get_running_loop().time()

    def _turn_ended(self, channel: int) -> None:
        """Records that no turn is running on the channel: what still runs of one is an orphan."""
        self._turn_starts.pop(channel, None)
        self.last_used = asyncio.get_running_loop().time()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
