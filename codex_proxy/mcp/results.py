"""A server's answer to a call as an `McpResult`: what a model can take of it, cut to the limits, and said so.

In: the `CallToolResult` of the `mcp` package. Out: an `McpResult`. It never fails: what is no text and no image
that models see becomes a line that names it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.images import NoImageError, clean_data_url
from codex_proxy.core.items import ImagePart, Part, TextPart
from codex_proxy.mcp.values import McpLimits, McpResult, text_array

if TYPE_CHECKING:
    from mcp_types import CallToolResult

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What models see; anything else would fail the whole request at the provider."""
_PRINTABLE: Final = re.compile(r"[\w.+/-]{1,100}")


class _Room:
    """The parts so far, and what they may still cost."""

    def __init__(self, limits: McpLimits) -> None:
        self._limits = limits
        self._text_left = limits.text_bytes
        self._image_left = limits.image_bytes
        self.parts: list[Part] = []
        self.cut: dict[str, None] = {}

    def text(self, text: str) -> None:
        raw = text.encode("utf-8", "replace")
        if len(self.parts) >= self._limits.parts:
            self._cut_parts()
        elif len(raw) <= self._text_left:
            self._text_left -= len(raw)
            self.parts.append(TextPart(text))
        else:
            self.cut[f"its text was cut to {_size(self._limits.text_bytes)}"] = None
            kept = raw[: self._text_left].decode("utf-8", "ignore")
            self._text_left = 0
            if kept:
                self.parts.append(TextPart(kept))

    def image(self, data: str, media_type: str) -> None:
        if len(self.parts) >= self._limits.parts:
            self._cut_parts()
        elif len(data) > self._image_left:
            self.cut[f"images above {_size(self._limits.image_bytes)} together were left out"] = None
        else:
            try:
                url = clean_data_url(f"data:;base64,{data}")
            except NoImageError as why:
                self.text(f"[an image that {why}: {_named(media_type)}]")
                return
            self._image_left -= len(data)
            self.parts.append(ImagePart(url))

    def _cut_parts(self) -> None:
        self.cut[f"only its first {self._limits.parts} parts were kept"] = None


def result_of(answer: CallToolResult, limits: McpLimits) -> McpResult:
    """The answer, with texts and images in the server's order. Structured content that comes without any text is
    given to the model as text."""
    room = _Room(limits)
    for block in answer.content:
        _add(room, block)
    structured = _structured(answer.structured_content, room, limits)
    if structured is not None and not any(isinstance(part, TextPart) for part in room.parts):
        room.text(structured.decode())
    if room.cut:
        room.parts.append(TextPart(f"[This result was too large: {'; '.join(room.cut)}.]"))
    parts = tuple(room.parts)
    return McpResult(
        text=text_array(parts),
        parts=parts,
        structured=structured,
        is_error=bool(answer.is_error),
        truncated=bool(room.cut),
    )


def _add(room: _Room, block: Any) -> None:
    match block.type:
        case "text":
            room.text(block.text)
        case "image":
            room.image(block.data, block.mime_type)
        case "resource" if hasattr(block.resource, "text"):
            room.text(block.resource.text)
        case "resource" if block.resource.mime_type in IMAGE_TYPES:
            room.image(block.resource.blob, block.resource.mime_type)
        case "resource":
            room.text(
                f"[a file that cannot be shown: {_named(block.resource.mime_type)}, {block.resource.uri}]"
            )
        case "resource_link":
            room.text(f"[a link to a resource: {block.name}, {block.uri}]")
        case kind:
            room.text(f"[content that cannot be shown: {_named(kind)}]")


def _structured(content: object, room: _Room, limits: McpLimits) -> bytes | None:
    if content is None:
        return None
    encoded = msgspec.json.encode(content)
    if len(encoded) <= limits.text_bytes:
        return encoded
    room.cut[f"its structured content above {_size(limits.text_bytes)} was left out"] = None
    return None


def _named(media_type: str | None) -> str:
    return media_type if media_type and _PRINTABLE.fullmatch(media_type) else "of an unknown type"


def _size(limit: int) -> str:
    return f"{limit / (1 << 20):g} MiB" if limit >= 1 << 20 else f"{limit} bytes"
