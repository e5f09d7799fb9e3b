"""The open streams of a server's sessions: those of single sessions, and those of all sessions of a key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.http.body import ByteBudget
from codex_proxy.parts.sessions.feeds import Feed, FeedReader
from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.parts.sessions.stream import MAX_BEHIND_IN_ALL, EventReader, MakeReader, SessionReaders
from codex_proxy.parts.sessions.summaries import ViewerNow
from codex_proxy.responses.service import ServerTasks

MAX_STREAMS: Final = 1000
"""Maximum open streams of one key."""


class Streams:
    def __init__(self, tasks: ServerTasks) -> None:
        """`tasks` read what streams show beside events."""
        self.unread = ByteBudget(MAX_BEHIND_IN_ALL, MAX_BEHIND_IN_ALL // 4)
        """What waits for all readers."""
        self._tasks = tasks
        self._readers: dict[tuple[str, str], SessionReaders] = {}
        self._feeds: dict[str, Feed] = {}
        self._open: dict[str, int] = {}
        """Open streams by owner."""

    def readers(self, owner: str, id: str) -> SessionReaders | None:
        """Returns the readers of a session at this server, if there are any."""
        return self._readers.get((owner, id))

    def joined(self, owner: str, id: str, make: MakeReader) -> tuple[EventReader, SessionReaders]:
        """Returns a reader of what happens in a session from now on, and all of them."""
        key = owner, id
        if key not in self._readers:
            self._readers[key] = SessionReaders(owner, id, self.unread, self._on_no_readers)
        readers = self._readers[key]
        return readers.new(make), readers

    def reader(self, owner: str, id: str, make: MakeReader) -> EventReader:
        """Returns a reader of what happens in a session from now on."""
        return self.joined(owner, id, make)[0]

    def _on_no_readers(self, readers: SessionReaders) -> None:
        del self._readers[readers.owner, readers.session]
        if readers.following is not None:
            readers.following.release()

    def feed(self, owner: str) -> Feed | None:
        """Returns the streams of all sessions of the owner, if there are any."""
        return self._feeds.get(owner)

    def feed_reader(self, owner: str, store: SessionStore, viewer: ViewerNow) -> FeedReader:
        """Returns a reader of what happens in all sessions of the owner from now on."""
        if owner not in self._feeds:
            self._feeds[owner] = Feed(owner, self.unread, store, self._tasks, self._on_no_feed)
        return self._feeds[owner].new(viewer)

    def _on_no_feed(self, feed: Feed) -> None:
        del self._feeds[feed.owner]

    def interrupt(self, owner: str, id: str) -> None:
        """Ends the streams that show a session with an error, since something of it may be missing."""
        if readers := self.readers(owner, id):
            readers.interrupt()
        if feed := self.feed(owner):
            feed.interrupt()

    def end(self, is_at_work: Callable[[tuple[str, str]], bool]) -> None:
        """Ends the streams, but for those of sessions that are at work."""
        for key, readers in tuple(self._readers.items()):
            if not is_at_work(key):
                readers.end()
        for feed in tuple(self._feeds.values()):
            feed.end()

    @contextlib.contextmanager
    def count(self, owner: str) -> Iterator[None]:
        """Counts an open stream. Raises `Fault` CONCURRENCY_EXCEEDED."""
        open_now = self._open.get(owner, 0)
        if open_now >= MAX_STREAMS:
            message = (
                f"{MAX_STREAMS} streams of sessions of this key are open, which is the limit. Close some."
            )
            raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message)
        self._open[owner] = open_now + 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]
