"""Decides which process of a pool serves a turn, and which processes the pool starts and ends.

No IO. Input: the state of the pool's processes, and how many turns wait. Output: what to do, from `assign` for one
turn and from `maintain` for the whole pool. The pool does it, and calls `maintain` again after every change: a turn
came or ended, a process became ready or ended, time passed.

A process that is due for renewal (too old, too large, or after too many turns) is replaced. It first gets a
successor, and then takes no further turns (it *drains*), and is ended (*retired*) when it is idle. If the pool's
limit leaves no room for a successor, one such process at a time is retired, provided that another process can
serve; the only process of a pool is replaced when it is idle. Serving turns comes before replacing processes.
"""

import math
from collections.abc import Sequence
from enum import Enum

import msgspec


class ProcessState(Enum):
    """How a process of the pool can be used."""

    STARTING = "starting"
    """Was started, and cannot be given turns yet."""
    READY = "ready"
    """Can be given turns."""
    DRAINING = "draining"
    """Finishes its turns and gets no new ones; also a process that is ending."""


class ProcessInfo(msgspec.Struct, frozen=True):
    """The facts about a process by which `assign` and `maintain` decide. `key` identifies it; `age` is in seconds
    since its start, `memory` in bytes (0: not known). `is_held`: it can take no turn, although it may have none.
    """

    key: int
    state: ProcessState
    turns_running: int
    turns_served: int
    age: float
    memory: int = 0
    is_held: bool = False


MANY = 1 << 30
"""More processes or turns than there ever are, for limits."""


class PoolLimits(msgspec.Struct, frozen=True):
    """The limits of the processes with one key.

    At least `min_processes` run; there are never more than `max_processes`, including those that drain. A process
    with `busy_from` or more running turns counts as busy; if all are busy, another one is started before it is
    needed (never if `busy_from` is larger than `max_turns_running`). A process has at most `max_turns_running` turns
    at the same time. It is due for renewal when it has served `max_turns_served` turns, is `max_age` seconds old, or
    uses `max_memory` bytes (0: any number): as soon as other processes can take the turns, it gets no new ones, and
    it ends after its last one. At most `max_waiting` turns wait for a process; further ones are refused (`Refuse`).

    If a process serves one session (`max_turns_served` is 1), one is started for each turn. If the key was used
    `spare_uses` times (0: never) within `max_age` seconds, one more waits for the next turn. It is started
    `spare_delay` seconds after a turn has begun, or after a turn has ended, whichever is earlier.
    """

    min_processes: int = 1
    # A process needs 130 MiB and more; four use up what a desktop machine can spare.
    max_processes: int = 4
    # Beyond 64 requests in flight the first delta takes seconds, and from 400 on requests get lost.
    max_turns_running: int = 64
    # Eight turns started at once wait 0.37 s for their first delta, each further one 20 ms of CPU more.
    busy_from: int = 8
    # What a long-lived process gathers (memory, threads, descendants) is bounded by renewing it now and then.
    max_turns_served: int = 1000
    max_age: float = 3600.0
    # 0 for any. A process takes 130 MiB, and 1.4 MiB for each thread: one of a GiB has lost control of its memory.
    max_memory: int = 1 << 30
    # Turns that wait for room; a client is better told to come back than kept waiting behind more.
    max_waiting: int = 256
    spare_uses: int = 0
    spare_delay: float = math.inf

    @property
    def serves_once(self) -> bool:
        """Whether a process serves one session, and ends with it."""
        return self.max_turns_served == 1


class Use(msgspec.Struct, frozen=True):
    """The result of `assign`: the process with this `key` serves the turn."""

    key: int


class Wait(msgspec.Struct, frozen=True):
    """The result of `assign`: the turn waits until a process can serve it."""


class Refuse(msgspec.Struct, frozen=True):
    """The result of `assign`: the turn is refused. `reason` is the text for the client."""

    reason: str


class PoolMaintenance(msgspec.Struct, frozen=True):
    """The result of `maintain`: whether to start a process, the keys of the busy processes that get no further
    turns (`drain`), and those of the idle processes to end (`retire`).
    """

    start: bool
    drain: tuple[int, ...]
    retire: tuple[int, ...]


NOTHING_TO_DO = PoolMaintenance(start=False, drain=(), retire=())


def assign(processes: tuple[ProcessInfo, ...], limits: PoolLimits, waiting: int) -> Use | Wait | Refuse:
    """Decides which process serves a turn: a new turn, or the first of those that wait. `waiting` is the number of
    other turns that wait.

    The result is the process with the fewest running turns that has room for another; a process that is due for
    renewal is only used if there is no other. If no process has room, the turn waits; it is refused if
    `max_waiting` others wait already. Before the next call the caller must count the turn in `turns_running`.
    """
    free = [
        s
        for s in processes
        if s.state is ProcessState.READY and not s.is_held and s.turns_running < limits.max_turns_running
    ]
    if free:
        return Use(
            min(
                free, key=lambda s: (is_due_for_renewal(s, limits), s.turns_running, s.turns_served, s.key)
            ).key
        )
    if waiting >= limits.max_waiting:
        return Refuse(f"{waiting} turns are already waiting for the agent")
    return Wait()


def maintain(processes: tuple[ProcessInfo, ...], limits: PoolLimits, waiting: int) -> PoolMaintenance:
    """Decides which processes to start (one at most), to drain and to retire. `waiting` is the number of turns that
    wait for a process.
    """
    if not waiting and _is_steady(processes, limits):
        return NOTHING_TO_DO
    starting = [s for s in processes if s.state is ProcessState.STARTING]
    ready = [s for s in processes if s.state is ProcessState.READY]
    fresh = [s for s in ready if not is_due_for_renewal(s, limits)]
    due = sorted(
        (s for s in ready if is_due_for_renewal(s, limits)), key=lambda s: (s.turns_running, -s.age, s.key)
    )

    start = len(processes) < limits.max_processes and _needs_another(starting, fresh, due, limits, waiting)
    if any(s.turns_running < limits.max_turns_running for s in fresh):
        leave = due
    elif fresh or start or starting:
        leave = []  # those that are due serve until their successor is ready, or the load is less
    else:
        leave = due[:1] if len(due) > 1 or not any(s.turns_running for s in due) else []
    done = [s for s in processes if s.state is ProcessState.DRAINING]
    return PoolMaintenance(
        start=start,
        drain=tuple(s.key for s in leave if s.turns_running),
        retire=tuple(s.key for s in [*done, *leave] if not s.turns_running),
    )


def _is_steady(processes: tuple[ProcessInfo, ...], limits: PoolLimits) -> bool:
    """Returns whether there is nothing to do if no turn waits: every process takes turns, none is due for renewal, and
    no other is needed. This is usually so, and the pool calls `maintain` three times for each turn, so it is checked
    first.
    """
    if len(processes) < limits.min_processes:
        return False
    busy = 0
    for process in processes:
        if process.state is not ProcessState.READY or is_due_for_renewal(process, limits):
            return False
        busy += process.turns_running >= limits.busy_from
    return busy < len(processes) or len(processes) >= limits.max_processes


def is_due_for_renewal(process: ProcessInfo, limits: PoolLimits) -> bool:
    """Returns whether a process is too old, has served too many turns, or uses too much memory, so that it must be
    replaced.
    """
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
    in_use = [s for s in due if s.turns_running]
    return bool(fresh or in_use) and all(s.turns_running >= limits.busy_from for s in fresh)


def keeps_spare(uses: Sequence[float], now: float, limits: PoolLimits) -> bool:
    """Returns whether a process is to wait for the next turn of a key, which was last used at the times `uses`."""
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
    """Counts failures of processes in a row, and decides when the next process may be started. `last_at` is the
    time of the last failure, in seconds of a monotonic clock; `outside_turns` counts the failures of processes
    without a running turn.
    """

    failures: int = 0
    last_at: float = 0.0
    outside_turns: int = 0

    def after_failure(
        self, now: float, lived_seconds: float = 0.0, *, during_turn: bool = False
    ) -> "RestartBackoff":
        """Returns the count after the failure of a process at the time `now`. `lived_seconds` is how long the
        process was ready: after a long time (`is_stable`) earlier failures no longer count. `during_turn`: a turn
        was running on it, and may have caused the failure.
        """
        before = RestartBackoff() if is_stable(lived_seconds) else self
        return RestartBackoff(before.failures + 1, now, before.outside_turns + (not during_turn))

    def after_success(self, started_at: float) -> "RestartBackoff":
        """Returns the count after a turn has completed: zero if its process was started (`started_at`) after the
        last failure, else unchanged.
        """
        return RestartBackoff() if started_at >= self.last_at else self

    def pause_seconds(self, now: float) -> float:
        """Returns the number of seconds until the next process may be started: 0 after the first failure, then a
        pause that doubles up to a limit with each failure outside of turns.
        """
        if self.failures < 2:
            return 0.0
        pause_seconds = min(
            FIRST_PAUSE_SECONDS * 2.0 ** min(max(self.outside_turns, 2) - 2, 16), MAX_PAUSE_SECONDS
        )
        return max(0.0, self.last_at + pause_seconds - now)

    @property
    def looping(self) -> bool:
        """Whether so many processes have failed in a row that the next turn would most likely fail, too."""
        return self.failures >= LOOP_FAILURES


def is_stable(lived_seconds: float) -> bool:
    """Returns whether a process that was ready for this many seconds counts as working, so that its failure is not
    counted together with earlier ones.
    """
    return lived_seconds >= STABLE_SECONDS
