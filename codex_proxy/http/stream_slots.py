"""Limits the open streams, from before a turn starts until its answer has ended, and the test endpoints that read the
number (PROXY_TEST_ENDPOINTS). Source: docs/contract.md#the-guard-of-streams.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypedDict

import msgspec
import structlog
from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.files.private import replacing
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.endpoint import REQUEST_ID
from codex_proxy.http.middleware.access import is_local
from codex_proxy.http.middleware.request_context import OWNER, REPLY_HEADERS
from codex_proxy.http.replies import json_response
from codex_proxy.surfaces.answer_types import Count, Yes
from codex_proxy.workers.slots import share_of

log = structlog.get_logger("codex_proxy.http")

StreamEnd: TypeAlias = Literal["finish", "close", "aborted"]
"""How a stream ended: regularly, by a fault, or because its client left."""


class StreamCount(msgspec.Struct, frozen=True):
    """The open streams before and after a request for a slot, and the limit (0: none)."""

    before: int
    after: int
    limit: int

    def headers(self) -> dict[str, str]:
        """Returns the response headers with these numbers, for tests."""
        return {
            "X-Conc-Before": str(self.before),
            "X-Conc-After": str(self.after),
            "X-Conc-Limit": str(self.limit),
        }


class NoSlotFault(Fault):
    """Too many streams are open. `of_owner` is the key's number, if its own limit is reached."""

    def __init__(self, count: StreamCount, of_owner: int | None = None) -> None:
        message = f"{count.before} streams are open, and this server allows {count.limit} at once."
        if of_owner is not None:
            message = (
                f"This key has {of_owner} of this server's {count.limit} streams; the rest are "
                "reserved for other keys."
            )
        super().__init__(
            Failure(kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again when one has ended.")
        )
        self.count = count


class StreamSlots:
    """Counts the open streams; `limit` None: any number. Of several `owners` one gets at most three quarters
    (`share_of`).
    """

    def __init__(self, limit: int | None, owners: Callable[[], int] = lambda: 1) -> None:
        self.active = 0
        self._limit = limit
        self._owners = owners
        self._by_owner: Counter[str] = Counter()
        # Looked up once: that costs as much as a line that is not logged.
        self._write = log.debug if limit is None else log.info

    def acquire(self, request_id: str, owner: str = "") -> StreamSlot:
        """Takes a slot for a stream of `owner` (the name of an API key). Raises `NoSlotFault`."""
        before, of_owner = self.active, self._by_owner[owner]
        if self._limit is not None:
            is_full = before >= self._limit
            if is_full or of_owner >= share_of(self._limit, self._owners()):
                count = self._count(before)
                self._log("rejected", count, request_id)
                raise NoSlotFault(count, None if is_full else of_owner)
        self.active += 1
        self._by_owner[owner] += 1
        count = self._count(before)
        self._log("acquired", count, request_id)
        return StreamSlot(self, request_id, owner, count)

    def give_back(self, request_id: str, owner: str, end: StreamEnd) -> None:
        """Frees a slot, and logs how its stream has ended."""
        before = self.active
        self.active -= 1
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._log("released", self._count(before), request_id, cause=end)

    def _count(self, before: int) -> StreamCount:
        return StreamCount(before, self.active, self._limit or 0)

    def _log(self, outcome: str, count: StreamCount, request_id: str, **more: str) -> None:
        self._write(
            "sse_guard",
            scope="sse_guard",
            outcome=outcome,
            before=count.before,
            after=count.after,
            limit=self._limit,
            req_id=request_id,
            **more,
        )


class StreamSlot:
    """The slot of one open stream, until `release` is called."""

    def __init__(self, slots: StreamSlots, request_id: str, owner: str, count: StreamCount) -> None:
        self.count = count
        self._slots: StreamSlots | None = slots
        self._request_id = request_id
        self._owner = owner

    def release(self, end: StreamEnd) -> None:
        """Frees the slot. `end` is how its stream has ended: `finish`: regularly, `close`: by a fault, `aborted`:
        its client left. Further calls do nothing.
        """
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.give_back(self._request_id, self._owner, end)


STREAM_SLOTS: Final = web.AppKey("stream_slots", StreamSlots)


@contextmanager
def stream_slot(request: web.Request) -> Iterator[None]:
    """Holds a slot of `StreamSlots` for the body of the `with`. Raises `NoSlotFault` if there is none."""
    slot = _acquire(request)
    end: StreamEnd = "aborted"
    try:
        yield
        end = "finish"
    except ConnectionError:
        raise
    except Exception:
        end = "close"
        raise
    finally:
        slot.release(end)


def _acquire(request: web.Request) -> StreamSlot:
    """Takes a slot for the request's stream. Raises `NoSlotFault` if there is none. If the test endpoints are on, adds
    the number of open streams to the response headers.
    """
    try:
        slot = request.app[STREAM_SLOTS].acquire(request[REQUEST_ID], request[OWNER])
    except NoSlotFault as fault:
        if TEST_ENDPOINTS in request.app:
            request[REPLY_HEADERS] |= fault.count.headers()
        raise
    if TEST_ENDPOINTS in request.app:
        request[REPLY_HEADERS] |= slot.count.headers()
    return slot


# --- the test endpoints ---------------------------------------------------------------------------


class TestEndpoints(msgspec.Struct, frozen=True):
    """The settings of the test endpoints. It is stored in the application only if these are on."""

    release_file: str | None
    """The path of a file. A test's prompt can make a turn of the fake agent wait until this file is written. None
    if no turn can wait."""


TEST_ENDPOINTS: Final = web.AppKey("test_endpoints", TestEndpoints)


class OpenStreams(TypedDict):
    conc: Count


class Released(TypedDict):
    released: Yes


async def open_streams(request: web.Request) -> web.Response:
    """GET /__test/conc: returns the number of open streams."""
    _check_near(request)
    body: OpenStreams = {"conc": request.app[STREAM_SLOTS].active}
    return json_response(body)


async def release_streams(request: web.Request) -> web.Response:
    """POST /__test/conc/release: writes the file for which held turns of the fake agent wait. Raises `Fault` NOT_FOUND
    if the settings name none.
    """
    _check_near(request)
    file = request.app[TEST_ENDPOINTS].release_file
    if file is None:
        message = "No file to release with: start the server with STREAM_RELEASE_FILE."
        raise Fault(Failure(kind=FaultKind.NOT_FOUND, message=message))
    await asyncio.to_thread(_release, Path(file))
    body: Released = {"released": True}
    return json_response(body)


def _release(file: Path) -> None:
    with replacing(file) as out:
        out.write(b"released\n")


def _check_near(request: web.Request) -> None:
    """Raises `Fault` NOT_ALLOWED if the server requires no keys and the request comes from another machine."""
    if not request.app[CLIENTS].keys_required and not is_local(request):
        message = "The test endpoints can be used only from this machine, or with a key."
        raise Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))
