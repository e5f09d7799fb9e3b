"""Streams of server-sent events to clients that may read slowly, and the limit of open ones, which counts from before
a turn starts until its answer has ended; and the test endpoints of that limit. Source:
docs/contract.md#the-guard-of-streams.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict

import structlog
from aiohttp import web
from aiohttp.http import StreamWriter

from codex_proxy.core.events import DECLINED_HEADER, EMPTY_HEADER
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.files.private import replace_file
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.endpoint import REQUEST_ID, json_response
from codex_proxy.http.middleware.access import RIGHT, is_local
from codex_proxy.http.middleware.content_log import CONTENT_LOG
from codex_proxy.http.middleware.request_context import OWNER, REPLY_HEADERS
from codex_proxy.surfaces.answers.renderer import Count, Yes
from codex_proxy.workers.slots import FairQueue

SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

STALL_SECONDS = 120.0
"""Seconds after which a client that does not read is disconnected."""

WRITTEN_AT_ONCE = 1 << 18
"""Maximum bytes of one write, between which others are served."""

CHECK_SECONDS = 10.0
"""Seconds between checks whether a write takes too long."""

USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
"""Limits the time for unacknowledged data; Linux only."""


def limit_stall(transport: asyncio.BaseTransport) -> None:
    """Has the kernel close a connection whose client acknowledges no data for `STALL_SECONDS`."""
    connection = transport.get_extra_info("socket")
    if USER_TIMEOUT is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, int(STALL_SECONDS * 1000))


def time_comment(clock: Clock) -> bytes:
    """Returns a comment with the time, which keeps a silent stream alive."""
    return b": %d\n\n" % (clock.epoch() * 1000)


class _Response(web.StreamResponse):
    """Sends its headers and first bytes in one write."""

    _send_headers_immediately = False


class EventStream:
    """Writes events to one client, the headers with the first. A write that takes longer than `STALL_SECONDS` aborts
    the connection.
    """

    def __init__(
        self, request: web.Request, headers: Callable[[], Mapping[str, str]], *, media_type: str = SSE
    ) -> None:
        """`headers` is called when the headers are sent."""
        self.response = _Response(headers={"Content-Type": media_type, **HEADERS})
        self._has_comments = media_type == SSE
        self._headers = headers
        self._request = request
        self.right: AbstractContextManager[None] = request.get(RIGHT, nullcontext())
        """Raises `Fault` where the key of the request is no longer valid."""
        self._content_log = request.get(CONTENT_LOG)
        self._writer: StreamWriter | None = None
        self._writing_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def writable(self) -> bool:
        """Whether `write_now` may be called: the client reads fast enough."""
        return self._writer is None or not self._writer.protocol.writing_paused

    def write_now(self, data: bytes) -> None:
        """Writes without waiting. Raises `ConnectionError`."""
        if self._writer is None:
            _run_at_once(self._send_headers())
        assert self._writer is not None
        if self._content_log is not None:
            self._content_log("answer", data)
        # aiohttp writes at once, but in a coroutine, because it may drain afterwards. (Chunks made here and given to
        # the transport would save 1 us, and the writer's count of its bytes and its knowledge of HTTP/1.0 with them.)
        _run_at_once(self._writer.write(data, drain=False))

    @property
    def begun(self) -> bool:
        """Whether the headers were sent."""
        return self._writer is not None

    async def write(self, data: bytes) -> None:
        """Writes data, and waits for a slow client. Raises `ConnectionError`."""
        await self._start_write(data)
        await self._write_all(data)
        self._writing_since = None

    async def _write_all(self, data: bytes) -> None:
        if len(data) <= WRITTEN_AT_ONCE:
            await self.response.write(data)
            return
        # The transport copies what a client does not take at once: long data would take long, and twice the memory.
        for start in range(0, len(data), WRITTEN_AT_ONCE):
            await self.response.write(data[start : start + WRITTEN_AT_ONCE])
            self._writing_since = self._loop.time()
            await asyncio.sleep(0)

    async def close(self, last: bytes = b"") -> web.StreamResponse:
        """Writes the last bytes, and before them what the headers could not say: why the answer is empty, and what the
        agent was not permitted. Raises `ConnectionError`.
        """
        known = self._request.get(REPLY_HEADERS, {})
        for name in (EMPTY_HEADER, DECLINED_HEADER):
            said = self.response.headers.get(name)
            if known.get(name, said) != said and self.begun and self._has_comments:
                last = f": {name}: {known[name]}\n\n".encode() + last
        await self._start_write(last)
        if len(last) > WRITTEN_AT_ONCE:
            await self._write_all(last)
            last = b""
        await self.response.write_eof(last)
        return self.response

    async def _start_write(self, data: bytes) -> None:
        if self._writer is None:
            await self._send_headers()
        self._writing_since = self._loop.time()
        if self._content_log is not None and data:
            self._content_log("answer", data)

    async def _send_headers(self) -> None:
        self.response.headers.update(self._headers())
        writer = await self.response.prepare(self._request)
        assert isinstance(writer, StreamWriter), "not that of a server"
        self._writer = writer
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def stop(self) -> None:
        """Stops the timer for slow writes; to be called at the end, also after an error."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        since = self._writing_since
        if since is not None and self._loop.time() - since >= STALL_SECONDS:
            if self._request.transport is not None:
                self._request.transport.abort()
            return
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)


def _run_at_once(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("aiohttp waits although it was told not to")


class IdleTimer:
    """Limits waits to `seconds` of silence (0: no limit) since the last `reset`, with one timer for all waits,
    because one for each would be too slow. To be stopped by the task that made it.
    """

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "made outside of a task"
        self._task = task
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._waiting = False
        self._interrupted = False
        self._timer = self._loop.call_later(seconds, self._check) if seconds else None

    def reset(self) -> None:
        """Begins the silence anew; to be called whenever something was sent."""
        self._silent_since = self._loop.time()

    async def wait_for(self, event: Awaitable[None]) -> bool:
        """Returns True after `event`, or cancels it after the time and returns False."""
        self._waiting = True
        cancelling = self._task.cancelling()
        try:
            await event
        except asyncio.CancelledError:
            if not self._interrupted or self._task.uncancel() > cancelling:
                raise  # somebody else has cancelled the task
            return False
        finally:
            self._waiting = self._interrupted = False
        return True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        if not self._waiting:
            self._silent_since = now  # it is being written to
        elif now - self._silent_since >= self._seconds and not self._interrupted:
            self._interrupted = True
            self._task.cancel()
            self._silent_since = now
        self._timer = self._loop.call_at(self._silent_since + self._seconds, self._check)


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
        before = self._slots.running
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
        self._log("released", self._slots.running + 1, request_id, cause=end)

    def _log(self, outcome: str, before: int, request_id: str, **more: str) -> None:
        self._write(
            "sse_guard",
            scope="sse_guard",
            outcome=outcome,
            before=before,
            after=self._slots.running,
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
        if request.app.get(TEST_ENDPOINTS) is not None:
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
