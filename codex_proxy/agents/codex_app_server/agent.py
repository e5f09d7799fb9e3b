"""The agent `codex-app-server`: long-lived processes of two kinds, for plain-model turns and for agent turns, with many
threads each; or a process for each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from codex_proxy.agents.codex.command_sandbox import ConfinedReads
from codex_proxy.agents.codex.plain_home import first_start_lock, removed_home
from codex_proxy.agents.codex.program import NOT_SIGNED_IN
from codex_proxy.agents.codex_app_server.app_server_dialect import AppServerTurn
from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_app_server.contract import ContractCheck
from codex_proxy.agents.codex_app_server.own_tools import CANNOT_ASK, OWN_TOOLS, with_toolset
from codex_proxy.agents.codex_app_server.questions import asks
from codex_proxy.agents.codex_app_server.stored_threads import (
    MAX_PAGE,
    MAX_TURNS,
    ItemPage,
    TurnPage,
    new_turns,
    turn_elsewhere,
)
from codex_proxy.agents.codex_app_server.thread_turns import with_raw_items
from codex_proxy.agents.codex_app_server.wire import (
    OPEN_ELSEWHERE,
    THREAD_HELD,
    Message,
    RpcError,
    StartedThread,
    ThreadStartResult,
    request,
)
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.process_pool.plan import PoolLimits
from codex_proxy.agents.process_pool.pool import PooledAgent, ProcessPool
from codex_proxy.agents.process_pool.processes import FileStamp, file_stamp
from codex_proxy.agents.sessions.session import AgentSession, LineTooLong
from codex_proxy.agents.sessions.shared_process import SharedProcess, SharedTransport
from codex_proxy.agents.shared.failures import BAD_ANSWER
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part
from codex_proxy.core.account import AgentModel
from codex_proxy.core.beside_the_loop import beside_the_loop, is_long
from codex_proxy.core.events import TurnElsewhere
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.turn import Mode, Turn
from codex_proxy.process.child import Command

log = structlog.get_logger(__name__)


class AppServerProcess(SharedProcess[AppServerConnection]):
    def __init__(self, *, parallel_calls: bool = True, serves_once: bool = False) -> None:
        """`parallel_calls`: the program reports the end of a model's answer. `serves_once`: it serves one turn."""
        super().__init__(AppServerConnection())
        self.serves_once = serves_once
        self.parallel_calls = parallel_calls

    async def start(self, command: Command, *, timeout_seconds: float) -> None:
        """Starts and initializes the program. Raises `Fault`, and ends it, if that fails or takes too long."""
        connection = self.connection
        await self._start_and_ask(
            command, (connection.open(), lambda: connection.ready and self.exit is None, timeout_seconds)
        )

    @property
    def signed_in(self) -> bool:
        return self.connection.signed_in

    def _refusal(self, fault: str) -> Failure:
        return Failure(FaultKind.SPAWN_FAILED, fault, quoted=fault.partition(": ")[2])

    def open_channel(self) -> ThreadTransport:
        kind = OnlyThreadTransport if self.serves_once else ThreadTransport
        transport = kind(self, self.connection.open_channel())
        self._serve(transport.channel)
        self.is_taken = self.serves_once
        return transport

    def forget(self, channel: int) -> None:
        """Lets go of the ended process and its only channel."""
        self._child = None  # each of them holds the other
        self.close_channel(channel)

    def ask_limits(self) -> None:
        """Asks for the account's limits: `on_limits` gets them as JSON, empty after an error."""
        self.write(self.connection.limits_request())


class ThreadTransport(SharedTransport[AppServerProcess]):
    def __init__(self, process: AppServerProcess, channel: int) -> None:
        super().__init__(process, channel)
        self.dialect = AppServerTurn(channel, parallel_calls=process.parallel_calls)

    def send(self, writes: bytes) -> None:
        self.process.write(self.process.connection.send(self.channel, writes))


class _Requests:
    """Asks a process about a thread on a channel, and reads the answers."""

    def __init__(self, transport: ThreadTransport) -> None:
        self.closed = asyncio.Event()
        """Set when the thread was unloaded."""
        self._transport = transport
        self._count = 0
        self._answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        transport.attach(self)

    async def ask(self, method: str, **params: Any) -> Message:
        """Returns the answer: an error if the process ends before."""
        self._count += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.send(request(f"{self._transport.channel}.{self._count}", method, params))
        return await self._answer

    def _on_answer(self, answer: Message) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def on_messages(self, messages: Sequence[Message], size: int) -> None:
        for message in messages:
            if message.method is None:
                self._on_answer(message)
            elif message.method == "thread/closed":
                self.closed.set()

    def on_end(self, ended: Ended) -> None:
        self.closed.set()
        self._on_answer(NOT_ANSWERED)

    def fail(self, failure: Failure) -> None:
        self.on_end(Ended())

    def on_long_line(self, fault: LineTooLong) -> None:
        self.on_end(Ended())


class OnlyThreadTransport(ThreadTransport):
    """The transport of a process that serves one turn, and ends with it."""

    exclusive = True

    def pause_reading(self) -> None:
        self.process.pause_reading()

    def resume_reading(self) -> None:
        self.process.resume_reading()

    async def release(self, *, finished: bool) -> None:
        process = self.process
        try:
            process.completed_turn = self.has_begun and finished and process.alive
            await process.end()
        except BaseException:
            process.kill()  # whatever has broken, the process ends with its turn
            raise
        finally:
            process.forget(self.channel)


START_SECONDS = 20.0
"""Maximum seconds until the answer to `initialize`; 0.07 are usual, more in a new home or from a cold disk."""

LIMITS_SECONDS = 5.0
REQUEST_SECONDS = 5.0
"""Maximum seconds for what is asked about a thread outside of turns."""
MAX_FILES = 1000
"""Maximum stored threads whose files are remembered."""
NOT_ANSWERED = Message(error=RpcError(0, "the agent did not answer"))
NO_THREAD = "no rollout found"
"""In the error about a thread that is gone."""

T = TypeVar("T")


def _result(answer: Message, type: type[T]) -> T:
    """Returns an answer's result. Raises `UnreadableError` for an error, too."""
    if answer.error is not None:
        raise UnreadableError(answer.error.message)
    return decode_part(answer.result, type)


async def _read_turns(
    requests: _Requests, thread: str, conversation: str, known: str
) -> tuple[TurnElsewhere, ...]:
    """Reads the turns of `AppServerAgent.turns_elsewhere`. Raises `UnreadableError`."""
    listed = await requests.ask("thread/turns/list", threadId=thread, limit=MAX_TURNS)
    found: list[TurnElsewhere] = []
    for turn in new_turns(_result(listed, TurnPage), conversation, known):
        items: list[msgspec.Raw] = []
        next_page: str | None = ""
        while next_page is not None:
            cursor = {"cursor": next_page} if next_page else {}
            answer = await requests.ask(
                "thread/items/list", threadId=thread, turnId=turn.id, limit=MAX_PAGE, **cursor
            )
            page = _result(answer, ItemPage)
            items += (each.item for each in page.data)
            next_page = page.next_cursor
        found.append(await beside_the_loop(partial(turn_elsewhere, turn, items), long=len(items) > MAX_PAGE))
    return tuple(found)


OWN_SUBAGENTS = 6
"""How many subagents Codex has at a time by itself."""

MODES: tuple[Mode, ...] = ("model", "agent")


class AppServerProcesses(msgspec.Struct, frozen=True):
    """How to start the processes of `codex app-server`, and what was found out about this Codex before the first of
    them starts.
    """

    name: str
    version: str
    plain: Command
    """The unconfined command for plain-model turns."""
    confinement: PlainConfinement
    agent: Command | None
    """The command for agent turns; None if one kind serves both modes."""
    empty_folder: str
    """The folder of plain-model turns; empty: each runs in its own folder."""
    models: tuple[AgentModel, ...]
    any_model: bool
    sign_in_file: str = ""
    """A file that changes when somebody signs in."""
    start_mark: str = ""
    """A file that exists once this release has started; until then one process starts at a time."""
    reads: ConfinedReads | None = None
    """None: no turn's reading is limited."""
    notices: tuple[str, ...] = ()
    """Sentences for the operator about the user's config.toml."""
    contract: ContractCheck = ContractCheck()
    renew_check: Callable[[], Awaitable[None]] | None = None
    """Asks the binary again, for the next start, if the stored check is a day old."""
    resume_command: str = "codex resume"
    """See `Agent.resume_command`."""


class AppServerAgent(PooledAgent[Mode, AppServerProcess]):
    """The agent `codex-app-server`. `start` starts the processes of plain-model turns if `warm_plain`, else of agent
    turns. `limits` say whether a process serves many turns, or one.
    """

    own_tools = OWN_TOOLS

    def __init__(self, processes: AppServerProcesses, limits: PoolLimits, *, warm_plain: bool) -> None:
        super().__init__()
        self.name = processes.name
        self.version = processes.version
        self.any_model = processes.any_model
        self.resume_command = processes.resume_command
        self.capabilities = processes.contract.capabilities
        self.missing_features = processes.contract.missing_features
        self._renewal: asyncio.Task[None] | None = None
        self._models = processes.models
        self._empty = processes.empty_folder
        self._processes = processes
        self.pool = ProcessPool(
            self.name,
            lambda mode: self._process(),
            self._start,
            lambda mode: limits,
            sign_in_file=processes.sign_in_file,
        )
        self._warm_plain = warm_plain
        self._serves_once = limits.serves_once
        self._files: dict[str, tuple[str, FileStamp, str | None]] = {}
        """The file of each stored thread as this server has left it, by the thread's id."""

    @property
    def warning(self) -> str:
        return " ".join((self._processes.confinement.warning, *self._processes.notices)).strip()

    def _key(self, mode: Mode) -> Mode:
        return "model" if self._processes.agent is None else mode

    async def _start(self, process: AppServerProcess, key: Mode) -> None:
        processes = self._processes
        command = processes.confinement.wrap(processes.plain) if key == "model" else processes.agent
        assert command is not None
        await self._start_with(process, command)

    async def _start_with(self, process: AppServerProcess, command: Command) -> None:
        async with first_start_lock(self._processes.start_mark, START_SECONDS):
            await process.start(command, timeout_seconds=START_SECONDS)

    def _process(self) -> AppServerProcess:
        process = AppServerProcess(
            parallel_calls="parallel_calls" not in self.missing_features, serves_once=self._serves_once
        )
        process.on_limits = self.limits.update
        return process

    async def start(self) -> None:
        trial = asyncio.ensure_future(self._try_confined())
        try:
            if self._warm_plain:  # its processes are started as the trial has found
                await trial
            await self.pool.warm(self._key("model" if self._warm_plain else "agent"))
        finally:
            await asyncio.wait((trial,))
        trial.result()
        if self._processes.renew_check is not None:
            self._renewal = asyncio.ensure_future(self._processes.renew_check())

    async def _try_confined(self) -> None:
        """Tries out whether Codex works confined. Raises `Fault` if it does not, and the operator has named the
        mechanism.
        """
        if self._processes.confinement.confinement is None or "plain_model" in self.missing_features:
            return

        async def start(command: Command) -> bool:
            process = self._process()
            try:
                await self._start_with(process, command)
                return process.signed_in
            finally:
                await process.end()

        await self._processes.confinement.try_out(start, self._processes.plain, bool)

    async def open(self, turn: Turn) -> AgentSession:
        turn, reads = with_toolset(turn), self._processes.reads
        # The thread would have neither a profile nor the sandbox.
        if reads is not None and "confined_reads" not in self.missing_features:
            turn = await reads.limit(turn)
        if turn.toolset is not None and turn.toolset.asked and not asks(turn):
            raise Fault(CANNOT_ASK)
        if is_long(turn.history):
            turn = await beside_the_loop(partial(with_raw_items, turn), long=True)
        if turn.mode == "agent" and turn.subagents is None and "subagents" not in self.missing_features:
            turn = msgspec.structs.replace(turn, subagents=OWN_SUBAGENTS)
        if turn.mode == "model" and self._empty:
            turn = msgspec.structs.replace(turn, workdir=self._empty)
        transport = await self.pool.acquire(self._key(turn.mode), AppServerProcess.open_channel)
        try:
            if not transport.process.signed_in:
                raise Fault(NOT_SIGNED_IN)
            session = AgentSession(turn, transport.dialect, transport)
        except BaseException:
            await transport.release(finished=True)
            raise
        if self._serves_once:
            session.serves_once, session.ran_before = True, transport.process.has_waited
        return session

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        await super().release(session, finished=finished)
        transport = session.transport
        if isinstance(transport, ThreadTransport) and (thread := transport.dialect.stored_thread) is not None:
            self._note_file(thread, None)

    def _note_file(self, thread: StartedThread, newest: str | None) -> None:
        """Notes the file of a stored thread as this server has left it. `newest`: the last turn of other programs that
        was returned; None behind a turn here, before which none is new.
        """
        self._files.pop(thread.id, None)
        if thread.path and (stamp := file_stamp(thread.path)) is not None:
            self._files[thread.id] = thread.path, stamp, newest
        if len(self._files) > MAX_FILES:
            del self._files[next(iter(self._files))]

    async def turns_elsewhere(self, id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        if "imported_turns" in self.missing_features:
            return ()
        path, stamp, newest = self._files.get(id, ("", None, None))
        # What was returned before is not `known` if the caller could not store it.
        if stamp is not None and stamp == file_stamp(path) and newest in (None, known):
            return ()
        async with self._requests() as requests:
            # What is listed before is what this process knew, without what others have written.
            resumed = await requests.ask("thread/resume", threadId=id, excludeTurns=True)
            if resumed.error is not None:
                return ()  # the turn will say it
            try:
                found = await _read_turns(requests, id, conversation, known)
            finally:
                await requests.ask("thread/unsubscribe", threadId=id)
                await requests.closed.wait()
        self._note_file(_result(resumed, ThreadStartResult).thread, found[-1].id if found else known)
        return found

    async def delete_session(self, id: str) -> None:
        async with self._requests() as requests:
            error = (await requests.ask("thread/delete", threadId=id)).error
        self._files.pop(id, None)
        if error is not None and THREAD_HELD in error.message:
            raise Fault(OPEN_ELSEWHERE)
        if error is not None and NO_THREAD not in error.message:
            log.warning("agent_session_not_deleted", agent=self.name, reason=error.message)

    @asynccontextmanager
    async def _requests(self) -> AsyncIterator[_Requests]:
        """Yields what asks a process of agent turns. Raises `Fault` if the answers take too long, or are none."""
        transport = await self.pool.acquire(self._key("agent"), AppServerProcess.open_channel)
        finished = False
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                yield _Requests(transport)
            finished = True
        except TimeoutError:
            message = f"The agent did not answer within {REQUEST_SECONDS:g} s. Try again."
            raise Fault.of(FaultKind.UNAVAILABLE, message) from None
        except UnreadableError:
            finished = True
            raise Fault(BAD_ANSWER) from None
        finally:
            await transport.release(finished=finished)

    def models(self) -> tuple[AgentModel, ...]:
        return self._models

    async def ask_limits(self) -> None:
        process = next((process for process in self.pool.processes if process.alive), None)
        if process is not None:
            process.ask_limits()
            await self.limits.wait_for_update(LIMITS_SECONDS)

    def trouble(self) -> Failure | None:
        agent = self._processes.agent
        removed = None if agent is None else removed_home(agent.env)
        if removed is not None:
            return removed
        for mode in MODES:
            failure = self.pool.readiness_failure(mode)
            if failure is not None:
                return failure
        processes = self.pool.processes
        if processes and not any(process.signed_in for process in processes):
            return NOT_SIGNED_IN
        return None

    async def close(self) -> None:
        if self._processes.reads is not None:
            self._processes.reads.close()
        if self._renewal is not None:
            self._renewal.cancel()
        await super().close()
