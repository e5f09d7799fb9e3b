"""Estimates the number of tokens that a model reads for a request.

The estimate is sent with the first event of an answer, and must not delay it: of a long request only a sample of
its text is counted, which takes less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from codex_proxy.core.items import HistoryCall, HistoryMessage, HistoryOutput, ImagePart, TextPart
from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.core.turn import Turn

IMAGE_TOKENS: Final = 800
"""The approximate tokens of an image: providers scale it down to some hundreds of tiles."""
TOOL_TOKENS: Final = 12
"""The tokens that a tool takes in addition to its name, description and schema."""

_SLICES: Final = 12
_SLICE: Final = 160
"""The length in characters of each slice of a long request that is counted; the slices are spread evenly."""


def prompt_tokens(turn: Turn) -> int:
    """Returns an estimate of the tokens that the model reads for a turn: the text and images of the history, the
    tools, and the schema of the answer.
    """
    images = sum(
        isinstance(part, ImagePart)
        for item in turn.history
        if isinstance(item, HistoryMessage | HistoryOutput)
        for part in item.parts
    )
    return _tokens_in(" ".join(_texts(turn))) + images * IMAGE_TOKENS + len(turn.tools) * TOOL_TOKENS


def _texts(turn: Turn) -> Iterator[str]:
    for item in turn.history:
        if isinstance(item, HistoryMessage | HistoryOutput):
            yield from (part.text for part in item.parts if isinstance(part, TextPart))
        elif isinstance(item, HistoryCall):
            yield item.arguments
    for tool in turn.tools:
        yield tool.description
        if tool.parameters is not None:
            yield bytes(tool.parameters).decode()
    if turn.output_schema is not None:
        yield bytes(turn.output_schema).decode()


def _tokens_in(text: str) -> int:
    if len(text) <= _SLICES * _SLICE:
        return estimate_tokens(text)
    step = (len(text) - _SLICE) // (_SLICES - 1)
    sample = sum(estimate_tokens(text[at * step : at * step + _SLICE]) for at in range(_SLICES))
    return sample * len(text) // (_SLICES * _SLICE)
