"""The agents that speak ACP, the Agent Client Protocol. One process is kept running (several if the agent is
confined to folders), and each conversation has a session on it.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec
import structlog

from codex_proxy.agents.acp.dialect import AcpTurn
from codex_proxy.agents.acp.failures import failure_of_error
from codex_proxy.agents.acp.presets import CAPABILITIES, AcpPreset
from codex_proxy.agents.acp.process import AcpProcess, AcpTransport
from codex_proxy.agents.acp.program import Declared, Program
from codex_proxy.agents.acp.prompt import first_prompt
from codex_proxy.agents.acp.session_setup import SessionOptions, session_options_of
from codex_proxy.agents.acp.slots import ProcessScope, ProcessSlots, Slot, takes_sessions
from codex_proxy.agents.acp.tool_server import ToolEndpoint, ToolServer
from codex_proxy.agents.agent import AgentBase, ProcessCounts
from codex_proxy.agents.confinement import Confinement
from codex_proxy.agents.dialect import Capability
from codex_proxy.agents.plain_confinement import PlainConfinement
from codex_proxy.agents.session import AgentSession, spawn_failure
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.tasks import keep_until_done
from codex_proxy.core.turn import Sandbox, Turn
from codex_proxy.process.child import Command, SpawnError

log = structlog.get_logger(__name__)

START_SECONDS: Final = 60.0
"""The most seconds that a program may take to answer `initialize`. It usually takes 0.3 to 2.5 s, ten times as long
on a busy machine."""
PROBE_SECONDS: Final = 60.0
"""The most seconds that a program may take to open the probe session, which shows its models."""
PAUSE_SECONDS: Final = 5.0
"""Seconds after a failed start during which turns fail at once, with the failure of that start."""

RECHECK_SECONDS: Final = 10.0
"""Seconds after which a process that found no sign-in is replaced by one that checks again."""

READS_ONLY: Final = (
    "{title} has no sandbox of its own. Its turns are read-only, whatever --sandbox is set to."
)
UNCONFINED: Final = (
    "--agent-unconfined is set: {title} can run commands and write files anywhere on this machine{why}."
)
CONFINED: Final = (
    "{title} runs confined by {by}{although}. It can write {where}, to its own state and to "
    "its own temporary files. It can read everything that you can read, and its network access "
    "is not restricted."
)
WHERE: Final[Mapping[Sandbox, str]] = {
    "read-only": "to no workspace",
    "workspace-write": "to the workspace of a turn",
}


class AcpLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent's program is started: its preset and its command, and which folder and sandbox its processes
    have.
    """

    preset: AcpPreset
    command: Command
    """The command that starts the program without confinement."""
    workdir: str
    """The working folder in the settings. The process that is started before the first turn has it."""
    unconfined: bool = False
    """The setting `agent_unconfined`: the agent is served even if it has no mode in which it asks before it acts,
    and is allowed everything in turns with the sandbox `danger-full-access`."""
    sandbox: Sandbox = "read-only"
    """The sandbox in the settings. The process that is started before the first turn has it."""
    confinement: Confinement | None = None
    """The mechanism with which this server confines the agent's processes; None: it confines none."""
    no_confinement: str = ""
    """Why this server confines no process although the setting `agent_unconfined` is on; empty if it does, or need
    not."""
    state_folders: tuple[str, ...] = ()
    """The folders other than the workspace that a confined process may write to."""
    plain: PlainConfinement | None = None
    """What keeps processes of plain-model turns from reading the user's files. If nothing does, these turns have the
    same processes as read-only turns of the agent. None for the fake agent, which reads nothing."""
    plain_folder: str = ""
    """The working folder of plain-model turns whose processes are confined. It is empty."""

    def scope_of(self, workdir: str, sandbox: Sandbox, owner: str = "") -> ProcessScope:
        """Returns the scope of the process that serves turns with this folder and sandbox. A process that this server
        confines to writing in a turn's folder serves only turns with that folder. Every other process serves all
        folders, and has the folder of the settings. A process that is not confined has the sandbox
        `danger-full-access`. If it is not known what the program keeps between sessions, a process serves the turns
        of one key (`owner`).
        """
        owner = owner if self.preset.apart == "processes" else ""
        if self.confinement is None or sandbox == "danger-full-access":
            return ProcessScope(self.workdir, owner=owner)
        # Without a workspace to write to, one process serves all folders.
        return ProcessScope(workdir if sandbox == "workspace-write" else self.workdir, sandbox, owner)

    def plain_scope(self, owner: str = "") -> ProcessScope | None:
        """Returns the scope of plain-model turns of a key; None if their processes are not confined."""
        if self.plain is None or self.plain.confinement is None:
            return None
        owner = owner if self.preset.apart == "processes" else ""
        return ProcessScope(self.plain_folder, "read-only", owner, plain=True)

    def command_in(self, scope: ProcessScope) -> Command:
        """Returns the command that starts a process with the folder and sandbox in `scope`. Raises `SpawnError` if
        the program cannot be found.
        """
        command = msgspec.structs.replace(self.command, cwd=scope.workdir)
        if scope.plain and self.plain is not None:
            return self.plain.around(command)
        if self.confinement is None or scope.sandbox == "danger-full-access":
            return command
        workspace = (scope.workdir,) if scope.sandbox == "workspace-write" else ()
        return self.confinement.around(command, (*workspace, *self.state_folders))

    def program(self, declared: Declared) -> Program:
        """Returns the facts about the program: the preset, the settings, and what the program `declared` in its
        answer to `initialize`.
        """
        return Program(self.preset, declared, self.unconfined, self.confinement is not None)

    @property
    def warning(self) -> str:
        """A text for the operator: what confines the agent's process, that its turns cannot write in spite of the
        sandbox setting, or that nothing confines it. Empty if its turns simply have the sandbox of the settings.
        """
        title = self.preset.title
        if self.confinement is not None and self.sandbox != "danger-full-access":
            although = ", since --agent-unconfined lets it act without permission" if self.unconfined else ""
            where = WHERE[self.sandbox]
            return CONFINED.format(title=title, by=self.confinement.title, although=although, where=where)
        if not self.unconfined:
            follows = self.preset.sandboxed or self.sandbox == "read-only"
            return "" if follows else READS_ONLY.format(title=title)
        reason = self.no_confinement if self.confinement is None else "--sandbox danger-full-access"
        why = f" ({reason})" if reason else ""
        return UNCONFINED.format(title=title, why=why)


class AcpAgent(AgentBase):
    """An `Agent` that keeps one ACP process running; if this server confines it, one for each folder and sandbox in
    use. A process that has ended, or that has served `MAX_SESSIONS` sessions, is replaced when the next turn comes.
    """

    def __init__(self, launch: AcpLaunch, clock: Clock) -> None:
        super().__init__()
        self.name = launch.preset.name
        self.capabilities: frozenset[Capability] = CAPABILITIES
        self.session_options = SessionOptions()
        """The modes, models and options that the probe session of the newest process offered."""
        self._models = self.session_options.models()
        self._launch = launch
        self._clock = clock
        self._tool_server = ToolServer()
        self._scope = launch.scope_of(launch.workdir, launch.sandbox)
        """The scope of turns whose request chooses no folder and no sandbox."""
        self._slots = ProcessSlots(self._scope)
        self._folders: tempfile.TemporaryDirectory[str] | None = None
        """Has an empty folder for each session that gets one of its own; None before the first."""
        self._leaving: set[AcpProcess] = set()
        """Processes that take no further sessions. They are ended when they have no session left."""
        self._restarts = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._trial: asyncio.Task[None] | None = None
        """Tries out whether the program works confined. Plain-model turns wait for its result. None before `start`."""

    @property
    def warning(self) -> str:
        plain = self._launch.plain
        return f"{self._launch.warning} {plain.warning if plain is not None else ''}".strip()

    @property
    def current(self) -> AcpProcess | None:
        """The process for turns whose request chooses neither folder nor sandbox; None if it does not run."""
        return self._slots[self._scope].process

    async def start(self) -> None:
        """Starts the program and reads its models. Raises `Fault` if it cannot be started. If nobody is signed in
        to the agent, `start` succeeds, and turns fail.
        """
        if self._launch.confinement is not None:
            await asyncio.to_thread(self._launch.confinement.clear_tmp)
        await self._process(self._scope)
        # Not at the same time: a program may create its database at its first start, and fails if two do so.
        self._trial = asyncio.ensure_future(self._try_confined())

    async def _try_confined(self) -> None:
        """Starts the process for plain-model turns, and tries out with it whether the program works confined. If it
        does not, these turns are served by the other processes.
        """
        plain, scope = self._launch.plain, self._launch.plain_scope()
        if plain is None or scope is None:
            return
        (slot, _), started = self._slots.take(scope), list[AcpProcess]()

        async def start(command: Command) -> AcpProcess:
            started.append(await self._start_process(command, scope))
            return started[-1]

        unconfined = msgspec.structs.replace(self._launch.command, cwd=scope.workdir)
        async with slot.starting:
            try:
                process = await plain.try_out(start, unconfined, opens_sessions)
                if plain.confinement is not None:
                    self._keep(slot, process)
            except Fault as fault:
                log.warning("agent_start_failed", agent=self.name, reason=fault.failure.unquoted)
            finally:
                await asyncio.gather(*(each.end() for each in started if each is not slot.process))

    async def open(self, turn: Turn) -> AgentSession:
        """Returns a session for the turn, whose `begin` the caller has to call. Raises `Fault` if the program or
        the server of the client's tools cannot be started.
        """
        if not turn.workdir:
            turn = msgspec.structs.replace(turn, workdir=self._launch.workdir)
        plain = None
        if turn.mode == "model":  # a plain model would act on nothing
            if self._trial is not None:
                await asyncio.wait((self._trial,))
            plain = self._launch.plain_scope(turn.owner)
            workdir = turn.workdir if plain is None else plain.workdir
            turn = msgspec.structs.replace(turn, sandbox="read-only", workdir=workdir)
        own_folder = self._launch.preset.apart == "folders" and turn.mode == "model"
        shared = self._launch.preset.apart == "sessions" or own_folder or not turn.tools
        scope = plain or self._launch.scope_of(turn.workdir, turn.sandbox, turn.owner)
        if own_folder:
            turn = msgspec.structs.replace(turn, workdir=self._new_folder())
        if shared:
            return await self._open(turn, scope)
        scope = self._slots.reserve(msgspec.structs.replace(scope, owner=turn.owner))
        try:
            session = await self._open(turn, scope)
        except BaseException:
            self._slots.give_back(scope)
            raise
        self._slots.session_opened(scope, session)
        return session

    async def _open(self, turn: Turn, scope: ProcessScope) -> AgentSession:
        process = await self._process(scope)
        endpoint = await self._open_endpoint(turn)
        if process.exit is not None or process in self._leaving:  # while the endpoint was being opened
            process = await self._process(scope)
        declared = process.connection.declared
        assert declared is not None
        servers = () if endpoint is None else (endpoint.server_entry(http=declared.http_tools),)
        fits = endpoint is None and not (declared.system_prompt and _is_instructed(turn))
        ahead = process.take_ahead(turn.workdir) if fits else None
        channel = process.open_channel() if ahead is None else ahead
        program = self._launch.program(declared)
        dialect = AcpTurn(
            channel, program, _new_id, servers=servers, ahead=ahead is not None, alone=scope.number > 0
        )
        session = AgentSession(turn, dialect, AcpTransport(process, channel, dialect, endpoint))
        session.silence_hint = self._launch.preset.silence_hint
        session.max_output = self._launch.preset.max_output
        return session

    def _new_folder(self) -> str:
        """Creates an empty folder for one session, and returns its path. All are removed when the agent is closed."""
        if self._folders is None:
            plain = self._launch.plain
            confinement = None if plain is None else plain.confinement
            # A confined process sees no other temporary folder than its own.
            place = None if confinement is None else confinement.tmp
            self._folders = tempfile.TemporaryDirectory(prefix="codex-proxy-sessions-", dir=place)
        return tempfile.mkdtemp(dir=self._folders.name)

    async def _open_endpoint(self, turn: Turn) -> ToolEndpoint | None:
        if not turn.tools:
            return None
        try:
            return await self._tool_server.open(turn.tools)
        except OSError as error:
            message = f"No port is available for the client's tools ({error.strerror})."
            raise Fault(Failure(kind=FaultKind.UNAVAILABLE, message=message, retry_after=5)) from error

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert isinstance(session.transport, AcpTransport)
        await session.transport.release(finished=finished)
        self._tidy()

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models that the newest process listed at its start."""
        return self._models

    def processes(self) -> ProcessCounts:
        processes = [*self._leaving, *self._running()]
        busy = sum(1 for process in processes if process.turns_running)
        return ProcessCounts(idle=len(processes) - busy, busy=busy, restarts=self._restarts)

    def trouble(self) -> Failure | None:
        return self._slots[self._scope].failure

    async def close(self) -> None:
        self._closed = True
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait((self._trial,))
        for slot in self._slots.all():
            async with slot.starting:  # a start that is under way sees that it is too late
                pass
        await asyncio.gather(*(process.end() for process in (*self._leaving, *self._running())))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._tool_server.close()
        if self._folders is not None:
            await asyncio.to_thread(self._folders.cleanup)

    def kill(self) -> None:
        for process in (*self._leaving, *self._running()):
            process.kill()

    # --- the processes --------------------------------------------------------------------------

    def _running(self) -> list[AcpProcess]:
        return [slot.process for slot in self._slots.all() if slot.process is not None]

    async def _process(self, scope: ProcessScope) -> AcpProcess:
        """Returns the process for the next session in this scope, which is started if there is none. Raises `Fault`
        if that fails.
        """
        while True:
            slot, removed = self._slots.take(scope)
            for unused in removed:
                if unused.process is not None:
                    self._retire(unused)
            async with slot.starting:
                if self._closed:
                    raise Fault(STOPPING)
                if self._slots.has(scope, slot):  # else it had to make room while this turn waited
                    return await self._process_in(slot, scope)

    async def _process_in(self, slot: Slot, scope: ProcessScope) -> AcpProcess:
        current, now = slot.process, self._clock.monotonic()
        # Somebody may have signed in since: not every program looks again by itself.
        again = slot.failure is not None and now - slot.failed_at >= RECHECK_SECONDS
        if current is not None and takes_sessions(current) and not again:
            return current
        if current is not None:
            self._retire(slot)
        if slot.failure is not None and current is None and now - slot.failed_at < PAUSE_SECONDS:
            raise Fault(slot.failure)
        return await self._start_in_slot(slot, scope)

    async def _start_in_slot(self, slot: Slot, scope: ProcessScope) -> AcpProcess:
        try:
            try:
                command = self._launch.command_in(scope)
            except SpawnError as error:
                raise Fault(spawn_failure(error)) from error
            process = await self._start_process(command, scope)
        except Fault as fault:
            slot.failure, slot.failed_at = fault.failure, self._clock.monotonic()
            log.warning("agent_start_failed", agent=self.name, reason=fault.failure.unquoted)
            raise
        self._keep(slot, process)
        return process

    async def _start_process(self, command: Command, scope: ProcessScope) -> AcpProcess:
        """Starts a process and opens its probe session. Raises `Fault` if that fails; the process is ended then."""
        process = AcpProcess(self._launch.preset, opens_ahead=not scope.number)
        try:
            await process.start(command, timeout_seconds=START_SECONDS)
            await process.probe(scope.workdir, timeout_seconds=PROBE_SECONDS)
        except Fault:
            await process.end()
            raise
        except BaseException:
            process.kill()
            raise
        return process

    def _keep(self, slot: Slot, process: AcpProcess) -> None:
        slot.process = process
        process.on_change = self._tidy
        self._store_answers(slot, process)

    def _store_answers(self, slot: Slot, process: AcpProcess) -> None:
        """Stores in this agent what a new process has declared (`version`, `capabilities`), and what its probe
        session offers (`session_options`). If the probe session could not be opened, stores the failure in `slot`,
        and keeps the former options.
        """
        declared, probe = process.connection.declared, process.connection.probe
        assert declared is not None
        assert probe is not None
        self.version = declared.version
        self.capabilities = self._launch.program(declared).capabilities
        if probe.error is None:
            self.session_options, slot.failure = session_options_of(probe.result), None
            self._models = self.session_options.models()
            if self.session_options.model is None:
                self.capabilities -= {"model_choice"}
        else:
            slot.failure = failure_of_error(probe.error, self._launch.preset)
            slot.failed_at = self._clock.monotonic()
            log.warning("agent_session_failed", agent=self.name, reason=slot.failure.kind.value)

    def _retire(self, slot: Slot) -> None:
        """Removes the process from its slot, so that it gets no further sessions. The process is ended when its
        last session is closed.
        """
        process, slot.process = slot.process, None
        assert process is not None
        if process.exit is not None:
            self._restarts += 1
            return
        self._leaving.add(process)
        process.end_idle_channels()
        self._tidy()

    def _tidy(self) -> None:
        """Retires processes that can take no further sessions (see `_retire`). Ends retired processes that have no
        open session or are `unhealthy`, and forgets those that have ended.
        """
        for slot in self._slots.all():
            if slot.process is not None and not takes_sessions(slot.process):
                self._retire(slot)
        for process in list(self._leaving):
            if process.exit is not None:
                self._leaving.discard(process)
            elif not process.connection.channel_count or process.unhealthy:
                self._leaving.discard(process)
                self._spawn(process.end())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))


def _is_instructed(turn: Turn) -> bool:
    return bool(first_prompt(turn.history[:1], takes_system=True).system)


def opens_sessions(process: AcpProcess) -> bool:
    """Returns whether the program could open its probe session: it cannot if nobody is signed in."""
    probe = process.connection.probe
    return probe is not None and probe.error is None


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
