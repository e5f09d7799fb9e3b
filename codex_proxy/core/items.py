"""The items of a turn: those of the history, which the client sends, and those of the output, which the agent
makes.

These are values only. `ItemStarted` and `ItemEnded` (`core/events.py`) open and close output items. An output item
does not contain its text: that is in the delta events with its id. `choice` is the index of the choice to which an
output item belongs; None if the agent gives only one answer. A step is one call of the model.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

# --- what the client brings ---------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """An image in a message or output. `url` is a `data:` URL, or an `https:` URL if the operator allows fetching.
    `detail` is the resolution that the client asks for, None if it names none.
    """

    url: str
    detail: str | None = None


Part: TypeAlias = TextPart | ImagePart
Role = Literal["developer", "user", "assistant"]


class HistoryMessage(msgspec.Struct, frozen=True):
    """A message of the history. The role `system` is replaced by `developer`, because Codex drops `system` messages
    without an error. `phase` is `commentary` or `final_answer`, None if the client sends none; `id` is the
    message's id, None if it has none.
    """

    role: Role
    parts: tuple[Part, ...]
    phase: str | None = None
    id: str | None = None
    chat_message: bytes | None = None
    """The whole message as JSON of Chat Completions, if it has parts that are neither text nor images (audio,
    files); else None. Only agents with the capability `forwarding` get it, and send it instead of `parts`."""


class HistoryCall(msgspec.Struct, frozen=True):
    """A tool call that the model made in an earlier step. `id` is the id of the item, None if it has none."""

    call_id: str
    name: str
    arguments: str
    """The model's exact text: JSON for a function, free text for a custom tool."""
    kind: Literal["function", "custom"] = "function"
    id: str | None = None
    by_server: bool = False
    """Whether this server ran the call. Clients of some APIs never see such calls, so no client has to send them
    back."""


class HistoryOutput(msgspec.Struct, frozen=True):
    """The output of a tool call. A plain text is one `TextPart`."""

    call_id: str
    parts: tuple[Part, ...]
    kind: Literal["function", "custom"] = "function"
    by_server: bool = False
    """Whether this is the output of a call that this server ran."""
    approved_by: str | None = None
    """The id of the approval request that the client has approved; None for any other output. The call has not been
    run yet, so `parts` is empty. The server runs it and fills in `parts` before the turn begins, so that an agent
    never gets such an item without its output.
    """


class RawHistoryItem(msgspec.Struct, frozen=True):
    """An item that is sent back to the model exactly as the model gave it (such as reasoning with encrypted
    content)."""

    json: bytes


HistoryItem: TypeAlias = HistoryMessage | HistoryCall | HistoryOutput | RawHistoryItem


class McpOrigin(msgspec.Struct, frozen=True):
    """The MCP server that has a tool, and the tool's name on that server. `needs_approval`: the client must approve
    each call.
    """

    server_label: str
    name: str
    needs_approval: bool = False


class ClientName(msgspec.Struct, frozen=True):
    """The client's name of a tool that is offered to the model under another name. `namespace` is that of the tool,
    None if it has none.

    `call_type`: the type of the output item in which the client gets a call of the tool. Empty: the usual type of
    the tool's kind. `tool_search_call`: the tool searches the client's deferred tools. `local_shell_call`: the tool
    is the client's shell.
    """

    name: str
    namespace: str | None = None
    call_type: Literal["", "tool_search_call", "local_shell_call"] = ""


class Tool(msgspec.Struct, frozen=True):
    """A tool of the client, or one that this server runs. `parameters` is the client's JSON schema, unchanged; None
    for a custom tool, or a function without parameters.
    """

    name: str
    description: str = ""
    parameters: msgspec.Raw | None = None
    strict: bool = False
    kind: Literal["function", "custom"] = "function"
    mcp: McpOrigin | None = None
    """The MCP server on which this server runs the tool; None for a tool that the client runs."""
    client_name: ClientName | None = None
    """The client's name of the tool, if that is not `name`; else None."""


# --- what the agent puts out --------------------------------------------------------------------

ItemStatus = Literal["completed", "incomplete", "failed"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of the assistant. `choice` is the index of the choice that it belongs to; None if the agent gives
    only one answer, which then is the answer of every choice. `phase` is `commentary` or `final_answer`, None if
    the agent does not report it.
    """

    id: str
    choice: int | None = None
    phase: str | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    id: str
    choice: int | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call that the client has to run. `kind` is `function` or `custom` for those types of tools. A call of
    kind `legacy` is sent to every client of Chat Completions as `function_call`, the predecessor of `tool_calls`,
    even if the request has no `functions`.
    """

    id: str
    call_id: str
    name: str
    kind: Literal["function", "custom", "legacy"] = "function"
    choice: int | None = None
    old_form: bool = False
    """Whether the model server gave the call as `function_call`. Unlike the kind `legacy`, this does not decide how
    a client of Chat Completions gets the call. Only the profile `open-responses-server` of the Responses API reads
    it: it has other events for such a call."""


class McpCall(msgspec.Struct, frozen=True, gc=False):
    """A call that this server runs. Its `ArgumentsDelta`s come first, then its output in `OutputDelta`s; if the
    item ends as `failed`, that output is the error. `name` is the MCP server's name of the tool.
    `approval_request_id` is the id of the request that the client has approved, None if the call needed no
    approval.
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
    """A call that waits for the client's approval; its arguments come in `ArgumentsDelta`s. `id` is the id of the
    approval request, to which the client's answer refers.
    """

    id: str
    call_id: str
    server_label: str
    name: str
    choice: int | None = None


class McpTools(msgspec.Struct, frozen=True, gc=False):
    """The list of tools of an MCP server that the request names. `tools` is a JSON array in the form of OpenAI's
    `mcp_list_tools` item. If the server did not answer, `tools` is empty, `error` says why, and the item ends as
    `failed`; otherwise `error` is None.
    """

    id: str
    server_label: str
    tools: bytes = b"[]"
    error: str | None = None
    choice: int | None = None


class Activity(msgspec.Struct, frozen=True, gc=False):
    """Something that the agent did with its own tools, such as a command or a search. `text` describes it in one
    line for a person: the command, the file, the query.
    """

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
"""The item types that this server makes and no agent does. An agent that retries does not repeat them."""
