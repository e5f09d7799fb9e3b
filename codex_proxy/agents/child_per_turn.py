"""An agent that starts one child (a process) for each turn, and the transport over the child's stdin and stdout.

A `ChildSpec` describes such an agent: the command to start, and the dialect for the child's output. A command that is
used often has a child that waits for its next turn, if its program reads everything from stdin.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Literal

import msgspec
import structlog

from codex_proxy.agents.agent import AgentBase, ProcessCounts
from codex_proxy.agents.dialect import Capability, Dialect
from codex_proxy.agents.session import (
    AgentSession,
    ChunkFramer,
    LineFramer,
    LineTooLong,
    TransportReader,
    broken_protocol,
    ended_from,
    spawn_failure,
)
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.tasks import keep_until_done
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn
from codex_proxy.process.launch import find_program

log = structlog.get_logger(__name__)

AHEAD_USES: Final = 3
AHEAD_SECONDS: Final = 60.0
"""A child waits for the next turn of a command that was used so often within so many seconds."""
WAIT_SECONDS: Final = 60.0
"""The most seconds that a child waits. It has read the user's configuration and sign-in at its start."""
MAX_EARLY_BYTES: Final = 1 << 16
"""The bytes that a child may print before its turn; then its output is not read until the turn begins."""
MAX_AHEAD: Final = 2
"""The most children of an agent that wait for turns."""


class ChildTransport:
    """A `Transport` over the stdin and stdout of one child, which serves one session. `release` ends the child.
    `exclusive`: see `Transport`.
    """

    exclusive = True

    def __init__(self, framer: LineFramer | ChunkFramer | None = None) -> None:
        """`framer` cuts stdout into the pieces that the dialect reads; None for lines."""
        self.command: Command | None = None
        """The command that started the child."""
        self._child: Child | None = None
        self._reader: TransportReader | None = None
        self._framer = framer or LineFramer()
        self._early = bytearray()
        """What the child has printed while it waited for a turn."""

    async def start(self, command: Command) -> None:
        """Starts the child. Raises `SpawnError` if that fails."""
        self.command = command
        self._child = await spawn(command, self)

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._child is not None and self._child.alive

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader
        if self._early:
            asyncio.get_running_loop().call_soon(self._read_early)

    def _read_early(self) -> None:
        """Passes on what the child printed before its turn. It counts as no output of the turn (its size is 0), so that
        another child can take over if this one ends without more.
        """
        lines = self._framer.feed(bytes(self._early))
        self._early.clear()
        if self._reader is not None:
            self._reader.received(lines, 0)
        self.resume_reading()

    def kill(self) -> None:
        """Kills the child at once, and does not wait until it has ended."""
        if self._child is not None:
            self._child.kill()

    # --- the child's sink -----------------------------------------------------------------------

    def received(self, chunk: bytes) -> None:
        if self._reader is None or self._early:
            self._early += chunk
            if len(self._early) > MAX_EARLY_BYTES:
                self.pause_reading()
            return
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as fault:
            self._reader.received(fault.before, len(chunk))
            self._reader.fail(broken_protocol(str(fault)))
            return
        if lines:
            self._reader.received(lines, len(chunk))

    def ended(self, exit: Exit) -> None:
        if self._reader is None:
            return
        rest = self._framer.close()
        if rest:
            self._reader.received([rest], len(rest))
        self._reader.ended(ended_from(exit))

    # --- what a session calls -------------------------------------------------------------------------

    def send(self, writes: bytes) -> None:
        if self._child is not None:
            self._child.write(writes)

    def close_stdin(self) -> None:
        if self._child is not None:
            self._child.close_stdin()

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume()

    def set_idle(self, idle: bool) -> None:
        """Does nothing: the child serves this session alone, and idle children are not counted."""

    async def release(self, *, finished: bool) -> None:
        # `codex proto` does not exit when its stdin closes, so there is nothing to wait for.
        if self._child is not None:
            await self._child.end(grace=0)
        self._child = self._reader = None  # each of them holds this transport


class ChildSpec(msgspec.Struct, frozen=True):
    """Describes an agent with a child per turn: what to start, the dialect that reads its output, and the agent's
    properties.
    """

    name: str
    version: str
    command: Callable[[Turn], Command]
    """Returns the command that starts the child for a turn."""
    dialect: Callable[[], Dialect[bytes]]
    """Returns a new dialect for a turn, which reads the child's output in the units that `reads` names."""
    capabilities: frozenset[Capability]
    models: tuple[AgentModel, ...]
    any_model: bool
    """Whether any model name is accepted, not only those in `models`."""
    missing_features: Mapping[str, tuple[str, ...]] = {}
    """The features that this release of the program lacks, each with the names of what is missing in its protocol
    for it."""
    warning: str = ""
    """One or two sentences for the operator if the agent does less than they may expect; else empty."""
    ahead: bool = False
    """Whether the child may be started before its turn is known: the command does not depend on what the turn says, and
    the program does nothing before it reads stdin."""
    reads: Literal["lines", "chunks"] = "lines"
    """`lines`: whole lines without line ends. `chunks`: bytes as they arrive, for programs that print plain text."""


ANY_TURN = Turn(model="", history=())
"""A turn without content, for finding out which program the command of a turn starts."""


class ChildPerTurnAgent(AgentBase):
    """An `Agent` that starts a child for each turn and ends it with the turn."""

    def __init__(self, spec: ChildSpec) -> None:
        super().__init__()
        self.name = spec.name
        self.version = spec.version
        self.capabilities = spec.capabilities
        self.missing_features = spec.missing_features
        self.any_model = spec.any_model
        self._spec = spec
        self._transports: set[ChildTransport] = set()
        self._ahead: dict[ChildTransport, asyncio.TimerHandle] = {}
        """The transports of the children that wait for a turn, each with the timer that ends it."""
        self._starting: list[Command] = []
        """The commands of the children that are being started to wait."""
        self._uses: deque[tuple[float, Command]] = deque(maxlen=16)
        """The last commands that were used, each with the time."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def warning(self) -> str:
        return self._spec.warning

    async def open(self, turn: Turn) -> AgentSession:
        return await self.start_child(turn, self._spec.command(turn))

    async def start_child(self, turn: Turn, command: Command) -> AgentSession:
        """Starts the child of a turn with this command, and returns the session on it. Raises `Fault` if the child
        cannot be started.
        """
        waiting = self._take(command) if self._spec.ahead else None
        session = AgentSession(turn, self._spec.dialect(), waiting or await self._start_process(command))
        session.ran_before = waiting is not None
        return session

    async def _start_process(self, command: Command) -> ChildTransport:
        transport = ChildTransport(LineFramer() if self._spec.reads == "lines" else ChunkFramer())
        self._transports.add(transport)
        try:
            await transport.start(command)
        except SpawnError as error:
            self._transports.discard(transport)
            raise Fault(spawn_failure(error)) from error
        except BaseException:
            self._transports.discard(transport)
            raise
        return transport

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert isinstance(session.transport, ChildTransport)
        await self._end(session.transport)
        command = session.transport.command
        if command is not None and self._is_used_often(command):
            self._do(self._start_ahead(command))

    async def _end(self, transport: ChildTransport) -> None:
        try:
            await transport.release(finished=True)
        finally:
            self._transports.discard(transport)

    # --- children that wait for a turn ----------------------------------------------------------

    def _take(self, command: Command) -> ChildTransport | None:
        """Returns the child that waits for a turn of this command; None if there is none that runs."""
        self._uses.append((asyncio.get_running_loop().time(), command))
        found = next((each for each in self._ahead if each.command == command), None)
        if found is None:
            return None
        self._ahead.pop(found).cancel()
        if found.alive:
            return found
        self._do(self._end(found))
        return None

    def _is_used_often(self, command: Command) -> bool:
        since = asyncio.get_running_loop().time() - AHEAD_SECONDS
        return sum(at > since and used == command for at, used in self._uses) >= AHEAD_USES

    async def _start_ahead(self, command: Command) -> None:
        """Starts a child that waits for a turn of this command, unless there is one or too many wait. If it cannot be
        started, the next turn says why.
        """
        waiting = [*self._starting, *(each.command for each in self._ahead)]
        if self._closed or command in waiting or len(waiting) >= MAX_AHEAD:
            return
        self._starting.append(command)
        try:
            transport = await self._start_process(command)
        except Fault as fault:
            log.info("child_not_started_ahead", agent=self.name, reason=fault.failure.unquoted)
            return
        finally:
            self._starting.remove(command)
        loop = asyncio.get_running_loop()
        self._ahead[transport] = loop.call_later(WAIT_SECONDS, self._end_waiting, transport)

    def _end_waiting(self, transport: ChildTransport) -> None:
        del self._ahead[transport]
        self._do(self._end(transport))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))

    def models(self) -> tuple[AgentModel, ...]:
        return self._spec.models

    def processes(self) -> ProcessCounts:
        """Returns the number of running children: `busy` with a turn, `idle` while they wait for one."""
        idle = len(self._ahead) + len(self._starting)
        return ProcessCounts(idle=idle, busy=len(self._transports) - idle)

    def trouble(self) -> Failure | None:
        """Returns the failure if the program or its working folder does not exist; None if both exist."""
        try:
            find_program(self._spec.command(ANY_TURN))
        except SpawnError as error:
            return spawn_failure(error)
        return None

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._ahead:
            self._ahead.popitem()[1].cancel()
        await asyncio.gather(*(transport.release(finished=False) for transport in list(self._transports)))

    def kill(self) -> None:
        for transport in list(self._transports):
            transport.kill()
