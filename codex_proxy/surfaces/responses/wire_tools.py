"""The pydantic models of a Responses request's tools and choice. Sources: docs/contract.md#tools-of-a-response,
OpenAI's own types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field

from codex_proxy.surfaces.body import Parameters, RequestModel, wrong_value
from codex_proxy.surfaces.field_lists import Ignored, Refused
from codex_proxy.surfaces.unions import ByKind
from codex_proxy.surfaces.wire_types import Name, TextFormat

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
    """Command lines for the client's shell. Without an `environment` they are run there, too."""

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
    external_web_access: Annotated[bool | None, Ignored("tools[]", also_false=True)] = None


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
