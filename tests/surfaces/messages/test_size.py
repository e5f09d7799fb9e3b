"""The estimate of a request's tokens: near to what all of it has, and made at once however long it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.surfaces.messages.parse import IMAGE_TOKENS, prompt_tokens
from tests.cpu_time import assert_cpu_time_below
from tests.fuzz.requests import PIXEL
from tests.surfaces.messages.asking import ask, message_of, result, tool, use

DOCS = Path(__file__).parents[3] / "docs"
WORDS = "The quick brown fox jumps over the lazy dog. "


def size(**fields: Any) -> int:
    return prompt_tokens(ask(**fields).turn)


@pytest.mark.parametrize("name", ["tools.md", "wire-rules.md", "configuration.md"])
def test_a_long_text_is_estimated_within_a_tenth(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    paragraphs = text.split("\n\n")
    exact = sum(map(estimate_tokens, paragraphs))
    assert size(system=text) == pytest.approx(exact, rel=0.12)


def test_everything_that_the_model_reads_counts() -> None:
    least = size()
    long = WORDS * 20
    worth = estimate_tokens(long)
    for fields in (
        {"system": long},
        {
            "messages": [
                message_of("user", "x"),
                message_of("assistant", use(text=long)),
                message_of("user", result()),
            ]
        },
        {
            "messages": [
                message_of("user", "x"),
                message_of("assistant", use()),
                message_of("user", result(content=long)),
            ]
        },
        {"tools": [tool(description=long)]},
        {"tools": [tool(input_schema={"type": "object", "description": long})]},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "title": long}}}},
    ):
        assert size(**fields) - least == pytest.approx(worth, abs=60)
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}
    assert size(messages=[message_of("user", "hello", {"type": "image", "source": source})]) >= IMAGE_TOKENS


def test_a_conversation_of_a_million_tokens_holds_nobody_up() -> None:
    """It is counted on the way to the first event of its answer."""
    turn = ask(messages=[message_of("user", WORDS * 200) for _ in range(500)]).turn
    assert prompt_tokens(turn) > 900_000
    assert_cpu_time_below(0.03, lambda: prompt_tokens(turn))
