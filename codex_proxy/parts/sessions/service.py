"""The sessions of one server: finds, creates and removes them, and runs what a restart has interrupted. Raises `Fault`:
NOT_FOUND for what does not exist or is another key's, CONFLICT for a session at work.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import STOPPING, Fault, FaultKind, bad_request
from codex_proxy.core.own_errors import repeat, trace_of
from codex_proxy.parts.sessions import SessionsSettings
from codex_proxy.parts.sessions.commands import (
    Change,
    Command,
    Delete,
    Follow,
    HeldMessages,
    Result,
    Submit,
    Submitted,
)
from codex_proxy.parts.sessions.forks import NO_PAST, Past
from codex_proxy.parts.sessions.messages import Told
from codex_proxy.parts.sessions.other_servers import OtherServers
from codex_proxy.parts.sessions.placed_files import changing_files, remove_files
from codex_proxy.parts.sessions.records import (
    LEASE_LOST,
    SESSION,
    TURN,
    HeldElsewhere,
    SessionStore,
)
from codex_proxy.parts.sessions.running import LiveSession
from codex_proxy.parts.sessions.sessions import Content, Session
from codex_proxy.parts.sessions.state import SessionState
from codex_proxy.parts.sessions.stream import EventReader, MakeReader, SessionReaders
from codex_proxy.parts.sessions.streams import Streams
from codex_proxy.parts.sessions.turn_errors import RESTARTED
from codex_proxy.parts.sessions.turn_requests import TurnRequests
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.responses.service import ResponsesService
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.record_leases import NO_NODE
from codex_proxy.store.values import Record

log = structlog.get_logger(__name__)

MAX_AT_WORK: Final = 1000
"""Maximum sessions of this server at work."""
RECOVERY_SECONDS: Final = 5.0
"""Seconds for which a start waits until interrupted sessions go on: a store that is full must not hold it up."""
MAX_WAITING: Final = 1000
"""Maximum sessions of one key that wait for the client: each is held in memory."""
LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at what other programs have done with a session's agent."""
MAX_ASKING: Final = 100
"""Maximum sessions of one key that wait for answers to approval requests: their agents' processes wait, too."""

_CONTENT: Final = re.compile(r"input\[(\d+)\]\.content")
"""Matches the content of a message in a turn's request."""


class Sessions:
    def __init__(self, responses: ResponsesService, settings: SessionsSettings) -> None:
        self.responses = responses
        self.settings = settings
        self.turn_requests = TurnRequests(responses)
        self.streams = Streams(responses.background.tasks)
        self._live: dict[tuple[str, str], LiveSession] = {}
        self._loads: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Held while a session is read to become live, or something is read to be changed."""
        self._looked: dict[tuple[str, str], float] = {}
        """The sessions for which was just looked at what other programs have done, with the times of the loop."""
        self._was_away = False
        """Whether the store could not be reached when sessions of other servers were last looked for."""
        self._others: OtherServers | None = None
        if responses.store is not None:
            leases, tasks = responses.store.leases, responses.background.tasks
            self._others = OtherServers(leases, tasks, self.new_id, self._do_here, self._on_told)

    @property
    def store(self) -> SessionStore:
        """The records. Raises `Fault` INVALID_REQUEST without a store."""
        return SessionStore(require_store(self.responses.store))

    @property
    def is_shared(self) -> bool:
        store = self.responses.store
        return store is not None and store.team is not None

    def with_a_turn(self, owner: str) -> list[Session]:
        """Returns the sessions of a key whose turn goes on at this server, also those that wait."""
        return [live.session for (its, _), live in self._live.items() if its == owner and live.session.turn]

    def now(self) -> int:
        return int(self.epoch())

    def epoch(self) -> float:
        return self.responses.clock.epoch()

    def new_id(self, prefix: str) -> str:
        return self.responses.ids.new(prefix)

    @contextlib.asynccontextmanager
    async def changing(self, owner: str, id: str) -> AsyncIterator[None]:
        """Holds what is read to be written until it is."""
        lock = self._loads.setdefault((owner, id), asyncio.Lock())
        async with lock:
            yield

    # --- finding ------------------------------------------------------------------------------------

    async def session(self, owner: str, id: str) -> Session:
        return await self.store.get(owner, SESSION, id)  # a live one may be ahead of what is stored

    async def require(self, owner: str, id: str) -> None:
        """Raises `Fault` NOT_FOUND if there is no such session."""
        if (owner, id) not in self._live:  # what waits for an answer is there
            await self.session(owner, id)

    @contextlib.asynccontextmanager
    async def live(self, owner: str, id: str) -> AsyncIterator[LiveSession]:
        """Yields a session to act on, which this server holds meanwhile. Raises `HeldElsewhere` if another one does,
        and `Fault` at once while the store takes nothing of it.
        """
        known = self._live.get((owner, id))
        if known is not None and known.commits.trouble is not None:
            raise Fault(known.commits.trouble)
        load = self._loads.setdefault((owner, id), asyncio.Lock())
        async with contextlib.AsyncExitStack() as held:
            async with load:  # what two have read at once may be older than the session is
                live = self._live.get((owner, id))
                if live is None:
                    live = await self._load(owner, id)
                    held.enter_context(live.held())
                    await self._go_on_with(live)
                else:
                    held.enter_context(live.held())
            yield live

    async def _load(self, owner: str, id: str) -> LiveSession:
        lease = await self.store.take(owner, SESSION, id)
        try:
            await self._receive()  # what the server has told that held it before comes first
            session = await self.store.get(owner, SESSION, id)
            turn = None
            if session.turn:
                turn = await self.store.find(owner, TURN, session.turn)
            last, page = await self.store.last_entry(owner, id), await self.store.last_page(owner, id)
        except BaseException:
            lease.release()
            raise
        state = SessionState(session, turn, last, page)
        live = self._live[owner, id] = LiveSession(self, owner, state, lease)
        return live

    async def _go_on_with(self, live: LiveSession) -> None:
        """Goes on with a session that was read now, on which no process works."""
        session = live.session
        if session.turn or session.queued:
            waits = session.status == "requires_action" and not session.open_asks  # whose process is gone
            resuming = live.resume(None if waits else RESTARTED)
            try:
                await self.responses.background.tasks.run(resuming)
            except Exception:
                self.forget(live)
                raise

    def let_go(self, live: LiveSession) -> None:
        if live.is_idle:
            self.forget(live)

    def forget(self, live: LiveSession) -> None:
        key = live.owner, live.session.id
        if self._live.get(key) is live:
            del self._live[key]
        live.commits.release()

    def give_up(self, live: LiveSession) -> None:
        self.streams.interrupt(live.owner, live.session.id)
        self.forget(live)
        self.responses.background.tasks.spawn(self._resume(live.owner, live.session.id))

    # --- creating, changing, removing ---------------------------------------------------------------

    def new(self, owner: str, session: Session, past: Past = NO_PAST) -> LiveSession:
        """Returns a session that does not exist before `create`. `past`: what a fork begins with."""
        return LiveSession(self, owner, SessionState(session, None, past.last_item, past.page))

    async def create(
        self,
        live: LiveSession,
        messages: Sequence[Content],
        prepared: PreparedResponse,
        past: Sequence[Record] = (),
    ) -> None:
        """Stores a session, with the records of what a fork begins with, and begins its first turn (`prepared`) if it
        has messages.
        """
        self._live[live.owner, live.session.id] = live
        try:
            await live.create(messages, prepared, past)
        except BaseException:
            self.forget(live)
            raise
        if not messages:
            self.responses.runs.expect(prepared.turn, live.owner, live.session.id)

    async def delete(self, owner: str, id: str) -> None:
        """Removes a session, and its files from the folder. To delete it again does nothing. Raises `Fault` CONFLICT
        while a turn goes on.
        """
        async with self.changing(owner, changing_files(id)):
            try:
                session = await self.session(owner, id)
                await self._do(owner, id, Delete())
            except Fault as fault:
                if fault.failure.kind is not FaultKind.NOT_FOUND or not await self.store.is_gone(owner, id):
                    raise
            else:
                await remove_files(session.resources)

    async def submit(
        self, owner: str, id: str, changes: Sequence[Submitted], key: tuple[str, str] | None
    ) -> None:
        """Applies a client's events to a session (`LiveSession.submit`). Raises `Fault`."""
        await self._do(owner, id, Submit(changes, key))

    async def change(
        self,
        owner: str,
        id: str,
        changed: Callable[[Session], Session],
        fields: dict[str, Any] | None = None,
        patch: dict[str, str | None] | None = None,
        *,
        is_activity: bool = True,
    ) -> None:
        """Changes a session to `changed(session)` (`Change`); what others change meanwhile stays. `fields`: what the
        log tells of it. `patch`: of metadata, which `changed` then keeps. Raises `Fault`.
        """
        session = await self.session(owner, id)
        change = Change.between(session, changed(session))
        await self._do(owner, id, replace(change, fields=fields, patch=patch, is_activity=is_activity))

    async def import_elsewhere(self, owner: str, session: Session) -> None:
        """Makes what other programs have done on the agent's own session turns of an idle session, unless another
        server holds it, or this was done within `LOOK_SECONDS`. What fails is logged: the session can still be read.
        """
        key, now = (owner, session.id), asyncio.get_running_loop().time()
        at_rest = session.status == "idle" and session.archived_at is None
        if session.thread is None or not at_rest or self.responses.runs.draining:
            return
        self._looked = {each: time for each, time in self._looked.items() if time > now - LOOK_SECONDS}
        if key in self._looked:
            return
        self._looked[key] = now
        await self.run(self._import_elsewhere(owner, session.id))

    async def _import_elsewhere(self, owner: str, id: str) -> None:
        live: LiveSession | None = None
        try:
            async with self.live(owner, id) as live:
                await live.import_elsewhere()
        except HeldElsewhere:
            pass
        except Fault as fault:
            if live is not None and fault.failure is LEASE_LOST:
                live.on_lease_lost()
            log.warning("session_turns_not_imported", session=id, reason=fault.failure.message)

    async def rest(self, owner: str, id: str) -> None:
        """Waits until no agent of this server works on a session."""
        if live := self._live.get((owner, id)):
            await live.rest()

    async def _do(self, owner: str, id: str, command: Command) -> None:
        """Has the server that holds the session do the command: this one, if no other does. Raises `Fault`."""
        assert self._others is not None, "a session is stored"
        with self._others.asking(owner, id, command) as asking:
            while True:
                try:
                    async with self.live(owner, id) as live:
                        if not asking.is_done():  # by the server that held the session until now
                            await self._do_in(live, asking.command)
                        return
                except HeldElsewhere as held:
                    if await asking.ask(held.node):
                        return
                except Fault as fault:
                    if fault.failure is not LEASE_LOST:
                        raise

    async def _do_here(self, owner: str, id: str, command: Command) -> None:
        """Does what another server asks for. Raises `Fault`, and `HeldElsewhere`."""
        async with self.live(owner, id) as live:
            await self._do_in(live, command)

    async def _do_in(self, live: LiveSession, command: Command) -> None:
        written = live.commits.writes
        try:
            try:
                match command:
                    case Submit():
                        await self._submit(live, command)
                    case Change():
                        await live.change(command)
                    case Delete():
                        await live.delete()
                    case Follow():
                        await live.note_follower()
            finally:
                if live.commits.writes == written:  # else the lease was good
                    await live.commits.check()
        except Fault as fault:
            if fault.failure is LEASE_LOST:
                live.on_lease_lost()
            raise

    async def _submit(self, live: LiveSession, given: Submit) -> None:
        try:
            await self._check(live, given)
        except Fault:
            if given.key is None or not await live.has_taken(*given.key):
                raise
            return  # what was accepted once is not refused for a limit that was reached since then
        await live.submit(given.changes, given.key)

    async def _check(self, live: LiveSession, given: Submit) -> None:
        """Raises `Fault` for events that the session has no room for, or whose images cannot be read."""
        if any(isinstance(change, list | HeldMessages) for change in given.changes):
            self._check_size(live.commits.storage.size)
            if not live.session.turn:
                self.check_room(live.owner)
        pictured = [
            found
            for index, change in enumerate(given.changes)
            for found in _with_images(change, f"events[{index}]")
        ]
        if pictured:
            # One that cannot be read would fail this turn and, as part of the conversation, every later one.
            try:
                contents = [content for _, content in pictured]
                await self.turn_requests.check_settings(live.owner, live.session, contents)
            except Fault as fault:
                raise _in_events(fault, [place for place, _ in pictured]) from None

    def _check_size(self, size: int) -> None:
        """Raises `Fault` if a session with items of this size (in bytes) takes no further message."""
        limit = self.settings.session_max_bytes
        if size >= limit:
            held = f"The session's items have {size} bytes, and {limit} is the limit."
            advice = (
                "Begin another session, or fork this one before an earlier item. The operator can allow more"
            )
            raise bad_request(f"{held} {advice} (PROXY_SESSION_MAX_BYTES).", "events")

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a change of a session to its end, also if its client leaves meanwhile. Raises its `Fault`, or STOPPING
        where the server stops.
        """
        if self.responses.runs.draining:
            work.close()
            raise Fault(STOPPING)
        await self.responses.background.tasks.run(work)

    def check_room(self, owner: str) -> None:
        """Raises `Fault` CONCURRENCY_EXCEEDED if no further session of the key may work."""
        limit = self.responses.clients.by_name(owner).concurrency
        waiting = sum(live.asks for live in self._live.values() if live.owner == owner)
        if waiting >= MAX_ASKING:
            message = (
                f"{waiting} sessions of this key wait for answers to approval requests, which is the limit."
            )
            raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, f"{message} Answer some, or cancel their turns.")
        theirs = sum(live.at_work and not live.asks for live in self._live.values() if live.owner == owner)
        if limit and theirs >= limit:
            message = (
                f"{theirs} sessions of this key are at work, which is its limit. Try again when one is idle."
            )
            raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message, retry_after=5)
        if sum(live.waits for live in self._live.values() if live.owner == owner) >= MAX_WAITING:
            message = (
                f"{MAX_WAITING} sessions of this key wait for its answers, which is the limit. Answer or "
                "cancel some."
            )
            raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message, retry_after=5)
        if sum(live.at_work for live in self._live.values()) >= MAX_AT_WORK:
            message = f"{MAX_AT_WORK} sessions are at work, which is this server's limit. Try again later."
            raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message, retry_after=5)

    # --- restarts and other servers --------------------------------------------------------------

    async def recover(self) -> None:
        """Ends the turns that a restart has interrupted, and begins those that wait, where no other server does."""
        if self.responses.store is None:
            return
        resuming = self.responses.background.tasks.spawn(self._resume_all(await self.store.busy()))
        await asyncio.wait({resuming}, timeout=RECOVERY_SECONDS)

    async def _resume_all(self, found: Sequence[tuple[str, str]]) -> None:
        for owner, id in found:
            await self._resume(owner, id)

    async def _resume(self, owner: str, id: str) -> None:
        try:
            async with self.live(owner, id):
                pass
        except HeldElsewhere:
            pass
        except Exception as error:  # noqa: BLE001 - the other sessions, and the server, are not to suffer from it
            log.error("session_not_resumed", session=id, **trace_of(error))

    def on_draining(self) -> None:
        """Ends the streams of sessions that do nothing."""
        self.streams.end(self._is_at_work)

    def _is_at_work(self, key: tuple[str, str]) -> bool:
        return key in self._live and self._live[key].at_work

    async def keep_up(self) -> None:
        """Goes on with sessions that other servers have left, and does what they ask for, for ever."""
        if self._others is None or self.responses.store is None or not self.is_shared:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._others.listen())
            after = self.responses.store.leases.until_renewal
            group.create_task(repeat(self._take_over, after=after, failed="sessions_not_taken_over"))

    async def _take_over(self) -> None:
        try:
            if not (self._was_away or self.responses.runs.draining):
                await self._resume_all(await self.store.busy())
            self._was_away = False
        except Fault:
            self._was_away = True  # for all: whoever has a session renews its lease first

    async def _receive(self) -> None:
        assert self._others is not None, "a session is stored"
        if self.is_shared:
            with store_errors_as_faults():
                await self._others.receive()

    # --- streams --------------------------------------------------------------------------------------

    async def follow(self, owner: str, id: str, make: MakeReader) -> EventReader:
        """Returns a reader of what happens in a session from now on, at whichever server. Raises `Fault`."""
        reader, readers = self.streams.joined(owner, id, make)
        try:
            await self._join(readers)
        except BaseException:
            reader.close()
            raise
        if self.responses.runs.draining and not self._is_at_work((owner, id)):
            reader.end()
        return reader

    async def _join(self, readers: SessionReaders) -> None:
        """Has this server told of what happens in the session."""
        owner, id = readers.owner, readers.session
        session = await self.session(owner, id)
        async with readers.joining:
            if readers.following is not None:
                return
            following = readers.following = await self.store.follow(owner, id)
            try:
                following.on_lost = readers.lose
                if following.holder != NO_NODE or session.turn or session.queued:
                    await self._do(owner, id, Follow())
            except BaseException:
                readers.following = None
                following.release()
                raise

    def _on_told(self, told: Told) -> None:
        readers = self.streams.readers(told.owner, told.session)
        if readers is not None and told.ended:
            readers.add(told.events)
            readers.end()
        elif readers is not None:
            readers.add_told(told.epoch, told.number, told.events)


def _with_images(change: Submitted, event: str) -> list[tuple[str, Content]]:
    """Returns the messages, or the output of a call, that have images, each with its path below that of its event."""
    given: list[tuple[str, Content]] = []
    if isinstance(change, Result):
        given = [(f"{event}.output", change.result.output)] if isinstance(change.result.output, tuple) else []
    elif isinstance(change, HeldMessages | list):
        messages = change if isinstance(change, list) else change.messages
        given = [(f"{event}.input[{index}].content", content) for index, content in enumerate(messages)]
    return [each for each in given if any(part["type"] == "input_image" for part in each[1])]


def _in_events(fault: Fault, places: Sequence[str]) -> Fault:
    """Returns the fault of a turn's request that has contents of events, with the field of the event. `places`: the
    paths of the contents.
    """
    param = fault.failure.param or ""
    found = _CONTENT.match(param)
    if found is None:
        return fault
    return Fault(replace(fault.failure, param=places[int(found[1])] + param[found.end() :]))


SESSIONS: Final = web.AppKey("sessions", Sessions)
