"""The bodies of OpenAI's Agents API: pydantic models, and their parsers. Inside of `agent`, `environment`, `input` and
`events` an unknown field is an error; at the top level it is ignored and named. Raises `Fault` INVALID_REQUEST. Source:
docs/agents-api.md, OpenAI's own types for the fields.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from codex_proxy.agents.shared.forms import MAX_FIELDS
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.shown_text import escape
from codex_proxy.surfaces.models import Effort
from codex_proxy.surfaces.requests.body import Name, Parameters, RequestModel, parse_as, wrong_value
from codex_proxy.surfaces.requests.fields import ByKind, Refused, ignored_fields
from codex_proxy.surfaces.responses.item_wire import TEXT_LIMIT

M = TypeVar("M", bound=RequestModel)

MAX_TOOL_BYTES: Final = 3 << 20
"""Maximum bytes of an agent's tools as compact JSON, as at OpenAI."""

MAX_WORDS: Final = 10_000
"""Maximum characters of what the model is told of a denial."""

Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT)]


def _require_text(metadata: dict[str, str] | None) -> dict[str, str] | None:
    if metadata is not None and not all(metadata):
        raise wrong_value("invalid_value", "a key of metadata must not be empty")
    return metadata


AgentMetadata: TypeAlias = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    AfterValidator(_require_text),
]


class Exact(RequestModel, extra="forbid"):
    """The base of objects in which an unknown field is an error."""

    def as_given(self) -> dict[str, Any]:
        """Returns the object with the fields that the client gave."""
        # By the types of the values: pydantic does not know the kinds of `ByKind` when it writes.
        return self.model_dump(by_alias=True, exclude_unset=True, serialize_as_any=True, warnings=False)


# --- tools --------------------------------------------------------------------------------------


class FunctionTool(Exact):
    """A function that the client runs."""

    type: Literal["function"]
    name: Name
    description: str
    parameters: Parameters
    defer_loading: bool = False
    is_async: Annotated[bool | None, Field(alias="async")] = None


class ToolSearch(Exact):
    type: Literal["tool_search"]


class ProgrammaticToolCalling(Exact):
    type: Literal["programmatic_tool_calling"]
    enabled: Annotated[
        bool,
        Refused(
            "no program calls tools here: leave the tool out, or set 'enabled' to false",
            "unsupported_by_server",
        ),
        Field(validate_default=True),
    ] = True


class HttpTransport(Exact):
    type: Literal["http"]
    server_url: Annotated[str, Field(min_length=1, max_length=2048)]
    authorization: str | None = None
    headers: dict[str, str] | None = None


class StdioTransport(Exact):
    """A program on this machine, which is refused."""

    type: Literal["stdio"]
    command: str
    cwd: str
    args: list[str] | None = None
    env: dict[str, str] | None = None
    env_vars: list[str] | None = None


class McpTool(Exact):
    """The tools of an MCP server, which this server calls."""

    type: Literal["mcp"]
    server_label: Annotated[str, Field(min_length=1, max_length=128)]
    transport: Annotated[HttpTransport | StdioTransport, ByKind()]
    allowed_tools: list[str] | None = None
    connection_origin: Literal["service", "environment"] | None = None
    credential_id: Annotated[
        str | None,
        Refused(
            "this server keeps no credentials: give 'transport.authorization' in the session",
            "unsupported_by_server",
        ),
    ] = None
    request_metadata: dict[str, Any] | None = None
    required: bool = False


class SearchLocation(Exact):
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchTool(Exact):
    type: Literal["web_search"]
    mode: Literal["disabled", "cached", "live"] | None = None
    context_size: Literal["low", "medium", "high"] | None = None
    allowed_domains: list[str] | None = None
    location: SearchLocation | None = None


class HostedTool(Exact, extra="allow"):
    """A tool that only OpenAI's service runs, listed so that the refusal can name it."""

    type: Literal["computer_use", "automations"]


AgentTool: TypeAlias = Annotated[
    FunctionTool | ToolSearch | ProgrammaticToolCalling | McpTool | WebSearchTool | HostedTool, ByKind()
]
Tools: TypeAlias = Annotated[list[AgentTool], Field(max_length=128)]

# --- an agent -----------------------------------------------------------------------------------


class Reasoning(Exact):
    effort: Effort | None = None
    summary: Literal["concise", "detailed", "auto"] | None = None


class PlainText(Exact):
    type: Literal["text"]


class JsonSchema(Exact):
    type: Literal["json_schema"]
    schema_: Annotated[Parameters, Field(alias="schema")]


class TextSettings(Exact):
    format: Annotated[PlainText | JsonSchema, ByKind()] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class MultiAgent(Exact):
    enabled: bool
    max_concurrent_subagents: Annotated[int, Field(ge=1, le=64)] | None = None


class Compaction(Exact):
    is_async: Annotated[bool | None, Field(alias="async")] = None


class Experimental(Exact):
    time_awareness: bool | None = None


ServiceTier: TypeAlias = Literal["auto", "default", "flex", "priority", "fast", "ultrafast"]
ModelName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class AgentFields(Exact):
    """The settings of an agent in a session."""

    model: ModelName | None = None
    instructions: Annotated[str, Field(max_length=TEXT_LIMIT)] | None = None
    tools: Tools | None = None
    reasoning: Reasoning | None = None
    text: TextSettings | None = None
    service_tier: ServiceTier | None = None
    multi_agent: MultiAgent | None = None
    compaction: Compaction | None = None
    experimental: Experimental | None = None


class AgentBody(AgentFields):
    """The body of `POST /v1/agents/{id}`."""

    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    metadata: AgentMetadata | None = None


class CreateAgentBody(AgentBody):
    """The body of `POST /v1/agents`."""

    model: ModelName


# --- a session ----------------------------------------------------------------------------------


class NoEnvironment(Exact):
    type: Literal["none"]


class SelfHosted(Exact):
    """A folder of this machine."""

    type: Literal["self_hosted"]
    workspace_directory: Annotated[str, Field(min_length=1, max_length=4096)]
    remote_url: str | None = None
    capability_directories: Annotated[
        list[str] | None,
        Refused("this server offers no capability directories: leave the field out", "unsupported_by_server"),
    ] = None


class OpenAIHosted(Exact, extra="allow"):
    """A sandbox of OpenAI's, which is refused."""

    type: Literal["openai_hosted"]


Environment: TypeAlias = Annotated[NoEnvironment | SelfHosted | OpenAIHosted, ByKind()]


class InputText(Exact):
    type: Literal["input_text"]
    text: Text


class InputImage(Exact):
    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]


Part: TypeAlias = Annotated[InputText | InputImage, ByKind()]
Content: TypeAlias = Annotated[list[Part], Field(min_length=1, max_length=1000)]


class InputMessage(Exact):
    role: Literal["user"]
    content: Content
    type: Literal["message"] = "message"


Messages: TypeAlias = Annotated[list[InputMessage], Field(min_length=1, max_length=1000)]


class StreamOptions(Exact):
    include_obfuscation: bool | None = None


def _refuse_review(given: str) -> str:
    if given == "auto_review":
        raise wrong_value("unsupported_by_agent", "no agent of this server reviews actions: use 'none'")
    return given


Review: TypeAlias = Annotated[Literal["none", "auto_review"], AfterValidator(_refuse_review)]


class SessionBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions`."""

    environment: Environment
    agent: AgentFields | None = None
    agent_id: Annotated[str, Field(min_length=1)] | None = None
    input: Annotated[Text | Messages, ByKind()] | None = None
    metadata: AgentMetadata | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    review: Review = "none"
    vault_ids: Annotated[
        list[str] | None,
        Refused(
            "this server keeps no credentials: name the MCP server in the settings", "unsupported_by_server"
        ),
    ] = None


class SessionAgentUpdate(Exact):
    model: ModelName | None = None
    reasoning: Reasoning | None = None
    service_tier: ServiceTier | None = None
    tools: Tools | None = None


class SessionUpdateBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions/{id}`."""

    metadata: AgentMetadata | None = None
    agent: SessionAgentUpdate | None = None
    review: Review = "none"


def _in_one_line(title: str) -> str:
    line = " ".join(title.split())
    if not line:
        raise wrong_value("invalid_value", "a title must not be blank: give null for none")
    return escape(line)


Title: TypeAlias = Annotated[str, Field(max_length=200), AfterValidator(_in_one_line)]


class ForkBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions/{id}/fork`."""

    before_item: Annotated[str, Field(min_length=1)] | None = None
    folder: Annotated[str, Field(min_length=1)] | None = None
    title: Title | None = None


class ResponseSessionBody(RequestModel, extra="allow"):
    """The body of `POST /v1/responses/{id}/session`."""

    environment: Environment = Field(default_factory=lambda: NoEnvironment(type="none"))


class SummaryBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions/{id}/summary`."""

    title: Title | None = None
    archived: bool = False


# --- events of a client -------------------------------------------------------------------------


class MessageInput(Exact):
    type: Literal["agent.session.input.message"]
    input: Messages


class CancelInput(Exact):
    type: Literal["agent.session.input.cancel"]


class ToolResultInput(Exact):
    type: Literal["agent.session.input.tool_result"]
    turn_id: Annotated[str, Field(min_length=1)]
    call_id: Annotated[str, Field(min_length=1)]
    success: bool
    output: (
        Annotated[
            Annotated[str, Field(max_length=TEXT_LIMIT)] | Annotated[list[Part], Field(max_length=1000)],
            ByKind(),
        ]
        | None
    ) = None
    error: Annotated[str, Field(max_length=TEXT_LIMIT)] | None = None


class McpDecision(Exact):
    type: Literal["mcp_tool_call"]
    decision: Literal["approve", "deny", "cancel"]


class McpApprovalInput(Exact):
    type: Literal["agent.session.input.mcp_approval_request_result"]
    request_id: Annotated[str, Field(min_length=1)]
    response: McpDecision


class ComputerUseInput(Exact, extra="allow"):
    """An answer to what only OpenAI's sandboxes ask."""

    type: Literal["agent.session.input.computer_use_approval_request_result"]


InputEvent: TypeAlias = Annotated[
    MessageInput | CancelInput | ToolResultInput | McpApprovalInput | ComputerUseInput, ByKind()
]


class EventsBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions/{id}/events`."""

    events: Annotated[list[InputEvent], Field(max_length=1000)]


class AnswerBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions/{id}/asks/{request_id}`."""

    decision: Literal["approve", "deny"]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """That of the question, as it was shown."""
    for_session: bool | None = None
    """Whether what the question's `rule` says is permitted from now on."""
    message: Annotated[str | None, Field(max_length=MAX_WORDS)] = None
    """What the model is told of a denial."""
    content: Annotated[dict[str, Any] | None, Field(max_length=MAX_FIELDS)] = None
    """The values of a form, by the names of its fields."""


# --- parsing ------------------------------------------------------------------------------------


def parse_body_of(model: type[M], body: bytes) -> tuple[M, tuple[str, ...]]:
    """Returns the body as a `model`, and the fields of its top level without effect. An empty body and `null` are an
    empty object. Raises `Fault`.
    """
    stripped = body.strip()
    parsed, notes = parse_as(model, b"{}" if stripped in (b"", b"null") else body)
    return parsed, ignored_fields(notes)


def refuse(message: str, param: str | None) -> Fault:
    """Returns the fault of a field for what this server does not have."""
    return bad_request(message, param, "unsupported_by_server")
