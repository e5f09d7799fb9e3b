"""The types of the Responses API's answers. Sources: docs/contract.md#the-response-object,
docs/wire-rules.md#the-responses-object.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from codex_proxy.surfaces.answer_types import Count, JsonText, Yes, one_of

Metadata = Annotated[dict[str, str], Meta(max_length=16)]


class StoredItem(TypedDict):
    """An item of input or output: one of OpenAI's types, or `codex:activity` if it was requested."""

    type: str
    id: str
    status: NotRequired[str]


class InputTokensDetails(TypedDict):
    cached_tokens: Count
    cache_write_tokens: Count


class OutputTokensDetails(TypedDict):
    reasoning_tokens: Count


class ResponseUsage(TypedDict):
    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count
    estimated: NotRequired[Yes]


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Annotated[str, one_of(("max_output_tokens", "content_filter"))]


class ResponseReasoning(TypedDict):
    effort: str | None
    summary: str | None


class ResponseFormat(TypedDict):
    type: str
    name: NotRequired[str]
    description: NotRequired[str | None]
    schema: NotRequired[Any]
    strict: NotRequired[bool]


class ResponseText(TypedDict):
    format: ResponseFormat
    verbosity: NotRequired[str]


class ResponseConversation(TypedDict):
    id: str


class ResponseEcho(TypedDict):
    """The fields of a response that repeat the request's."""

    background: bool
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: Count | None
    max_tool_calls: Count | None
    metadata: Metadata
    model: str
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoning | None
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: ResponseText
    tool_choice: Annotated[
        Any, Meta(extra_json_schema={"anyOf": [{"type": "string"}, {"type": "object", "required": ["type"]}]})
    ]
    tools: list[Annotated[Any, Meta(extra_json_schema={"type": "object", "required": ["type"]})]]
    top_logprobs: Count
    top_p: float
    truncation: Literal["auto", "disabled"]
    conversation: NotRequired[ResponseConversation]
    user: NotRequired[str]


class Response(ResponseEcho):
    id: JsonText
    object: Literal["response"]
    created_at: Count
    status: Annotated[
        str, one_of(("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"))
    ]
    completed_at: Count | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[StoredItem]
    usage: ResponseUsage | None


class ResponseEvent(TypedDict):
    """The `data:` of a stream's event; `event:` is its type. The last event is `done`."""

    type: str
    sequence_number: Count


class ResponseDeleted(TypedDict):
    id: str
    object: Literal["response.deleted"]
    deleted: Yes


class Compaction(TypedDict):
    id: str
    object: Literal["response.compaction"]
    created_at: Count
    output: list[Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["type", "id"]})]]
    usage: ResponseUsage


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: Count
    estimated: NotRequired[Yes]
