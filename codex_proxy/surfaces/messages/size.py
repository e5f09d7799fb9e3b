"""Estimates a request's tokens for an answer's first event, from a sample of a long text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from codex_proxy.core.items import ImagePart
from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.usage import parts_in, texts_in

IMAGE_TOKENS: Final = 800
"""About the tokens of an image, which providers scale down."""
TOOL_TOKENS: Final = 12
"""The tokens that a tool takes in addition to its name, description and schema."""

_SLICES: Final = 12
_SLICE: Final = 160
"""Characters of each counted slice of a long request, spread evenly."""


def prompt_tokens(turn: Turn) -> int:
    """Returns an estimate of a turn's input: history, images, tools, schema."""
    images = sum(isinstance(part, ImagePart) for part in parts_in(turn.history))
    return _tokens_in(" ".join(_texts(turn))) + images * IMAGE_TOKENS + len(turn.tools) * TOOL_TOKENS


def _texts(turn: Turn) -> Iterator[str]:
    yield from texts_in(turn.history)
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
