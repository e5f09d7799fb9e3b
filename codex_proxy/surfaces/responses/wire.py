"""The pydantic models of `POST /v1/responses`. Sources: docs/contract.md#fields-of-a-request,
docs/contract.md#sampling-beyond-openais, OpenAI's own types for the ranges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from codex_proxy.surfaces.body import RequestModel, StopSequence
from codex_proxy.surfaces.field_lists import Ignored, Refused
from codex_proxy.surfaces.item_wire import TEXT_LIMIT, AnyItem
from codex_proxy.surfaces.models import Effort
from codex_proxy.surfaces.responses.wire_tools import AnyTool, ToolChoice
from codex_proxy.surfaces.unions import ByKind
from codex_proxy.surfaces.wire_types import (
    JsonSchemaFormat,
    OpenAIRequest,
    Positive,
    Summary,
    TextFormat,
    Verbosity,
)

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
