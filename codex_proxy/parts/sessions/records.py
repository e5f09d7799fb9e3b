"""The records of agents and sessions in the server's store (`Store.write_records`). Everything of a session is below
it, and is removed with it. Raises `Fault` where the store cannot be read or written, NOT_FOUND for what is not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar, Unpack, cast

import msgspec
from msgspec.structs import replace

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.shown_text import excerpt
from codex_proxy.parts.sessions.agents import StoredAgent
from codex_proxy.parts.sessions.approvals import Ask
from codex_proxy.parts.sessions.images import Image, image_ids, with_images, without_images
from codex_proxy.parts.sessions.log import LogPage
from codex_proxy.parts.sessions.sessions import (
    Call,
    Entry,
    ItemStorage,
    Session,
    SessionTurn,
    Subagent,
    UserMessage,
)
from codex_proxy.parts.sessions.state import Stored
from codex_proxy.parts.sessions.subagents import SubagentEntry
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.record_leases import Following, NodeId, RecordLease, WrittenRecords
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    MAX_PARENTS_SEARCHED,
    NotStored,
    Page,
    PageRequest,
    PendingWebhook,
    Record,
    RecordKey,
    StoreConflict,
    TextSearch,
)

T = TypeVar("T")
S = TypeVar("S", Entry, SessionTurn)

MAX_PAGE: Final = 100
MAX_IMAGES_KNOWN: Final = 50
"""How many of a session's images are known to be stored: others are written again."""


class Input(msgspec.Struct, frozen=True):
    """A batch of events that was accepted under an `Idempotency-Key`."""

    digest: str


class DeletedSession(msgspec.Struct, frozen=True):
    """What is kept of a session that its owner has deleted, so that deleting it again is no error."""


class Kind(NamedTuple, Generic[T]):
    name: str
    type: type[T]
    title: str
    """What errors call it."""

    def key(self, id: str) -> RecordKey:
        return self.name, id

    def decode(self, record: Record) -> T:
        return msgspec.json.decode(record.json, type=self.type)


AGENT: Final = Kind("agent", StoredAgent, "Agent")
AGENT_VERSION: Final = Kind("agent_version", StoredAgent, "Version")
"""An agent as it was before a change, below the agent."""
SESSION: Final = Kind("session", Session, "Session")
TURN: Final = Kind("session_turn", SessionTurn, "Turn")
ENTRY: Final = Kind("session_item", Entry, "Item")
IMAGE: Final = Kind("session_image", Image, "Image")
SUBAGENT: Final = Kind("subagent", Subagent, "Subagent")
LOG: Final = Kind("session_log", LogPage, "Log")
CALL: Final = Kind("session_call", Call, "Call")
ASK: Final = Kind("session_ask", Ask, "Approval request")
INPUT: Final = Kind("session_input", Input, "Input")
GONE: Final = Kind("deleted_session", DeletedSession, "Session")


def not_found(kind: Kind[T], id: str) -> Fault:
    return Fault.of(FaultKind.NOT_FOUND, f"{kind.title} with id '{excerpt(id)}' not found.")


def agent_record(agent: StoredAgent) -> Record:
    return Record(
        kind=AGENT.name, id=agent.id, json=msgspec.json.encode(agent), created=float(agent.created_at)
    )


def version_record(agent: StoredAgent, now: float) -> Record:
    """Returns the record of an agent as a version of it, which is no longer the newest."""
    json, id = msgspec.json.encode(agent), version_id(agent.id, agent.version)
    return Record(kind=AGENT_VERSION.name, id=id, json=json, created=now, parent=agent.id)


def version_id(agent: str, version: int) -> str:
    return _in_session(agent, str(version))


def records_of(
    session: Session,
    stored: Iterable[Stored],
    now: float,
    storage: ItemStorage,
    more: Sequence[Record] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[Record], ItemStorage]:
    """Returns the records of a change of a session, in the order in which they are to be written, with `more` behind
    them, and what the session's items take then. `storage`: what they took before; `sizes`: the bytes of those that may
    be written again, by their ids.
    """
    images: dict[str, Image] = {}
    below: list[Record] = []
    own: list[Session] = []
    for each in stored:
        if isinstance(each, Session):
            own.append(each)
        elif isinstance(each, Entry):
            entry, its = without_images(each, session.id)
            images |= its
            below.append(_record(session, entry, now))
        else:
            below.append(_record(session, each, now))
    new = [id for id in images if id not in storage.images]
    below += (_image_record(session, id, images[id], now) for id in new)
    below += more
    kept = (record for record in below if record.kind in (ENTRY.name, IMAGE.name))
    size = sum(len(record.json) - sizes.get(record.id, 0) for record in kept)
    last = (*storage.images, *(record.id for record in below if record.kind == IMAGE.name))[
        -MAX_IMAGES_KNOWN:
    ]
    storage = ItemStorage(storage.size + size, last)
    return [*(_record(session, replace(each, storage=storage), now) for each in own), *below], storage


def _image_record(session: Session, id: str, image: Image, now: float) -> Record:
    return Record(kind=IMAGE.name, id=id, json=msgspec.json.encode(image), created=now, parent=session.id)


def _record(session: Session, stored: Stored, now: float) -> Record:
    parent = session.id
    if isinstance(stored, SubagentEntry):
        parent, stored = stored
    json = msgspec.json.encode(stored)
    match stored:
        case Session():
            busy = bool(stored.turn or stored.queued)
            created = float(stored.created_at)
            return Record(kind=SESSION.name, id=stored.id, json=json, created=created, busy=busy)
        case SessionTurn():
            kind, id = TURN.key(stored.id)
            parent = stored.subagent or parent
        case Subagent():
            kind, id = SUBAGENT.key(stored.id)
        case Entry():
            kind, id = ENTRY.key(stored.id)
        case LogPage():
            kind, id = LOG.key(log_page_id(parent, stored.first))
        case Call():
            kind, id = CALL.key(_in_session(session.id, stored.call_id))
        case Ask():
            kind, id = ASK.key(_in_session(session.id, stored.request_id))
    return Record(kind=kind, id=id, json=json, created=now, parent=parent)


def input_record(session: str, key: str, digest: str, now: float) -> Record:
    json = msgspec.json.encode(Input(digest))
    return Record(kind=INPUT.name, id=_in_session(session, key), json=json, created=now, parent=session)


def _gone_id(session: str) -> str:
    return _in_session(session, "deleted")  # not the session's own, below which nothing may come any more


def log_page_id(parent: str, first: int) -> str:
    """Returns the id of a page of the log of a session or subagent. `first`: the first number in it."""
    return _in_session(parent, f"log{first}")


def _in_session(session: str, name: str) -> str:
    """Returns the id of what has its name only within a session, or an agent."""
    return f"{session}/{name}"


LEASE_LOST: Final = Failure(
    FaultKind.UNAVAILABLE,
    "This server was stopped or cut off for so long that another one acts in its place. Try again.",
)


class HeldElsewhere(Exception):  # noqa: N818 - says what it is
    """Another server (`node`) holds the session, or the agent."""

    def __init__(self, node: NodeId) -> None:
        super().__init__(node)
        self.node = node


class WriteOptions(TypedDict, total=False):
    """The options of `Store.write_records` that are used here."""

    require: RecordKey | None
    epoch: int | None
    hold: RecordKey | None
    webhooks: Sequence[PendingWebhook]
    tell: bytes | None


class SessionStore:
    """Reads and writes the records of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, owner: str, kind: Kind[T], id: str) -> T | None:
        with store_errors_as_faults():
            record = await self._store.record(owner, kind.name, id)
        return None if record is None else (await self._decoded(owner, kind, [record]))[0]

    async def _decoded(self, owner: str, kind: Kind[T], records: Sequence[Record]) -> list[T]:
        """Returns the objects of records, entries with their images."""
        found = list(map(kind.decode, records))
        entries = [each for each in found if isinstance(each, Entry)]
        images = {id: await self.get(owner, IMAGE, id) for id in image_ids(entries)}
        if not images:
            return found
        return [cast("T", with_images(each, images)) for each in entries]

    async def get(self, owner: str, kind: Kind[T], id: str) -> T:
        found = await self.find(owner, kind, id)
        if found is None:
            raise not_found(kind, id)
        return found

    async def call(self, owner: str, session: str, call_id: str) -> Call | None:
        return await self.find(owner, CALL, _in_session(session, call_id))

    async def ask(self, owner: str, session: str, request_id: str) -> Ask | None:
        return await self.find(owner, ASK, _in_session(session, request_id))

    async def input(self, owner: str, session: str, key: str) -> Input | None:
        return await self.find(owner, INPUT, _in_session(session, key))

    async def page(
        self,
        owner: str,
        kind: Kind[T],
        page: PageRequest,
        *,
        parent: str = "",
        unknown_after: Fault | None = None,
    ) -> Page[T]:
        """Returns a page in the order of writing. Raises `unknown_after` (without it NOT_FOUND) for an unknown
        `after`.
        """
        with store_errors_as_faults():
            try:
                found = await self._store.records(owner, kind.name, page, parent=parent)
            except NotStored as error:
                raise unknown_after or not_found(kind, error.id) from None
        return Page(tuple(await self._decoded(owner, kind, found.items)), found.has_more)

    async def newest_sessions(self, owner: str) -> list[Session]:
        """Returns the sessions that were made last, at most `MAX_PARENTS_SEARCHED`, the newest first."""
        page = PageRequest(MAX_PARENTS_SEARCHED, "desc", None)
        return [*(await self.page(owner, SESSION, page)).items]

    async def sessions_with(self, owner: str, text: str) -> set[str]:
        """Returns the ids of those of `newest_sessions` with a message of the client that contains the text, in any
        case of ASCII letters.
        """
        sought = msgspec.json.encode(text)[1:-1]
        search = TextSearch(SESSION.name, ENTRY.name, b'"user_message"', sought)
        with store_errors_as_faults():
            found = await self._store.records_with_text(owner, search)
        lower = text.encode().lower()
        return {each.parent for each in found if _is_said(ENTRY.decode(each), lower)}

    async def all_entries(self, owner: str, session: str) -> list[Entry]:
        """Returns a session's entries, oldest first."""
        return await self._all(owner, ENTRY, session)

    async def entries_behind(self, owner: str, session: str, item: str) -> list[Entry] | None:
        """Returns a session's entries behind one, oldest first; None if there is no such entry."""
        try:
            return await self._all(owner, ENTRY, session, after=item)
        except Fault as fault:
            if fault.failure.kind is not FaultKind.NOT_FOUND:
                raise
            return None

    async def all_turns(self, owner: str, session: str) -> list[SessionTurn]:
        """Returns a session's turns, oldest first."""
        return await self._all(owner, TURN, session)

    async def _all(self, owner: str, kind: Kind[S], session: str, after: str | None = None) -> list[S]:
        found: list[S] = []
        while True:
            request = PageRequest(MAX_PAGE, "asc", found[-1].id if found else after)
            page = await self.page(owner, kind, request, parent=session)
            found += page.items
            if not page.has_more:
                return found

    async def entries_of(self, owner: str, turn: SessionTurn, page: PageRequest) -> Page[Entry]:
        """Returns a page of a turn's entries, which stand together in those of its session or subagent. `page.after`:
        one of them.
        """
        parent = turn.subagent or turn.session
        found: list[Entry] = []
        after = page.after
        if after is None and page.order == "asc":
            after = turn.before or None
        elif after is None:
            later = PageRequest(1, "asc", turn.id)
            following = (await self.page(owner, TURN, later, parent=parent)).items
            after = following[0].before if following else None
            if after is not None:  # the last of the turn, unless it has none
                found.append(await self.get(owner, ENTRY, after))
        request = PageRequest(page.limit + 1 - len(found), page.order, after)
        found += (await self.page(owner, ENTRY, request, parent=parent)).items
        found = [entry for entry in found if entry.turn == turn.id]
        return Page(tuple(found[: page.limit]), len(found) > page.limit)

    async def last_page(self, owner: str, session: str) -> LogPage | None:
        """Returns the last page of a session's log, if it has any."""
        page = await self.page(owner, LOG, PageRequest(1, "desc", None), parent=session)
        return page.items[0] if page.items else None

    async def last_entry(self, owner: str, session: str) -> str:
        """Returns the id of a session's last item; empty if it has none."""
        page = await self.page(owner, ENTRY, PageRequest(1, "desc", None), parent=session)
        return page.items[0].id if page.items else ""

    async def write(
        self, owner: str, records: Sequence[Record], **more: Unpack[WriteOptions]
    ) -> WrittenRecords:
        """Writes all, or nothing. Raises `Fault`: NOT_FOUND if the record `require` was deleted, LEASE_LOST if this
        server does not hold it.
        """
        with store_errors_as_faults():
            try:
                return await self._store.write_records(owner, records, **more)
            except NotStored as error:
                raise Fault.of(FaultKind.NOT_FOUND, f"'{excerpt(error.id)}' was deleted.") from None
            except StoreConflict:
                raise Fault(LEASE_LOST) from None

    async def delete_session(
        self, owner: str, id: str, now: float, *, epoch: int | None, tell: bytes
    ) -> None:
        """Removes a session and everything of it, and remembers that it was there. Raises `Fault` as `write` does."""
        gone = Record(
            kind=GONE.name, id=_gone_id(id), json=msgspec.json.encode(DeletedSession()), created=now
        )
        await self.write(owner, [gone], require=SESSION.key(id), epoch=epoch, tell=tell)
        await self.delete(owner, SESSION, id)

    async def take(self, owner: str, kind: Kind[T], id: str) -> RecordLease:
        """Takes the lease of a session or an agent. Raises `HeldElsewhere`, and `Fault`."""
        with store_errors_as_faults():
            try:
                found = await self._store.leases.records.take(owner, *kind.key(id))
            except NotStored:
                raise not_found(kind, id) from None
        if isinstance(found, RecordLease):
            return found
        raise HeldElsewhere(found)

    @contextlib.asynccontextmanager
    async def holding(self, owner: str, kind: Kind[Any], id: str) -> AsyncIterator[WriteOptions]:
        """Holds a record when no other server does. Yields the options of a write that fails if it is no longer held,
        or was deleted. Raises `Fault`.
        """
        watch = self._store.leases.watch(id)
        while True:
            try:
                lease = await self.take(owner, kind, id)
                break
            except HeldElsewhere:
                await watch.wait()
        try:
            yield {"require": kind.key(id), "epoch": lease.epoch}
        finally:
            lease.release()

    async def follow(self, owner: str, id: str) -> Following:
        """Has this server told of what happens in a session. Raises `Fault`."""
        with store_errors_as_faults():
            try:
                return await self._store.leases.records.follow(owner, *SESSION.key(id))
            except NotStored:
                raise not_found(SESSION, id) from None

    async def is_gone(self, owner: str, id: str) -> bool:
        """Whether the owner has deleted this session."""
        return await self.find(owner, GONE, _gone_id(id)) is not None

    async def delete(self, owner: str, kind: Kind[T], id: str) -> bool:
        with store_errors_as_faults():
            return await self._store.delete_record(owner, kind.name, id)

    async def busy(self) -> list[tuple[str, str]]:
        """Returns owner and id of the sessions of all owners in which work was in progress, but for those that another
        server holds.
        """
        with store_errors_as_faults():
            found = await self._store.busy_records(SESSION.name)
        return [(owner, record.id) for owner, record in found]


def _is_said(entry: Entry, text: bytes) -> bool:
    """Whether a message of the client contains a text of lower-case ASCII letters."""
    said = entry.item.content if isinstance(entry.item, UserMessage) else ()
    return any(text in part["text"].encode().lower() for part in said if part["type"] == "input_text")


def matches(metadata: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())
