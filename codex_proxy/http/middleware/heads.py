"""How much a request may say before its body: lines and bytes of headers.

aiohttp would refuse what is larger too, but not as JSON, and by a fixed size for each line alone.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind

MAX_HEADERS: Final = 100
"""What Apache takes. SDKs send about 20, browsers and two proxies on the way 20 more."""
MAX_HEADER_BYTES: Final = 32 << 10
"""What nginx takes in all (4 times 8 KiB); cookies of other servers on localhost come along."""
MAX_LINE: Final = 64 << 10
"""For aiohttp, which answers a line that is longer in its own way and closes the connection."""

_OVERHEAD: Final = 4  # the colon, the blank and the end of each line


def check_head(request: web.Request) -> None:
    """Raises `Fault` HEADERS_TOO_LARGE."""
    headers = request.raw_headers
    if len(headers) > MAX_HEADERS:
        raise _too_large(f"It has {len(headers)} headers; {MAX_HEADERS} are the most.")
    size = sum(len(name) + len(value) + _OVERHEAD for name, value in headers) + len(request.raw_path)
    if size > MAX_HEADER_BYTES:
        raise _too_large(f"Its headers have {size} bytes; {MAX_HEADER_BYTES} are the most.")


def _too_large(message: str) -> Fault:
    return Fault(
        Failure(kind=FaultKind.HEADERS_TOO_LARGE, message=f"The request's head is too large. {message}")
    )
