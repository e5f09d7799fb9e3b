"""The things a turn is made of: what the client brings in, and what the agent puts out.

Values only. Output items are opened and closed by events (`core/events.py`); their text lives in the
deltas, so that there is one truth of it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

# --- what the client brings ---------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """`url` is a `data:` URL, or `https:` where the operator allows fetching."""

    url: str
    detail: str | None = None


Part: TypeAlias = TextPart | ImagePart
Role = Literal["developer", "user", "assistant"]


class HistoryMessage(msgspec.Struct, frozen=True):
    """A message of the history. `system` has become `developer`: the agent drops the former silently."""

    role: Role
    parts: tuple[Part, ...]
    phase: str | None = None
    id: str | None = None
    chat_message: bytes | None = None
    """The whole message as JSON of Chat Completions, where it has parts that are neither text nor images (audio,
    files). Only an agent that can do `forwarding` is given one, and takes it in the place of `parts`."""


class HistoryCall(msgspec.Struct, frozen=True):
    """A call that the model made earlier, to a tool of the client."""

    call_id: str
    name: str
    arguments: str
    """The exact text, JSON for a function, free text for a custom tool."""
    kind: Literal["function", "custom"] = "function"
    id: str | None = None
    own: bool = False
    """A call that this server ran. Clients of some APIs never see it, so no client has to send it back."""


class HistoryOutput(msgspec.Struct, frozen=True):
    """The output of a call to one of the client's tools. Text that came without parts is one `TextPart`."""

    call_id: str
    parts: tuple[Part, ...]
    kind: Literal["function", "custom"] = "function"
    own: bool = False
    """An output of a call that this server ran."""
    approved_by: str | None = None
    """The approval request that the client said yes to: the call has yet to be run, so there are no parts. Whoever
    runs the turn puts its output here first; no agent sees one of these."""


class RawHistoryItem(msgspec.Struct, frozen=True):
    """An item that goes back to the model as it came from it (reasoning with encrypted content)."""

    json: bytes


HistoryItem: TypeAlias = HistoryMessage | HistoryCall | HistoryOutput | RawHistoryItem


class McpOrigin(msgspec.Struct, frozen=True):
    """The MCP server that has a tool, and what it is called there. `asks`: the client decides on each call."""

    server_label: str
    name: str
    asks: bool = False


class ClientName(msgspec.Struct, frozen=True):
    """What the client calls a tool that the model is offered under another name.

    `search`: it is the tool by which the model finds those that the client has deferred (`tool_search`).
    """

    name: str
    namespace: str | None = None
    search: bool = False


class Tool(msgspec.Struct, frozen=True):
    """A tool of the client, or one that this server runs. `parameters` is the JSON schema as it came; None for
    custom."""

    name: str
    description: str = ""
    parameters: msgspec.Raw | None = None
    strict: bool = False
    kind: Literal["function", "custom"] = "function"
    mcp: McpOrigin | None = None
    """Where this server runs it; None for the client's own."""
    client_name: ClientName | None = None
    """Where the client calls it otherwise than `name`."""


# --- what the agent puts out --------------------------------------------------------------------

ItemStatus = Literal["completed", "incomplete", "failed"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """`choice` is None where the child speaks of one answer only: it then stands for every choice asked."""

    id: str
    choice: int | None = None
    phase: str | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    id: str
    choice: int | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call for the client to answer. `legacy` is Chat's old `function_call`."""

    id: str
    call_id: str
    name: str
    kind: Literal["function", "custom", "legacy"] = "function"
    choice: int | None = None


class McpCall(msgspec.Struct, frozen=True, gc=False):
    """A call that this server runs. Its `ArgumentsDelta`s come first, then its output in `OutputDelta`s, which is
    what went wrong where it ends as `failed`. `name` is the server's."""

    id: str
    call_id: str
    server_label: str
    name: str
    approval_request_id: str | None = None
    choice: int | None = None


class McpApproval(msgspec.Struct, frozen=True, gc=False):
    """A call that waits for the client's approval; its arguments come in `ArgumentsDelta`s."""

    id: str
    call_id: str
    server_label: str
    name: str
    choice: int | None = None


class McpTools(msgspec.Struct, frozen=True, gc=False):
    """The list of tools of an MCP server that the request names. `tools` is a JSON array in the form
    of OpenAI's item; an `error` says why it is empty, and the item ends as `failed`."""

    id: str
    server_label: str
    tools: bytes = b"[]"
    error: str | None = None
    choice: int | None = None


class Activity(msgspec.Struct, frozen=True, gc=False):
    """Something that the agent did by itself. `text` is one line for a person: the command, the file, the query."""

    id: str
    kind: Literal["command", "file_change", "web_search", "mcp_call", "plan", "image", "question", "other"]
    text: str
    choice: int | None = None


Item: TypeAlias = Message | Reasoning | ToolCall | McpCall | McpApproval | McpTools | Activity

CALLS: tuple[type[Item], ...] = (ToolCall, McpCall, McpApproval)
"""Items that have arguments."""
PRINTING: tuple[type[Item], ...] = (Activity, McpCall)
"""Items that have output."""
SERVER_ITEMS: tuple[type[Item], ...] = (McpCall, McpApproval, McpTools)
"""What this server says and no agent: none repeats it after a retry."""
