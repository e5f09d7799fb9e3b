"""Unpacks request bodies: gzip, deflate, and zstd, which Codex with a ChatGPT sign-in sends."""

from __future__ import annotations

import sys
import zlib
from typing import Final, Literal, TypeAlias

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:  # a Python that was built without it
    HAS_ZSTD = False
else:
    HAS_ZSTD = True

Coding: TypeAlias = Literal["gzip", "deflate", "zstd"]

_NAMES: Final[dict[str, Coding | None]] = {
    "": None,
    "identity": None,
    "gzip": "gzip",
    "x-gzip": "gzip",
    "deflate": "deflate",
    **({"zstd": "zstd"} if HAS_ZSTD else {}),
}
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16  # zlib's way to say that the head and the end are those of gzip
_ZSTD_WINDOW_LOG: Final = 23
"""The largest window of zstd: 8 MiB, as in RFC 9659. A frame could ask for 2 GiB."""
_STEP: Final = 1 << 16
MAX_PARTS: Final = 1_000
"""Maximum parts of gzip or zstd, one behind the other: an empty one has 20 bytes, and costs as much as many more."""

UNPACKED_HERE: Final[dict[Coding, int]] = {"gzip": 4 << 10, "deflate": 4 << 10, "zstd": 0}
"""Maximum compressed bytes that are decompressed on the event loop: up to 4 MiB, 10 ms. Zstd makes
as much of 128 bytes.
"""


class TooLarge(Exception):  # noqa: N818 - what the body is
    ...


def coding_of(values: list[str]) -> Coding | None:
    """Parses the values of `Content-Encoding`. Raises `Fault` UNSUPPORTED_MEDIA_TYPE."""
    given = ", ".join(values).strip().lower()
    if given not in _NAMES:
        raise Fault.of(
            FaultKind.UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Encoding '{excerpt(given)}' is not supported. Send the body with "
            f"gzip, deflate, {'zstd, ' if HAS_ZSTD else ''}or no encoding.",
        )
    return _NAMES[given]


def decompress(body: bytes, coding: Coding, limit: int) -> bytes:
    """Returns the decompressed body. Raises `Fault` for bad data, `TooLarge` above `limit` bytes."""
    if coding == "zstd":
        return _decompress_zstd(body, limit)
    try:
        return _inflate(body, _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS, limit)
    except zlib.error:
        if coding == "deflate":
            try:  # some clients leave zlib's head and end out
                return _inflate(body, -zlib.MAX_WBITS, limit)
            except zlib.error:
                pass
        raise bad_request(f"The request body is not valid {coding} data.") from None


def _inflate(body: bytes, window: int, limit: int) -> bytes:
    """Decompresses piece by piece: zlib copies what it leaves of its input."""
    out, given, at = bytearray(), memoryview(body), 0
    for _ in range(MAX_PARTS):
        part = zlib.decompressobj(window)
        while not part.eof:
            piece = given[at : at + _STEP]
            found = part.decompress(piece, min(_STEP, limit - len(out) + 1))
            if not (piece or found):
                raise _incomplete()
            out += found
            if len(out) > limit:
                raise TooLarge
            # At the end both have what is left, if an earlier call has left something.
            at += len(piece) - len(part.unused_data if part.eof else part.unconsumed_tail)
        if at == len(given):
            return bytes(out)
        if window != _GZIP_WINDOW:
            raise zlib.error("there is data after the end")
    raise _too_many_parts("gzip")


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    out, given, at = bytearray(), memoryview(body), 0
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    try:
        for _ in range(MAX_PARTS):
            frame = zstd.ZstdDecompressor(options=options)  # a frame to be skipped is one without content
            while not frame.eof:
                piece = given[at : at + _STEP] if frame.needs_input else b""
                if frame.needs_input and not piece:
                    raise _incomplete()
                out += frame.decompress(piece, min(_STEP, limit - len(out) + 1))
                if len(out) > limit:
                    raise TooLarge
                at += len(piece)
            at -= len(frame.unused_data)
            if at == len(given):
                return bytes(out)
    except zstd.ZstdError:
        raise bad_request(
            "The request body is not valid zstd data, or needs a window of more than 8 MiB."
        ) from None
    raise _too_many_parts("zstd")


def _incomplete() -> Fault:
    return bad_request("The request body is incomplete: its compressed data ends too early.")


def _too_many_parts(coding: Coding) -> Fault:
    return bad_request(
        f"The request body has more than {MAX_PARTS} parts of {coding} data, one behind the other."
    )
