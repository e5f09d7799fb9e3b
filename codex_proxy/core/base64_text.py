"""Base64 as clients write it, in whichever of the usual ways, as bytes. Raises `ValueError` for anything else."""

from __future__ import annotations

import binascii
from typing import Final

_ESCAPES: Final = {
    f"%{code:{form}}".encode(): bytes((code,)) for code in b"+/=-_ \t\r\n" for form in ("02X", "02x")
}
"""What a URL library escapes of base64."""
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_SPACES: Final = b" \t\r\n\f\v"
_PIECE_CHARS: Final = 1 << 20
"""What is decoded in one call, which nothing else can interrupt: 3 ms. A multiple of four."""


def decode_canonical(text: str) -> bytes | None:
    """Decodes canonical base64: standard alphabet, padded, without white space. None for any other text."""
    try:
        data = _decoded(text)
    except ValueError:
        return None
    # Bits that no byte needs have to be zero, which Python's decoder does not look at.
    rest = len(data) % 3
    exact = not rest or text.endswith(encode(data[-rest:]))
    return data if exact else None


def decode(text: str) -> bytes:
    """Decodes base64 leniently: line breaks, the URL-safe alphabet, percent-encoding and missing padding are taken."""
    raw = text.encode("ascii")
    if b"%" in raw:
        for escape, byte in _ESCAPES.items():
            raw = raw.replace(escape, byte)
    raw = raw.translate(_URL_SAFE, _SPACES)
    if not raw.endswith(b"="):
        raw += b"=" * (-len(raw) % 4)
    return _decoded(raw)


def _decoded(text: str | bytes) -> bytes:
    """Decodes strictly, piece by piece, so that other threads run in between."""
    pieces = []
    for start in range(0, len(text), _PIECE_CHARS):
        piece = binascii.a2b_base64(text[start : start + _PIECE_CHARS], strict_mode=True)
        if start + _PIECE_CHARS < len(text) and len(piece) != _PIECE_CHARS // 4 * 3:
            raise ValueError("padding in the middle")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def encode(data: bytes) -> str:
    """Canonical base64 of the data."""
    return binascii.b2a_base64(data, newline=False).decode()
