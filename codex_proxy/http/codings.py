"""Content codings of request bodies: which are taken, and bytes as they were before one was applied.

aiohttp would unpack by itself. But it takes a body whose end is missing for a whole one, leaves a coding that it does
not know in place, and knows more of them the more packages are installed.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal, TypeAlias

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt

Coding: TypeAlias = Literal["gzip", "deflate"]

_NAMES: Final[dict[str, Coding | None]] = {
    "": None,
    "identity": None,
    "gzip": "gzip",
    "x-gzip": "gzip",
    "deflate": "deflate",
}
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16  # zlib's way to say that the head and the end are those of gzip
_STEP: Final = 1 << 16


class TooLarge(Exception):  # noqa: N818 - what the body is
    """Unpacked, the body is larger than the limit. No more than the limit was unpacked."""


def coding_of(values: list[str]) -> Coding | None:
    """The one coding that `Content-Encoding` names; None for none. Raises `Fault` UNSUPPORTED_MEDIA_TYPE."""
    given = ", ".join(values).strip().lower()
    if given not in _NAMES:
        raise Fault(
            Failure(
                kind=FaultKind.UNSUPPORTED_MEDIA_TYPE,
                message=f"The body's Content-Encoding is '{excerpt(given)}'; send it as gzip, as deflate, or as it is.",
            )
        )
    return _NAMES[given]


def unpacked(body: bytes, coding: Coding, limit: int) -> bytes:
    """The body without its coding. Raises `Fault` for one that is not packed so or has no end, and `TooLarge`."""
    try:
        return _unpacked(body, _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS, limit)
    except zlib.error:
        if coding == "deflate":
            try:  # some clients leave zlib's head and end out
                return _unpacked(body, -zlib.MAX_WBITS, limit)
            except zlib.error:
                pass
        raise bad_request(f"The request body is not packed as {coding}.") from None


def _unpacked(body: bytes, window: int, limit: int) -> bytes:
    out = bytearray()
    while body:  # gzip may be several parts, one behind the other
        part = zlib.decompressobj(window)
        while body and not part.eof:
            out += part.decompress(body, min(_STEP, limit - len(out) + 1))
            if len(out) > limit:
                raise TooLarge
            body = part.unconsumed_tail
        if not part.eof:
            raise bad_request("The request body has no end: it was cut off while it was packed or sent.")
        body = part.unused_data
        if body and window != _GZIP_WINDOW:
            raise zlib.error("something stands behind the end")
    return bytes(out)
