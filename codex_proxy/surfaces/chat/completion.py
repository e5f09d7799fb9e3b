"""The types of a chat completion, whole and as chunks. Source: docs/contract.md#streams."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from codex_proxy.surfaces.answer_types import Count, JsonText, Yes, one_of


class FunctionCall(TypedDict):
    name: JsonText
    arguments: JsonText


class CustomCall(TypedDict):
    name: JsonText
    input: JsonText


class ChatCall(TypedDict):
    """A call of a function or of a custom tool. The field named after its `type` has the rest."""

    id: JsonText
    type: Literal["function", "custom"]
    function: NotRequired[FunctionCall]
    custom: NotRequired[CustomCall]


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: JsonText | None
    refusal: JsonText | None
    tool_calls: NotRequired[Annotated[list[ChatCall], Meta(min_length=1)]]
    function_call: NotRequired[FunctionCall]
    reasoning_content: NotRequired[JsonText]
    annotations: NotRequired[Any]


class ChatChoice(TypedDict):
    index: Count
    message: ChatMessage
    logprobs: None
    finish_reason: JsonText


class PromptTokensDetails(TypedDict):
    cached_tokens: Count
    cache_write_tokens: NotRequired[Count]


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: Count


class ChatUsage(TypedDict):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    estimated: NotRequired[
        Annotated[
            Yes,
            Meta(description="The agent did not report all token counts; these are estimated from the text."),
        ]
    ]
    time_to_first_token: NotRequired[float | None]
    throughput_after_first_token: NotRequired[float | None]
    emission_trigger: NotRequired[Annotated[str, one_of(("token_count", "task_complete", "provider"))]]


class ChatCompletion(TypedDict):
    """An answer as a whole. An upstream's own fields are added to it."""

    id: JsonText
    object: Literal["chat.completion"]
    created: Count
    model: JsonText
    service_tier: NotRequired[str]
    choices: Annotated[list[ChatChoice], Meta(min_length=1)]
    usage: ChatUsage


class CallDelta(TypedDict):
    index: Count


class FunctionCallDelta(TypedDict, total=False):
    name: str
    arguments: str


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    refusal: str
    reasoning_content: str
    tool_calls: list[CallDelta]
    function_call: FunctionCallDelta


class ChunkChoice(TypedDict):
    index: Count
    delta: ChatDelta
    finish_reason: str | None


class ChatCompletionChunk(TypedDict):
    """One `data:` line of a stream; the last line is `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[ChatUsage | None]
