"""A place among the streams for one request, told in headers where the test endpoints are on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from codex_proxy.http.guard import STREAM_GUARD, ConcurrencyFault, Place, Release
from codex_proxy.http.instrumentation import TEST_ENDPOINTS
from codex_proxy.http.middleware.frame import OWNER, REPLY_HEADERS, REQUEST_ID


@contextmanager
def stream_place(request: web.Request) -> Iterator[None]:
    """A stream holds its place among the streams from before its agent starts until it has ended, and the guard is
    told how it ended. Raises `Fault` where there is none."""
    place = _place_of(request)
    ending: Release = "aborted"
    try:
        yield
        ending = "finish"
    except ConnectionError:
        raise
    except Exception:
        ending = "close"
        raise
    finally:
        place.release(ending)


def _place_of(request: web.Request) -> Place:
    try:
        place = request.app[STREAM_GUARD].acquire(request[REQUEST_ID], request[OWNER])
    except ConcurrencyFault as fault:
        if TEST_ENDPOINTS in request.app:
            request[REPLY_HEADERS] |= fault.count.headers()
        raise
    if TEST_ENDPOINTS in request.app:
        request[REPLY_HEADERS] |= place.count.headers()
    return place
