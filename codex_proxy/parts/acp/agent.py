"""The agents that speak the Agent Client Protocol (ACP): one process (one per folder if confined), with a session for
each conversation.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.confinement.confine import Confinement
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.process_pool.plan import NO_LIMIT, PoolLimits
from codex_proxy.agents.process_pool.pool import PooledAgent, ProcessPool
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import Sandbox, Turn
from codex_proxy.files.private import temporary_folder
from codex_proxy.parts.acp.acp_dialect import PLAIN_ID, AcpTurn
from codex_proxy.parts.acp.content import first_prompt
from codex_proxy.parts.acp.failures import failure_of_error
from codex_proxy.parts.acp.messages import new_session
from codex_proxy.parts.acp.own_tools import own_tools_of
from codex_proxy.parts.acp.presets import CAPABILITIES, AcpPreset, DeclaredFeatures, Program
from codex_proxy.parts.acp.process import AcpProcess, AcpTransport
from codex_proxy.parts.acp.sessions import SessionOptions, session_options_of
from codex_proxy.parts.acp.stored_sessions import ask_program, open_transport
from codex_proxy.parts.acp.tool_server import ToolEndpoint, ToolServer
from codex_proxy.process.child import Command

log = structlog.get_logger(__name__)

MAX_SESSIONS: Final = 200
"""Maximum sessions of a process; not every agent frees ended ones."""
MAX_AGE_SECONDS: Final = 4 * 3600.0
MAX_MEMORY: Final = 2 << 30
"""Maximum bytes of a process; 0.1 to 0.6 GiB are usual."""
MAX_PROCESSES: Final = 4
"""Maximum processes kept without a running turn."""
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
WRITABLE_PLACES: Final[Mapping[Sandbox, str]] = {
    "read-only": "to no workspace",
    "workspace-write": "to the workspace of a turn",
}


class ProcessScope(msgspec.Struct, frozen=True):
    """What the turns of a process have in common. If a program does not keep sessions apart (`AcpPreset.apart`), one
    with tools has its own process.
    """

    workdir: str
    sandbox: Sandbox = "danger-full-access"
    owner: str = ""
    """The API key that the process serves; empty for all."""
    alone: bool = False
    plain: bool = False
    """Whether the process serves only plain-model turns, and cannot read the user's files."""


class AcpLaunch(msgspec.Struct, frozen=True, kw_only=True):
    preset: AcpPreset
    command: Command
    """The command, unconfined."""
    workdir: str
    """The folder in the settings, in which the first process runs."""
    unconfined: bool = False
    """The setting `acp.unconfined`: the agent need not ask before it acts."""
    asks_user: bool = False
    """Whether clients may be asked for more than permissions: the setting `approvals` is `ask`."""
    sandbox: Sandbox = "read-only"
    """The sandbox in the settings, in which the first process runs."""
    confinement: Confinement | None = None
    no_confinement: str = ""
    """Why nothing confines a process although `acp.unconfined` is on; else empty."""
    state_folders: tuple[str, ...] = ()
    """Folders, beside the workspace, that a confined process may write to."""
    plain: PlainConfinement | None = None
    """What keeps plain-model turns from reading the user's files. None: they use the processes of read-only agent
    turns."""
    plain_folder: str = ""
    """The empty working folder of confined plain-model turns."""

    def scope_of(self, workdir: str, sandbox: Sandbox, owner: str = "") -> ProcessScope:
        """Returns the scope of an agent turn. It is limited to one folder if processes are confined, and to one key
        (`owner`) if it is not known what the program keeps between sessions.
        """
        owner = owner if self.preset.apart == "processes" else ""
        if self.confinement is None or sandbox == "danger-full-access":
            return ProcessScope(self.workdir, owner=owner)
        # Without a workspace to write to, one process serves all folders.
        return ProcessScope(workdir if sandbox == "workspace-write" else self.workdir, sandbox, owner)

    def plain_scope(self, owner: str = "") -> ProcessScope | None:
        """Returns the scope of a key's plain-model turns; None if they are not confined."""
        if self.plain is None or self.plain.confinement is None:
            return None
        owner = owner if self.preset.apart == "processes" else ""
        return ProcessScope(self.plain_folder, "read-only", owner, plain=True)

    def command_in(self, scope: ProcessScope) -> Command:
        """Returns the command of a process of this scope. Raises `SpawnError`."""
        command = msgspec.structs.replace(self.command, cwd=scope.workdir)
        if scope.plain and self.plain is not None:
            return self.plain.wrap(command)
        if self.confinement is None or scope.sandbox == "danger-full-access":
            return command
        workspace = (scope.workdir,) if scope.sandbox == "workspace-write" else ()
        return self.confinement.wrap(command, (*workspace, *self.state_folders))

    def program(self, declared: DeclaredFeatures) -> Program:
        return Program(self.preset, declared, self.unconfined, self.confinement is not None)

    @property
    def warning(self) -> str:
        """Returns what the operator should know; empty if the agent does what its settings say."""
        title = self.preset.title
        if self.confinement is not None and self.sandbox != "danger-full-access":
            although = ", since --agent-unconfined lets it act without permission" if self.unconfined else ""
            where = WRITABLE_PLACES[self.sandbox]
            return CONFINED.format(title=title, by=self.confinement.title, although=although, where=where)
        if not self.unconfined:
            follows = self.preset.sandboxed or self.sandbox == "read-only"
            return "" if follows else READS_ONLY.format(title=title)
        reason = self.no_confinement if self.confinement is None else "--sandbox danger-full-access"
        why = f" ({reason})" if reason else ""
        return UNCONFINED.format(title=title, why=why)


class AcpAgent(PooledAgent[ProcessScope, AcpProcess]):
    """Keeps one ACP process running; if it is confined, one for each folder and sandbox in use."""

    def __init__(self, launch: AcpLaunch) -> None:
        super().__init__()
        self.name = launch.preset.name
        self.capabilities: frozenset[Capability] = CAPABILITIES
        self.own_tools = own_tools_of(launch.preset)
        self.resume_command = launch.preset.resume_command
        self._models = SessionOptions().models()
        self._launch = launch
        self._declared = DeclaredFeatures()
        """What the newest process has declared."""
        self._tool_server = ToolServer(for_claude=launch.preset.for_claude)
        self._scope = launch.scope_of(launch.workdir, launch.sandbox)
        """The scope of turns whose request chooses no folder or sandbox."""
        self.pool = ProcessPool(
            self.name,
            lambda scope: AcpProcess(launch.preset, alone=scope.alone, asks_user=launch.asks_user),
            lambda process, scope: self._start_with(process, self._launch.command_in(scope)),
            self._limits,
            max_idle=MAX_PROCESSES,
        )
        self._folders = ExitStack()
        self._folder = ""
        """Where each session has a folder of its own, if they are kept apart by their folders."""
        self._trial: asyncio.Task[None] | None = None
        """Tries out whether the program works confined; plain-model turns wait for it."""

    @property
    def warning(self) -> str:
        plain = self._launch.plain
        return f"{self._launch.warning} {plain.warning if plain is not None else ''}".strip()

    @property
    def current(self) -> AcpProcess | None:
        return next(reversed(self.pool.processes_of(self._scope)), None)

    def _limits(self, scope: ProcessScope) -> PoolLimits:
        most = 1 if scope.alone else NO_LIMIT
        return PoolLimits(
            min_processes=int(scope == self._scope),
            max_processes=NO_LIMIT if scope.alone else 2,  # one, and its successor
            max_turns_running=most,
            busy_from=most + 1,
            max_turns_served=MAX_SESSIONS,
            max_age=MAX_AGE_SECONDS,
            max_memory=MAX_MEMORY,
        )

    async def start(self) -> None:
        """Starts the first process. Raises `Fault` if the program cannot be started, but not if nobody is signed in."""
        if self._launch.confinement is not None:
            await asyncio.to_thread(self._launch.confinement.clear_tmp)
        await self.pool.warm(self._scope)
        # Not at the same time: a program may create its database at its first start, and fails if two do so.
        self._trial = asyncio.ensure_future(self._try_confined())

    async def _try_confined(self) -> None:
        plain, scope = self._launch.plain, self._launch.plain_scope()
        if plain is None or scope is None:
            return
        started = list[AcpProcess]()

        async def start(command: Command) -> AcpProcess:
            started.append(AcpProcess(self._launch.preset, asks_user=self._launch.asks_user))
            await self._start_with(started[-1], command)
            return started[-1]

        unconfined = msgspec.structs.replace(self._launch.command, cwd=scope.workdir)
        try:
            process = await plain.try_out(start, unconfined, lambda process: process.signed_in)
            if plain.confinement is not None:
                started.remove(process)
                self.pool.add(scope, process)
        except Fault as fault:
            log.warning("agent_start_failed", agent=self.name, reason=fault.failure.unquoted)
        finally:
            await asyncio.gather(*(process.end() for process in started))

    async def open(self, turn: Turn) -> AgentSession:
        """Opens a session for a turn. Raises `Fault` if the program or the server of the client's tools cannot be
        started.
        """
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
        if not shared:
            scope = msgspec.structs.replace(scope, owner=turn.owner, alone=True)
        endpoint = await self._open_endpoint(turn)
        try:
            transport = await self.pool.acquire(
                scope, lambda process: self._transport(process, turn, endpoint, alone=scope.alone)
            )
        except BaseException:
            if endpoint is not None:
                endpoint.close()
            raise
        session = AgentSession(turn, transport.dialect, transport)
        session.silence_hint = self._launch.preset.silence_hint
        session.max_output = self._launch.preset.max_output
        if scope.alone:
            transport.process.alone_with = session
        return session

    def _transport(
        self, process: AcpProcess, turn: Turn, endpoint: ToolEndpoint | None, *, alone: bool
    ) -> AcpTransport:
        declared = process.connection.declared
        assert declared is not None
        servers = () if endpoint is None else (endpoint.server_entry(http=declared.http_tools),)
        takes_system = declared.system_prompt
        instructed = takes_system and first_prompt(turn.history[:1], takes_system=True).system
        ahead = None if instructed or endpoint is not None else process.take_ahead(turn.workdir)
        channel = process.open_channel() if ahead is None else ahead
        program = self._launch.program(declared)
        dialect = AcpTurn(channel, program, _new_id, servers=servers, ahead=ahead is not None, alone=alone)
        return AcpTransport(process, channel, dialect, endpoint)

    def _new_folder(self) -> str:
        if not self._folder:
            plain = self._launch.plain
            confinement = None if plain is None else plain.confinement
            # A confined process sees no other temporary folder than its own.
            place = None if confinement is None else confinement.tmp
            self._folder = self._folders.enter_context(temporary_folder("sessions", place)).path
        return tempfile.mkdtemp(dir=self._folder)

    async def _open_endpoint(self, turn: Turn) -> ToolEndpoint | None:
        if not turn.tools:
            return None
        try:
            return await self._tool_server.open(turn.tools)
        except OSError as error:
            message = f"No port is available for the client's tools ({error.strerror})."
            raise Fault.of(FaultKind.UNAVAILABLE, message, retry_after=5) from error

    async def fork_session(self, id: str, turn: Turn) -> str:
        preset = self._launch.preset
        if not self._launch.program(self._declared).forks_stored:
            return ""
        # The program may read the folder's own settings already: so in the process and sandbox of the turn.
        scope = self._launch.scope_of(turn.workdir, turn.sandbox, turn.owner)
        transport = await self.pool.acquire(scope, open_transport)
        params = {"sessionId": id, **new_session(turn.workdir, (), preset.session_meta)}
        answer = await ask_program(transport, "session/fork", params)
        if answer.error is not None:
            reason = failure_of_error(answer.error, preset).unquoted
            log.warning("agent_session_not_forked", agent=self.name, reason=reason)
            return ""
        # Its first turn opens it again, with the tools and the process that the turn needs.
        transport.process.write(transport.process.connection.close_line(answer))
        copy = answer.session
        return copy if isinstance(copy, str) and copy != id and PLAIN_ID.fullmatch(copy) else ""

    async def delete_session(self, id: str) -> None:
        if not self._declared.deletes:
            return
        transport = await self.pool.acquire(self._scope, open_transport)
        error = (await ask_program(transport, "session/delete", {"sessionId": id})).error
        if error is not None:
            reason = failure_of_error(error, self._launch.preset).unquoted
            log.warning("agent_session_not_deleted", agent=self.name, reason=reason)

    def models(self) -> tuple[AgentModel, ...]:
        return self._models

    def trouble(self) -> Failure | None:
        failure, current = self.pool.readiness_failure(self._scope), self.current
        return current.session_failure if failure is None and current is not None else failure

    async def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait((self._trial,))
        await super().close()
        await self._tool_server.close()
        if self._folder:
            await asyncio.to_thread(self._folders.close)

    # --- the processes --------------------------------------------------------------------------

    async def _start_with(self, process: AcpProcess, command: Command) -> None:
        await process.start(command)
        self._store_answers(process)

    def _store_answers(self, process: AcpProcess) -> None:
        declared, probe = process.connection.declared, process.connection.probe
        assert declared is not None
        assert probe is not None
        self._declared, self.version = declared, declared.version
        self.capabilities = self._launch.program(declared).capabilities
        if (failure := process.session_failure) is not None:
            log.warning("agent_session_failed", agent=self.name, reason=failure.kind.value)
            return
        options = session_options_of(probe.result)
        self._models = options.models()
        if options.model is None:
            self.capabilities -= {"model_choice"}


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
