"""Large bodies: whatever is in them, others are served while they are read."""

from __future__ import annotations

import base64
import json
import random
import struct
import urllib.error
import urllib.request
import zlib
from typing import Any

import pytest

from tests.waiting import PATIENCE


def picture(megabytes: int) -> str:
    """A PNG of that size that compresses to nothing smaller, as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    width, rows = 1024, megabytes * 256
    noise = random.Random(1).randbytes(width * 4)
    pixels = zlib.compress((b"\0" + noise) * rows, 0)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, rows, 8, 6, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def chat(picture: str) -> tuple[str, dict[str, Any]]:
    parts = [{"type": "text", "text": "[[fake:text]]"}, {"type": "image_url", "image_url": {"url": picture}}]
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}


def response(picture: str) -> tuple[str, dict[str, Any]]:
    parts = [
        {"type": "input_text", "text": "[[fake:text]]"},
        {"type": "input_image", "image_url": picture},
    ]
    return "/v1/responses", {"input": [{"role": "user", "content": parts}], "store": False}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("asking", [chat, response])
@pytest.mark.parametrize("spoilt", [False, True])
def test_a_large_image_holds_nobody_up(port: int, asking: Any, spoilt: bool) -> None:
    path, body = asking(picture(12)[:-1000] if spoilt else picture(12))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps({"model": "codex-5", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            status = answer.status
    except urllib.error.HTTPError as refused:
        status = refused.code
        refused.close()
    assert status == (400 if spoilt else 200)
