"""A request's tokens: an upper bound for `count_tokens`, since after too small a number clients shorten too late; and
an estimate for an answer's first event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from codex_proxy.core.items import images_in, texts_in
from codex_proxy.core.json_values import text_at
from codex_proxy.core.media import image_tokens
from codex_proxy.core.tokens import Piece, estimate_tokens, max_tokens_in
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.messages.history import tools_referred_to
from codex_proxy.surfaces.messages.tools import loaded_names
from codex_proxy.surfaces.messages.wire import MessagesRequest
from codex_proxy.surfaces.models import DEFAULT_NAME, ModelCatalog, resolve
from codex_proxy.surfaces.requests.body import parse_as
from codex_proxy.surfaces.requests.fields import FieldNotes

_REQUEST_TOKENS: Final = 16
"""The tokens of a request beside its parts: around instructions, and at the beginning of the answer."""
_MESSAGE_TOKENS: Final = 8
_TOOL_TOKENS: Final = 16
_BLOCK_TOKENS: Final = 4

_MAX_COUNTED: Final = 4 << 20
"""Maximum characters that are counted exactly; of the rest two count as a token."""

_STATE_CHARS: Final = 5
"""The fewest characters of encrypted reasoning per token."""
_PDF_CHARS: Final = 3
"""The fewest characters of a PDF's base64 per token."""
_MAX_PDF_TOKENS: Final = 200_000

_ENCRYPTED_FIELDS: Final = frozenset({"data", "signature", "encrypted_content"})
_NOT_SHOWN: Final = frozenset({"cache_control", "type", "id", "tool_use_id"})
_NOT_OFFERED: Final = _NOT_SHOWN | {"defer_loading", "eager_input_streaming", "strict"}


def count_tokens(body: bytes, catalog: ModelCatalog) -> tuple[int, FieldNotes]:
    """Returns the tokens of a request, and findings about its fields."""
    request, notes = parse_as(MessagesRequest, body)
    resolve(request.model or DEFAULT_NAME, catalog)
    counter = _Counter()
    tools = request.tools or ()
    loaded = loaded_names(tools, request.tool_choice, tools_referred_to(request.messages))
    offered = [tool for tool in tools if not tool.get("defer_loading") or str(tool.get("name")) in loaded]
    wanted = (request.output_config and request.output_config.format) or request.output_format
    tokens = (
        _REQUEST_TOKENS
        + counter.content(request.system)
        + sum(_MESSAGE_TOKENS + counter.content(each.content) for each in request.messages)
        + sum(
            _TOOL_TOKENS
            + counter.value({name: value for name, value in tool.items() if name not in _NOT_OFFERED})
            for tool in offered
        )
        + (counter.value(wanted.schema_) if wanted else 0)
    )
    return tokens, notes


class _Counter:
    """Counts parts, with a cache of pieces of text."""

    def __init__(self) -> None:
        self._known: dict[str, Piece] = {}
        self._chars = 0

    def content(self, content: Any) -> int:
        if isinstance(content, str):
            return self._text(content)
        if isinstance(content, list):
            return sum(_BLOCK_TOKENS + self._block(block) for block in content)
        return 0

    def value(self, value: Any) -> int:
        """Counts a value: a string as it is, others as JSON."""
        if value is None:
            return 0
        return self._text(value if isinstance(value, str) else msgspec.json.encode(value).decode())

    def _text(self, text: str) -> int:
        self._chars += len(text)
        return max_tokens_in(text, self._known) if self._chars <= _MAX_COUNTED else len(text) // 2

    def _block(self, block: Any) -> int:
        if not isinstance(block, dict):
            return self.value(block)
        kind, source = block.get("type"), block.get("source")
        if kind == "thinking":
            return 0  # a summary, which the model is not shown again
        if kind == "image":
            return image_tokens(text_at(source, "data"))
        if kind == "document" and isinstance(source, dict):
            return self.value([block.get("title"), block.get("context")]) + self._document(source)
        nested = block.get("content")
        known = self.content(nested) if isinstance(nested, list | str) else None
        return (known or 0) + sum(
            _count_encrypted(value) if field in _ENCRYPTED_FIELDS else self.value(value)
            for field, value in block.items()
            if field not in _NOT_SHOWN and not (field == "content" and known is not None)
        )

    def _document(self, source: dict[str, Any]) -> int:
        data = source.get("data")
        if source.get("type") == "base64":
            return min(_MAX_PDF_TOKENS, len(data) // _PDF_CHARS) if isinstance(data, str) else 0
        return self.content(source.get("content")) + self.content(data)


def _count_encrypted(value: Any) -> int:
    return len(value) // _STATE_CHARS if isinstance(value, str) else 0


# --- the estimate ---------------------------------------------------------------------------------

IMAGE_TOKENS: Final = 800
"""The tokens of an image: providers scale images down."""
TOOL_TOKENS: Final = 12
"""A tool's tokens beside name, description and schema."""

_SLICES: Final = 12
_SLICE: Final = 160
"""The characters of each counted slice; slices are spread evenly."""


def prompt_tokens(turn: Turn) -> int:
    """Estimates a turn's input: history, images, tools, schema."""
    images = len(images_in(turn.history))
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
