"""Which web pages may use this server: those of the origins that the operator lists, and no others.

A browser says with `Origin` (and `Sec-Fetch-Site`) whose page is asking, and lets a page read an answer only where the
CORS headers allow it. Pages that are not listed are refused, also where they only read: without CORS headers they could
still run an answer as a script, take a stream slot, and see which ids exist. Programs send neither header, and pass.
"""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.middleware.request_context import REPLY_HEADERS

ORIGINS: Final = web.AppKey("origins", frozenset[str])
"""Origins, in small letters, whose pages may use this server."""

PREFLIGHT_SECONDS = 600
"""How long a browser may remember what it is allowed: a change of the list is in force after as long."""

_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
"""A list of header names as browsers ask for it; whatever else is asked for is not echoed."""


def check_origin(request: web.Request) -> web.Response | None:
    """Raises `Fault` NOT_ALLOWED for a page that is not listed. Returns the answer to a listed page's preflight, and
    None for every other request."""
    allowed = request.app[ORIGINS]
    if allowed:
        request[REPLY_HEADERS]["Vary"] = "Origin"
    origin = request.headers.get("Origin", "").lower()
    if origin and origin in allowed:
        request[REPLY_HEADERS]["Access-Control-Allow-Origin"] = request.headers["Origin"]
        request[REPLY_HEADERS]["Access-Control-Expose-Headers"] = "*"
        return _preflight(request)
    if _is_foreign(request, origin):
        message = "Web pages of other origins may not use this server; add theirs to PROXY_ALLOWED_ORIGINS."
        raise Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))
    return None


def _is_foreign(request: web.Request, origin: str) -> bool:
    """Whether a page of another origin than this server's is asking. `same-site` is another port or sub-domain."""
    if origin:
        host = request.headers.get("Host", "").lower()
        return not host or origin not in (f"http://{host}", f"https://{host}")
    return request.headers.get("Sec-Fetch-Site", "").lower() in ("cross-site", "same-site")


def _preflight(request: web.Request) -> web.Response | None:
    """The answer to a browser that asks before it sends; None for any other request. A preflight has no key, so it is
    answered before keys are checked."""
    method = request.headers.get("Access-Control-Request-Method")
    if request.method != "OPTIONS" or method is None:
        return None
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }
    asked = request.headers.get("Access-Control-Request-Headers", "")
    if _HEADER_NAMES.fullmatch(asked):
        headers["Access-Control-Allow-Headers"] = asked
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def is_origin(text: str) -> bool:
    """Whether this can be the origin of a page. `null` and `*` stand for many, and a path is never sent."""
    return re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/*?#\s]+", text) is not None
