"""Converts a server's answer to a tool call into an `McpResult`, within `McpLimits`. Other content than text and
supported images becomes a line that describes it. A last text says what was left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.items import ImagePart, Part, TextPart
from codex_proxy.core.media import NoImageError, clean_data_url
from codex_proxy.parts.mcp.values import McpLimits, McpResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Supported image types: for others a provider would refuse the whole request."""
_PRINTABLE: Final = re.compile(r"[\w.+/-]{1,100}")


class _ResultBuilder:
    """Collects a result's parts within the limits, and what was left out (`omissions`)."""

    def __init__(self, limits: McpLimits) -> None:
        self._limits = limits
        self._text_left = limits.text_bytes
        self._image_left = limits.image_bytes
        self.parts: list[Part] = []
        self.omissions: dict[str, None] = {}

    def add_text(self, text: str) -> None:
        raw = text.encode("utf-8", "replace")
        if len(self.parts) >= self._limits.max_parts:
            self._cut_parts()
        elif len(raw) <= self._text_left:
            self._text_left -= len(raw)
            self.parts.append(TextPart(text))
        else:
            self.omissions[f"its text was cut to {_shown_size(self._limits.text_bytes)}"] = None
            kept = raw[: self._text_left].decode("utf-8", "ignore")
            self._text_left = 0
            if kept:
                self.parts.append(TextPart(kept))

    def add_image(self, data: str, media_type: str) -> None:
        if len(self.parts) >= self._limits.max_parts:
            self._cut_parts()
        elif len(data) > self._image_left:
            most = _shown_size(self._limits.image_bytes)
            self.omissions[f"images above {most} together were left out"] = None
        else:
            try:
                url = clean_data_url(f"data:;base64,{data}")
            except NoImageError as why:
                self.add_text(f"[an image that {why}: {_type_name(media_type)}]")
                return
            self._image_left -= len(data)
            self.parts.append(ImagePart(url))

    def _cut_parts(self) -> None:
        self.omissions[f"only its first {self._limits.max_parts} parts were kept"] = None


def result_of(answer: CallToolResult, limits: McpLimits) -> McpResult:
    """Converts a server's answer; structured content without text becomes a text."""
    result = _ResultBuilder(limits)
    for block in answer.content:
        _add_block(result, block)
    if not any(isinstance(part, TextPart) for part in result.parts):
        _add_structured(result, answer.structured_content, limits)
    if result.omissions:
        result.parts.append(TextPart(f"[This result was too large: {'; '.join(result.omissions)}.]"))
    return McpResult(
        parts=tuple(result.parts), is_error=bool(answer.is_error), truncated=bool(result.omissions)
    )


def _add_block(result: _ResultBuilder, block: Any) -> None:
    match block.type:
        case "text":
            result.add_text(block.text)
        case "image":
            result.add_image(block.data, block.mime_type)
        case "resource" if hasattr(block.resource, "text"):
            result.add_text(block.resource.text)
        case "resource" if block.resource.mime_type in IMAGE_TYPES:
            result.add_image(block.resource.blob, block.resource.mime_type)
        case "resource":
            result.add_text(
                f"[a file that cannot be shown: {_type_name(block.resource.mime_type)}, {block.resource.uri}]"
            )
        case "resource_link":
            result.add_text(f"[a link to a resource: {block.name}, {block.uri}]")
        case kind:
            result.add_text(f"[content that cannot be shown: {_type_name(kind)}]")


def _add_structured(result: _ResultBuilder, content: object, limits: McpLimits) -> None:
    if content is None:
        return
    encoded = msgspec.json.encode(content)
    if len(encoded) <= limits.text_bytes:
        result.add_text(encoded.decode())
    else:
        result.omissions[f"its structured content above {_shown_size(limits.text_bytes)} was left out"] = None


def _type_name(media_type: str | None) -> str:
    return media_type if media_type and _PRINTABLE.fullmatch(media_type) else "of an unknown type"


def _shown_size(limit: int) -> str:
    return f"{limit / (1 << 20):g} MiB" if limit >= 1 << 20 else f"{limit} bytes"
