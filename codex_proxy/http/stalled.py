"""How long a client may leave unread what is sent to it, before it is cut: whatever it asked for, however it is sent.

The system's own bound, where there is one (Linux); a stream has its own besides, which works everywhere.
"""

from __future__ import annotations

import socket

from aiohttp import web

STALL_SECONDS = 120.0
"""Longer than any hiccup of a network, and little enough that a stuck client does not hold memory for an hour."""

LOOK_SECONDS = 10.0
"""Between two looks at whether a stream's write has waited for so long."""

BOUND = getattr(socket, "TCP_USER_TIMEOUT", None)
"""The option that says how long sent data may stay unread. macOS has none."""


async def bound_reading(request: web.Request, response: web.StreamResponse) -> None:
    """Sets the bound on the request's connection, just before an answer's headers go out."""
    connection = request.get_extra_info("socket")
    if BOUND is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, BOUND, int(STALL_SECONDS * 1000))
