"""The values of the MCP client, independent of OpenAI's formats and of the `mcp` package."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from codex_proxy.core.items import Part, TextPart, texts_of
from codex_proxy.core.tool_names import ListedTool

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
