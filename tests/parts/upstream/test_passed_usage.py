from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.core.events import Usage
from codex_proxy.parts.upstream.stream import PassedUsage, usage_of
from tests.growth import assert_linear


def usage_in(answer: bytes, at_once: int = 1 << 30) -> Usage | None:
    """The tokens in an answer that comes in pieces of so many bytes."""
    reader = PassedUsage()
    for start in range(0, len(answer), at_once):
        reader.feed(answer[start : start + at_once])
    return reader.usage


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"data":[[0.5]],"usage":{"prompt_tokens":3,"total_tokens":3}}', Usage(input=3)),
        (b'{ "usage" : { "prompt_tokens" : 3 } , "data" : [] }', Usage(input=3)),
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}', Usage(input=3, output=4)),
        (
            b'{"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":2},"output_tokens":4}}',
            Usage(input=3, cached=2, output=4),
        ),
        (b'{"results":[],"usage":{"total_tokens":9}}', Usage(input=9)),
        (
            b'data: {"usage":null}\n\ndata: {"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
            b'data: {"usage":{"prompt_tokens":1,"completion_tokens":7}}\n\ndata: [DONE]\n\n',
            Usage(input=1, output=7),
        ),
        (rb'{"text":"\"usage\":{\"prompt_tokens\":3}"}', None),
        (b'{"usage":{"seconds":3}}', None),
        (b'{"usage":{"prompt_tokens":3,"x":' + b"[" * 2000 + b"]" * 2000 + b"}}", None),
        (b'{"usage":{"prompt_tokens":-3}}', None),
        (b'{"usage":{"prompt_tokens":3', None),
        (b"ID3\x00\xff", None),
    ],
)
def test_the_tokens_of_an_answer_are_found_wherever_it_is_cut(answer: bytes, usage: Usage | None) -> None:
    for at_once in (1, 2, 5, 7, 64, 1 << 30):
        assert usage_in(answer, at_once) == usage


def test_usage_that_is_no_object_has_no_tokens() -> None:
    given: Any
    for given in (None, 3, [], {}, {"prompt_tokens": True}, {"prompt_tokens": 1 << 60}):
        assert usage_of(given) is None
    assert usage_of({"prompt_tokens": 3.0, "prompt_tokens_details": 7}) == Usage(input=3)


SHAPES: Final[dict[str, tuple[int, Callable[[int], bytes]]]] = {
    "embeddings": (1 << 17, lambda n: msgspec.json.encode({"data": [0.125] * n})),
    "names": (1 << 13, lambda n: b'"usage"' * n),
    "beginnings": (1 << 13, lambda n: b'"usage":{' * n),
    "beginnings of two": (1 << 13, lambda n: b'"usage":{{}' * n),
    "one without an end": (1 << 16, lambda n: b'"usage":{' + b"{}" * n),
    "spaces": (1 << 17, lambda n: b'"usage"' + b" " * n),
    "counts": (1 << 12, lambda n: b'"usage":{"prompt_tokens":3}' * n),
}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at_once", [1 << 30, 7])
def test_to_find_the_tokens_takes_time_proportional_to_the_answer(shape: str, at_once: int) -> None:
    size, make = SHAPES[shape]
    assert_linear(
        make, lambda answer: usage_in(answer, at_once), size if at_once > 7 else min(size >> 2, 1 << 12)
    )
