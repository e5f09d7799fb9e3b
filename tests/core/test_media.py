"""Which bytes are an image: what is taken, what is put right, and what is refused, as the agent's decoder has it."""

from __future__ import annotations

import base64
import binascii
import struct
import urllib.parse
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.media import NoImageError, check, clean_data_url
from tests.cpu_time import assert_cpu_time_below
from tests.pictures import GIF, JPEG, LOSSY_WEBP, PICTURES, PIXEL, PNG, WEBP, chunk, png_of, url_of

ALL = [*PICTURES.items(), ("image/webp", LOSSY_WEBP)]


def payload(url: str) -> str:
    return url.partition(",")[2]


def refusal(url: str) -> str:
    with pytest.raises(NoImageError) as caught:
        clean_data_url(url)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "data"), ALL)
def test_an_image_is_known_by_its_bytes_whatever_it_is_declared_as(kind: str, data: bytes) -> None:
    assert check(data) == kind
    for declared in (kind, "image/jpg", "IMAGE/PNG", "application/octet-stream", "", "image/png;charset=x"):
        assert clean_data_url(url_of(data, declared)) == url_of(data, kind)


@pytest.mark.parametrize("data", [*PICTURES.values(), LOSSY_WEBP])
@pytest.mark.parametrize(
    "written",
    [
        lambda data: base64.encodebytes(data).decode(),
        lambda data: base64.encodebytes(data).decode().replace("\n", "\r\n"),
        lambda data: " " + base64.b64encode(data).decode() + "\t\n",
        lambda data: base64.urlsafe_b64encode(data).decode(),
        lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
        lambda data: urllib.parse.quote(base64.b64encode(data).decode(), safe=""),
        lambda data: urllib.parse.quote(base64.encodebytes(data).decode(), safe=""),
    ],
    ids=["lines", "crlf", "spaces", "url-safe", "unpadded", "percent", "percent-lines"],
)
def test_base64_of_any_usual_kind_becomes_canonical(data: bytes, written: object) -> None:
    text = written(data)  # type: ignore[operator]
    assert clean_data_url(f"data:image/png;base64,{text}") == url_of(data, check(data))


@given(st.binary(max_size=200))
def test_any_bytes_behind_an_image_survive_each_form_of_base64(more: bytes) -> None:
    data = PNG + more
    for text in (
        base64.urlsafe_b64encode(data).decode(),
        base64.encodebytes(data).decode(),
        urllib.parse.quote(base64.b64encode(data).decode()),
    ):
        cleaned = clean_data_url(f"data:image/png;base64,{text}")
        assert binascii.a2b_base64(payload(cleaned), strict_mode=True) == data


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,iVBORw0KGgo*",
        "data:image/png;base64,iVBOR",
        "data:image/png;base64,iVBO=Rw0",
        "data:image/png;base64,ivBORw0KGgoö",
        "data:image/png;base64,%41%zz",
        PIXEL + "====",
    ],
)
def test_image_data_that_is_no_base64_is_reported(url: str) -> None:
    assert refusal(url) == "is no valid base64"


def test_bits_that_no_byte_needs_are_made_zero_as_strict_decoders_want_them() -> None:
    data = next(data for data in (PNG, PNG + b"x", PNG + b"xy") if len(data) % 3 == 1)
    text = base64.b64encode(data).decode()
    assert text.endswith("==")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = letters[letters.index(text[-3]) + 1]
    assert clean_data_url(f"data:image/png;base64,{text[:-3]}{other}==") == url_of(data)


@pytest.mark.parametrize("url", ["data:image/svg+xml,<svg/>", "data:image/png,xyz", "data:image/png;base64"])
def test_a_data_url_without_base64_is_refused(url: str) -> None:
    assert refusal(url) == "is not a base64 data URL"


@pytest.mark.parametrize(
    "data",
    [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"BM6\0\0\0\0\0\0\0", b"II*\0", b"text", b"RIFF1234AVI "],
)
def test_an_image_of_another_format_is_refused_whatever_it_is_declared_as(data: bytes) -> None:
    assert refusal(url_of(data)) == "is not a PNG, JPEG, WebP or GIF"


def test_an_empty_image_is_refused() -> None:
    assert refusal("data:image/png;base64,") == "is empty"


@pytest.mark.parametrize("data", [*PICTURES.values(), LOSSY_WEBP], ids=[*PICTURES, "lossy webp"])
def test_a_file_that_ends_too_early_is_torn_wherever_it_ends(data: bytes) -> None:
    whole = len(data) - (1 if data is GIF else 0)  # a GIF's trailer says nothing: decoders do without
    for end in range(12, whole):
        with pytest.raises(NoImageError, match="damaged"):
            check(data[:end])


@pytest.mark.parametrize("data", [*PICTURES.values(), LOSSY_WEBP])
def test_bytes_behind_an_image_do_not_matter(data: bytes) -> None:
    assert check(data + b"\0more") == check(data)


@pytest.mark.parametrize("at", [16, 29, 45, len(PNG) - 3])
def test_a_png_with_a_wrong_checksum_is_damaged(at: int) -> None:
    broken = bytearray(PNG)
    broken[at] ^= 0xFF
    with pytest.raises(NoImageError):
        check(bytes(broken))


def test_a_wrong_checksum_outside_of_the_pixels_does_not_matter() -> None:
    note = bytearray(chunk(b"tEXt", b"Title\0x"))
    note[-1] ^= 0xFF
    assert check(PNG[:33] + bytes(note) + PNG[33:]) == "image/png"


@pytest.mark.parametrize("pixels", [b"", b"no zlib stream at all"])
def test_a_png_without_pixels_is_damaged(pixels: bytes) -> None:
    with pytest.raises(NoImageError, match="damaged"):
        check(png_of(2, 2, pixels))


def test_a_png_whose_pixels_are_in_many_pieces_is_whole() -> None:
    packed = PNG[41 : 41 + struct.unpack(">I", PNG[33:37])[0]]
    pieces = b"".join(chunk(b"IDAT", packed[i : i + 1]) for i in range(len(packed)))
    assert check(PNG[:33] + pieces + PNG[-12:]) == "image/png"


def test_an_image_without_size_is_refused() -> None:
    for size in ((0, 1), (1, 0)):
        with pytest.raises(NoImageError, match="no width or no height"):
            check(png_of(*size, PNG[41:-16]))


def test_an_image_with_more_pixels_than_the_agent_decodes_is_refused() -> None:
    with pytest.raises(NoImageError, match=r"too many pixels \(60000 x 60000\)"):
        check(png_of(60000, 60000, PNG[41:-16]))


def test_each_component_of_a_jpeg_counts_as_bytes_of_its_pixels() -> None:
    frame = JPEG.index(b"\xff\xc0")
    sized = struct.pack(">HH", 20_000, 20_000)
    coloured = bytes([*JPEG[: frame + 5], *sized, 3, *JPEG[frame + 10 :]])
    with pytest.raises(NoImageError, match=r"too many pixels \(20000 x 20000\)"):
        check(coloured)


@given(st.sampled_from([PNG, JPEG, GIF, WEBP, LOSSY_WEBP]), st.data())
def test_damaged_bytes_are_an_image_or_refused_and_nothing_else(data: bytes, damage: st.DataObject) -> None:
    broken = bytearray(data)
    for _ in range(damage.draw(st.integers(1, 4))):
        broken[damage.draw(st.integers(0, len(broken) - 1))] = damage.draw(st.integers(0, 255))
    with suppress(NoImageError):
        assert check(bytes(broken)).startswith("image/")


def test_megabytes_take_milliseconds() -> None:
    data = PNG[:33] + chunk(b"IDAT", PNG[41:-16]) + chunk(b"noTe", bytes(8 << 20)) + PNG[-12:]
    for url in (url_of(data), f"data:;base64,{base64.encodebytes(data).decode()}"):
        # 0.1 s on an idle machine; a loop over bytes in Python takes seconds
        assert_cpu_time_below(1.0, partial(clean_data_url, url))
