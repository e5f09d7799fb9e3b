"""The pydantic models of clients' items, in `input` and conversations. Sources: docs/contract.md#input-items, OpenAI's
own types.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field

from codex_proxy.surfaces.models import Effort
from codex_proxy.surfaces.requests.body import (
    CallId,
    HistoryName,
    JsonSchemaFormat,
    RequestModel,
    TextFormat,
    wrong_value,
)
from codex_proxy.surfaces.requests.fields import ByKind, Ignored

ItemId: TypeAlias = Annotated[str, Field(max_length=256)]
Status: TypeAlias = str

TEXT_LIMIT: Final = 10_485_760
"""Maximum characters of a text, as at OpenAI."""

# --- what a message is made of ------------------------------------------------------------------

IgnoredInPart: TypeAlias = Annotated[Any, Ignored("input[].content[]")]
IgnoredInItem: TypeAlias = Annotated[Any, Ignored("input[]")]


class TextPart(RequestModel):
    """A part with text, of a message of any role."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: IgnoredInPart = None
    logprobs: IgnoredInPart = None
    prompt_cache_breakpoint: IgnoredInPart = None


class RefusalPart(RequestModel):
    type: Literal["refusal"]
    refusal: str


class ImagePart(RequestModel):
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    prompt_cache_breakpoint: IgnoredInPart = None


class FilePart(RequestModel):
    type: Literal["input_file"]
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: IgnoredInPart = None
    prompt_cache_breakpoint: IgnoredInPart = None


class AudioPart(RequestModel):
    """Audio, which is refused because no agent accepts it."""

    type: Literal["input_audio"]


AnyPart: TypeAlias = Annotated[TextPart | RefusalPart | ImagePart | FilePart | AudioPart, ByKind()]
Content: TypeAlias = Annotated[str | list[AnyPart], ByKind()]

# --- items --------------------------------------------------------------------------------------


class Item(RequestModel):
    """The fields that an item of any type may have."""

    id: ItemId | None = None
    status: Status | None = None


class MessageItem(Item):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None


class ItemReference(RequestModel):
    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(min_length=1, max_length=256)]


class ReasoningText(RequestModel):
    type: Literal["summary_text", "reasoning_text", "text"]
    text: str


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class _CallItem(Item):
    type: str
    call_id: CallId
    name: HistoryName
    namespace: str | None = None
    caller: IgnoredInItem = None
    is_async: Annotated[Any, Field(alias="async"), Ignored("input[]", name="async")] = None


class FunctionCallItem(_CallItem):
    type: Literal["function_call"]
    arguments: str


class CustomCallItem(_CallItem):
    type: Literal["custom_tool_call"]
    input: str


class ToolSearchCallItem(Item):
    """A call of the client's tool search. Without `call_id` OpenAI's servers ran it, and it is left out."""

    type: Literal["tool_search_call"]
    call_id: CallId | None = None
    execution: Literal["client", "server"] | None = None
    arguments: Any = None


class ToolSearchOutputItem(Item):
    """The tools that a tool search found. Without `call_id` the search was OpenAI's, and the item is left out."""

    type: Literal["tool_search_output"]
    call_id: CallId | None = None
    execution: Literal["client", "server"] | None = None
    tools: list[dict[str, Any]]


class AdditionalToolsItem(Item):
    """Tools in the middle of the input, as Codex adds them, offered beside the request's."""

    type: Literal["additional_tools"]
    role: Literal["developer", "system"] | None = None
    tools: list[dict[str, Any]]


class CallOutputItem(Item):
    """The output of a call. `name` and `arguments` describe the call if the input lacks it. Source:
    docs/contract.md#outputs-without-their-call.
    """

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Content
    name: HistoryName | None = None
    arguments: str | None = None
    caller: IgnoredInItem = None
    namespace: IgnoredInItem = None


class AgentMessagePart(RequestModel):
    """A part of a message between Codex's sub-agents: its `text`, or its `encrypted_content`, in which
    models of this server write plain text.
    """

    type: Literal["input_text", "encrypted_content"]
    text: str | None = None
    encrypted_content: str | None = None


class AgentMessageItem(Item):
    """A message between Codex's sub-agents."""

    type: Literal["agent_message"]
    author: str
    recipient: str
    content: list[AgentMessagePart]


class McpListToolsItem(Item):
    type: Literal["mcp_list_tools"]
    server_label: str
    tools: list[dict[str, Any]]
    error: Any = None


class McpCallItem(Item):
    type: Literal["mcp_call"]
    server_label: str
    name: HistoryName
    arguments: str
    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None


class McpApprovalRequestItem(Item):
    type: Literal["mcp_approval_request"]
    server_label: str
    name: HistoryName
    arguments: str


class McpApprovalResponseItem(Item):
    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str | None = None


class CompactionItem(Item):
    type: Literal["compaction"]
    encrypted_content: str


class CompactionTriggerItem(Item):
    """Asks for a `compaction` of all items before it, as the whole answer."""

    type: Literal["compaction_trigger"]


class UpdatedReasoning(RequestModel):
    effort: Effort | None = None


class UpdatedText(RequestModel):
    format: Annotated[TextFormat | JsonSchemaFormat, ByKind()]


class ConfigurationUpdateItem(Item):
    """New values of `reasoning.effort` and `text.format`, until the next update."""

    type: Literal["configuration_update"]
    reasoning: UpdatedReasoning | None = None
    text: UpdatedText | None = None


class NativeItem(Item, extra="allow"):
    """An item of a tool that the provider runs, sent back with all of its fields."""

    type: str


class WebSearchCallItem(NativeItem):
    type: Literal["web_search_call"]
    status: str | None = None
    action: dict[str, Any] | None = None


class CodeCallItem(NativeItem):
    type: Literal["code_interpreter_call"]
    id: Annotated[str, Field(min_length=1)]


class FileSearchCallItem(NativeItem):
    type: Literal["file_search_call"]
    id: Annotated[str, Field(min_length=1)]


class ImageCallItem(NativeItem):
    type: Literal["image_generation_call"]
    id: Annotated[str, Field(min_length=1)]
    status: str
    result: str | None


def _is_a_command(action: dict[str, Any]) -> dict[str, Any]:
    command = action.get("command")
    if (
        action.get("type") != "exec"
        or not isinstance(command, list)
        or not all(isinstance(w, str) for w in command)
    ):
        raise wrong_value(
            "invalid_value", "it must be of type 'exec', with a 'command' that is a list of strings"
        )
    return action


class LocalShellCallItem(NativeItem):
    type: Literal["local_shell_call"]
    status: Literal["completed", "in_progress", "incomplete"]
    action: Annotated[dict[str, Any], AfterValidator(_is_a_command)]


class LocalShellOutputItem(Item):
    """The output of the client's shell. `id` is the call's if there is no `call_id`; with neither it is refused."""

    type: Literal["local_shell_call_output"]
    call_id: CallId | None = None
    output: str


class ShellAction(RequestModel):
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellEnvironment(RequestModel, extra="allow"):
    """Where a call was run."""

    type: str


class _MachineItem(Item):
    """A call or output of a tool that the client runs on its machine."""

    type: str
    call_id: CallId
    caller: IgnoredInItem = None


class ShellCallItem(_MachineItem):
    type: Literal["shell_call"]
    action: ShellAction
    environment: ShellEnvironment | None = None


class ShellExit(RequestModel):
    type: Literal["exit"]
    exit_code: int


class ShellTimeout(RequestModel):
    type: Literal["timeout"]


class ShellOutputPart(RequestModel):
    """What one command has printed, and how it ended."""

    stdout: str
    stderr: str
    outcome: Annotated[ShellExit | ShellTimeout, ByKind()]


class ShellOutputItem(_MachineItem):
    type: Literal["shell_call_output"]
    output: list[ShellOutputPart]
    max_output_length: int | None = None


class FileChange(RequestModel):
    type: Literal["create_file", "update_file"]
    path: str
    diff: str


class FileRemoval(RequestModel):
    type: Literal["delete_file"]
    path: str


class PatchCallItem(_MachineItem):
    type: Literal["apply_patch_call"]
    operation: Annotated[FileChange | FileRemoval, ByKind()]


class PatchOutputItem(_MachineItem):
    type: Literal["apply_patch_call_output"]
    status: Literal["completed", "failed"]
    output: str | None = None


class ActivityItem(Item):
    """What the agent did, for clients that ask for it (`X-Codex-Activity: items`); the model does not get it back."""

    type: Literal["codex:activity"]
    kind: str
    text: str
    output: str | None = None


def _model_without_type(value: dict[str, Any]) -> type | None:
    """Returns the model of an item without a type: a message has a role or content, a reference only an id."""
    if "role" in value or "content" in value:
        return MessageItem
    return ItemReference if "id" in value else None


AnyItem: TypeAlias = Annotated[
    MessageItem
    | ItemReference
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | ToolSearchCallItem
    | ToolSearchOutputItem
    | AdditionalToolsItem
    | AgentMessageItem
    | CallOutputItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
    | CompactionItem
    | CompactionTriggerItem
    | ConfigurationUpdateItem
    | WebSearchCallItem
    | CodeCallItem
    | FileSearchCallItem
    | ImageCallItem
    | LocalShellCallItem
    | LocalShellOutputItem
    | ShellCallItem
    | ShellOutputItem
    | PatchCallItem
    | PatchOutputItem
    | ActivityItem,
    ByKind(untyped=_model_without_type),
]
