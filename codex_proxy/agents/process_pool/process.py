"""A process as the pool sees it: what it has served, what it uses, how it ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.sessions.session import ended_from
from codex_proxy.agents.shared.failures import describe_exit
from codex_proxy.process.child import Child, Exit
from codex_proxy.process.descendants import children_of, descendants_of, resident_bytes, seconds_since_boot

RENEWED = Ended(stderr_tail="The process was renewed before the turn began on it.")
"""The end of a session that has to go on in another process."""


class PooledProcess:
    def __init__(self) -> None:
        self.exit: Exit | None = None
        self.unhealthy = False
        """Whether it gets no more turns, because it violated the protocol or did not finish a turn."""
        self.on_change: Callable[[], None] | None = None
        """Called when it has ended, becomes unhealthy, or a turn begins or ends."""
        self.turns_served = 0
        self.is_taken = False
        """Whether the process serves one session, which it already has, and ends with it."""
        self.has_waited = False
        """Whether the process was ready before its newest turn."""
        self.completed_turn = False
        """Whether a turn has ended without a failure of the process."""
        self.ended_during_turn = False
        self.last_used = -math.inf
        """When a turn last began or ended, by the event loop's clock."""
        self._child: Child | None = None
        self._turn_starts: dict[int, float] = {}
        """When turns began, by channel, in seconds since boot."""
        self._agent_pids: frozenset[int] = frozenset()
        """The agent's processes by pid: the children that the warden had before the first turn."""
        self._agent_processes: dict[int, float] = {}
        """The agent and any wrapper: each pid with its start time."""

    @property
    def alive(self) -> bool:
        return self.exit is None and self._child is not None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def turns_running(self) -> int:
        return len(self._turn_starts)

    @property
    def signed_in(self) -> bool:
        """Whether somebody was signed in at the process's start, as far as the process reports that."""
        return True

    @property
    def is_held(self) -> bool:
        """Whether the process can take no turn although none runs: its session waits for outputs."""
        return False

    @property
    def exit_suffix(self) -> str:
        """How the process ended, as a sentence's end: ` (exit code 3).`; only `.` if it runs."""
        return "." if self.exit is None else f"{describe_exit(ended_from(self.exit))}."

    @property
    def memory(self) -> int:
        """The agent's resident bytes, read from /proc each time."""
        return resident_bytes(self._agent_processes) if self.alive else 0

    @property
    def has_orphans(self) -> bool:
        """Whether a process of an ended turn still runs: without its parent, and older than every running turn."""
        if self._child is None or not self.alive:
            return False
        oldest_turn = min(self._turn_starts.values(), default=math.inf)
        return any(
            started_at < oldest_turn
            for pid, started_at in children_of(self._child.pid).items()
            if pid not in self._agent_pids
        )

    def end_idle_channels(self) -> None:
        """Ends the sessions that only wait for a later turn."""

    def end_silent_channels(self) -> None:
        """Ends the sessions on which nothing has come since their turn began."""

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume()

    async def end(self) -> None:
        if self._child is not None:
            await self._child.end()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    # --- for the subclass -----------------------------------------------------------------------

    def _note_agent(self, child: Child) -> None:
        self._agent_pids = frozenset(children_of(child.pid))
        self._agent_processes = descendants_of(child.pid)

    def _serve(self, channel: int) -> int:
        """Counts a turn on a channel, which it returns."""
        self.turns_served += 1
        self._turn_began(channel)
        return channel

    def _turn_began(self, channel: int) -> None:
        self._turn_starts[channel] = seconds_since_boot()
        self.last_used = asyncio.get_running_loop().time()

    def _turn_ended(self, channel: int) -> None:
        self._turn_starts.pop(channel, None)
        self.last_used = asyncio.get_running_loop().time()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
