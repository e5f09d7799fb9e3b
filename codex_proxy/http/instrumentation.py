"""The endpoints by which tests of clients see the guard of streams. They exist only where PROXY_TEST_ENDPOINTS is on.
Source: docs/contract.md#the-guard-of-streams.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.files.private import replacing
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.guard import STREAM_GUARD
from codex_proxy.http.middleware.forwarded import is_near
from codex_proxy.http.replies import json_response


class TestEndpoints(msgspec.Struct, frozen=True):
    """There where the endpoints are served."""

    release_file: str | None
    """What held turns of the fake agent wait for."""


TEST_ENDPOINTS = web.AppKey("test_endpoints", TestEndpoints)


async def open_streams(request: web.Request) -> web.Response:
    """GET /__test/conc: how many streams are open."""
    _check_near(request)
    return json_response({"conc": request.app[STREAM_GUARD].active})


async def release_streams(request: web.Request) -> web.Response:
    """POST /__test/conc/release: writes the file that held turns of the fake agent wait for."""
    _check_near(request)
    file = request.app[TEST_ENDPOINTS].release_file
    if file is None:
        message = "No file to release with: start the server with STREAM_RELEASE_FILE."
        raise Fault(Failure(kind=FaultKind.NOT_FOUND, message=message))
    await asyncio.to_thread(_release, Path(file))
    return json_response({"released": True})


def _release(file: Path) -> None:
    with replacing(file) as out:
        out.write(b"released\n")


def _check_near(request: web.Request) -> None:
    """Without a key they are for this machine only."""
    if not request.app[CLIENTS].wanted and not is_near(request):
        message = "The test endpoints answer only to this machine, or to a key."
        raise Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))
