"""The items of a turn: of the history, and of the output, whose text is in the deltas with the item's id. `choice` is
the index of its choice; None if there is only one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.json_values import UNREADABLE, canonical_json, encode_json, objects_in, text_at

# --- what the client brings ---------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """An image: a `data:` URL, or `https:` if the operator allows fetching. `detail`: the resolution asked for."""

    url: str
    detail: str | None = None


Part: TypeAlias = TextPart | ImagePart


def texts_of(parts: Iterable[Part]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextPart)]


DetailOf: TypeAlias = Callable[[ImagePart], str | None]


def content_of(
    parts: Iterable[Part], text_type: str, detail_of: DetailOf = lambda image: image.detail
) -> list[dict[str, Any]]:
    """Returns parts as the Responses API has them, the texts with this type."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": text_type, "text": part.text})
        else:
            detail = detail_of(part)
            content.append(
                {"type": "input_image", "image_url": part.url, **({"detail": detail} if detail else {})}
            )
    return content


def output_content(
    parts: Sequence[Part], detail_of: DetailOf = lambda image: image.detail
) -> str | list[dict[str, Any]]:
    """Returns an output as a string if it is at most one text, else as content parts."""
    if len(parts) <= 1 and all(isinstance(part, TextPart) for part in parts):
        return "".join(texts_of(parts))
    return content_of(parts, "input_text", detail_of)


Role = Literal["developer", "user", "assistant"]


class HistoryMessage(msgspec.Struct, frozen=True):
    """A message. `system` becomes `developer`, because Codex drops `system` messages. `phase`: `commentary`,
    `final_answer` or None.
    """

    role: Role
    parts: tuple[Part, ...]
    phase: str | None = None
    id: str | None = None
    chat_message: bytes | None = None
    """JSON of Chat Completions if it has other parts than texts and images, for agents with the capability
    `forwarding`.
    """
    named_tools: tuple[str, ...] = ()
    """The tools that the text names in backquotes: an agent that has them under other names puts those there."""


ToolKind: TypeAlias = Literal["function", "custom"]
"""A custom tool takes free text instead of JSON."""
CallKind: TypeAlias = ToolKind | Literal["legacy"]


class HistoryCall(msgspec.Struct, frozen=True):
    """A tool call of an earlier step; `id` is its item's id, if any."""

    call_id: str
    name: str
    arguments: str
    """The model's exact text: JSON, or a custom tool's free text."""
    kind: ToolKind = "function"
    id: str | None = None
    by_server: bool = False
    """Whether the call was run by this server, so that clients may not know it."""
    provider_fields: str = ""
    """See `provider_fields`."""

    @property
    def canonical_arguments(self) -> str:
        """The arguments as canonical JSON, because some clients parse them and encode them again. Unchanged for a
        custom tool, or if they are not JSON.
        """
        return self.arguments if self.kind == "custom" else canonical_json(self.arguments.strip() or "{}")


class HistoryOutput(msgspec.Struct, frozen=True):
    """A tool call's output. Plain text is one `TextPart`."""

    call_id: str
    parts: tuple[Part, ...]
    kind: ToolKind = "function"
    by_server: bool = False
    """Whether the call was run by this server."""
    approved_by: str | None = None
    """The approval request that the client has approved: this server runs the call and fills in `parts` before the
    turn.
    """


class RawHistoryItem(msgspec.Struct, frozen=True):
    """An item that goes back to the model as it came, such as encrypted reasoning."""

    json: bytes


PROVIDER_FIELDS: Final = "provider_fields"
"""The field of a raw item of a call with `provider_fields`; only the model that made the call gets it."""
_CALL_FIELDS: Final = frozenset({"index", "id", "type", "function", "custom"})
_NULL: Final = msgspec.Raw(b"null")


def provider_fields(call: Mapping[str, Any]) -> str:
    """Returns the fields of a call of Chat Completions that its API does not have, such as Gemini's `extra_content`, as
    JSON of an object: the model server needs them with the call in the next step. Empty without any.
    """
    if call.keys() <= _CALL_FIELDS:
        return ""
    own = {
        name: value for name, value in call.items() if name not in _CALL_FIELDS and value not in (None, _NULL)
    }
    return encode_json(own).decode() if own else ""


def without_provider_fields(raw: bytes) -> bytes:
    """Returns a raw item without the field `PROVIDER_FIELDS`."""
    if PROVIDER_FIELDS.encode() not in raw:
        return raw
    item = _decode(raw)
    item.pop(PROVIDER_FIELDS, None)
    return encode_json(item)


HistoryItem: TypeAlias = HistoryMessage | HistoryCall | HistoryOutput | RawHistoryItem
_WITH_PARTS: Final = (HistoryMessage, HistoryOutput)  # made once: a long history asks for each item


def texts_in(history: Iterable[HistoryItem]) -> Iterator[str]:
    """Yields all texts, also the arguments of calls."""
    for item in history:
        if isinstance(item, HistoryCall):
            yield item.arguments
        elif isinstance(item, _WITH_PARTS):
            yield from texts_of(item.parts)


def images_in(history: Iterable[HistoryItem]) -> list[ImagePart]:
    """Returns the images of messages and outputs."""
    return [
        part
        for item in history
        if isinstance(item, _WITH_PARTS)
        for part in item.parts
        if isinstance(part, ImagePart)
    ]


class McpOrigin(msgspec.Struct, frozen=True):
    """The MCP server of a tool, and the tool's name there. `needs_approval`: the client must approve each call."""

    server_label: str
    name: str
    needs_approval: bool = False


OwnCall: TypeAlias = Literal["local_shell_call", "shell_call", "apply_patch_call"]
"""The type of a call whose item has its arguments as fields, so that only arguments of the tool's form fit in."""


_OWN_CALLS = get_args(OwnCall)


class ClientName(msgspec.Struct, frozen=True):
    """The client's name of a tool that the model knows by another name. `call_type` is the type of a call's item, if
    not the usual one.
    """

    name: str
    namespace: str | None = None
    call_type: Literal["", "tool_search_call"] | OwnCall = ""


class Tool(msgspec.Struct, frozen=True):
    """A tool of the client, or one that this server runs. `parameters` is its JSON schema, if any."""

    name: str
    description: str = ""
    parameters: msgspec.Raw | None = None
    strict: bool = False
    kind: ToolKind = "function"
    mcp: McpOrigin | None = None
    """The MCP server where this server runs the tool; None: the client runs it."""
    client_name: ClientName | None = None
    """The client's name, if it is not `name`."""

    @property
    def is_checked(self) -> bool:
        """Whether the arguments of calls have to keep to the schema."""
        return self.strict or (self.client_name is not None and self.client_name.call_type in _OWN_CALLS)


# --- what the agent puts out --------------------------------------------------------------------

ItemStatus = Literal["completed", "incomplete", "failed"]


class _Item(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="item"):
    """An output item. It is stored (`core/event_rows.py`), so that neither its tag nor a field may be renamed."""


class Message(_Item, tag="message", frozen=True, gc=False):
    """An assistant message. `choice`: None for every choice; `phase`: if reported."""

    id: str
    choice: int | None = None
    phase: str | None = None


class Reasoning(_Item, tag="reasoning", frozen=True, gc=False):
    id: str
    choice: int | None = None


class ToolCall(_Item, tag="tool_call", frozen=True, gc=False):
    """A call for the client; `legacy` is a `function_call` of Chat Completions."""

    id: str
    call_id: str
    name: str
    kind: CallKind = "function"
    choice: int | None = None
    old_form: bool = False
    """Whether the model server gave the call as `function_call`, which only the profile `open-responses-server` reads.
    """
    provider_fields: str = ""
    """See `provider_fields`."""


class McpCall(_Item, tag="mcp_call", frozen=True, gc=False):
    """A call that this server runs: `ArgumentsDelta`s, then its output in `OutputDelta`s (the error if it ends as
    `failed`). `name` is the MCP server's.
    """

    id: str
    call_id: str
    server_label: str
    name: str
    approval_request_id: str | None = None
    choice: int | None = None
    old_form: bool = False
    """Whether the model server gave the call as `function_call`."""


class McpApproval(_Item, tag="mcp_approval", frozen=True, gc=False):
    """A call that waits for approval; `id` is the approval request's."""

    id: str
    call_id: str
    server_label: str
    name: str
    choice: int | None = None


class McpTools(_Item, tag="mcp_tools", frozen=True, gc=False):
    """The tools of an MCP server that the request names, as JSON of an `mcp_list_tools` item; `error`: why there are
    none.
    """

    id: str
    server_label: str
    tools: bytes = b"[]"
    error: str | None = None
    choice: int | None = None


ActivityKind: TypeAlias = Literal[
    "command", "file_change", "web_search", "mcp_call", "plan", "image", "question", "subagent", "other"
]


class FileDiff(msgspec.Struct, frozen=True, omit_defaults=True):
    """A changed file. `kind`: `add`, `delete` or `update`, if told; `diff`: as the agent writes it, which is
    the text alone of a file that is added or deleted. `moved_to`: its new path, if it has one.
    """

    path: str
    kind: str = ""
    diff: str = ""
    moved_to: str = ""


SubagentActionKind: TypeAlias = Literal["create", "send", "resume", "wait", "interrupt", "close", "message"]
"""What is done with subagents. `message`: one tells its parent something."""


class SubagentAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent does with subagents. `sender` is empty for the turn's own agent, and `recipients` are the agent's
    own ids of the others; `text` is what they are told, if it is known.
    """

    kind: SubagentActionKind
    sender: str = ""
    recipients: tuple[str, ...] = ()
    text: str = ""
    model: str | None = None
    effort: str | None = None


ToolName: TypeAlias = Literal["bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search"]
"""The agents' own tools, by the names of Anthropic's `agent_toolset_20260401`."""
TOOL_NAMES: Final[tuple[ToolName, ...]] = get_args(ToolName)
Permission: TypeAlias = Literal["always_allow", "always_ask"]
"""The permission policy of a tool: whether the client is asked before each call."""


class ToolUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of one of the agents' own tools. `input`: JSON of an object, with the fields that the toolset has.
    `permission`: the tool's policy in this turn; None if the turn has no such tool.
    """

    name: ToolName
    input: str
    permission: Permission | None = None


StepStatus: TypeAlias = Literal["pending", "in_progress", "completed"]
MAX_PLAN_STEPS: Final = 100
MAX_STEP_CHARS: Final = 500


class PlanStep(msgspec.Struct, frozen=True):
    """A step of an agent's plan."""

    step: str
    status: StepStatus = "pending"


def plan_of(steps: Iterable[tuple[str, str]]) -> tuple[PlanStep, ...]:
    """Returns a plan that an agent tells: texts with statuses, of which an unknown one is `pending`. At most
    `MAX_PLAN_STEPS` of at most `MAX_STEP_CHARS`.
    """
    found = islice(steps, MAX_PLAN_STEPS)
    return tuple(PlanStep(step[:MAX_STEP_CHARS], _STATUSES.get(status, "pending")) for step, status in found)


_STATUSES: Final[Mapping[str, StepStatus]] = {
    **{each: each for each in get_args(StepStatus)},
    "inProgress": "in_progress",
}


class ActionDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent's own tool does, in full, as far as the agent tells it. Stored like the item it belongs to."""

    command: str = ""
    cwd: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None
    changes: tuple[FileDiff, ...] = ()
    server: str = ""
    """The label of an MCP server."""
    tool: str = ""
    arguments: str = ""
    """JSON."""
    result: str = ""
    """JSON."""
    error: str | None = None
    subagent: SubagentAction | None = None
    plan: tuple[PlanStep, ...] = ()
    """The whole plan of an agent that makes one."""
    use: ToolUse | None = None
    """The call, in a turn that has a toolset."""


class Activity(_Item, tag="activity", frozen=True, gc=False):
    """What the agent did with its own tools; `text` is one line: command, file, query. `hosted`: the type of its item
    in the Responses API if the client asked for the tool; `HostedEvent`s then tell the rest.
    """

    id: str
    kind: ActivityKind
    text: str
    choice: int | None = None
    hosted: str = ""
    details: ActionDetails | None = None
    """The details that the agent tells at the activity's beginning."""


Item: TypeAlias = Message | Reasoning | ToolCall | McpCall | McpApproval | McpTools | Activity

CALLS: tuple[type[Item], ...] = (ToolCall, McpCall, McpApproval)
"""Output items with arguments."""
WITH_OUTPUT: tuple[type[Item], ...] = (Activity, McpCall)
"""Output items with `OutputDelta`s."""
SERVER_ITEMS: tuple[type[Item], ...] = (McpCall, McpApproval, McpTools)
"""Items that this server makes, so that an agent's retry does not repeat them."""


CODE_CALL: Final = "code_interpreter_call"
_NOT_KEPT: Final = "[output: not kept]"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def code_call(item: Mapping[str, Any]) -> list[HistoryItem]:
    """Converts a call of `code_interpreter`."""
    outputs = [
        text_at(each, "logs") or f"[{text_at(each, 'type')}]" for each in objects_in(item.get("outputs"))
    ]
    return _call(item, "code_interpreter", {"code": item.get("code")}, "\n".join(outputs))


def _search_call(item: Mapping[str, Any]) -> list[HistoryItem]:
    found = [
        f"[{text_at(each, 'filename')}]\n{text_at(each, 'text')}" for each in objects_in(item.get("results"))
    ]
    return _call(item, "file_search", {"queries": item.get("queries")}, "\n\n".join(found))


def _call(item: Mapping[str, Any], name: str, arguments: Mapping[str, Any], output: str) -> list[HistoryItem]:
    id = item.get("id")
    call_id = id if isinstance(id, str) and id else name
    return [
        HistoryCall(call_id, name, encode_json(arguments).decode(), by_server=True),
        HistoryOutput(call_id, (TextPart(output or _NOT_KEPT),), by_server=True),
    ]


_TOOLS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], list[HistoryItem]]]]] = {
    CODE_CALL: ("code_interpreter", code_call),
    "file_search_call": ("file_search", _search_call),
}


def as_functions(history: tuple[HistoryItem, ...], able: Collection[str] = ()) -> tuple[HistoryItem, ...]:
    """Converts the raw calls of tools that are not among what an agent is `able` to run. Other items stay."""
    if RawHistoryItem not in map(type, history):
        return history
    types = [type for type, (tool, _) in _TOOLS.items() if tool not in able]
    marks = [type.encode() for type in types]
    if not any(isinstance(each, RawHistoryItem) and _has_any(marks, each.json) for each in history):
        return history
    return tuple(part for each in history for part in _as_function(each, types, marks))


def _has_any(marks: Collection[bytes], json: bytes) -> bool:
    return any(mark in json for mark in marks)


def _as_function(item: HistoryItem, types: Collection[str], marks: Collection[bytes]) -> list[HistoryItem]:
    if not isinstance(item, RawHistoryItem) or not _has_any(marks, item.json):
        return [item]
    try:
        given = _decode(item.json)
    except UNREADABLE:
        return [item]
    type = text_at(given, "type")
    return _TOOLS[type][1](given) if type in types else [item]
