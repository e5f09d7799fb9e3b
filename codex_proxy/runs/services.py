"""What all runs share: the agent with its sessions, the step memory, and the checks of schemas.

Clients may send calls back without their ids: Ollama's packages and `function_call` of Chat Completions have none.
They are found again, so that the thread that waits for their outputs and the remembered items of their step are found.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import msgspec
import structlog

from codex_proxy.agents.agent import Agent, agent_for, all_agents
from codex_proxy.agents.sessions.session import AgentSession, SessionListener
from codex_proxy.core.account import with_context_length, with_reset
from codex_proxy.core.beside_the_loop import beside_the_loop, is_long
from codex_proxy.core.events import TurnElsewhere
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, as_functions
from codex_proxy.core.own_errors import trace_of
from codex_proxy.core.step_memory import RamStepMemory, StepMemory, StepMemorySettings
from codex_proxy.core.turn import StoredSession, Turn, fixed_by_session
from codex_proxy.runs.idle_sessions import (
    ClosedSession,
    Digests,
    HistoryDigests,
    IdleLimits,
    IdleSessions,
    PendingOutputs,
    ReusedSession,
    item_digests,
    session_key,
)
from codex_proxy.runs.time_and_tokens import TokensAddedByAgents
from codex_proxy.runs.whole_history import Replay, WholeHistory
from codex_proxy.tools.attempt import Attempt
from codex_proxy.tools.replay import RememberedTurn, keys_of, restore_items, visible_calls
from codex_proxy.workers.schema_checks import SchemaChecks

log = structlog.get_logger(__name__)


LET_GO_SECONDS = 10.0
"""Seconds for which a turn waits until the agent has let go of the conversation's session."""
MEMORY_SECONDS = 10.0
"""Seconds for reading the step memory, and for writing to it."""


class RunServices:
    """Opens sessions, and gives them back; reads and writes the step memory."""

    def __init__(self, agent: Agent, idle_limits: IdleLimits) -> None:
        self.agent = agent
        self.idle_sessions = IdleSessions(idle_limits, asyncio.get_running_loop)
        self.memory: StepMemory = RamStepMemory(StepMemorySettings(), time.time)
        self.checks = SchemaChecks()
        self.added_tokens = TokensAddedByAgents()
        self.stopping = asyncio.Event()
        """Set when the server begins to stop: no session is kept from then on."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored_in_use: dict[tuple[str, str], tuple[AgentSession, asyncio.Future[None]]] = {}
        """The sessions that agents store, by owner and conversation, with what is done when the agent has let go."""

    def agent_of(self, turn: Turn) -> Agent:
        return agent_for(self.agent, turn.model)

    def agent_and_model(self, turn: Turn) -> str:
        """Returns `AGENT/MODEL`, under which raw items are stored: no other model can read encrypted reasoning."""
        return f"{self.agent_of(turn).name}/{turn.model}"

    def spawn(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        """Starts a task for which `close` waits."""
        return keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work, context=context))

    def spawn_in_turn(
        self, works: Sequence[Coroutine[Any, Any, None]], context: Context, then: Callable[[], None]
    ) -> None:
        """Starts a task that does one work after the other, and then calls `then`, whatever failed."""

        async def do() -> None:
            try:
                for work in works:
                    try:
                        await work
                    except Exception as error:  # noqa: BLE001 - the other works are those of other parts
                        log.error("internal_error", **trace_of(error))
            finally:
                for work in works:
                    work.close()  # of those that were not begun

        self.spawn(do(), context).add_done_callback(lambda _: then())

    async def close(self) -> None:
        """Ends the agent; returns when all sessions are released."""
        self.idle_sessions.close()
        await self.checks.close()
        await self.agent.close()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- sessions -------------------------------------------------------------------------------

    async def first_attempt(self, turn: Turn, agent: Agent) -> Attempt:
        able, form = agent.capabilities, None
        if turn.output_schema is not None and "structured_output" in able:
            form = await self.checks.strict_form(bytes(turn.output_schema))
        return Attempt(turn, form, keeps_choice="tool_choice" in able)

    async def first_session(
        self,
        attempt: Attempt,
        turn: Turn,
        replay: Replay | None,
    ) -> tuple[Attempt, ReusedSession | AgentSession, HistoryDigests | None]:
        """Returns the first attempt, and its session: a kept one, else a reopened or a new one, whose history has the
        model's items from `replay` and the step memory; and the history's digests, if they were needed. Raises `Fault`.
        """
        closed: ClosedSession | None = None
        digests: HistoryDigests | None = None
        # A first message continues nothing.
        continues = len(turn.history) > 1 or (turn.stored_session is not None and turn.stored_session.before)
        if continues and attempt.as_asked and self.idle_sessions:
            digests = HistoryDigests(turn.history)
            await beside_the_loop(digests.compute, long=is_long(turn.history))
            key = session_key(turn.owner, attempt.turn)
            reused = self.idle_sessions.take(key, turn, digests)
            if reused is not None:
                return attempt, reused, digests
            closed = self.idle_sessions.take_closed(key, turn, digests)
        stored = _session_to_continue(turn, self.agent_of(turn)) if attempt.as_asked else None
        lacking = isinstance(replay, WholeHistory) and stored is not None  # what the session has seen
        given = await self._with_memory(turn if lacking else await _with_replay(turn, turn, replay))
        if given is not turn:
            attempt = attempt.restart(given)
        opened = await self._open(attempt.turn, stored)
        if stored is not None:
            opened.reopen(stored.id, turn.history[-stored.new_items :])
        elif closed is not None:
            opened.reopen(closed.reopen_id, closed.new_items)
        return attempt, opened, digests

    def keep(
        self,
        session: AgentSession,
        turn: Turn,
        attempt: Attempt,
        digests: HistoryDigests | None,
        said: Sequence[HistoryMessage],
    ) -> bool:
        """Keeps the session for the client's next request, if possible; returns whether. `digests`: those of the turn's
        history, if they are known; `said`: the messages of the answer.
        """
        if self.stopping.is_set():
            return False
        policy = attempt.policy
        calls = visible_calls(policy)
        pending = PendingOutputs(frozenset(call.call_id for call in calls), tuple(policy.hidden))
        own, stored = attempt.turn, attempt.turn.stored_session
        if stored is not None and stored.after and not (pending.visible or pending.hidden):
            seen: Digests = ()
            own = msgspec.structs.replace(
                own, stored_session=StoredSession(stored.conversation, before=stored.after)
            )
        else:
            seen = (digests or HistoryDigests(turn.history)).followed_by((*said, *calls))
        self.idle_sessions.put(turn.owner, session_key(turn.owner, own), session, seen, pending)
        return True

    async def further_session(self, attempt: Attempt, turn: Turn, replay: Replay | None) -> AgentSession:
        """Opens a session for a further attempt at `turn`. Raises `Fault`."""
        return await self._open(await self._with_memory(await _with_replay(attempt.turn, turn, replay)))

    async def _open(self, turn: Turn, stored: StoredSession | None = None) -> AgentSession:
        """Opens a session, a new one or to continue `stored`. Raises `Fault`: UNAVAILABLE if the system has no room for
        its files.
        """
        if turn.stored_session is not None:
            conversation = turn.stored_session.conversation
            turn = msgspec.structs.replace(turn, stored_session=stored or StoredSession(conversation))
            await self.let_go(turn.owner, conversation)
        try:
            return await self.agent.open(turn)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            log.error("session_not_opened", agent=self.agent_of(turn).name, reason=reason)
            message = f"The server cannot prepare the agent's turn: {reason}. The operator must correct that."
            raise Fault.of(FaultKind.UNAVAILABLE, message) from error

    async def let_go(self, owner: str, conversation: str) -> None:
        """Closes what is kept of a conversation whose session the agent stores, and waits until the agent has let go of
        it.
        """
        self.idle_sessions.close_stored(owner, conversation)
        in_use = self._stored_in_use.get((owner, conversation))
        if in_use is not None:
            await asyncio.wait({in_use[1]}, timeout=LET_GO_SECONDS)

    async def turns_elsewhere(
        self, owner: str, conversation: str, agent: str, id: str, known: str
    ) -> tuple[TurnElsewhere, ...]:
        """Returns the turns that other programs have run on a conversation's stored session behind the last one here
        and the one that is `known`; nothing where the agent does not say.
        """
        in_use = self._stored_in_use.get((owner, conversation))
        if in_use is not None and not self.idle_sessions.has(in_use[0]):
            await asyncio.wait({in_use[1]}, timeout=LET_GO_SECONDS)
        try:
            for each in all_agents(self.agent):
                if each.name == agent:
                    return await each.turns_elsewhere(id, conversation, known)
        except (Fault, OSError) as error:
            log.warning("agent_session_not_read", agent=agent, reason=type(error).__name__)
        return ()

    async def fork_stored(self, agent: str, id: str, turn: Turn) -> str:
        """Has an agent copy a session that it has stored, for `turn` (`Agent.fork_session`). Returns the copy's id;
        empty where the agent cannot, which is logged.
        """
        try:
            for each in all_agents(self.agent):
                if each.name == agent:
                    return await each.fork_session(id, turn)
        except (Fault, OSError) as error:
            log.warning("agent_session_not_forked", agent=agent, reason=type(error).__name__)
        return ""

    async def delete_stored(self, owner: str, conversation: str, agent: str, id: str) -> None:
        """Deletes a session that an agent has stored for a conversation; one that cannot be deleted is logged. Raises
        `Fault` CONFLICT while another program uses it.
        """
        await self.let_go(owner, conversation)
        try:
            for each in all_agents(self.agent):
                if each.name == agent:
                    await each.delete_session(id)
        except Fault as fault:
            if fault.failure.kind is FaultKind.CONFLICT:
                raise
            log.warning("agent_session_not_deleted", agent=agent, reason=fault.failure.unquoted)

    def claim(self, session: AgentSession, listener: SessionListener, agent: str) -> None:
        """Makes `listener` the user of a new session of the agent with this name, whose end gives it back."""
        loop = asyncio.get_running_loop()
        session.claim(listener, loop, partial(self._on_released, agent=agent))
        if (key := session.stored_for) is not None:
            self._stored_in_use[key] = session, loop.create_future()

    def give_up(self, session: ReusedSession | AgentSession) -> None:
        """Ends a session on which no turn has begun."""
        if isinstance(session, ReusedSession):
            session.session.close()
        else:
            self.spawn(self.agent.release(session, finished=False))

    def _on_released(self, session: AgentSession, finished: bool, agent: str) -> None:
        releasing = self.spawn(self.agent.release(session, finished=finished))
        if (key := session.stored_for) is not None:
            releasing.add_done_callback(lambda _: self._on_let_go(key, session))
        if not finished:
            log.warning("agent_did_not_finish", agent=agent)

    def _on_let_go(self, key: tuple[str, str], session: AgentSession) -> None:
        in_use = self._stored_in_use.get(key)
        if in_use is not None and in_use[0] is session:
            del self._stored_in_use[key]
            in_use[1].set_result(None)

    def with_details(self, turn: Turn, failure: Failure) -> Failure:
        """Returns the failure with what the agent did not report: the context window, or the next reset of a limit."""
        known, age = self.agent_of(turn).limits.newest()
        now = time.time()
        failure = with_reset(failure, known, reported_at=now - age, now=now)
        return with_context_length(failure, turn.model, self.agent.models())

    # --- the step memory ------------------------------------------------------------------------

    async def with_call_ids(self, turn: Turn) -> Turn:
        """Returns the turn with the ids of its history's calls, which the client has not sent."""
        async with _logged_failure_of_memory():
            return await with_call_ids(turn, self.memory)
        return turn

    async def remember(
        self, owner: str, make_entries: Callable[[], Mapping[bytes, bytes]], *, durable: bool
    ) -> None:
        """Writes what `make_entries` returns to the step memory, also to disk if `durable`."""
        async with _logged_failure_of_memory():
            await self.memory.remember(owner, make_entries(), durable=durable)

    async def _with_memory(self, turn: Turn) -> Turn:
        history = turn.history
        if turn.forwarded is not None:
            return turn  # the upstream gets the client's own messages
        if len(history) == 1 and isinstance(history[0], HistoryMessage):
            return turn  # a first message follows no call
        async with _logged_failure_of_memory():
            history = await recalled_history(turn, self.memory, self.agent_and_model(turn))
        if history is not turn.history:
            history = as_functions(history, self.agent_of(turn).capabilities)
        return turn if history is turn.history else msgspec.structs.replace(turn, history=history)


async def recalled_history(turn: Turn, memory: StepMemory, identity: str) -> tuple[HistoryItem, ...]:
    """Returns the history with the items of the owner's earlier turns, for the model `identity`. May raise
    `StoreUnavailable`.
    """
    history = turn.history
    keys = await beside_the_loop(partial(keys_of, history), long=is_long(history))
    if not keys:
        return history
    found = await memory.recall(turn.owner, keys)
    entries = {key: msgspec.json.decode(value, type=RememberedTurn) for key, value in found.items()}
    if not entries:
        return history
    restore = partial(restore_items, history, entries, identity)
    return await beside_the_loop(restore, long=is_long(history))


def _session_to_continue(turn: Turn, agent: Agent) -> StoredSession | None:
    """Returns the agent's stored session that goes on with the turn, if there is one that still fits."""
    stored = turn.stored_session
    if stored is None or not (stored.id and stored.new_items):
        return None
    changed = stored.made_with != fixed_by_session(turn)
    return None if changed and agent.sessions_are_fixed else stored


async def _with_replay(turn: Turn, requested: Turn, replay: Replay | None) -> Turn:
    if replay is None:
        return turn
    if isinstance(replay, WholeHistory):
        replay = await replay.items()
    return msgspec.structs.replace(turn, history=(*replay, *turn.history[len(requested.history) :]))


@contextlib.asynccontextmanager
async def _logged_failure_of_memory() -> AsyncIterator[None]:
    """Logs what the block raises, and ends it after `MEMORY_SECONDS`: without the step memory an answer is still right,
    and Chat Completions and Messages work while the store does not.
    """
    try:
        async with asyncio.timeout(MEMORY_SECONDS):
            yield
    except Exception:
        log.exception("step_memory_failed")


async def with_call_ids(turn: Turn, memory: StepMemory) -> Turn:
    """Returns the turn with the remembered ids of its calls; others stay. May raise `StoreUnavailable`."""
    steps = await beside_the_loop(partial(_steps_of, turn.history), long=is_long(turn.history))
    found = await memory.recall(turn.owner, list(steps))
    ids: dict[int, str] = {}
    for key, remembered in found.items():
        ids |= zip(steps[key], msgspec.json.decode(remembered, type=list[str]), strict=True)
    if not ids:
        return turn
    renamed: dict[str, str] = {}
    history: list[HistoryItem] = []
    for index, item in enumerate(turn.history):
        if isinstance(item, HistoryCall):
            renamed[item.call_id] = ids.get(index, item.call_id)
        if isinstance(item, HistoryCall | HistoryOutput):
            call_id = renamed.get(item.call_id, item.call_id)
            history.append(msgspec.structs.replace(item, call_id=call_id))
        else:
            history.append(item)
    return msgspec.structs.replace(turn, history=tuple(history))


def call_id_entry(
    turn: Turn, said: Sequence[HistoryMessage], calls: Sequence[HistoryCall]
) -> dict[bytes, bytes]:
    """Returns what the step memory keeps to find the ids of `calls` again: the calls that follow the turn's history
    and the messages `said` in its answer.
    """
    *_, key = _steps_of((*turn.history, *said, *calls))
    return {key: msgspec.json.encode([call.call_id for call in calls])}


def _steps_of(history: Sequence[HistoryItem]) -> dict[bytes, list[int]]:
    """Returns the indexes of each step's calls, by the SHA-256 of the conversation up to them, without ids of calls."""
    without_ids = [
        msgspec.structs.replace(item, call_id="") if isinstance(item, HistoryCall | HistoryOutput) else item
        for item in history
    ]
    so_far = hashlib.sha256(b"ids of calls\0")
    steps: dict[bytes, list[int]] = {}
    start, calls = 0, list[int]()
    for digest, end in zip(*item_digests(without_ids), strict=True):
        called = [index for index in range(start, end) if isinstance(history[index], HistoryCall)]
        if calls and not called:
            steps[so_far.digest()] = calls
            calls = []
        calls += called
        so_far.update(digest)
        start = end
    if calls:
        steps[so_far.digest()] = calls
    return steps
