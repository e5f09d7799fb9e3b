"""Checks images and PDFs in a request. An image becomes a `data:` URL with the type of its bytes, or raises
`NoImageError`: format, size and completeness are checked, pixels not decoded.

Parsers do no IO: they ask `PdfTexts` for a PDF's text; the caller reads the missing ones, and runs the parser again.
"""

from __future__ import annotations

import binascii
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from codex_proxy.core.faults import bad_request

ACCEPTED: Final = "a PNG, JPEG, WebP or GIF"
MAX_PIXEL_BYTES: Final = 512 * 1024 * 1024
"""Maximum bytes of decoded pixels: the limit of the agent's decoder."""

_HEAD: Final = re.compile(r"data:([^,]{0,256}?);base64,", re.IGNORECASE)

_PNG_START: Final = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""The samples of a pixel, by the header's colour type."""
_PNG_PROBE: Final = 4096
"""The bytes of pixels that are unpacked to check the stream."""
_JPEG_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without length: TEM, RST0 to RST7, SOI."""
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of frame headers (SOF), which have the size."""


class NoImageError(ValueError):
    """The bytes are not an image that models read. The message is a predicate, such as `is empty`."""


class ImageInfo(NamedTuple):
    """What an image's header says. `pixel_bytes`: the size of the decoded pixels."""

    media_type: str
    width: int
    height: int
    pixel_bytes: int


def clean_data_url(url: str) -> str:
    """Returns the data URL with the type of its bytes and canonical base64; line breaks, URL-safe letters, percent
    signs and missing padding are corrected. Raises `NoImageError`.
    """
    head = _HEAD.match(url)
    if head is None:
        raise NoImageError("is not a base64 data URL")
    payload = url[head.end() :]
    data = decode_canonical_base64(payload)
    if data is None:
        try:
            data = decode_base64(payload)
        except ValueError:
            raise NoImageError("is no valid base64") from None
        return data_url(check(data), data)
    start = f"data:{check(data)};base64,"
    return url if url.startswith(start) else start + payload


def data_url_of(data: bytes) -> str:
    """Returns an image file as a data URL. Raises `NoImageError`."""
    return data_url(check(data), data)


def data_url(media_type: str, data: bytes) -> str:
    """Returns the bytes as a data URL, unchecked."""
    return f"data:{media_type};base64,{encode_base64(data)}"


def check(data: bytes) -> str:
    """Returns the media type of a complete image of a supported format, else raises `NoImageError`."""
    if not data:
        raise NoImageError("is empty")
    try:
        info = _read(data)
    except IndexError:
        raise NoImageError("is damaged: its end is missing") from None
    if not info.width or not info.height:
        raise NoImageError("has no width or no height")
    if info.pixel_bytes > MAX_PIXEL_BYTES:
        raise NoImageError(f"has too many pixels ({info.width} x {info.height})")
    return info.media_type


def image_info(payload: str) -> ImageInfo | None:
    """Returns the header of an image in base64; None if incomplete or not supported."""
    try:
        return _read(decode_base64(payload))
    except (ValueError, IndexError):
        return None


_TILE: Final = 512
_TILE_TOKENS: Final = 170
_PATCH: Final = 32
_PATCH_TOKENS: Final = 1.7
_MAX_TOKENS: Final = 2_700
"""The tokens of the largest image, and of one of unknown size."""


def url_tokens(url: str) -> int:
    """Returns an upper bound of the tokens of an image: for a data URL that of `image_tokens`, for any other URL the
    largest that an image can have.
    """
    return image_tokens(url.partition(";base64,")[2])


def image_tokens(payload: str) -> int:
    """Returns an upper bound of the tokens of an image in base64; of one that cannot be read, the most."""
    info = image_info(payload)
    if info is None:
        return _MAX_TOKENS
    tiles = math.ceil(info.width / _TILE) * math.ceil(info.height / _TILE) * _TILE_TOKENS
    patches = math.ceil(info.width / _PATCH) * math.ceil(info.height / _PATCH) * _PATCH_TOKENS
    return min(_MAX_TOKENS, 100 + math.ceil(max(tiles, patches)))


def _read(data: bytes) -> ImageInfo:
    read = next((read for start, read in _READERS.items() if data.startswith(start)), None)
    if read is None:
        raise NoImageError(f"is not {ACCEPTED}")
    return read(data)


def _number(data: bytes, at: int, size: int, *, little: bool = False) -> int:
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], "little" if little else "big")


# --- one reader per format: raises IndexError where the bytes end too early -----------------------


def _png(data: bytes) -> ImageInfo:
    view = memoryview(data)
    at = len(_PNG_START)
    info: ImageInfo | None = None
    unpacker = zlib.decompressobj()
    unpacked = 0
    while True:
        length = _number(data, at, 4)
        kind = data[at + 4 : at + 8]
        checksum = _number(data, at + 8 + length, 4)
        critical = kind[:1].isupper()
        if critical and zlib.crc32(view[at + 4 : at + 8 + length]) != checksum:
            raise NoImageError("is damaged: a checksum is wrong")
        if info is None:
            info = _png_header(data, at, kind, length)
        elif kind == b"IDAT" and unpacked < _PNG_PROBE:
            try:
                unpacked += len(unpacker.decompress(view[at + 8 : at + 8 + length], _PNG_PROBE))
            except zlib.error:
                raise NoImageError("is damaged: its pixels cannot be unpacked") from None
        elif kind == b"IEND":
            if not unpacked:
                raise NoImageError("is damaged: it has no pixels")
            return info
        at += 12 + length


def _png_header(data: bytes, at: int, kind: bytes, length: int) -> ImageInfo:
    if kind != b"IHDR" or length != 13:
        raise NoImageError("is damaged: its header is missing")
    width, height = _number(data, at + 8, 4), _number(data, at + 12, 4)
    depth, colour = data[at + 16], data[at + 17]
    bits = depth * _PNG_CHANNELS.get(colour, 4)
    return ImageInfo("image/png", width, height, width * height * max(bits, 8) // 8)


def _jpeg(data: bytes) -> ImageInfo:
    at = 2
    info: ImageInfo | None = None
    while True:
        if data[at] != 0xFF:
            raise NoImageError("is damaged: a marker is missing")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _JPEG_ALONE:
            at += 2
            continue
        length = _number(data, at + 2, 2)
        if marker in _JPEG_FRAMES:
            height, width = _number(data, at + 5, 2), _number(data, at + 7, 2)
            info = ImageInfo("image/jpeg", width, height, width * height * data[at + 9])
        at += 2 + length
        if marker == 0xD9 or length < 2:
            raise NoImageError("is damaged: it has no pixels")
        if marker == 0xDA:
            break
    if info is None:
        raise NoImageError("is damaged: its size is missing")
    if data.find(b"\xff\xd9", at) < 0:
        raise IndexError
    return info


def _gif(data: bytes) -> ImageInfo:
    width, height = _number(data, 6, 2, little=True), _number(data, 8, 2, little=True)
    at = 13 + _gif_palette(data[10])
    while True:
        kind = data[at]
        if kind == 0x21:  # an extension
            at = _skip_gif_blocks(data, at + 2)
        elif kind == 0x2C:  # a picture
            at = _skip_gif_blocks(data, at + 11 + _gif_palette(data[at + 9]))
            return ImageInfo("image/gif", width, height, width * height * 4)
        else:
            raise NoImageError("is damaged: it has no pixels")


def _gif_palette(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_gif_blocks(data: bytes, at: int) -> int:
    while size := data[at]:
        at += 1 + size
    return at + 1


def _webp(data: bytes) -> ImageInfo:
    if data[8:12] != b"WEBP":
        raise NoImageError(f"is not {ACCEPTED}")
    if _number(data, 4, 4, little=True) + 8 > len(data):
        raise IndexError
    kind = data[12:16]
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (_number(data, at, 2, little=True) & 0x3FFF for at in (26, 28))
    elif kind == b"VP8L" and data[20] == 0x2F:
        bits = _number(data, 21, 4, little=True)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X":
        width, height = (_number(data, at, 3, little=True) + 1 for at in (24, 27))
    else:
        raise NoImageError("is damaged: its size is missing")
    return ImageInfo("image/webp", width, height, width * height * 4)


_READERS: Final[dict[bytes, Callable[[bytes], ImageInfo]]] = {
    _PNG_START: _png,
    b"\xff\xd8\xff": _jpeg,
    b"GIF87a": _gif,
    b"GIF89a": _gif,
    b"RIFF": _webp,
}
"""The readers by the formats' first bytes; each raises `NoImageError`, or `IndexError` at a missing end."""


MAX_PDFS: Final = 20
"""Maximum different PDFs in a request."""
MAX_PDF_BYTES: Final = 20 << 20


class Pdf(msgspec.Struct, frozen=True):
    """A PDF; `field` is its place: `messages[0].content[1]`."""

    data: bytes
    field: str


class GivenFile(msgspec.Struct, frozen=True):
    """An uploaded file that a request names."""

    name: str
    media_type: str
    data: bytes


class PdfTexts(msgspec.Struct):
    """The texts of a request's PDFs by SHA-256, and those still to be read."""

    known: Mapping[bytes, str] = {}
    unread: dict[bytes, Pdf] = {}

    def text_of(self, data: bytes, field: str) -> str:
        """Returns a PDF's text; an unknown one is empty, and added to `unread`. Raises `Fault` above `MAX_PDF_BYTES` or
        `MAX_PDFS`.
        """
        if len(data) > MAX_PDF_BYTES:
            raise bad_request(
                f"Invalid file: the PDF is larger than {MAX_PDF_BYTES >> 20} MiB.", field, "unsupported_file"
            )
        digest = hashlib.sha256(data).digest()
        if digest in self.known:
            return self.known[digest]
        self.unread.setdefault(digest, Pdf(data, field))
        if len(self.unread) > MAX_PDFS:
            raise bad_request(
                f"A request may contain at most {MAX_PDFS} PDFs. Send the text of the others.",
                field,
                "unsupported_file",
            )
        return ""


_ESCAPES: Final = {
    f"%{code:{form}}".encode(): bytes((code,)) for code in b"+/=-_ \t\r\n" for form in ("02X", "02x")
}
"""The characters of base64 that URL libraries percent-encode, by their encoded form. `unquote_to_bytes` would take 220
bytes of memory for each escape: 2 GiB for a body of 30 MB.
"""
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_SPACES: Final = b" \t\r\n\f\v"
_PIECE_CHARS: Final = 1 << 20
"""The characters decoded in one call, during which no other thread runs: 3 ms. A multiple of four."""


def decode_canonical_base64(text: str) -> bytes | None:
    """Decodes base64 of the standard alphabet, padded, without white space; None for any other text."""
    try:
        data = _decode_in_pieces(text)
    except ValueError:
        return None
    # Bits that no byte needs have to be zero, which Python's decoder does not look at.
    rest = len(data) % 3
    exact = not rest or text.endswith(encode_base64(data[-rest:]))
    return data if exact else None


def decode_base64(text: str) -> bytes:
    """Decodes base64 also with line breaks, the URL-safe alphabet, percent-encoding, without padding. Raises
    `ValueError`.
    """
    raw = text.encode("ascii")
    if b"%" in raw:
        for escape, byte in _ESCAPES.items():
            raw = raw.replace(escape, byte)
    raw = raw.translate(_URL_SAFE, _SPACES)
    if not raw.endswith(b"="):
        raw += b"=" * (-len(raw) % 4)
    return _decode_in_pieces(raw)


def _decode_in_pieces(text: str | bytes) -> bytes:
    """Decodes strictly, in pieces between which other threads can run. Raises `ValueError`."""
    pieces = []
    for start in range(0, len(text), _PIECE_CHARS):
        piece = binascii.a2b_base64(text[start : start + _PIECE_CHARS], strict_mode=True)
        if start + _PIECE_CHARS < len(text) and len(piece) != _PIECE_CHARS // 4 * 3:
            raise ValueError("padding in the middle")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def encode_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
