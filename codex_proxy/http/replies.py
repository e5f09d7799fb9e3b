"""JSON answers of ours that no surface renders."""

from __future__ import annotations

import msgspec
from aiohttp import web


def json_response(value: object, status: int = 200) -> web.Response:
    """The value as a body."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", status=status)
