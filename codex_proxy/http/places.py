"""A place among the streams for one request, told in headers where the test endpoints are on."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.guard import ConcurrencyFault, Place
from codex_proxy.http.middleware.frame import REPLY_HEADERS, REQUEST_ID
from codex_proxy.http.service import SERVICE


def place_of(request: web.Request) -> Place:
    """A place among the streams. Raises `Fault` where there is none."""
    service = request.app[SERVICE]
    try:
        place = service.guard.acquire(request[REQUEST_ID])
    except ConcurrencyFault as fault:
        if service.test_endpoints:
            request[REPLY_HEADERS] |= fault.count.headers()
        raise
    if service.test_endpoints:
        request[REPLY_HEADERS] |= place.count.headers()
    return place
