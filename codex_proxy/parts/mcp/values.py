"""The values of the MCP client, independent of OpenAI's formats and of the `mcp` package; and how a server's
answer to a tool call becomes an `McpResult`, within `McpLimits`. Other content than text and supported images
becomes a line that describes it. A last text says what was left out.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.items import ImagePart, Part, TextPart, texts_of
from codex_proxy.core.media import NoImageError, clean_data_url
from codex_proxy.core.tool_names import ListedTool

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MIB = 1024 * 1024


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one server (seconds, bytes), so that it neither delays turns nor fills the memory."""

    start_seconds: float = 60.0
    """The time until the tools are listed. A package runner downloads a server at its first start."""
    list_seconds: float = 10.0
    """The time that a request waits for tools; a slower server goes on starting."""
    refresh_seconds: float = 2.0
    """The time that a request waits for a newer list."""
    stable_seconds: float = 30.0
    """The time that a server must have run to be restarted at once when it ends."""
    max_backoff_seconds: float = 60.0
    """The longest delay between two restarts."""
    close_seconds: float = 5.0
    """The time for a server to end by itself."""
    message_bytes: int = 32 * MIB
    """The largest message. A larger one ends a program's session, or fails a request to a URL."""
    unsent_bytes: int = 32 * MIB
    """The data that a server may leave unread before its session is ended."""
    text_bytes: int = MIB
    """The size of all texts of a result: about 250,000 tokens, more than most context windows."""
    image_bytes: int = 20 * MIB
    """The size of all images of a result, as data URLs: the limit of model providers."""
    max_parts: int = 200
    """Maximum parts of a result; further ones are left out."""
    max_pages: int = 100
    """Maximum pages of a list of tools, in case it never ends."""
    max_tools: int = 1000
    """Maximum tools: no model takes more in a request."""
    schema_bytes: int = 4 * MIB
    """The size of the tools' names, descriptions and schemas, which every request to the model contains."""


class McpTool(ListedTool, frozen=True, kw_only=True):
    """A listed tool with its server's name."""

    server_label: str


class McpFaultKind(StrEnum):
    UNREACHABLE = "unreachable"
    """The server could not be started or connected to."""
    STARTING = "starting"
    """The server is still starting."""
    UNAUTHORIZED = "unauthorized"
    """The server refused the credentials, or asks for some."""
    FORBIDDEN = "forbidden"
    """The server's URL leads to an address that is not permitted."""
    DIED = "died"
    """The server or its connection ended."""
    TIMED_OUT = "timed_out"
    """The server has not answered in time."""
    PROTOCOL = "protocol"
    """The server broke MCP, or a limit."""
    UNKNOWN_SERVER = "unknown_server"
    """There is no such server."""
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments are no JSON object, or cost too much."""
    TOOL_ERROR = "tool_error"
    """The server answered with a protocol error, usually because there is no such tool."""
    CLOSED = "closed"
    """This server is stopping."""


class McpFault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure. `message` says what to do, without header, key or URL."""

    kind: McpFaultKind
    server_label: str
    message: str
    detail: str = ""
    """Text for the log: the end of stderr, without configured values."""


def fault_of(server_label: str, kind: McpFaultKind, what: str, detail: str = "") -> McpFault:
    """Returns a fault. `what` continues the sentence `MCP server 'label' ...`."""
    message = f"MCP server '{server_label}' {what}"
    return McpFault(kind=kind, server_label=server_label, message=message, detail=detail)


class McpError(Exception):
    """Carries a fault inside this package; public functions return the fault."""

    def __init__(self, fault: McpFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class McpListing(msgspec.Struct, frozen=True):
    """Tools, and the faults of servers whose tools are missing or incomplete."""

    tools: tuple[McpTool, ...]
    faults: tuple[McpFault, ...] = ()


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call, for the model. `is_error`: the call failed."""

    parts: tuple[Part, ...]
    """The texts, and images as data URLs, in order, for the model."""
    is_error: bool = False
    truncated: bool = False
    """Whether something was left out; the last part says what."""
    fault: McpFault | None = None
    """Why there is no answer, if there is none."""

    @property
    def text(self) -> str:
        """The text for the client; several as a JSON array (docs/contract.md#mcp-calls)."""
        texts = texts_of(self.parts)
        return texts[0] if len(texts) == 1 else msgspec.json.encode(texts).decode()


def failed_result(fault: McpFault) -> McpResult:
    """Returns the result of a call without an answer; the model gets the fault's message."""
    return McpResult(parts=(TextPart(fault.message),), is_error=True, fault=fault)


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
