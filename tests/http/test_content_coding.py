"""Packed bodies: what is taken, and what a client cannot do with one."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.http.body import MAX_PARTS, Coding, TooLarge, decompress
from tests.growth import assert_linear
from tests.http.serving import Answer, Proxy, fake_proxy, user
from tests.model_server import Upstream, upstream
from tests.waiting import PATIENCE

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK: Final[Mapping[Coding, Callable[[bytes], bytes]]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}
SEVERAL: Final[tuple[Coding, ...]] = ("gzip", "zstd")
"""The codings of which a body may have several parts."""
BODY: Final = json.dumps(user()).encode()
SKIPPED: Final = b"\x5a\x2a\x4d\x18\x04\x00\x00\x00skip"
"""A frame of zstd that is to be skipped."""

coded = pytest.mark.parametrize("coding", PACK)


async def ask(proxy: Proxy, packed: bytes, coding: str, path: str = "/v1/chat/completions") -> Answer:
    return await proxy.send("POST", path, packed, headers={"Content-Encoding": coding})


def frame(data: bytes, window_log: int = 0) -> bytes:
    """A frame of zstd that does not say how long its content is, as writers of streams leave it; of this window."""
    options: dict[int, int] = {zstd.CompressionParameter.window_log: window_log} if window_log else {}
    made = zstd.ZstdCompressor(options=options)
    return made.compress(data) + made.flush()


@coded
async def test_a_packed_body_is_unpacked(proxy: Proxy, coding: Coding) -> None:
    assert (await ask(proxy, PACK[coding](BODY), coding)).status == 200
    assert (await ask(proxy, PACK[coding](BODY), coding.upper())).status == 200


@coded
async def test_a_body_that_is_not_what_its_encoding_says_is_a_400(proxy: Proxy, coding: Coding) -> None:
    for body in (BODY, PACK[coding](BODY) + b"more"):
        answer = await ask(proxy, body, coding)
        assert (answer.status, answer.error["param"]) == (400, None)
        assert coding in answer.error["message"]


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, gzip", "gzip, br", "zstd, gzip", "x" * 5000])
async def test_a_coding_that_is_not_taken_is_a_415_that_names_those_that_are(
    proxy: Proxy, coding: str
) -> None:
    answer = await ask(proxy, BODY, coding)
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert all(name in answer.error["message"] for name in PACK)
    assert len(answer.error["message"]) < 200


@coded
async def test_a_packed_body_without_its_end_is_a_400(proxy: Proxy, coding: Coding) -> None:
    """Even where the JSON in it is whole: what is missing might have said more."""
    packed = PACK[coding](BODY)
    for cut in (1, 4, 8, len(packed) // 2):
        answer = await ask(proxy, packed[:-cut], coding)
        assert (answer.status, "too early" in answer.error["message"]) == (400, True)


@coded
async def test_a_body_that_unpacks_to_more_than_the_limit_is_a_413(tmp_path: Path, coding: Coding) -> None:
    async with fake_proxy(tmp_path, body_limit=1000) as proxy:
        packed = PACK[coding](json.dumps(user("x" * 100_000)).encode())
        assert len(packed) < 1000
        assert (await ask(proxy, packed, coding)).status == 413


@coded
async def test_a_bomb_is_unpacked_up_to_the_limit_and_no_further(tmp_path: Path, coding: Coding) -> None:
    bomb = PACK[coding](bytes(64 << 20))
    async with fake_proxy(tmp_path, body_limit=4 << 20) as proxy, asyncio.timeout(PATIENCE):
        tracemalloc.start()
        try:
            answer = await ask(proxy, bomb, coding)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert peak < 16 << 20


@pytest.mark.parametrize("coding", SEVERAL)
async def test_a_packed_body_may_have_several_parts(proxy: Proxy, coding: Coding) -> None:
    packed = b"".join(PACK[coding](BODY[at : at + 7]) for at in range(0, len(BODY), 7))
    assert (await ask(proxy, packed, coding)).status == 200


@pytest.mark.parametrize("coding", SEVERAL)
async def test_a_packed_body_of_very_many_parts_is_a_400(proxy: Proxy, coding: Coding) -> None:
    answer = await ask(proxy, PACK[coding](b"") * 2000, coding)
    assert (answer.status, f"{MAX_PARTS} parts" in answer.error["message"]) == (400, True)
    assert decompress(PACK[coding](b"x") * MAX_PARTS, coding, MAX_PARTS) == b"x" * MAX_PARTS


@coded
@pytest.mark.parametrize("unit", [b"\0", random.Random(0).randbytes(50)], ids=["zeros", "random"])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_the_parts_of_a_packed_body_may_have_any_size(coding: Coding, unit: bytes, size: int) -> None:
    part, pack = (unit * size)[:size], PACK[coding]
    assert decompress(pack(part), coding, size) == part
    if size:
        with pytest.raises(TooLarge):
            decompress(pack(part), coding, size - 1)
    if coding in SEVERAL:
        packed = pack(part) + pack(b"between") + pack(part)
        assert decompress(packed, coding, 1 << 20) == part + b"between" + part


@pytest.mark.parametrize("size", [0, 1, 65_536, 200_000])
def test_deflate_may_lack_its_head_and_has_nothing_behind_its_end(size: int) -> None:
    part = random.Random(0).randbytes(size)
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for body in (zlib.compress(part), bare.compress(part) + bare.flush()):
        assert decompress(body, "deflate", 1 << 20) == part
        with pytest.raises(Fault, match="not valid deflate data"):
            decompress(body + b"more", "deflate", 1 << 20)


# --- zstd -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skipped", [SKIPPED, SKIPPED[:4] + bytes(4), b"\x50" + SKIPPED[1:]])
def test_frames_to_be_skipped_have_no_content_wherever_they_are(skipped: bytes) -> None:
    first, second = frame(b"one"), zstd.compress(b"two")
    packed = skipped + first + skipped + skipped + second + skipped
    assert decompress(packed, "zstd", 6) == b"onetwo"
    assert decompress(skipped, "zstd", 0) == b""
    large = SKIPPED[:4] + (100_000).to_bytes(4, "little") + bytes(100_000)
    assert decompress(large + first, "zstd", 3) == b"one"
    with pytest.raises(Fault, match="too early"):
        decompress(first + large[:-1], "zstd", 3)


@pytest.mark.parametrize("level", [-5, 1, 3, pytest.param(19, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_body_of_any_common_level_is_unpacked(level: int, size: int) -> None:
    content = random.Random(0).randbytes(size)
    made = zstd.ZstdCompressor(level)
    assert decompress(made.compress(content) + made.flush(), "zstd", size) == content


def test_a_window_above_8_mib_is_refused_before_it_is_made() -> None:
    content = random.Random(0).randbytes(9 << 20)
    assert decompress(frame(content, 23), "zstd", len(content)) == content
    for window in (24, 27, 30):
        packed = frame(content[:100], window)
        with pytest.raises(Fault, match="8 MiB"):
            decompress(packed, "zstd", 100)


@pytest.mark.parametrize("place", [0, 2, 4, 6, -1])
def test_a_frame_with_a_changed_byte_is_an_error_or_another_text(place: int) -> None:
    options: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}
    packed = bytearray(zstd.compress(BODY, options=options))
    packed[place] ^= 0x55
    with pytest.raises(Fault):
        decompress(bytes(packed), "zstd", 1 << 20)


def test_a_frame_for_a_dictionary_is_an_error() -> None:
    trained = zstd.train_dict([BODY + bytes([number]) for number in range(256)], 1000)
    with pytest.raises(Fault, match="not valid zstd data"):
        decompress(zstd.compress(BODY, zstd_dict=trained), "zstd", 1 << 20)


PATHS: Final[Mapping[str, Mapping[str, Any]]] = {
    "/v1/chat/completions": user(),
    "/v1/completions": {"model": "codex-5", "prompt": "Hello."},
    "/v1/messages": user(max_tokens=10),
    "/v1/messages/count_tokens": user(),
    "/v1/responses": {"model": "codex-5", "input": "Hello."},
    "/v1/responses/compact": {"model": "codex-5", "input": "Hello."},
    "/v1/responses/input_tokens": {"model": "codex-5", "input": "Hello."},
    "/v1/conversations": {"metadata": {"a": "b"}},
    "/api/chat": user(),
    "/api/generate": {"model": "codex-5", "prompt": "Hello."},
    "/api/show": {"model": "codex-5"},
}


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_takes_zstd(proxy: Proxy, path: str) -> None:
    answer = await ask(proxy, zstd.compress(json.dumps(PATHS[path]).encode()), "zstd", path)
    assert answer.status == 200, answer.text


@pytest.mark.part("upstream")
async def test_an_upstream_gets_what_was_unpacked(tmp_path: Path) -> None:
    table: dict[str, Any] = {"retries": 0, "paths": ["/embeddings"]}
    async with upstream() as server:
        settings: dict[str, Any] = {"agent": "fake", "upstreams": {"local": {**table, "url": server.url}}}
        async with fake_proxy(tmp_path, **settings) as proxy:
            for path, body in (
                ("/v1/embeddings", {"input": "x", "messages": [{"content": "x"}]}),
                ("/v1/chat/completions", user()),
            ):
                packed = frame(json.dumps({**body, "model": "local/small"}).encode()) + SKIPPED
                assert (await ask(proxy, packed, "zstd", path)).status == 200
                _got(server, "small")


def _got(server: Upstream, model: str) -> None:
    request = server.requests.pop()
    assert request.body["model"] == model
    assert "Content-Encoding" not in request.headers


# --- costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", SEVERAL)
def test_unpacking_a_body_takes_time_proportional_to_its_size(coding: Coding) -> None:
    def make(size: int) -> bytes:
        noise = random.Random(0).randbytes(size)
        return gzip.compress(noise, 0) if coding == "gzip" else zstd.compress(noise)

    assert_linear(make, lambda body: decompress(body, coding, 64 << 20), 2 << 20)


def test_reading_frames_that_say_nothing_takes_time_proportional_to_their_size() -> None:
    """Blocks without content, in one frame: three bytes each."""
    head = b"\x28\xb5\x2f\xfd\x00\x58"

    def make(size: int) -> bytes:
        return head + bytes(3) * (size // 3) + b"\x01\x00\x00"

    assert_linear(make, lambda body: decompress(body, "zstd", 64 << 20), 4 << 20)
