"""The agent `claude-code`: one process for each conversation, kept while the client may continue it, and one that waits
for the next, for each mode in use. A process that does nothing else is asked for its answer to `initialize`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.process_pool.plan import ONE_TURN
from codex_proxy.agents.process_pool.pool import RECHECK_SECONDS, PooledAgent, ProcessPool
from codex_proxy.agents.sessions.child_per_turn import ChildTransport
from codex_proxy.agents.sessions.session import (
    AgentSession,
    LineFramer,
    LineTooLong,
    ended_from,
    missing_program,
)
from codex_proxy.agents.shared.conversions import CLAUDE_MAX_OUTPUT
from codex_proxy.agents.shared.failures import describe_end
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part
from codex_proxy.core.account import AgentModel
from codex_proxy.core.beside_the_loop import beside_the_loop, is_long
from codex_proxy.core.faults import Failure, Fault, misconfigured
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.parts.claude_code.history import conversation
from codex_proxy.parts.claude_code.launch import CAPABILITIES, NO_MENTIONS, LaunchKey
from codex_proxy.parts.claude_code.messages import (
    ControlResponse,
    Message,
    control_request,
    decode,
    user_line,
)
from codex_proxy.parts.claude_code.own_tools import OWN_TOOLS
from codex_proxy.parts.claude_code.results import NOT_SIGNED_IN
from codex_proxy.process.child import Command, Exit, spawn

START_SECONDS: Final = 30.0
"""Maximum seconds until the answer to `initialize`; 0.4 are usual, ten times that on a busy machine."""
NO_SIGN_IN: Final = ("none", "", None)


class InitializeResult(msgspec.Struct, frozen=True):
    models: tuple[AgentModel, ...] = ()
    signed_in: bool = True
    account: str = ""
    """The kind of sign-in."""
    takes_mark: bool = True
    """Whether the program did not run a command in a marked text (see `user_line`)."""


class _Model(msgspec.Struct, frozen=True):
    value: str = ""
    displayName: str = ""
    supportedEffortLevels: list[str] = []


class _Account(msgspec.Struct, frozen=True):
    tokenSource: str | None = None
    apiKeySource: str | None = None
    apiProvider: str | None = None
    email: str | None = None
    subscriptionType: str | None = None


class _InitializeResponse(msgspec.Struct, frozen=True):
    models: list[_Model] = []
    account: _Account | None = None


def initialize_result_of(response: msgspec.Raw) -> InitializeResult:
    """Reads the result of `initialize`. Raises `UnreadableError`."""
    told = decode_part(response, _InitializeResponse)
    models = tuple(
        AgentModel(
            id=model.value,
            display_name=model.displayName,
            input_modalities=("text", "image"),
            efforts=tuple(model.supportedEffortLevels),
            is_default=model.value == "default",
            owned_by="anthropic",
        )
        for model in told.models
        if model.value
    )
    account = told.account
    if account is None:
        return InitializeResult(models)
    by = [each for each in (account.subscriptionType, account.tokenSource, account.apiKeySource) if each]
    named = [each for each in by if each not in NO_SIGN_IN]
    other_provider = account.apiProvider not in (None, "firstParty")
    signed_in = bool(named or account.email or other_provider)
    return InitializeResult(models, signed_in, named[0] if named else account.apiProvider or "")


class _InitializeReader:
    """Reads output until `initialize` and a marked command are answered. Then `answer` is done; it raises `Fault` if
    the process ends before.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()
        self.ran_command = False
        self._response: ControlResponse | None = None
        self._framer = LineFramer()

    def on_output(self, chunk: bytes) -> None:
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong:
            return  # nothing can be read any more; the wait for the answer has a limit
        for line in lines:
            try:
                self._read(decode(line))
            except UnreadableError:
                continue

    def _read(self, message: Message) -> None:
        if message.type == "control_response" and self._response is None:
            self._response = decode_part(message.response, ControlResponse)
        self.ran_command = self.ran_command or message.type == "assistant"
        if message.type == "result" and self._response is not None and not self.answer.done():
            self.answer.set_result(self._response)

    def on_end(self, exit: Exit) -> None:
        if not self.answer.done():
            said = describe_end(ended_from(exit))
            self.answer.set_exception(misconfigured(f"Claude Code ended while it was starting{said}"))


async def request_initialize(command: Command) -> InitializeResult:
    """Starts a process, and returns its answers to `initialize` and to a command marked as text: a release that does
    not know the mark answers without its model. Raises `Fault`.
    """
    question = _InitializeReader()
    child = await spawn(command, question)
    child.write(control_request("greeting", "initialize", hooks=None))
    child.write(user_line([{"type": "text", "text": "/help"}], query=False))
    try:
        async with asyncio.timeout(START_SECONDS):
            response = await question.answer
        initialized = initialize_result_of(response.response or msgspec.Raw(b"{}"))
        return msgspec.structs.replace(initialized, takes_mark=not question.ran_command)
    except TimeoutError:
        raise misconfigured(f"Claude Code did not answer within {START_SECONDS:g} s of starting.") from None
    except UnreadableError:
        raise misconfigured("Claude Code's answer to initialize is invalid.") from None
    finally:
        await child.end(grace=0)


log = structlog.get_logger(__name__)

SESSION_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
RESTOCK_SECONDS: Final = 0.3
"""Seconds from a turn that takes the waiting process to the start of the next one, which would slow the turn's
beginning.
"""
MAX_WAIT_SECONDS: Final = 3600.0
"""Maximum seconds that a process waits for a turn, since it has read settings and sign-in at its start."""
UNMARKED: Final = (
    "Claude Code {} does not know that what a client writes is text. So its attachments are off, of files that a text "
    "mentions, of skills and of the CLAUDE.md in subfolders, and messages that begin with / get a line break before "
    "it. Update it with `claude update`."
)
MAX_MEMORY: Final = 2 << 30
"""The bytes from which the process of a conversation without a running turn is ended."""


class ClaudeProcesses(msgspec.Struct, frozen=True):
    name: str
    version: str
    command: Callable[[LaunchKey], Command]
    """Returns the unconfined command."""
    confinement: PlainConfinement
    empty_folder: str
    warm: LaunchKey
    """The kind of the first process, and of those that only answer `initialize`."""
    knows_mark: bool = True
    """Whether the release is one that takes the mark of texts that nobody typed."""
    advice: str = ""
    """What the operator should do if a process cannot be started; may be empty."""
    sessions: str = ""
    """The program's folder with the stored sessions."""
    kept: int = 4
    """Maximum processes without a running turn: one that waits for each mode in use, and at least one of a conversation
    that may continue.
    """


def delete_stored(folder: str, id: str) -> None:
    """Deletes the files of a stored session, if they are there, in the `folder` of the sessions of all workspaces."""
    if not SESSION_ID.fullmatch(id):
        return
    for file in Path(folder).glob(f"*/{id}.jsonl"):
        shutil.rmtree(file.with_suffix(""), ignore_errors=True)
        file.unlink(missing_ok=True)


class ClaudeCodeAgent(PooledAgent[LaunchKey, ChildTransport]):
    any_model = True
    own_tools = OWN_TOOLS
    sessions_are_fixed = False
    resume_command = "claude --resume"

    def __init__(self, processes: ClaudeProcesses, clock: Clock) -> None:
        super().__init__()
        self.name = processes.name
        self.version = processes.version
        self.capabilities = CAPABILITIES
        self._processes = processes
        self._clock = clock
        self._initialized = InitializeResult()
        self._initialized_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        limits = msgspec.structs.replace(
            ONE_TURN,
            max_age=MAX_WAIT_SECONDS,
            max_memory=MAX_MEMORY,
            spare_uses=1,
            spare_delay=RESTOCK_SECONDS,
        )
        once = msgspec.structs.replace(
            limits, spare_uses=0
        )  # a waiting process would have read an old session
        self.pool = ProcessPool(
            self.name,
            lambda key: ChildTransport(),
            lambda transport, key: transport.start(self._command(key)),
            lambda key: once if key.session else limits,
            max_idle=processes.kept,
        )

    @property
    def warning(self) -> str:
        limits = "" if self._takes_mark else UNMARKED.format(self.version)
        return f"{self._processes.confinement.warning} {limits}".strip()

    @property
    def _takes_mark(self) -> bool:
        return self._processes.knows_mark and self._initialized.takes_mark

    async def start(self) -> None:
        try:
            self._initialized = await self._first_answer()
        except Fault as fault:
            message = f"{fault.failure.message} {self._processes.advice}".strip()
            raise Fault(msgspec.structs.replace(fault.failure, message=message)) from fault
        self._initialized_at = self._clock.monotonic()
        if not self._initialized.signed_in:
            log.warning("agent_not_signed_in", advice=NOT_SIGNED_IN.message)
        await self.pool.warm(self._processes.warm)

    async def _first_answer(self) -> InitializeResult:
        warm = self._processes.warm
        plain = self._processes.command(LaunchKey("model", self._processes.empty_folder))
        trial = self._processes.confinement.try_out(
            request_initialize, plain, lambda answer: answer.signed_in
        )
        if warm.mode == "model":
            return await trial
        tried = asyncio.ensure_future(trial)
        try:
            answer = await request_initialize(self._processes.command(warm))
        finally:
            await asyncio.wait((tried,))
            tried.exception()  # where both fail, the other failure is told
        tried.result()
        return answer

    def _command(self, key: LaunchKey) -> Command:
        command = self._processes.command(key)
        if not self._takes_mark:
            command = msgspec.structs.replace(command, env={**command.env, **NO_MENTIONS})
        return self._processes.confinement.wrap(command) if key.mode == "model" else command

    async def open(self, turn: Turn) -> AgentSession:
        if turn.mode == "model":
            turn = msgspec.structs.replace(turn, workdir=self._processes.empty_folder)
            key = LaunchKey("model", turn.workdir)
        else:
            stored = turn.stored_session
            named = None if stored is None else stored.id
            asks, subagents = turn.approvals == "ask", bool(turn.subagents)
            key = LaunchKey("agent", turn.workdir, turn.sandbox, named, subagents, asks, turn.toolset)
        if turn.model == "default":
            turn = msgspec.structs.replace(turn, model="")
        spoken = await beside_the_loop(partial(conversation, turn.history), long=is_long(turn.history))
        dialect = ClaudeCodeTurn(takes_mark=self._takes_mark, spoken=spoken)
        transport = await self.pool.acquire(key, ChildTransport.take)
        session = AgentSession(turn, dialect, transport)
        session.ran_before = transport.has_waited
        session.max_output = CLAUDE_MAX_OUTPUT
        return session

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        transport = session.transport
        assert isinstance(transport, ChildTransport)
        self.pool.restarts += session.ran_before and transport.exit is not None and not transport.has_printed
        await transport.release(finished=finished)

    async def delete_session(self, id: str) -> None:
        await asyncio.to_thread(delete_stored, self._processes.sessions, id)

    # --- what is known of it --------------------------------------------------------------------

    def models(self) -> tuple[AgentModel, ...]:
        return self._initialized.models

    def trouble(self) -> Failure | None:
        """Returns the failure if the program is missing, or nobody was signed in when last asked. Then asks again, at
        most every `RECHECK_SECONDS`.
        """
        missing = missing_program(self._processes.command(self._processes.warm))
        if missing is not None or self._initialized.signed_in:
            return missing
        old = self._clock.monotonic() - self._initialized_at > RECHECK_SECONDS
        if old and not self.pool.closed and (self._asking is None or self._asking.done()):
            self._initialized_at = self._clock.monotonic()
            self._asking = asyncio.ensure_future(self._ask_again())
        return NOT_SIGNED_IN

    async def _ask_again(self) -> None:
        try:
            self._initialized = await request_initialize(self._command(self._processes.warm))
        except Fault as fault:
            log.warning("agent_start_failed", reason=fault.failure.unquoted)

    async def close(self) -> None:
        await super().close()
        if self._asking is not None:
            await asyncio.gather(self._asking, return_exceptions=True)
