"""A select loop: passes lines from stdin to the agent, and runs turns as generators, which yield the seconds to wait
(0: only let others run), or None to wait until `Loop.wake`.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import time
from collections import deque

from fake_proto.faults import LIFE_S, StalledError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_proto.agent import Agent
    from fake_proto.wire import Wire

READ_BYTES = 1 << 20
STDIN_EVERY = 64
"""Stdin is checked after this many resumptions of turns, if turns continue without waiting."""


class Task:
    """A turn that runs. It is never resumed once `cancelled`."""

    __slots__ = ("cancelled", "generator", "waits_for_wake")

    def __init__(self, generator: Iterator[float | None]) -> None:
        self.generator = generator
        self.cancelled = False
        self.waits_for_wake = False


class Loop:
    """Runs tasks, and passes the lines of stdin to the agent."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ready: deque[Task] = deque()
        self._timers: list[tuple[float, int, Task]] = []
        self._sequence = 0
        self._rest = b""
        self._input_open = True

    def start(self, generator: Iterator[float | None]) -> Task:
        """Adds a task, which is resumed after those that are ready."""
        task = Task(generator)
        self._ready.append(task)
        return task

    def wake(self, task: Task) -> None:
        """Lets a task continue that has yielded None. Does nothing for other tasks."""
        if task.waits_for_wake:
            task.waits_for_wake = False
            self._ready.append(task)

    def run(self, agent: Agent) -> int:
        """Runs until `agent.end_of_input` returns an exit status, and returns that."""
        turns = 0
        while True:
            timeout: float | None = 0
            if self._ready:
                self._resume(self._ready.popleft())
                turns += 1
                if turns % STDIN_EVERY:
                    continue
            else:
                self._wire.flush()
                timeout = self._until_due()
            status = self._read(agent, timeout)
            if status is not None:
                self._wire.flush()
                return status
            self._collect_due()

    def _resume(self, task: Task) -> None:
        if task.cancelled:
            return
        try:
            wait = next(task.generator)
        except (StopIteration, StalledError):
            return
        if wait is None:
            task.waits_for_wake = True
        elif wait == 0:
            self._ready.append(task)
        else:
            self._sequence += 1
            heapq.heappush(self._timers, (time.monotonic() + wait, self._sequence, task))

    def _until_due(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _collect_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heapq.heappop(self._timers)[2])

    def _read(self, agent: Agent, timeout: float | None) -> int | None:
        if not self._input_open:
            time.sleep(LIFE_S if timeout is None else timeout)
            return None
        if not select.select([0], [], [], timeout)[0]:
            return None
        data = os.read(0, READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n") if data else (self._rest, b"")
        for line in lines:
            if line.strip():
                try:
                    agent.receive(line)
                except StalledError:
                    continue
        if data:
            return None
        self._input_open = False
        status = agent.end_of_input()
        if status is None:
            signal.alarm(LIFE_S)
        return status
