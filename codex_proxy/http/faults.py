"""A fault as an HTTP answer. Which surface it is decides the table's column."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.errors import error_body, retry_after, status_of


def surface_of(path: str) -> str:
    """Which table a path's faults follow: `responses` for that endpoint and conversations, else `chat`."""
    return "responses" if "/responses" in path or "/conversations" in path else "chat"


def fault_response(failure: Failure, path: str, *, allow: str | None = None) -> web.Response:
    """The error as JSON with its status, `Retry-After` and `Allow` where they apply."""
    surface = surface_of(path)
    headers = {}
    seconds = retry_after(failure)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(
        status=status_of(failure, surface),  # type: ignore[arg-type]
        body=error_body(failure, surface),  # type: ignore[arg-type]
        content_type="application/json",
        headers=headers,
    )
