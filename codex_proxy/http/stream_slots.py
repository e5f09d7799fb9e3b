"""Limits the open streams, from before a turn starts until its answer has ended; and the test endpoints. Source:
docs/contract.md#the-guard-of-streams.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypedDict

import structlog
from aiohttp import web

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.files.private import replace_file
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.endpoint import REQUEST_ID
from codex_proxy.http.middleware.access import is_local
from codex_proxy.http.middleware.request_context import OWNER, REPLY_HEADERS
from codex_proxy.http.replies import json_response
from codex_proxy.surfaces.answer_types import Count, Yes
from codex_proxy.workers.slots import FairQueue

log = structlog.get_logger("codex_proxy.http")

StreamEnd: TypeAlias = Literal["finish", "close", "aborted"]
"""How a stream ended: regularly, by a fault, or because its client left."""


class StreamSlots:
    """Counts the open streams; `limit` None: any number. If there are several `owners`, each gets at most a share."""

    def __init__(self, limit: int | None, owners: Callable[[], int]) -> None:
        self.limit = limit
        self._slots: FairQueue[None] = FairQueue(sys.maxsize if limit is None else limit, owners)
        # Looked up once: that costs as much as a line that is not logged.
        self._write = log.debug if limit is None else log.info

    @property
    def active(self) -> int:
        return self._slots.running

    def acquire(self, request_id: str, owner: str) -> None:
        """Takes a slot. `owner` is the name of the client's key. Raises `Fault` CONCURRENCY_EXCEEDED."""
        before = self.active
        if self._slots.enter(owner):
            self._log("acquired", before, request_id)
            return
        self._log("rejected", before, request_id)
        message = f"{before} streams are open, and this server allows {self.limit} at once."
        if before != self.limit:
            theirs = f"This key has {self._slots.running_of(owner)} of this server's {self.limit} streams"
            message = f"{theirs}; the rest are reserved for other keys."
        raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, f"{message} Try again when one has ended.")

    def release(self, request_id: str, owner: str, end: StreamEnd) -> None:
        self._slots.leave(owner)  # first: whatever breaks after it, the place is free
        self._log("released", self.active + 1, request_id, cause=end)

    def _log(self, outcome: str, before: int, request_id: str, **more: str) -> None:
        self._write(
            "sse_guard",
            scope="sse_guard",
            outcome=outcome,
            before=before,
            after=self.active,
            limit=self.limit,
            req_id=request_id,
            **more,
        )


STREAM_SLOTS: Final = web.AppKey("stream_slots", StreamSlots)


@contextmanager
def stream_slot(request: web.Request) -> Iterator[None]:
    """Holds a slot; with the test endpoints, the answer's headers count the open streams. Raises `Fault`
    CONCURRENCY_EXCEEDED.
    """
    slots, request_id, owner = request.app[STREAM_SLOTS], request[REQUEST_ID], request[OWNER]
    before = slots.active
    try:
        slots.acquire(request_id, owner)
    finally:
        if TEST_ENDPOINTS in request.app:
            request[REPLY_HEADERS] |= {
                "X-Conc-Before": str(before),
                "X-Conc-After": str(slots.active),
                "X-Conc-Limit": str(slots.limit or 0),
            }
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
        slots.release(request_id, owner, end)


# --- the test endpoints ---------------------------------------------------------------------------


TEST_ENDPOINTS: Final = web.AppKey("test_endpoints", str)
"""The file for which held turns of the fake agent wait, if any. Set only if the test endpoints are on."""


class OpenStreams(TypedDict):
    conc: Count


class Released(TypedDict):
    released: Yes


async def open_streams(request: web.Request) -> web.Response:
    """Returns the number of open streams, if PROXY_TEST_ENDPOINTS is on."""
    _check_local(request)
    body: OpenStreams = {"conc": request.app[STREAM_SLOTS].active}
    return json_response(body)


async def release_streams(request: web.Request) -> web.Response:
    """Lets the held turns of the fake agent continue.

    Raises `Fault` NOT_FOUND without a file in the settings.
    """
    _check_local(request)
    file = request.app[TEST_ENDPOINTS]
    if not file:
        message = "No file to release with: start the server with STREAM_RELEASE_FILE."
        raise Fault.of(FaultKind.NOT_FOUND, message)
    await asyncio.to_thread(_release, Path(file))
    body: Released = {"released": True}
    return json_response(body)


def _release(file: Path) -> None:
    with replace_file(file) as out:
        out.write(b"released\n")


def _check_local(request: web.Request) -> None:
    if not request.app[CLIENTS].keys_required and not is_local(request):
        message = "The test endpoints can be used only from this machine, or with a key."
        raise Fault.of(FaultKind.NOT_ALLOWED, message)
