"""Estimates of the tokens of an answer, whose texts the renderers have as JSON strings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codex_proxy.core.events import ItemEnded, ItemStarted, Stop, TextDelta, TurnEnded, TurnStarted
from codex_proxy.core.items import Message
from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.surfaces.answers import usage
from codex_proxy.surfaces.answers.renderer import Renderer
from codex_proxy.surfaces.answers.usage import json_tokens
from tests.surfaces.chat import answering as chat
from tests.surfaces.messages import answering as messages
from tests.surfaces.responses import answering as responses

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


@pytest.mark.parametrize("renderer", [chat.renderer, messages.renderer, responses.renderer])
def test_the_usage_in_an_answer_and_in_the_report_is_estimated_once(
    renderer: Callable[..., Renderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def estimate(text: str) -> int:
        counted.append(text)
        return 3

    def prompt() -> int:
        counted.append("prompt")
        return 5

    monkeypatch.setattr(usage, "estimate_tokens", estimate)
    options: dict[str, Any] = {"include_usage": True} if renderer is chat.renderer else {}
    answer = renderer(stream=True, prompt_tokens=prompt, **options)
    answer.feed([TurnStarted(), ItemStarted(Message("a")), TextDelta("a", "Hello."), ItemEnded("a")])
    answer.feed([TurnEnded(Stop.STOP)])
    spending = answer.spending()
    assert (spending.tokens, spending.estimated) == (answer.spending().tokens, True)
    assert spending.tokens is not None
    assert (spending.tokens.input, spending.tokens.output) == (5, 3)
    assert sorted(counted) == ["Hello.", "prompt"]
