"""One select loop: lines from stdin to the agent, and turns as generators that say how long they wait.

A turn yields seconds (0: let others run), or None: wait until `wake`.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections import deque

from fake_proto.faults import LIFE_S, StalledError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from fake_proto.wire import Wire

    class Agent(Protocol):
        """What the loop drives."""

        def receive(self, line: bytes) -> None:
            """Takes one line of stdin."""

        def end_of_input(self) -> int | None:
            """Stdin was closed: the exit status, or None to live on."""


READ_BYTES = 1 << 20
LOOK_EVERY = 64
"""Stdin is looked at once per so many resumptions of turns that do not wait."""


class Task:
    """A turn on its way."""

    __slots__ = ("cancelled", "generator", "parked")

    def __init__(self, generator: Iterator[float | None]) -> None:
        self.generator = generator
        self.cancelled = False
        self.parked = False


class Loop:
    """Runs tasks and feeds the agent until there is an exit status."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ready: deque[Task] = deque()
        self._timers: list[tuple[float, int, Task]] = []
        self._sequence = 0
        self._rest = b""
        self._input_open = True

    def start(self, generator: Iterator[float | None]) -> Task:
        """Adds a task, which runs when the loop reaches it."""
        task = Task(generator)
        self._ready.append(task)
        return task

    def wake(self, task: Task) -> None:
        """Goes on with a task that waits for an answer."""
        if task.parked:
            task.parked = False
            self._ready.append(task)

    def run(self, agent: Agent) -> int:
        """Runs until the agent is done; returns the exit status."""
        turns = 0
        while True:
            timeout: float | None = 0
            if self._ready:
                self._resume(self._ready.popleft())
                turns += 1
                if turns % LOOK_EVERY:
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
            task.parked = True
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
        if not data:
            self._input_open = False
            return agent.end_of_input()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                try:
                    agent.receive(line)
                except StalledError:
                    continue
        return None
