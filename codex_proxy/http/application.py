"""The aiohttp application, put together."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.middleware.bodies import bodies
from codex_proxy.http.middleware.doors import doors
from codex_proxy.http.middleware.frame import frame, sign
from codex_proxy.http.middleware.pace import pace
from codex_proxy.http.routes import add_routes
from codex_proxy.http.service import SERVICE, Service
from codex_proxy.http.stalled import bound_reading


def application(service: Service) -> web.Application:
    """Everything under HTTP; the caller runs it and ends the agent afterwards."""
    app = web.Application(middlewares=[frame, doors, pace, bodies], client_max_size=service.body_limit)
    app[SERVICE] = service
    app.on_response_prepare.extend((sign, bound_reading))
    add_routes(app, service)
    return app
