"""Whatever JSON cannot be read raises one of `UNREADABLE`; whatever text there is can be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codex_proxy.core.json_values import UNREADABLE, encode_json

HALF_OF_A_PAIR = '{"a": "\ud800"}'


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (msgspec.json.decode, b"{"),
        (msgspec.json.decode, b'"\xff"'),
        (msgspec.json.decode, HALF_OF_A_PAIR),
        (msgspec.json.decode, b"[" * 100_000),
        (json.loads, b"{"),
        (json.loads, b'"\xff"'),
        (json.loads, "1" * 10_000),
        (json.loads, "[" * 100_000),
    ],
)
def test_every_error_of_decoding_is_unreadable(decode: Callable[[Any], object], text: bytes | str) -> None:
    with pytest.raises(UNREADABLE):
        decode(text)


def test_half_of_a_surrogate_pair_is_replaced_wherever_it_is() -> None:
    value = {"a\ud800": ["\udc00b", {"c": ("d", 1, None)}], "raw": msgspec.Raw(b"[1]")}
    assert json.loads(encode_json(value)) == {"a\ufffd": ["\ufffdb", {"c": ["d", 1, None]}], "raw": [1]}
