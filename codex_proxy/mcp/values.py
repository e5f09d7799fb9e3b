"""The values of the MCP client: tools, results, faults, and limits.

The module uses neither OpenAI's wire formats nor the `mcp` package, which is imported only when a server
is used.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from codex_proxy.core.items import Part, TextPart

MIB = 1024 * 1024


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for one MCP server: times in seconds, sizes in bytes. They prevent a server that is slow, or sends too
    much, from delaying turns or filling the memory.
    """

    start_seconds: float = 60.0
    """The most seconds from the start of a server until its tools are listed; then the start has failed, with the
    fault TIMED_OUT. A package runner downloads a server at its first start.
    """
    list_seconds: float = 10.0
    """The most seconds that a request waits for a server's tools. A slower server continues to start; until then it
    has no tools.
    """
    refresh_seconds: float = 2.0
    """The most seconds that a request waits for a newer list of tools. After that it uses the known list."""
    stable_seconds: float = 30.0
    """A server that ran for this many seconds is restarted without delay when it ends."""
    max_backoff_seconds: float = 60.0
    """The longest delay in seconds between two restarts."""
    close_seconds: float = 5.0
    """The most seconds that a server gets to end by itself. After that its task is cancelled."""
    message_bytes: int = 32 * MIB
    """The most bytes of one message from a server, which is in memory as a whole. A larger one ends the session of
    a program; from a URL, it makes the request fail.
    """
    unsent_bytes: int = 32 * MIB
    """The most bytes that a server may leave unread on its stdin. A server with more is considered to hang, and its
    session is ended."""
    text_bytes: int = MIB
    """The most bytes of all texts of one result: about 250,000 tokens, more than most context windows. The rest is
    cut off.
    """
    image_bytes: int = 20 * MIB
    """The most bytes of all images of one result, as data URLs: the limit of model providers. Further images are
    left out.
    """
    max_parts: int = 200
    """The most texts and images in one result. Further ones are left out."""
    max_pages: int = 100
    """The most pages of a list of tools, in case it never ends. Tools on further pages are left out."""
    max_tools: int = 1000
    """The most tools of one server that are used; further ones are left out. No model takes more in a request."""
    schema_bytes: int = 4 * MIB
    """The most bytes of the names, descriptions and schemas of one server's tools together; tools above it are left
    out. Every request to the model contains them.
    """


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of an MCP server, as the server lists it."""

    server_label: str
    name: str
    description: str
    input_schema: bytes
    """The JSON Schema of the tool's arguments, encoded."""
    annotations: bytes | None = None
    """The server's hints about the tool as JSON (`readOnlyHint` ...), None if it gives none. They are not verified."""


class McpFaultKind(StrEnum):
    """What went wrong with an MCP server, or with a call of one of its tools."""

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
    """The server answered the call with a protocol error; usually because it has no such tool."""
    CLOSED = "closed"
    """The proxy is shutting down."""


class McpFault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of one MCP server or call. `message` says what happened and what to do, and contains no
    header, key or URL.
    """

    kind: McpFaultKind
    server_label: str
    message: str
    detail: str = ""
    """For the operator's log only: the end of a server's stderr, without the values of its configured
    environment.
    """


class McpError(Exception):
    """Carries an `McpFault` inside this package. Its public functions catch it and return the fault."""

    def __init__(self, fault: McpFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class McpListing(msgspec.Struct, frozen=True):
    """The tools of one or several servers, and the faults of the servers whose tools are missing or
    incomplete.
    """

    tools: tuple[McpTool, ...]
    faults: tuple[McpFault, ...] = ()


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call. A failed call has a result too (`is_error`), so that the model can read
    the reason.
    """

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
    """Why there is no answer; None if the tool answered, successfully or with an error."""


def text_array(parts: tuple[Part, ...]) -> str:
    """Returns the texts among the parts as a JSON array of strings."""
    return msgspec.json.encode([part.text for part in parts if isinstance(part, TextPart)]).decode()


def failed(fault: McpFault) -> McpResult:
    """Returns a failed result with this fault, for a call that got no answer. The fault's message is the
    text for the model.
    """
    parts = (TextPart(fault.message),)
    return McpResult(text=text_array(parts), parts=parts, is_error=True, fault=fault)
