"""How long a request is: an estimate of the tokens that its model reads."""

from __future__ import annotations

from typing import Final

from codex_proxy.core.items import HistoryMessage, HistoryOutput, ImagePart
from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.usage import tokens_in

IMAGE_TOKENS: Final = 800
"""Of an image, about: providers scale it down to some hundreds of tiles."""
TOOL_TOKENS: Final = 12
"""Of what stands around a tool's name, description and schema."""


def prompt_tokens(turn: Turn) -> int:
    """An estimate of what the model reads: the history's text and images, the tools, the answer's schema."""
    images = sum(
        isinstance(part, ImagePart)
        for item in turn.history
        if isinstance(item, HistoryMessage | HistoryOutput)
        for part in item.parts
    )
    tools = sum(
        TOOL_TOKENS
        + estimate_tokens(tool.description)
        + (0 if tool.parameters is None else estimate_tokens(bytes(tool.parameters).decode()))
        for tool in turn.tools
    )
    schema = 0 if turn.output_schema is None else estimate_tokens(bytes(turn.output_schema).decode())
    return tokens_in(turn.history) + images * IMAGE_TOKENS + tools + schema
