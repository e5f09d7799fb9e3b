"""The event streams of a session: what happens from the moment at which a reader begins is sent to it. A reader that
falls too far behind is told so, and gets nothing more: no turn waits for a reader.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.json_values import encode_json
from codex_proxy.http.body import ByteBudget
from codex_proxy.parts.sessions.log import LOGGED, Logged, LogPage
from codex_proxy.parts.sessions.render import EventObject, error_event
from codex_proxy.parts.sessions.sessions import Entry
from codex_proxy.parts.sessions.state import Changes
from codex_proxy.parts.sessions.subagents import OfThread, SubagentEntry
from codex_proxy.runs.event_log import Push, Wakeup
from codex_proxy.store.record_leases import Following

MAX_BEHIND: Final = 8 << 20
"""Bytes that a reader may be behind."""
MAX_BEHIND_IN_ALL: Final = 256 << 20
"""Bytes that all readers of the server together may be behind, and four times those of one key."""
_AT_REST: Final = ("agent.session.idle", "agent.session.failed")
CONNECTED: Final = b": connected\n\n"
"""What begins a stream, so that its client knows at once that it gets every later event."""


EncodedEvent: TypeAlias = tuple[str, bytes]
"""An event as JSON, behind its type: one of OpenAI's API, or one of these."""
LOG: Final = "log"
"""A `LoggedNow`."""
PIECE: Final = "thread"
"""A `SubagentEvent`."""
DELETED: Final = "deleted"
"""The end of the session, with its time: seconds since 1970."""
FOR_OTHERS: Final = frozenset({LOG, PIECE, DELETED})
MISSED: Final = (
    "This server was stopped or cut off for a while, and events of this stream may be missing. Open it again, and list "
    "the items."
)


class LoggedNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was logged. `thread`: the subagent in whose log it is; empty: it is in the session's. `entry`: the
    entry that it names, if it names any.
    """

    page: LogPage
    entry: Entry | None = None
    thread: str = ""


class SubagentEvent(msgspec.Struct, frozen=True):
    """An event of OpenAI's API about an item of a subagent (`thread` is its id). Clients of that API do not get it."""

    thread: str
    event: msgspec.Raw


def encode_event(event: EventObject, event_id: str) -> bytes:
    """Returns an event as JSON, with its id."""
    return encode_json({"event_id": event_id, **event})


def encode_changes(changes: Changes, new_id: Callable[[str], str]) -> list[EncodedEvent]:
    """Returns what readers of all APIs learn of a change."""
    return [*_encoded(changes, new_id)]


def _encoded(changes: Changes, new_id: Callable[[str], str]) -> Iterator[EncodedEvent]:
    entries = {each.id: each for each in changes.records if isinstance(each, Entry)}
    for record in changes.records:
        if isinstance(record, SubagentEntry) and isinstance(record.entry, Entry):
            entries[record.entry.id] = record.entry

    def logged_now(logged: Logged, thread: str) -> EncodedEvent:
        page = changes.pages[thread]
        alone = LogPage(page.at + logged.number - page.first, (logged,))
        entry = entries.get(getattr(logged, "entry", ""))
        return LOG, encode_json(LoggedNow(alone, entry, thread))

    for each in changes.told:
        if isinstance(each, dict):
            yield each["type"], encode_event(each, new_id("event_"))
        elif isinstance(each, LOGGED):
            yield logged_now(each, "")
        elif isinstance(each, OfThread):
            if isinstance(each.told, LOGGED):
                yield logged_now(each.told, each.subagent)
            else:
                piece = SubagentEvent(each.subagent, msgspec.Raw(encode_json(each.told)))
                yield PIECE, encode_json(piece)


class EventReader:
    """One client's stream of OpenAI's API, and what those of other APIs have in common. It ends when the session is
    removed, the server stops, or the client leaves; with `ends_at_rest` behind the event that says that the session is
    idle or has failed.
    """

    refusal: Failure | None = None

    def __init__(
        self,
        session: str,
        owner: str,
        unread: ByteBudget,
        on_close: Callable[[EventReader], None],
        *,
        obfuscated: bool = False,
        ends_at_rest: bool = False,
    ) -> None:
        """`unread` counts what waits for the readers of all sessions."""
        self._session = session
        self._owner = owner
        self._unread = unread
        self._on_close = on_close
        self._obfuscated = obfuscated
        self._ends_at_rest = ends_at_rest
        self._events: list[bytes] = []
        """What waits for the client: all readers of a session share it."""
        self._size = 0
        self._connected = False
        """Whether the stream has begun."""
        self._ended = False
        self._wakeup = Wakeup()

    @property
    def finished(self) -> bool:
        return self._ended and not self._events

    async def wait(self, push: Push | None = None) -> None:
        if self._connected and not (self._events or self._ended):
            await self._wakeup.wait(push)

    def take(self) -> bytes:
        """Returns the bytes since the last call."""
        frames = [] if self._connected else [CONNECTED]
        frames += map(self._frame, self._events)
        self._connected, self._events = True, []
        self._give_back()
        return b"".join(frames)

    def open(self) -> bytes:
        return self.take()

    def break_off(self, failure: Failure) -> bytes:
        """Returns the bytes that end the stream after an exception in this server's code."""
        self._ended = True
        code = "invalid_api_key" if failure.kind is FaultKind.INVALID_API_KEY else "server_error"
        return self._frame(self._error(code, failure.message))

    def close(self) -> None:
        """Ends reading; called by the stream itself."""
        self._ended = True
        self._give_back()
        self._on_close(self)

    def _give_back(self) -> None:
        self._unread.give_back(self._owner, self._size)
        self._size = 0

    # --- for the session --------------------------------------------------------------------------

    def add(self, told: Sequence[EncodedEvent]) -> None:
        """Adds what has happened (`encode_changes`). It may be long: nobody can read any of it before the rest, so that
        only what was there before says whether the client is behind.
        """
        events = [] if self._ended else self._shown(told)
        if not events:
            return
        size = sum(len(event) for _, event in events)
        if self._size > MAX_BEHIND or self._unread.take(self._owner, size) is not None:
            self.interrupt("The client did not read this stream in time. Open it again, and list the items.")
        else:
            self._size += size
            for kind, event in events:
                self._events.append(event)
                if self._ends_at_rest and kind in _AT_REST:
                    self._ended = True
                    break
        self._wakeup.wake(last=self._ended)

    def interrupt(self, message: str) -> None:
        """Ends the stream with an error behind what was added."""
        if self._ended:
            return
        self._events.append(self._error("stream_interrupted", message))
        self.end()

    def end(self) -> None:
        """Ends the stream behind what was added."""
        self._ended = True
        self._wakeup.wake(last=True)

    def _shown(self, told: Sequence[EncodedEvent]) -> Sequence[EncodedEvent]:
        """Returns what this stream shows."""
        return [each for each in told if each[0] not in FOR_OTHERS]

    def _frame(self, event: bytes) -> bytes:
        return _frame(event, obfuscated=self._obfuscated)

    def _error(self, code: str, message: str) -> bytes:
        return encode_event(error_event(self._session, code, message), f"event_{secrets.token_hex(16)}")


MakeReader: TypeAlias = Callable[[str, str, ByteBudget, Callable[[EventReader], None]], EventReader]
"""Makes a reader of a session for its owner, from what `EventReader` takes."""


class SessionReaders:
    """The readers of one session at this server, which may follow what another one tells of it."""

    def __init__(
        self, owner: str, session: str, unread: ByteBudget, on_empty: Callable[[SessionReaders], None]
    ) -> None:
        self.owner = owner
        self.session = session
        self.joining = asyncio.Lock()
        """Held while this server begins to follow the session."""
        self.following: Following | None = None
        self._unread = unread
        self._on_empty = on_empty
        self._readers: set[EventReader] = set()
        self._next: tuple[int, int] | None = None
        """The epoch and the number of the next message of another server, if one has come."""

    def new(self, make: MakeReader) -> EventReader:
        """Returns a reader of what happens from now on."""
        found = make(self.session, self.owner, self._unread, self._on_closed)
        self._readers.add(found)
        return found

    def _on_closed(self, reader: EventReader) -> None:
        self._readers.discard(reader)
        if not self._readers:
            self._on_empty(self)

    def add(self, events: Sequence[EncodedEvent]) -> None:
        for reader in tuple(self._readers):
            reader.add(events)

    def add_told(self, epoch: int, number: int, events: Sequence[EncodedEvent]) -> None:
        """Adds what another server has told under the lease with this epoch, in its message with this number."""
        if self._next is not None and self._next[0] == epoch and self._next[1] != number:
            self.interrupt()
        self._next = epoch, number + 1
        self.add(events)

    def interrupt(self) -> None:
        """Ends all streams with an error, since something may be missing."""
        for reader in tuple(self._readers):
            reader.interrupt(MISSED)

    def lose(self) -> None:
        """Ends all streams with an error, since this server is told nothing more. A later one makes it follow anew."""
        self.following = None
        self.interrupt()

    def end(self) -> None:
        for reader in tuple(self._readers):
            reader.end()


def _frame(event: bytes, *, obfuscated: bool) -> bytes:
    if obfuscated:
        event = b'%b,"obfuscation":"%b"}' % (event[:-1], secrets.token_hex(4 + event[-2] % 8).encode())
    return b"data: %b\n\n" % event
