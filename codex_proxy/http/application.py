"""The aiohttp application, put together."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.middleware.bodies import bodies
from codex_proxy.http.middleware.doors import doors
from codex_proxy.http.middleware.frame import frame, sign
from codex_proxy.http.middleware.pace import pace
from codex_proxy.http.stalled import bound_reading


def application(*, body_limit: int) -> web.Application:
    """The application with its middlewares; the caller puts the server's parts in, and calls `add_endpoints`."""
    app = web.Application(middlewares=[frame, doors, pace, bodies], client_max_size=body_limit)
    app.on_response_prepare.extend((sign, bound_reading))
    return app
