"""The bound on a text's tokens: never below what a real tokenizer counts, and not far above it."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.tokens import estimate_tokens, max_tokens_in

COUNTED = {
    "The quick brown fox jumps over the lazy dog, and then it goes home to sleep until the sun comes up again.": 24,
    'def f(x: int) -> dict[str, list[int]]:\n    """Return it."""\n    if x > 3:\n        return {\'a\': [x, x + 1],'
    ' "b_c": []}\n    raise ValueError(f"bad {x!r}")\n': 56,
    '{"type":"object","properties":{"file_path":{"type":"string","description":"The absolute path"},"limit":{"type":'
    '"integer","minimum":1}},"required":["file_path"],"additionalProperties":false}': 43,
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==": 53,
    "Das Verzeichnis konnte nicht angelegt werden, weil die Berechtigungen dafür fehlen.": 17,
    "Не удалось открыть файл, потому что у вас нет прав на чтение этого каталога.": 18,
    "ファイルを開けませんでした。アクセス許可がありません。": 14,
    "无法打开该文件，因为您没有读取此目录的权限。": 13,
    "파일을 열 수 없습니다. 이 디렉터리를 읽을 권한이 없습니다.": 18,
    "✅ done 🚀 shipped 👋🏽 ⚠️ careful 𝔘𝔫𝔦": 23,
    "┌──────┬──────┐\n│ name │ size │\n├──────┼──────┤\n│ a    │ 12   │\n└──────┴──────┘\n": 47,
    "\x1b[31mFAILED\x1b[0m tests/test_a.py::test_b - \x1b[1mAssertionError\x1b[0m\n"
    "\x1b[32m3 passed\x1b[0m in 0.12s\n": 46,
    "3f2b8c1e-77aa-4d0e-9b1f-0a6f3d9c2e11 9e107d9d372bb6826bd81d3542a419d6": 53,
    "});\n\t\t}\n\t}\n\n\n\n\t  \n": 7,
    "Faili ntishobora gufungurwa kubera ko nta burenganzira ufite bwo gusoma iyi dosiye.": 24,
}
"""Texts, each with its tokens by `o200k_base`."""


@pytest.mark.parametrize(("text", "tokens"), COUNTED.items(), ids=[text[:20] for text in COUNTED])
def test_a_text_has_no_more_tokens_than_that(text: str, tokens: int) -> None:
    assert tokens <= max_tokens_in(text) <= 3 * tokens
    assert 40 * tokens <= max_tokens_in((text + "\n") * 40)


def test_english_and_code_are_estimated_within_a_third() -> None:
    for text in list(COUNTED)[:3]:
        assert max_tokens_in(text * 20) <= 1.7 * COUNTED[text] * 20


def test_base64_without_an_end_is_reported_as_what_it_is() -> None:
    text = base64.b64encode(random.Random(1).randbytes(3000)).decode()
    assert 2750 <= max_tokens_in(text) <= 1.3 * 2750  # counted: 0.68 tokens a letter


def test_all_of_a_long_text_counts() -> None:
    """A sample of its two ends would not see what stands in the middle."""
    dense = "┼╬ " * 5_000
    assert max_tokens_in("the same " * 20_000 + dense + "the same " * 20_000) > 40_000 + max_tokens_in(dense)


def test_an_empty_text_has_no_tokens() -> None:
    assert max_tokens_in("") == 0


@given(st.text())
def test_the_bound_is_no_less_than_the_estimate_of_the_usage(text: str) -> None:
    assert max_tokens_in(text) >= estimate_tokens(text)
