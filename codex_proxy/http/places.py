"""A place among the streams for one request, told in headers where the test endpoints are on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from codex_proxy.http.guard import ConcurrencyFault, Place, Release
from codex_proxy.http.middleware.frame import OWNER, REPLY_HEADERS, REQUEST_ID
from codex_proxy.http.service import SERVICE


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
    service = request.app[SERVICE]
    try:
        place = service.guard.acquire(request[REQUEST_ID], request[OWNER])
    except ConcurrencyFault as fault:
        if service.test_endpoints:
            request[REPLY_HEADERS] |= fault.count.headers()
        raise
    if service.test_endpoints:
        request[REPLY_HEADERS] |= place.count.headers()
    return place
