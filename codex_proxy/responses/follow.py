"""The stream of a background response, from wherever its reader was: out of the store, live or finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from codex_proxy.core.faults import Failure, FaultKind, bad_request
from codex_proxy.responses.background_runs import Live
from codex_proxy.responses.profiles import end_of_profile, events_of_profile
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.store_faults import store_errors_as_faults
from codex_proxy.store.base import UNFINISHED, Frame, NotStored, Store, StoredResponse
from codex_proxy.surfaces.responses.objects import not_resumable

HEARTBEAT = b": heartbeat\n\n"
AT_ONCE = 500
"""Frames that are read from the store in one go."""
LAST_FRAMES = (
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
    b'data: {"type":"response.completed"',
)
_MAX_DIGITS = 18  # digits of a number that the store takes


def starting_after(query: Mapping[str, str]) -> int:
    """The number of the last event that the reader has; -1 for none. Raises `Fault`."""
    given = query.get("starting_after")
    if not given:
        return -1
    if not (given.isascii() and given.isdecimal() and len(given) <= _MAX_DIGITS):
        raise bad_request(
            "Invalid value for 'starting_after': expected a sequence number.",
            "starting_after",
            "invalid_value",
        )
    return int(given)


async def check_resumable(store: Store, found: StoredResponse, live: Live | None) -> None:
    """Raises `Fault` for a response whose events are not kept."""
    if not found.background:
        raise not_resumable(found.id)
    if live is not None and live.streams:
        return
    with store_errors_as_faults():
        if not await store.frames(found.owner, found.id, limit=1):
            raise not_resumable(found.id)


async def followed(
    service: ResponsesService, store: Store, owner: str, id: str, after: int
) -> AsyncIterator[bytes]:
    """The events with a number above `after` until the end. The response does not mind who reads."""
    live = service.background.find(owner, id)
    while True:
        seen = 0 if live is None else live.version
        over = live is None or live.ended
        try:
            with store_errors_as_faults():
                frames = await store.frames(owner, id, after=after, limit=AT_ONCE)
        except NotStored:
            return  # deleted while it was read
        if frames:
            after = frames[-1].number
            yield b"".join(frame.data for frame in frames)
            if is_last(frames[-1]):
                break
        elif over:
            yield await _made_end(service, store, owner, id, after)
            break
        elif live is not None and not await _waited(live, seen, service.heartbeat):
            yield HEARTBEAT
    yield end_of_profile(service.profile)


async def _waited(live: Live, seen: int, seconds: float) -> bool:
    """False when nothing came for so long."""
    try:
        async with asyncio.timeout(seconds or None):
            await live.more(seen)
    except TimeoutError:
        return False
    return True


async def _made_end(service: ResponsesService, store: Store, owner: str, id: str, after: int) -> bytes:
    """The last frames of a stream that was cut off, made of the object; nothing where the reader has had them."""
    with store_errors_as_faults():
        found = await store.response(owner, id)
        last = await _last_frame(store, owner, id)
    if found is None or found.status in UNFINISHED or (last is not None and is_last(last)):
        return b""
    object = msgspec.json.decode(found.json)
    events = events_of_profile(service.profile, object)
    events.number = 0 if last is None else last.number + 1
    if object["error"] is not None:
        events.fail(Failure(kind=FaultKind.UNAVAILABLE, message=object["error"]["message"]))
    events.finish(object)
    first = events.number - len(frames := events.take())
    return b"".join(frame for number, frame in enumerate(frames, first) if number > after)


async def _last_frame(store: Store, owner: str, id: str) -> Frame | None:
    last = None
    while frames := await store.frames(owner, id, after=-1 if last is None else last.number, limit=AT_ONCE):
        last = frames[-1]
    return last


def is_last(frame: Frame) -> bool:
    """Whether nothing follows it but the end of the stream."""
    return frame.data.startswith(LAST_FRAMES)
