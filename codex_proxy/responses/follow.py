"""Follows the stream of a background response from any event on (`GET
/v1/responses/{id}?stream=true&starting_after=N`): renders its stored log anew, then reads the frames of the response if
this server runs it; the log again, if `MAX_UNREAD` bytes wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.responses.background import BackgroundResponse
from codex_proxy.responses.saving import StoredLog, has_stream
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.event_log import TAKEN_AT_ONCE, Push
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.leases import Watch
from codex_proxy.store.store import Store
from codex_proxy.store.values import UNFINISHED, Frame, NotStored, StoredResponse
from codex_proxy.surfaces.requests.body import invalid_value, number_in
from codex_proxy.surfaces.responses.kept_log import NotRenderableError
from codex_proxy.surfaces.responses.profile import STREAM_ENDS, end_frames, is_last, new_events
from codex_proxy.surfaces.responses.response_object import not_found, not_resumable

HEARTBEAT = b": heartbeat\n\n"
"""The comment that is sent in a silent stream."""
MAX_UNREAD = 1 << 20
"""Maximum bytes that wait."""
OTHER_RELEASE = Failure(
    FaultKind.UNAVAILABLE,
    "This response is streamed by a server of another release. Ask for it without its stream, or for the stream when "
    "it has ended.",
    retry_after=10,
)
_MAX_DIGITS = 18  # digits of a number that the store takes


def starting_after(query: Mapping[str, str]) -> int:
    """Returns the number of the client's last event, or -1. Raises `Fault` INVALID_REQUEST."""
    given = query.get("starting_after")
    if not given:
        return -1
    number = number_in(given, _MAX_DIGITS)
    if number < 0:
        raise invalid_value("starting_after", "expected a sequence number")
    return number


async def check_followable(store: Store, stored: StoredResponse, live: BackgroundResponse | None) -> None:
    """Raises `Fault` unless the response is in the background and was created with `stream`. `live`: the running
    response, if this server runs it.
    """
    if not stored.background:
        raise not_resumable(stored.id)
    if live is not None and live.streams:
        return
    try:
        with store_errors_as_faults():
            follows = await has_stream(store, stored.owner, stored.id)
    except NotStored as error:  # deleted a moment ago
        raise not_found(stored.id) from error
    if not follows:
        raise not_resumable(stored.id)


class Follower:
    """Reads a background response's events after a number, until its end."""

    refusal = None
    """None: `wait` raises what goes wrong."""

    def __init__(self, service: ResponsesService, owner: str, id: str, after: int) -> None:
        """`owner`: the name of the client's key. Raises `Fault` INVALID_REQUEST without a store."""
        self.finished = False
        self._service = service
        self._store = require_store(service.store)
        self._owner = owner
        self._id = id
        self._after = self._delivered = after
        live = service.background.find(owner, id)
        self._live = None if live is None else live.buffer.reader(MAX_UNREAD)
        """The response, if this server runs it, until its end."""
        self._behind = live is None or live.buffer.next > after + 1
        """Whether the next frame is to be read from the store."""
        self._stored = StoredLog(self._store, owner, id, after)
        self._fetched: list[Frame] | None = None
        self._is_read = False
        """Whether nothing follows what was fetched."""
        self._watch: Watch | None = None
        self._deleted = False

    async def wait(self, push: Push | None = None) -> None:
        """Waits for new frames or the end; may be cancelled and called again. Raises `Fault`. Does not call `push`."""
        if self._fetched:
            await asyncio.sleep(0)  # others are served first
        elif self._live is not None and not self._behind:
            await self._live.wait()
        else:
            try:
                with store_errors_as_faults():
                    await self._fetch()
            except NotStored:  # deleted while it was read
                self._fetched, self._deleted = [], True

    def take(self) -> bytes:
        """Returns new frames, and at last the stream's end."""
        self._delivered = self._after
        frames = self._from_live() if self._fetched is None else self._part_of_fetched()
        data = b"".join([frame for number, frame in frames if number > self._after])
        if frames:
            self._after = max(self._after, frames[-1][0])
            self._is_read = self._is_read or is_last(frames[-1][1])
        self.finished = self._is_read and not self._fetched
        if self._deleted:
            self.finished = True
            return data
        return data + STREAM_ENDS[self._service.profile] if self.finished else data

    def open(self) -> bytes:
        return b""

    def break_off(self, failure: Failure) -> bytes:
        """Returns an error without the end of the response, which goes on: its client can follow it again."""
        events = new_events(self._service.profile, {})
        events.number = max(0, self._delivered)  # a client that follows from there misses nothing
        events.fail(failure)
        return b"".join(events.take())

    def close(self) -> None:
        """Stops reading; the response continues."""
        if self._live is not None:
            self._live.close()

    def _part_of_fetched(self) -> list[Frame]:
        """Returns the next `TAKEN_AT_ONCE` bytes of what was fetched, or one longer frame."""
        assert self._fetched is not None
        size = count = 0
        for _, data in self._fetched:
            size += len(data)
            if count and size > TAKEN_AT_ONCE:
                break
            count += 1
        part, rest = self._fetched[:count], self._fetched[count:]
        self._fetched = rest or None
        return part

    def _from_live(self) -> list[Frame]:
        assert self._live is not None
        self._behind = self._live.overrun
        frames = self._live.take()
        if self._live.finished and not (frames and is_last(frames[-1][1])):
            self._live, self._behind = None, True  # it has ended without a last frame
        return frames

    async def _fetch(self) -> None:
        """Sets `_fetched` to the next stored frames; waits for some, unless this server runs the response."""
        while True:
            if self._live is None and self._watch is None:
                self._watch = self._store.leases.watch(self._id)
            frames = await self._read()
            if frames is None and self._live is not None:
                self._behind, frames = False, []
            elif frames is None:
                frames = await self._read_end()
            elif not any(number > self._after for number, _ in frames):
                continue  # the client has these
            if frames is not None:
                self._fetched = frames
                return
            assert self._watch is not None, "it is not this server's"
            await self._watch.wait()

    async def _read(self) -> list[Frame] | None:
        try:
            return await self._stored.read()
        except NotRenderableError:
            found = await self._store.response(self._owner, self._id)
            if found is not None and found.status in UNFINISHED:
                raise Fault(OTHER_RELEASE) from None
            return self._end_of(found, self._after + 1)

    async def _read_end(self) -> list[Frame] | None:
        """Returns the rest of a stream that has ended: of one whose end is not in its log, the final object's. Returns
        None if the response goes on.
        """
        found = await self._store.response(self._owner, self._id)
        if found is not None and found.status in UNFINISHED:
            return None
        rest = await self._read()  # the end may have been stored since
        if rest is not None:
            return rest
        self._is_read = True
        return [] if self._stored.ended else self._end_of(found, self._stored.next)

    def _end_of(self, found: StoredResponse | None, first: int) -> list[Frame]:
        """Returns the frames from the number `first` on that end a stream with the stored object."""
        self._is_read = True
        if found is None:
            return []
        frames = end_frames(self._service.profile, msgspec.json.decode(found.json), first)
        return [each for each in frames if each[0] > self._after]
