"""Answers with the bytes of a file, or one range of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Final
from urllib.parse import quote

from aiohttp import web

from codex_proxy.http.endpoint import TEXT_SCHEMA, Parameter

BYTES: Final = "application/octet-stream"
"""The type of every file's bytes: a browser that ran them as a page of this server could use it."""
RANGE: Final = Parameter("Range", "header", TEXT_SCHEMA, "One range of bytes, such as `bytes=0-99`.")
OF_RANGES: Final = {"206": BYTES, "416": ""}
"""The answers beside the whole file."""
_LAST_NONE: Final = re.compile(r"bytes=-0+", re.IGNORECASE)
"""Matches the range of the last 0 bytes, which `http_range` reads as all."""


async def send_bytes(
    request: web.Request, name: str | bytes, size: int, read: Callable[[int, int], AsyncIterator[bytes]]
) -> web.StreamResponse:
    """Sends a file of `size` bytes, or the range that the client wants; for HEAD only the head. `read` yields the
    bytes from its first argument to before its second. Raises its error; breaks the connection off if the bytes end too
    early.
    """
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    try:
        start, stop, _ = request.http_range.indices(size)
        # What a client has of it cannot be known to be of the same file: there is no ETag.
        is_range = "Range" in request.headers and "If-Range" not in request.headers
        if is_range and _LAST_NONE.fullmatch(request.headers["Range"]):
            start = stop
    except ValueError:  # not one range of bytes: HTTP lets a server pass over it
        is_range = False
    if not is_range:
        start, stop = 0, size
    else:
        if start >= stop:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    response = web.StreamResponse(status=206 if is_range else 200, headers=headers)
    response.content_type, response.content_length = BYTES, stop - start
    chunks = read(start, stop if request.method == "GET" else start)
    first = await anext(chunks, b"")  # before the head of the answer, for an error of its own
    await response.prepare(request)
    if first:
        await response.write(first)
    async for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response
