"""The values of the MCP client: tools, results, faults, and limits. Independent of OpenAI's formats and of the `mcp`
package.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from codex_proxy.core.items import Part, TextPart
from codex_proxy.core.mcp_names import ListedTool

MIB = 1024 * 1024


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one MCP server (seconds, bytes), so that it neither delays turns nor fills the memory."""

    start_seconds: float = 60.0
    """From the start until the tools are listed, else TIMED_OUT. A package runner downloads a server at its first
    start.
    """
    list_seconds: float = 10.0
    """What a request waits for a server's tools; a slower server goes on starting."""
    refresh_seconds: float = 2.0
    """What a request waits for a newer list of tools."""
    stable_seconds: float = 30.0
    """A server that ran this long is restarted without delay."""
    max_backoff_seconds: float = 60.0
    """The longest delay in seconds between two restarts."""
    close_seconds: float = 5.0
    """What a server gets to end by itself."""
    message_bytes: int = 32 * MIB
    """One message of a server. A larger one ends a program's session, or makes a request to a URL fail."""
    unsent_bytes: int = 32 * MIB
    """What a server may leave unread on stdin before its session is ended."""
    text_bytes: int = MIB
    """All texts of a result: about 250,000 tokens, more than most context windows."""
    image_bytes: int = 20 * MIB
    """All images of a result, as data URLs: the limit of model providers."""
    max_parts: int = 200
    """The most texts and images in one result. Further ones are left out."""
    max_pages: int = 100
    """Pages of a list of tools, in case it never ends."""
    max_tools: int = 1000
    """Tools of one server; no model takes more in a request."""
    schema_bytes: int = 4 * MIB
    """Names, descriptions and schemas of a server's tools; every request to the model contains them."""


class McpTool(ListedTool, frozen=True, kw_only=True):
    """A tool of an MCP server, as the server lists it, with the server's name."""

    server_label: str


class McpFaultKind(StrEnum):
    """What went wrong with an MCP server or call."""

    UNREACHABLE = "unreachable"
    """The server could not be started or connected to."""
    STARTING = "starting"
    """The server is still starting."""
    UNAUTHORIZED = "unauthorized"
    """The server refused the credentials, or asks for some."""
    FORBIDDEN = "forbidden"
    """The server's URL leads to an address to which connections are not permitted."""
    DIED = "died"
    """The server or its connection ended."""
    TIMED_OUT = "timed_out"
    """The server did not answer in time."""
    PROTOCOL = "protocol"
    """The server broke the MCP protocol, or one of the limits."""
    UNKNOWN_SERVER = "unknown_server"
    """There is no server of that name."""
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments of the call are not a JSON object."""
    NOT_ALLOWED = "not_allowed"
    """The request does not allow this tool."""
    TOOL_ERROR = "tool_error"
    """The server answered with a protocol error, usually because it has no such tool."""
    CLOSED = "closed"
    """The proxy is shutting down."""


class McpFault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of a server or call. `message` says what to do, and contains no header, key or URL."""

    kind: McpFaultKind
    server_label: str
    message: str
    detail: str = ""
    """For the log: the end of stderr, without values of the configured environment."""


def fault_of(server_label: str, kind: McpFaultKind, what: str, detail: str = "") -> McpFault:
    """Returns a fault; `what` continues the sentence `MCP server 'label' ...`."""
    message = f"MCP server '{server_label}' {what}"
    return McpFault(kind=kind, server_label=server_label, message=message, detail=detail)


class McpError(Exception):
    """Carries an `McpFault` inside this package; public functions return the fault."""

    def __init__(self, fault: McpFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class McpListing(msgspec.Struct, frozen=True):
    """Tools of one or several servers, and faults of those whose tools are missing or incomplete."""

    tools: tuple[McpTool, ...]
    faults: tuple[McpFault, ...] = ()


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call; a failed one too (`is_error`), for the model."""

    text: str
    """The texts as a JSON array of strings (docs/contract.md#mcp-calls)."""
    parts: tuple[Part, ...]
    """What the model gets: texts, and images as data URLs, in the server's order."""
    structured: bytes | None = None
    """The structured content as JSON; None if the server sent none."""
    is_error: bool = False
    truncated: bool = False
    """Whether something was left out; the last part says what."""
    fault: McpFault | None = None
    """Why there is no answer; None if the tool answered."""


def text_array(parts: tuple[Part, ...]) -> str:
    """Returns the texts among the parts as a JSON array of strings."""
    return msgspec.json.encode([part.text for part in parts if isinstance(part, TextPart)]).decode()


def failed(fault: McpFault) -> McpResult:
    """Returns the failed result of a call without an answer; the model gets the fault's message."""
    parts = (TextPart(fault.message),)
    return McpResult(text=text_array(parts), parts=parts, is_error=True, fault=fault)
