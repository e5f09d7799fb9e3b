"""The pydantic models of a chat request; `requests/fields.py` says what is ignored or refused, `parse.py` checks what
depends on settings or several fields. Sources: docs/contract.md#parameters-of-chat-completions,
docs/contract.md#messages-and-parts, OpenAI's own types for the ranges.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from codex_proxy.surfaces.models import Effort
from codex_proxy.surfaces.requests.body import (
    CallId,
    HistoryName,
    Name,
    OpenAIRequest,
    Parameters,
    Positive,
    RequestModel,
    Seed,
    StopSequence,
    Summary,
    TextFormat,
    Verbosity,
)
from codex_proxy.surfaces.requests.fields import ByKind, Ignored, Refused

# --- what a message is made of ------------------------------------------------------------------

CacheBreakpoint: TypeAlias = Annotated[Any, Ignored("messages[].content[]")]


class TextPart(RequestModel):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint = None


class RefusalPart(RequestModel):
    type: Literal["refusal"]
    refusal: str


class ImageUrl(RequestModel):
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(RequestModel):
    type: Literal["image_url"]
    image_url: ImageUrl
    prompt_cache_breakpoint: CacheBreakpoint = None


class GivenFile(RequestModel):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(RequestModel):
    type: Literal["file"]
    file: GivenFile
    prompt_cache_breakpoint: CacheBreakpoint = None


class AudioPart(RequestModel):
    """Audio, which only an upstream of Chat Completions gets, unchanged; otherwise it is refused."""

    type: Literal["input_audio"]
    input_audio: Any = None
    prompt_cache_breakpoint: CacheBreakpoint = None


class OtherPart(RequestModel):
    """A part of an unknown type, for an upstream of Chat Completions only; otherwise it is refused."""

    type: str


AssistantPart: TypeAlias = Annotated[TextPart | RefusalPart | OtherPart, ByKind()]
ShownPart: TypeAlias = Annotated[TextPart | ImagePart | AudioPart | FilePart | OtherPart, ByKind()]
AssistantParts: TypeAlias = Annotated[list[AssistantPart], Field(min_length=1)]
ShownParts: TypeAlias = Annotated[list[ShownPart], Field(min_length=1)]

TextContent: TypeAlias = Annotated[str | Annotated[list[TextPart], Field(min_length=1)], ByKind()]
AssistantContent: TypeAlias = Annotated[str | AssistantParts, ByKind()]
ShownContent: TypeAlias = Annotated[str | ShownParts, ByKind()]


class CalledFunction(RequestModel):
    name: HistoryName
    arguments: str


class CalledCustom(RequestModel):
    name: HistoryName
    input: str


class FunctionCall(RequestModel):
    type: Literal["function"]
    id: CallId
    function: CalledFunction


class CustomCall(RequestModel):
    type: Literal["custom"]
    id: CallId
    custom: CalledCustom


HistoryToolCall: TypeAlias = Annotated[FunctionCall | CustomCall, ByKind()]

# --- messages -----------------------------------------------------------------------------------


class InstructionMessage(RequestModel):
    """A `system` or `developer` message; both are the same."""

    role: Literal["system", "developer"]
    content: TextContent
    name: str | None = None


class UserMessage(RequestModel):
    role: Literal["user"]
    content: ShownContent
    name: str | None = None


class AssistantMessage(RequestModel):
    role: Literal["assistant"]
    content: AssistantContent | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[HistoryToolCall] | None = None
    function_call: CalledFunction | None = None
    audio: Any = None


class ToolMessage(RequestModel):
    role: Literal["tool"]
    tool_call_id: CallId
    content: ShownContent


class FunctionMessage(RequestModel):
    role: Literal["function"]
    name: HistoryName
    content: str | None = None


AnyMessage: TypeAlias = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage, ByKind("role")
]

# --- tools --------------------------------------------------------------------------------------


class FunctionDefinition(RequestModel):
    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Grammar(RequestModel):
    definition: str
    syntax: Literal["lark", "regex"]


class GrammarFormat(RequestModel):
    type: Literal["grammar"]
    grammar: Grammar


class CustomDefinition(RequestModel):
    name: Name
    description: str | None = None
    format: Annotated[TextFormat | GrammarFormat, ByKind()] | None = None


class FunctionTool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class CustomTool(RequestModel):
    type: Literal["custom"]
    custom: CustomDefinition


AnyTool: TypeAlias = Annotated[FunctionTool | CustomTool, ByKind()]


class Named(RequestModel):
    name: str


class ChosenFunction(RequestModel):
    type: Literal["function"]
    function: Named


class ChosenCustom(RequestModel):
    type: Literal["custom"]
    custom: Named


ChosenTool: TypeAlias = Annotated[ChosenFunction | ChosenCustom, ByKind()]


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Field(min_length=1)]


class ChosenAllowed(RequestModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Annotated[
    Literal["auto", "none", "required"] | ChosenFunction | ChosenCustom | ChosenAllowed, ByKind()
]
LegacyChoice: TypeAlias = Annotated[Literal["auto", "none"] | Named, ByKind()]

# --- the request --------------------------------------------------------------------------------


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, Ignored("stream_options")] = None


class ReasoningOptions(RequestModel):
    effort: Effort | None = None
    summary: Summary | None = None


class WebSearchOptions(RequestModel):
    search_context_size: Annotated[Literal["low", "medium", "high"] | None, Ignored("web_search_options")] = (
        None
    )
    user_location: Annotated[dict[str, Any] | None, Ignored("web_search_options")] = None


class JsonSchemaFormat(RequestModel):
    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


Stop: TypeAlias = Annotated[StopSequence | Annotated[list[StopSequence], Field(max_length=4)], ByKind()]


class ChatRequest(OpenAIRequest):
    """The body of `POST /v1/chat/completions`. Optional fields may be null."""

    messages: Annotated[list[AnyMessage], Field(min_length=1)]
    model: str | None = None
    n: Positive | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    tools: Annotated[list[AnyTool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Field(max_length=128)] | None = None
    function_call: LegacyChoice | None = None
    response_format: ResponseFormat | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: WebSearchOptions | None = None
    logprobs: Any = None
    top_logprobs: int | None = None
    user: Annotated[str | None, Ignored()] = None
    prompt_cache_key: Annotated[str | None, Ignored()] = None
    safety_identifier: Annotated[str | None, Ignored()] = None
    moderation: Annotated[
        Any,
        Refused(
            "the server moderates nothing: leave it out, and moderate the texts yourself",
            unless_forwarded=True,
        ),
    ] = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Seed | None = None
    prediction: dict[str, Any] | None = None
