"""What MCP servers give and how they fail, as values: tools, results, faults, and the limits on all of them.

Nothing here is OpenAI's, and nothing is the `mcp` package's: that is imported only where a server is used.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from codex_proxy.core.items import Part, TextPart

MIB = 1024 * 1024


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a server may cost: time in seconds, sizes in bytes."""

    start: float = 60.0
    """From the start of a server to its tools: a package runner downloads the server when it runs first."""
    wait: float = 10.0
    """How long one asks for tools at most. A server that needs longer goes on starting; meanwhile it has none."""
    refresh: float = 2.0
    """How long a list that is known already is asked for again, before it is used as it is."""
    steady: float = 30.0
    """A server that has run so long did not fail because of its start: the next start is not held back."""
    longest_backoff: float = 60.0
    """A server that was repaired is seen after a minute at the latest, and a broken one costs a start a minute."""
    close: float = 5.0
    """The end of one server: its own process is ended within this time, whatever its transport waits for."""
    message_bytes: int = 32 * MIB
    """One message from a server. It is held in memory whole; more than this nobody sends on purpose."""
    unsent_bytes: int = 32 * MIB
    """What a server has not read from its stdin: it hangs, and each call would add its arguments."""
    text_bytes: int = MIB
    """All text of a result: about 250,000 tokens, what the largest contexts of models hold beside the rest."""
    image_bytes: int = 20 * MIB
    """All images of a result, as data URLs: what model providers take."""
    parts: int = 200
    """Texts and images of a result: each costs the model an item, whatever is in it."""
    pages: int = 100
    """Pages of a tool list: a server whose pages never end does not hold a request."""
    tools: int = 1000
    """Tools of one server: no model takes more in one request."""
    schema_bytes: int = 4 * MIB
    """Names, descriptions and schemas of one server's tools: they go to the model with each step."""


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server. `annotations` are the server's own hints, as JSON: whoever approves calls judges them."""

    server_label: str
    name: str
    description: str
    input_schema: bytes
    annotations: bytes | None = None


class McpFaultKind(StrEnum):
    """What went wrong with a server, or with a call."""

    UNREACHABLE = "unreachable"
    """It could not be started, or not be connected to."""
    STARTING = "starting"
    """It is not ready yet."""
    UNAUTHORIZED = "unauthorized"
    """It refused our credentials, or wants some."""
    FORBIDDEN = "forbidden"
    """It leads to an address that may not be connected to."""
    DIED = "died"
    """It ended, or its connection did."""
    TIMED_OUT = "timed_out"
    PROTOCOL = "protocol"
    """It does not speak MCP, or more than it may."""
    UNKNOWN_SERVER = "unknown_server"
    BAD_ARGUMENTS = "bad_arguments"
    NOT_ALLOWED = "not_allowed"
    """The request does not allow this tool."""
    TOOL_ERROR = "tool_error"
    """The server answered a call with an error of the protocol: most often, no such tool."""
    CLOSED = "closed"
    """The proxy is shutting down."""


class McpFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `message` says what, of which server, and what to do; it holds no header, no key and no address."""

    kind: McpFaultKind
    server_label: str
    message: str
    detail: str = ""
    """For the operator's log only: the last words of a server's process, with the values of its configured
    environment and headers taken out."""


class McpError(Exception):
    """An `McpFault` on its way to the public functions of this package, which return it."""

    def __init__(self, fault: McpFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class McpListing(msgspec.Struct, frozen=True):
    """The tools that there are, and why those of other servers are missing."""

    tools: tuple[McpTool, ...]
    faults: tuple[McpFault, ...] = ()


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave. It is one also where the call failed: the model reads what to do otherwise."""

    text: str
    """The texts as one JSON array of strings, as docs/contract.md#mcp-calls has them."""
    parts: tuple[Part, ...]
    """The texts, and the images as data URLs, in the server's order: what the model gets."""
    structured: bytes | None = None
    """The structured content as JSON, where the server gave some."""
    is_error: bool = False
    truncated: bool = False
    """Something was cut; the last part says so."""
    fault: McpFault | None = None
    """Why there is no answer of the tool; None where the tool itself has answered, with an error or without."""


def text_array(parts: tuple[Part, ...]) -> str:
    """The texts of the parts as a JSON array of strings."""
    return msgspec.json.encode([part.text for part in parts if isinstance(part, TextPart)]).decode()


def failed(fault: McpFault) -> McpResult:
    """A call that got no answer, as a result that tells the model."""
    parts = (TextPart(fault.message),)
    return McpResult(text=text_array(parts), parts=parts, is_error=True, fault=fault)
