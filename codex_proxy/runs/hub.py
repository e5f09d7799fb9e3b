"""One `codex app-server` process and the lanes on it: bytes in, messages to each lane's reader.

It knows which lane a message belongs to and nothing of what it means; which process a turn gets is the
pool's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codex_proxy.agents.base import Ended
from codex_proxy.agents.codex_app_server.connection import Connection
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.lines import LineFramer, LineTooLong
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn
from codex_proxy.runs.lane import LaneReader, broken_protocol


class Hub:
    """A process that serves many turns. `start` first; `open_lane` once it is ready."""

    def __init__(self, client_name: str, client_version: str) -> None:
        self.connection = Connection(client_name, client_version)
        self.exit: Exit | None = None
        """How it ended, once it has."""
        self.served = 0
        self.on_end: Callable[[], None] | None = None
        """Who wants to know that the process is gone."""
        self.suspect = False
        """A turn on it did not settle, so it takes no further one."""
        self._child: Child | None = None
        self._framer = LineFramer()
        self._readers: dict[int, LaneReader] = {}
        self._opened: asyncio.Event = asyncio.Event()

    async def start(self, command: Command, *, within: float) -> None:
        """Spawns the process and greets it. A `Fault` where it does not answer `within` seconds."""
        try:
            self._child = await spawn(command, self)
        except SpawnError as error:
            raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=str(error))) from error
        self._child.write(self.connection.open())
        try:
            async with asyncio.timeout(within):
                await self._opened.wait()
        except TimeoutError:
            message = f"The agent did not answer within {within:g} s of its start. Try again."
            await self.end()
            raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=message)) from None
        except asyncio.CancelledError:
            self.kill()
            raise
        if self.connection.fault is not None or self.exit is not None:
            await self.end()
            raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=self._why()))

    def _why(self) -> str:
        if self.connection.fault is not None:
            return self.connection.fault
        said = self.exit.stderr_tail.strip().splitlines()[-1:] if self.exit else []
        return "The agent ended while it was starting." + (f" It said: {said[0][:300]}" if said else "")

    @property
    def alive(self) -> bool:
        return self.exit is None and self._child is not None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def turns(self) -> int:
        """Lanes that are open now."""
        return len(self._readers)

    def open_lane(self) -> HubLane:
        self.served += 1
        return HubLane(self, self.connection.open_lane())

    def attach(self, lane: int, reader: LaneReader) -> None:
        self._readers[lane] = reader

    def send(self, lane: int, writes: bytes) -> None:
        self._write(self.connection.send(lane, writes))

    def close_lane(self, lane: int) -> None:
        self._readers.pop(lane, None)
        self._write(self.connection.close_lane(lane))

    def ask_account(self) -> None:
        """Asks the agent again who is signed in."""
        self._write(self.connection.account_request())

    def _write(self, writes: bytes) -> None:
        if writes and self._child is not None:
            self._child.write(writes)

    async def end(self) -> None:
        """Ends the process, politely first: its stdin is closed."""
        if self._child is not None:
            await self._child.end()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    # --- the child's sink -----------------------------------------------------------------------

    def received(self, chunk: bytes) -> None:
        broken: Failure | None = None
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as fault:
            lines, broken = fault.before, broken_protocol(str(fault))
        heard = self.connection.receive(lines)
        self._write(heard.writes)
        for lane, messages in heard.lanes:
            reader = self._readers.get(lane)
            if reader is not None:
                reader.received(messages, len(chunk) if len(heard.lanes) == 1 else len(chunk) // 2)
        if self.connection.ready or self.connection.fault is not None:
            self._opened.set()
        if broken is not None:
            for reader in list(self._readers.values()):
                reader.fail(broken)
            self.kill()

    def ended(self, exit: Exit) -> None:
        self.exit = exit
        self._opened.set()
        ended = Ended(exit.code, exit.signal, exit.stderr_tail)
        for reader in list(self._readers.values()):
            reader.ended(ended)
        if self.on_end is not None:
            self.on_end()


class HubLane:
    """A `Lane` on a shared process: it cannot be paused, since others are served by the same pipe."""

    alone = False

    def __init__(self, hub: Hub, number: int) -> None:
        self.number = number
        self.dialect = AppServerTurn(number)
        self.hub = hub

    def attach(self, reader: LaneReader) -> None:
        self.hub.attach(self.number, reader)

    def send(self, writes: bytes) -> None:
        self.hub.send(self.number, writes)

    def pause(self) -> None:
        """Not here; a reader that falls too far behind is cut instead."""

    def resume(self) -> None:
        """Never paused."""

    async def release(self, *, settled: bool) -> None:
        self.hub.suspect = self.hub.suspect or not settled
        self.hub.close_lane(self.number)
