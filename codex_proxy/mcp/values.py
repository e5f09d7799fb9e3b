"""What MCP servers give, as values: tools, results, faults, and the limits on all of them.

It uses neither OpenAI's wire formats nor the `mcp` package, which is imported only when a server is used.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from codex_proxy.core.items import Part, TextPart

MIB = 1024 * 1024


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what one server may cost: times in seconds, sizes in bytes."""

    start_seconds: float = 60.0
    """From the start of a server until its tools are listed. A package runner downloads the server at its
    first start.
    """
    list_seconds: float = 10.0
    """How long a request waits for a server's tools. A slower server goes on starting, and until then offers
    none.
    """
    refresh_seconds: float = 2.0
    """How long a request waits for a newer list of tools before it uses the list that is known."""
    stable_seconds: float = 30.0
    """A server that ran so long did not fail because of its start: its restart is not delayed."""
    max_backoff_seconds: float = 60.0
    """The longest delay between restarts: a repaired server is found within a minute."""
    close_seconds: float = 5.0
    """How long ending one server may take, whatever its transport waits for."""
    message_bytes: int = 32 * MIB
    """The size of one message from a server, which is held in memory whole."""
    unsent_bytes: int = 32 * MIB
    """How much a server may leave unread on its stdin: beyond, it hangs."""
    text_bytes: int = MIB
    """All texts of one result: about 250,000 tokens, which only the largest context windows hold."""
    image_bytes: int = 20 * MIB
    """All images of one result, as data URLs: what model providers accept."""
    max_parts: int = 200
    """The number of texts and images in one result: each is an item for the model, whatever its size."""
    max_pages: int = 100
    """The pages of a list of tools: bounds a list that never ends."""
    max_tools: int = 1000
    """The tools of one server: no model takes more in a request."""
    schema_bytes: int = 4 * MIB
    """The names, descriptions and schemas of one server's tools together: they go to the model with each
    step.
    """


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of an MCP server."""

    server_label: str
    name: str
    description: str
    input_schema: bytes
    """The JSON Schema of its arguments, encoded."""
    annotations: bytes | None = None
    """The server's hints about the tool as JSON (`readOnlyHint` ...). Who approves calls decides what they
    are worth.
    """


class McpFaultKind(StrEnum):
    """What went wrong with a server or a call."""

    UNREACHABLE = "unreachable"
    """The server could not be started or connected to."""
    STARTING = "starting"
    """The server is still starting."""
    UNAUTHORIZED = "unauthorized"
    """The server refused the credentials, or asks for some."""
    FORBIDDEN = "forbidden"
    """The server's URL leads to an address that may not be connected to."""
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
    """The server answered the call with a protocol error; mostly because it has no such tool."""
    CLOSED = "closed"
    """The proxy is shutting down."""


class McpFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one server. `message` says what happened and what to do, and contains no header, key or URL."""

    kind: McpFaultKind
    server_label: str
    message: str
    detail: str = ""
    """For the operator's log only: the end of a server's stderr, without the values of its configured
    environment.
    """


class McpError(Exception):
    """Carries an `McpFault` up to the public functions of this package, which return the fault."""

    def __init__(self, fault: McpFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class McpListing(msgspec.Struct, frozen=True):
    """Tools of one or several servers, and the faults of servers whose tools are missing."""

    tools: tuple[McpTool, ...]
    faults: tuple[McpFault, ...] = ()


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call. A call that failed has one too, so that the model can read why."""

    text: str
    """The texts as a JSON array of strings (docs/contract.md#mcp-calls)."""
    parts: tuple[Part, ...]
    """What the model gets: texts, and images as data URLs, in the server's order."""
    structured: bytes | None = None
    """The structured content as JSON, where the server gave some."""
    is_error: bool = False
    truncated: bool = False
    """Whether something was left out; the last part says what."""
    fault: McpFault | None = None
    """Why the tool gave no answer; None where it answered, with an error or without."""


def text_array(parts: tuple[Part, ...]) -> str:
    """Returns the texts among the parts as a JSON array of strings."""
    return msgspec.json.encode([part.text for part in parts if isinstance(part, TextPart)]).decode()


def failed(fault: McpFault) -> McpResult:
    """Returns the result of a call that got no answer, with the fault's message for the model."""
    parts = (TextPart(fault.message),)
    return McpResult(text=text_array(parts), parts=parts, is_error=True, fault=fault)
