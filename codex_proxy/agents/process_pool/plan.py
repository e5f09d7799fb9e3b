"""Decides which process serves a turn (`assign`), and which are started and ended (`maintain`, called again after every
change). No IO. A process due for renewal (too old, too large, after too many turns) first gets a successor, then takes
no more turns (it *drains*), and is ended (*retired*) when idle. Without room for a successor, one at a time is retired
if another can serve; a pool's only one when idle. Serving turns comes first.
"""

import math
from collections.abc import Sequence
from enum import Enum

import msgspec


class ProcessState(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """The process finishes its turns and gets no new ones, or is ending."""


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process, known by `key`. `age` is in seconds, `memory` in bytes (0: not known). `is_held`: the process can
    take no turn, although none may be running.
    """

    key: int
    state: ProcessState
    turns_running: int
    turns_served: int
    age: float
    memory: int = 0
    is_held: bool = False


NO_LIMIT = 1 << 30


class PoolLimits(msgspec.Struct, frozen=True):
    """The limits of the processes with one key."""

    min_processes: int = 1
    max_processes: int = 4
    """Maximum processes: one needs 130 MiB and more, and four use up what a desktop machine can spare."""
    max_turns_running: int = 64
    """Maximum turns that run on a process: beyond 64 the first delta takes seconds, from 400 on requests get lost."""
    busy_from: int = 8
    """Number of running turns on each process from which another one is started in advance. Eight turns started at once
    wait 0.37 s for their first delta, each further one 20 ms of CPU more.
    """
    max_turns_served: int = 1000
    """Number of turns after which a process is renewed. 1: each turn starts a process, for one session."""
    max_age: float = 3600.0
    """Seconds after which a process is renewed: what it gathers (memory, threads, descendants) stays bounded."""
    max_memory: int = 1 << 30
    """Bytes from which a process is renewed; 0: any. A process takes 130 MiB, and 1.4 MiB for each thread."""
    max_waiting: int = 256
    """Maximum turns that wait for a process. A client is better told to come back than kept waiting behind more."""
    spare_uses: int = 0
    """If each turn starts a process: number of uses within `max_age` from which one more process, the *spare*, waits
    for the next turn; 0: none does.
    """
    spare_delay: float = math.inf
    """Seconds from a turn's beginning to the start of the spare process; at the turn's end it starts at once."""

    @property
    def serves_once(self) -> bool:
        return self.max_turns_served == 1


ONE_TURN = PoolLimits(
    min_processes=0, max_processes=NO_LIMIT, max_turns_running=1, busy_from=2, max_turns_served=1
)
"""The limits of processes that serve a single turn."""

AHEAD_USES = 2
"""The uses within `WAIT_SECONDS` from which on a process waits for the next turn."""
WAIT_SECONDS = 60.0
"""The longest wait, because the process has read configuration and sign-in at its start."""
ONE_TURN_AHEAD = msgspec.structs.replace(ONE_TURN, max_age=WAIT_SECONDS, spare_uses=AHEAD_USES)
"""The limits of processes that serve a single turn, and of which one waits for the next turn."""


class PoolMaintenance(msgspec.Struct, frozen=True):
    """Whether to start a process, and the `key`s of those to drain and to retire."""

    start: bool
    drain: tuple[int, ...]
    retire: tuple[int, ...]


NOTHING_TO_DO = PoolMaintenance(start=False, drain=(), retire=())


def assign(processes: Sequence[ProcessInfo], limits: PoolLimits) -> int | None:
    """Returns the process's key; None if the turn must wait. The caller must count it in `turns_running` before the
    next call.
    """
    free = [
        p
        for p in processes
        if p.state is ProcessState.READY and not p.is_held and p.turns_running < limits.max_turns_running
    ]
    if len(free) < 2:
        return free[0].key if free else None
    best = min(free, key=lambda p: (is_due_for_renewal(p, limits), p.turns_running, p.turns_served, p.key))
    return best.key


def maintain(processes: Sequence[ProcessInfo], limits: PoolLimits, waiting: int) -> PoolMaintenance:
    """Decides which processes to start (one at most), to drain and to retire."""
    if not waiting and _is_steady(processes, limits):
        return NOTHING_TO_DO
    starting: list[ProcessInfo] = []
    fresh: list[ProcessInfo] = []
    due: list[ProcessInfo] = []
    done: list[ProcessInfo] = []
    for process in processes:
        if process.state is ProcessState.STARTING:
            starting.append(process)
        elif process.state is ProcessState.DRAINING:
            done.append(process)
        elif is_due_for_renewal(process, limits):
            due.append(process)
        else:
            fresh.append(process)
    due.sort(key=lambda p: (p.turns_running, -p.age, p.key))

    start = len(processes) < limits.max_processes and _needs_another(starting, fresh, due, limits, waiting)
    if any(p.turns_running < limits.max_turns_running for p in fresh):
        leave = due
    elif fresh or start or starting:
        leave = []  # those that are due serve until their successor is ready, or the load is less
    else:
        leave = due[:1] if len(due) > 1 or not any(p.turns_running for p in due) else []
    return PoolMaintenance(
        start=start,
        drain=tuple(p.key for p in leave if p.turns_running),
        retire=tuple(p.key for p in [*done, *leave] if not p.turns_running),
    )


def _is_steady(processes: Sequence[ProcessInfo], limits: PoolLimits) -> bool:
    """Whether there is nothing to do. This is usual, and `maintain` is called three times per turn."""
    if len(processes) < limits.min_processes:
        return False
    busy = 0
    for process in processes:
        if process.state is not ProcessState.READY or is_due_for_renewal(process, limits):
            return False
        busy += process.turns_running >= limits.busy_from
    return not processes or busy < len(processes) or len(processes) >= limits.max_processes


def is_due_for_renewal(process: ProcessInfo, limits: PoolLimits) -> bool:
    if limits.max_memory and process.memory >= limits.max_memory:
        return True
    return process.age >= limits.max_age or process.turns_served >= limits.max_turns_served


def _needs_another(
    starting: list[ProcessInfo],
    fresh: list[ProcessInfo],
    due: list[ProcessInfo],
    limits: PoolLimits,
    waiting: int,
) -> bool:
    if waiting > len(starting) * min(limits.busy_from, limits.max_turns_running):
        return True
    if len(starting) + len(fresh) < limits.min_processes:
        return True
    if starting:
        return False  # one at a time ahead of the need
    in_use = [p for p in due if p.turns_running]
    return bool(fresh or in_use) and all(p.turns_running >= limits.busy_from for p in fresh)


def keeps_spare(uses: Sequence[float], now: float, limits: PoolLimits) -> bool:
    """Whether a process without a turn is kept for the next turn of a key: it was used often enough lately. `uses`:
    the times of its turns, in seconds of the same clock as `now`.
    """
    count = limits.spare_uses
    return 0 < count <= len(uses) and now - uses[-count] < limits.max_age


# --- restarts ----------------------------------------------------------------------------------

# A process that could not stay up for a second will not do so in the next one; each try costs 0.1 s of CPU.
FIRST_PAUSE_SECONDS = 1.0
# What is mended (a sign-in, a disk, a binary that was being replaced) is found out within this time.
MAX_PAUSE_SECONDS = 30.0
# Agents that fail by their own doing fail within their first seconds; later it was a turn, or somebody's signal.
STABLE_SECONDS = 10.0
# A client of OpenAI's SDK sends a turn that kills the agent three times in a row by itself.
LOOP_FAILURES = 4


class RestartBackoff(msgspec.Struct, frozen=True):
    """Counts failures in a row. `last_at` is the last one's time; `outside_turns` counts those outside of turns."""

    failures: int = 0
    last_at: float = 0.0
    outside_turns: int = 0

    def after_failure(
        self, now: float, lived_seconds: float = 0.0, *, during_turn: bool = False
    ) -> "RestartBackoff":
        """Counts a failure. After `lived_seconds` long enough, earlier ones no longer count. `during_turn`: a turn may
        have caused it.
        """
        before = RestartBackoff() if is_stable(lived_seconds) else self
        return RestartBackoff(before.failures + 1, now, before.outside_turns + (not during_turn))

    def after_success(self, started_at: float) -> "RestartBackoff":
        """Returns zero failures if the turn's process was started after the last failure."""
        return RestartBackoff() if started_at >= self.last_at else self

    def pause_seconds(self, now: float) -> float:
        """Returns the seconds until the next start: 0 after one failure, then a pause that doubles up to a limit."""
        if self.failures < 2:
            return 0.0
        pause_seconds = min(
            FIRST_PAUSE_SECONDS * 2.0 ** min(max(self.outside_turns, 2) - 2, 16), MAX_PAUSE_SECONDS
        )
        return max(0.0, self.last_at + pause_seconds - now)

    @property
    def is_looping(self) -> bool:
        """Whether the next turn would most likely fail, too."""
        return self.failures >= LOOP_FAILURES


def is_stable(lived_seconds: float) -> bool:
    """Whether a process that was ready for so long counts as working."""
    return lived_seconds >= STABLE_SECONDS
