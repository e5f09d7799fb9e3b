"""Estimates of the tokens of an answer, whose texts the renderers have as JSON strings."""

from __future__ import annotations

import json

import msgspec
import pytest

from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.surfaces.answers.usage import json_tokens

UNITS = ("Some words. ", '{\n\t"a": 1},\r\n', "\\\\", "h\u00e9 \u65e5\u672c\u8a9e ", "\U0001f600 ok ")
"""Texts with every kind of character and escape."""


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_long_text_is_estimated_from_its_beginning_wherever_that_is_cut(unit: str, is_ascii: bool) -> None:
    for lead in range(13):
        text = "x" * lead + unit * (400_000 // len(unit))
        written = json.dumps(text, ensure_ascii=is_ascii).encode()
        assert json_tokens([written]) == pytest.approx(estimate_tokens(text), rel=0.02)


def test_text_behind_enough_of_the_answer_is_not_read() -> None:
    begun = msgspec.json.encode("Some words. " * 100_000)
    damaged = begun[:-1] + b"\\ \xff" * 1000 + b'"'
    assert json_tokens([damaged]) == pytest.approx(json_tokens([begun]), rel=0.02)
    assert json_tokens([begun, damaged]) == pytest.approx(2 * json_tokens([begun]), rel=0.02)


def test_short_texts_are_read_whole() -> None:
    texts = ["", "Hello there.", "\U0001f600" * 99]
    assert json_tokens(map(msgspec.json.encode, texts)) == sum(map(estimate_tokens, texts))
    assert json_tokens([]) == 0
