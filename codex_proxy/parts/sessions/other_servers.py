"""The other servers with the same store: has the one that holds a session do what a client wants, does what they ask
for, and passes on what they tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.own_errors import repeat, trace_of
from codex_proxy.parts.sessions.commands import Command, Submit
from codex_proxy.parts.sessions.messages import (
    Answered,
    Asked,
    Told,
    decode_message,
    encode_message,
)
from codex_proxy.parts.sessions.records import LEASE_LOST, HeldElsewhere
from codex_proxy.responses.service import ServerTasks
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.leases import LEASE_SECONDS, Leases
from codex_proxy.store.record_leases import NodeId
from codex_proxy.store.values import StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 2 * LEASE_SECONDS
"""Seconds for which the answer of another server is waited for: one that is gone loses the session before."""
NO_ANSWER: Final = Failure(
    FaultKind.UNAVAILABLE,
    "The server that runs this session does not answer, and may still do what was asked for. Read the session, or send "
    "the same request with an Idempotency-Key.",
)

Do = Callable[[str, str, Command], Awaitable[None]]
"""Does a command in the session with this owner and id. Raises `Fault`, and `HeldElsewhere`."""


class ForwardedCommand:
    """A command for a session, which is sent to the server that holds the session if that is another one."""

    def __init__(self, leases: Leases, asked: Asked) -> None:
        self.answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._leases = leases
        self._asked = asked
        self._watch = leases.watch(asked.session)
        self._sent_to: NodeId | None = None
        self._until = asyncio.get_running_loop().time() + ANSWER_SECONDS

    @property
    def command(self) -> Command:
        return self._asked.command

    async def ask(self, node: NodeId) -> bool:
        """Asks the node once, and waits until it has answered, or may have lost the session. Returns whether the
        command was done. Raises its `Fault`.
        """
        if self._sent_to != node:
            if isinstance(self.command, Submit) and self.command.key is None:
                # So that whoever holds the session next does not do it again. No client sends such a key.
                command = replace(self.command, key=(f"\t{self._asked.id}", ""))
                self._asked = replace(self._asked, command=command)
            with store_errors_as_faults():
                await self._leases.records.post(node, encode_message(self._asked))
            self._sent_to = node
        changed = asyncio.ensure_future(self._watch.wait())
        waited: set[asyncio.Future[Any]] = {self.answer, changed}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if self.is_done():
            return True
        if asyncio.get_running_loop().time() > self._until:
            raise Fault(NO_ANSWER)
        return False

    def is_done(self) -> bool:
        """Whether the node has done the command. Raises its `Fault`."""
        if not self.answer.done():
            return False
        answer = self.answer.result()
        if answer.moved:
            self._sent_to = None
            self.answer = asyncio.get_running_loop().create_future()
            return False
        if answer.failure is not None:
            raise Fault(answer.failure)
        return True


class OtherServers:
    def __init__(
        self,
        leases: Leases,
        tasks: ServerTasks,
        new_id: Callable[[str], str],
        do: Do,
        on_told: Callable[[Told], None],
    ) -> None:
        """`do` does what others ask for, in `tasks`; `on_told` is called with what happens in a session."""
        self._leases = leases
        self._tasks = tasks
        self._new_id = new_id
        self._do = do
        self._on_told = on_told
        self._asking: dict[str, ForwardedCommand] = {}
        self._receiving = asyncio.Lock()

    @contextlib.contextmanager
    def asking(self, owner: str, session: str, command: Command) -> Iterator[ForwardedCommand]:
        id = self._new_id("ask_")
        asking = ForwardedCommand(self._leases, Asked(id, self._leases.records.node, owner, session, command))
        self._asking[id] = asking
        try:
            yield asking
        finally:
            del self._asking[id]

    async def listen(self) -> None:
        """Receives messages, for ever."""
        watch = self._leases.watch(self._leases.records.node)
        await repeat(self._try_to_receive, after=watch.wait, failed="messages_not_received")

    async def _try_to_receive(self) -> None:
        try:
            await self.receive()
        except StoreUnavailable as error:
            log.debug("messages_not_received", reason=str(error))

    async def receive(self) -> None:
        """Passes on the messages that have been sent to this server until now. Raises `StoreUnavailable`."""
        async with self._receiving:
            while messages := await self._leases.records.receive():
                for data in messages:
                    try:
                        self._pass_on(data)
                    except Exception as error:  # noqa: BLE001 - the others are not to suffer from it
                        log.error("message_not_understood", **trace_of(error))

    def _pass_on(self, data: bytes) -> None:
        try:
            message = decode_message(data)
        except msgspec.DecodeError:
            log.warning("message_not_understood", reason="sent by a server of another release")
            return
        match message:
            case Told():
                self._on_told(message)
            case Answered():
                asking = self._asking.get(message.id)
                if asking is not None and not asking.answer.done():
                    asking.answer.set_result(message)
            case Asked():
                self._tasks.spawn(self._answer(message))

    async def _answer(self, asked: Asked) -> None:
        answer = Answered(asked.id)
        try:
            await self._do(asked.owner, asked.session, asked.command)
        except HeldElsewhere:
            answer = Answered(asked.id, moved=True)
        except Fault as fault:
            answer = Answered(asked.id, fault.failure, moved=fault.failure is LEASE_LOST)
        except Exception as error:  # noqa: BLE001 - as an internal error of this server, whichever was asked
            log.error("internal_error", **trace_of(error))
            answer = Answered(asked.id, UNFORESEEN)
        try:
            await self._leases.records.post(asked.node, encode_message(answer))
        except StoreError as error:  # who asked finds the session with what was done, or as it was
            log.warning("session_answer_not_sent", reason=str(error))
