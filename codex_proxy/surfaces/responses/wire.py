"""The pydantic models of `POST /v1/responses`, with its tools and choice. Sources:
docs/contract.md#fields-of-a-request, docs/contract.md#sampling-beyond-openais, docs/contract.md#tools-of-a-response,
OpenAI's own types for the ranges.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field

from codex_proxy.surfaces.models import Effort
from codex_proxy.surfaces.requests.body import (
    JsonSchemaFormat,
    Name,
    OpenAIRequest,
    Parameters,
    Positive,
    RequestModel,
    StopSequence,
    Summary,
    TextFormat,
    Verbosity,
    wrong_value,
)
from codex_proxy.surfaces.requests.fields import ByKind, Ignored, Refused
from codex_proxy.surfaces.responses.item_wire import TEXT_LIMIT, AnyItem

WebSearch: TypeAlias = Literal[
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"
]
Hosted: TypeAlias = Literal["code_interpreter", "file_search", "image_generation"]
OpenAIs: TypeAlias = Literal[
    "computer",
    "computer_use",
    "computer_use_preview",
    "programmatic_tool_calling",
]

IgnoredInTool: TypeAlias = Annotated[Any, Ignored("tools[]")]


def _require_direct_caller(callers: list[str] | None) -> list[str] | None:
    if callers and "direct" not in callers:
        raise wrong_value(
            "unsupported_value",
            "only the model calls tools here, and no program: add 'direct', or leave it out",
        )
    return callers


Callers: TypeAlias = Annotated[list[str] | None, AfterValidator(_require_direct_caller)]
"""Who may call a tool. `direct` must be among them: only the model calls tools here."""
AsyncCalls: TypeAlias = Annotated[Any, Field(alias="async"), Ignored("tools[]", name="async")]


class _ClientTool(RequestModel):
    type: str
    name: Name
    description: str | None = None
    defer_loading: bool | None = None
    allowed_callers: Callers = None
    is_async: AsyncCalls = None


class FunctionTool(_ClientTool):
    type: Literal["function"]
    parameters: Parameters | None = None
    strict: bool | None = None
    output_schema: IgnoredInTool = None


class GrammarFormat(RequestModel):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(_ClientTool):
    type: Literal["custom"]
    format: Annotated[TextFormat | GrammarFormat, ByKind()] | None = None


class NamespaceTool(RequestModel):
    """Tools of one namespace. Codex puts each of its MCP servers into one."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: list[Annotated[FunctionTool | CustomTool, ByKind()]]


class ToolSearchTool(RequestModel):
    """Finds deferred tools. `execution`: `client` runs it; otherwise OpenAI's servers would, and it is not offered."""

    type: Literal["tool_search"]
    execution: Literal["client", "server"] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class LocalShellTool(RequestModel):
    """The client's shell, for models that are trained to use one."""

    type: Literal["local_shell"]


class LocalSkill(RequestModel):
    """A folder on the client's machine whose text says how something is done."""

    name: str
    description: str
    path: str


class LocalEnvironment(RequestModel):
    type: Literal["local"]
    skills: list[LocalSkill] | None = None


class ContainerEnvironment(RequestModel):
    """A machine of OpenAI's, which is refused."""

    type: Literal["container_auto", "container_reference"]


class ShellTool(RequestModel):
    """A tool with which the client runs command lines in its own shell. Without an `environment` that is the client's
    machine, too.
    """

    type: Literal["shell"]
    environment: Annotated[LocalEnvironment | ContainerEnvironment, ByKind()] | None = None
    allowed_callers: Callers = None


class ApplyPatchTool(RequestModel):
    """Changes of the client's files."""

    type: Literal["apply_patch"]
    allowed_callers: Callers = None


MachineTool: TypeAlias = LocalShellTool | ShellTool | ApplyPatchTool
"""A tool that the client runs on its own machine."""


def runs_in_container(tool: RequestModel) -> bool:
    return isinstance(tool, ShellTool) and isinstance(tool.environment, ContainerEnvironment)


class McpToolFilter(RequestModel):
    tool_names: list[str] | None = None
    read_only: bool | None = None


class McpApprovalFilter(RequestModel):
    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class McpServerTool(RequestModel):
    """An MCP server whose tools this server runs. Without `server_url` (OpenAI's connectors) it is refused."""

    type: Literal["mcp"]
    server_label: Annotated[str, Field(min_length=1, max_length=128)]
    server_url: Annotated[str, Field(max_length=2048)] | None = None
    connector_id: str | None = None
    tunnel_id: Annotated[
        Any, Refused("tunnels lead to OpenAI's own servers and are not available here: give a 'server_url'")
    ] = None
    server_description: str | None = None
    allowed_callers: Callers = None
    defer_loading: IgnoredInTool = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    allowed_tools: Annotated[list[str] | McpToolFilter, ByKind()] | None = None
    require_approval: Annotated[Literal["always", "never"] | McpApprovalFilter, ByKind()] | None = None


class WebSearchTool(RequestModel):
    type: WebSearch
    search_context_size: Annotated[Literal["low", "medium", "high"] | None, Ignored("tools[]")] = None
    user_location: Annotated[dict[str, Any] | None, Ignored("tools[]")] = None
    filters: IgnoredInTool = None
    search_content_types: IgnoredInTool = None
    external_web_access: Annotated[bool | None, Ignored("tools[]", also_zero=True)] = None


class HostedTool(RequestModel, extra="allow"):
    """A tool that the model server runs, where the operator says that it may."""

    type: Hosted


class OpenAIsTool(RequestModel):
    """A tool that only OpenAI's servers run, listed so that the refusal can name it."""

    type: OpenAIs


AnyTool: TypeAlias = Annotated[
    FunctionTool
    | CustomTool
    | McpServerTool
    | WebSearchTool
    | NamespaceTool
    | ToolSearchTool
    | LocalShellTool
    | ShellTool
    | ApplyPatchTool
    | HostedTool
    | OpenAIsTool,
    ByKind(),
]

# --- the choice ---------------------------------------------------------------------------------


class ChosenTool(RequestModel):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class ChosenMcp(RequestModel):
    type: Literal["mcp"]
    server_label: str
    name: str | None = None


class ChosenWebSearch(RequestModel):
    type: WebSearch


class ChosenMachineTool(RequestModel):
    type: Literal["local_shell", "shell", "apply_patch"]


class ChosenHosted(RequestModel):
    type: Hosted


class ChosenOpenAIs(RequestModel):
    type: OpenAIs


Allowed: TypeAlias = Annotated[
    ChosenTool | ChosenMcp | ChosenWebSearch | ChosenMachineTool | ChosenHosted | ChosenOpenAIs, ByKind()
]


class ChosenAllowed(RequestModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[Allowed], Field(min_length=1, max_length=128)]


ToolChoice: TypeAlias = Annotated[
    Literal["auto", "none", "required"]
    | ChosenTool
    | ChosenMcp
    | ChosenWebSearch
    | ChosenMachineTool
    | ChosenHosted
    | ChosenOpenAIs
    | ChosenAllowed,
    ByKind(),
]


Label: TypeAlias = Annotated[str, Field(max_length=512)]
Include: TypeAlias = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]

Input: TypeAlias = Annotated[Annotated[str, Field(max_length=TEXT_LIMIT)] | list[AnyItem], ByKind()]


class ConversationId(RequestModel):
    id: str


Conversation: TypeAlias = Annotated[str | ConversationId, ByKind()]


class ReasoningOptions(RequestModel):
    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Annotated[Any, Ignored("reasoning")] = None
    mode: Annotated[Any, Ignored("reasoning")] = None


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]


class TextOptions(RequestModel):
    format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, ByKind()] | None = None
    verbosity: Verbosity | None = None


class StreamOptions(RequestModel):
    include_obfuscation: Annotated[bool | None, Ignored("stream_options")] = None


Stop: TypeAlias = Annotated[StopSequence | Annotated[list[StopSequence], Field(max_length=16)], ByKind()]
ModelName: TypeAlias = Annotated[str, Field(min_length=1)]


class ContextFields(RequestModel, extra="allow"):
    """The fields of the model's input, and the body of `POST /v1/responses/input_tokens`."""

    model: ModelName | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: Label | None = None
    conversation: Conversation | None = None
    tools: Annotated[list[AnyTool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None


class CompactRequest(ContextFields):
    """The body of `POST /v1/responses/compact`."""

    model: ModelName


class ResponseRequest(ContextFields, OpenAIRequest):
    """The body of `POST /v1/responses`. Each optional field may be null."""

    model: ModelName
    input: Input
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    user: Label | None = None
    background: bool | None = None
    background_options: Annotated[Any, Ignored()] = None
    stream_options: StreamOptions | None = None
    include: list[Include] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    prompt: Annotated[Any, Refused("stored prompts are not available: send 'instructions' and 'input'")] = (
        None
    )
    moderation: Annotated[
        Any, Refused("the server moderates nothing: leave it out, and moderate the texts yourself")
    ] = None
    prompt_cache_key: Label | None = None
    access_programs: Annotated[Any, Ignored()] = None
    image: Annotated[Any, Ignored()] = None
    safety_identifier: Label | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stop: Stop | None = None
