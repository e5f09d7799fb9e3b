"""The items of a turn: of the history, and of the output. `ItemStarted` and `ItemEnded` (`core/events.py`) open and
close an output item; its text is in the deltas with its id. `choice` is the index of its choice; None if there is only
one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

# --- what the client brings ---------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """An image: a `data:` URL, or `https:` if the operator allows fetching. `detail` is the resolution that the client
    asks for.
    """

    url: str
    detail: str | None = None


Part: TypeAlias = TextPart | ImagePart
Role = Literal["developer", "user", "assistant"]


class HistoryMessage(msgspec.Struct, frozen=True):
    """A message of the history. `system` is replaced by `developer`, because Codex drops `system` messages silently.
    `phase` is `commentary`, `final_answer` or None.
    """

    role: Role
    parts: tuple[Part, ...]
    phase: str | None = None
    id: str | None = None
    chat_message: bytes | None = None
    """The message as JSON of Chat Completions if it has parts other than texts and images, for agents with the
    capability `forwarding`.
    """


class HistoryCall(msgspec.Struct, frozen=True):
    """A tool call of the model in an earlier step. `id` is that of the item, if any."""

    call_id: str
    name: str
    arguments: str
    """The model's exact text: JSON for a function, free text for a custom tool."""
    kind: Literal["function", "custom"] = "function"
    id: str | None = None
    by_server: bool = False
    """Whether this server ran the call, so that clients may not know it."""


class HistoryOutput(msgspec.Struct, frozen=True):
    """The output of a tool call. A plain text is one `TextPart`."""

    call_id: str
    parts: tuple[Part, ...]
    kind: Literal["function", "custom"] = "function"
    by_server: bool = False
    """Whether this is the output of a call that this server ran."""
    approved_by: str | None = None
    """The id of the approval request that the client has approved. The server runs the call and fills in `parts` before
    the turn.
    """


class RawHistoryItem(msgspec.Struct, frozen=True):
    """An item that goes back to the model exactly as the model gave it, such as encrypted reasoning."""

    json: bytes


HistoryItem: TypeAlias = HistoryMessage | HistoryCall | HistoryOutput | RawHistoryItem


class McpOrigin(msgspec.Struct, frozen=True):
    """The MCP server of a tool, and its name there. `needs_approval`: the client must approve each call."""

    server_label: str
    name: str
    needs_approval: bool = False


class ClientName(msgspec.Struct, frozen=True):
    """The client's name of a tool that is offered to the model under another name, and its `namespace`. `call_type` is
    the type of a call's item, if not the usual one: `tool_search_call`, `local_shell_call`.
    """

    name: str
    namespace: str | None = None
    call_type: Literal["", "tool_search_call", "local_shell_call"] = ""


class Tool(msgspec.Struct, frozen=True):
    """A tool of the client, or one that this server runs. `parameters` is its JSON schema, or None."""

    name: str
    description: str = ""
    parameters: msgspec.Raw | None = None
    strict: bool = False
    kind: Literal["function", "custom"] = "function"
    mcp: McpOrigin | None = None
    """The MCP server on which this server runs the tool; None for a tool of the client."""
    client_name: ClientName | None = None
    """The client's name of the tool, if that is not `name`; else None."""


# --- what the agent puts out --------------------------------------------------------------------

ItemStatus = Literal["completed", "incomplete", "failed"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of the assistant. `choice`: None for every choice; `phase`: `commentary` or `final_answer`, if
    reported.
    """

    id: str
    choice: int | None = None
    phase: str | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    id: str
    choice: int | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call for the client: `function`, `custom`, or `legacy` (a `function_call` of Chat Completions)."""

    id: str
    call_id: str
    name: str
    kind: Literal["function", "custom", "legacy"] = "function"
    choice: int | None = None
    old_form: bool = False
    """Whether the model server gave the call as `function_call`. Only the profile `open-responses-server` reads it."""


class McpCall(msgspec.Struct, frozen=True, gc=False):
    """A call that this server runs: `ArgumentsDelta`s, then its output in `OutputDelta`s (the error if the item ends as
    `failed`). `name` is the MCP server's name of the tool.
    """

    id: str
    call_id: str
    server_label: str
    name: str
    approval_request_id: str | None = None
    choice: int | None = None
    old_form: bool = False
    """Whether the model server gave the call as `function_call` (see `ToolCall.old_form`)."""


class McpApproval(msgspec.Struct, frozen=True, gc=False):
    """A call that waits for the client's approval. `id` is that of the approval request."""

    id: str
    call_id: str
    server_label: str
    name: str
    choice: int | None = None


class McpTools(msgspec.Struct, frozen=True, gc=False):
    """The tools of an MCP server that the request names, as JSON of an `mcp_list_tools` item. `error` says why there
    are none.
    """

    id: str
    server_label: str
    tools: bytes = b"[]"
    error: str | None = None
    choice: int | None = None


class Activity(msgspec.Struct, frozen=True, gc=False):
    """What the agent did with its own tools; `text` is one line: the command, the file, the query."""

    id: str
    kind: Literal["command", "file_change", "web_search", "mcp_call", "plan", "image", "question", "other"]
    text: str
    choice: int | None = None


Item: TypeAlias = Message | Reasoning | ToolCall | McpCall | McpApproval | McpTools | Activity

CALLS: tuple[type[Item], ...] = (ToolCall, McpCall, McpApproval)
"""The types of output items that have arguments."""
WITH_OUTPUT: tuple[type[Item], ...] = (Activity, McpCall)
"""The types of output items whose output may come in `OutputDelta`s."""
SERVER_ITEMS: tuple[type[Item], ...] = (McpCall, McpApproval, McpTools)
"""Items that only this server makes, so that an agent that retries does not repeat them."""
