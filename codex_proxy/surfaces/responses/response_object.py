"""Builds the response object: every key, with effective defaults; and the types of the Responses API's answers.
Sources: docs/contract.md#the-response-object, docs/wire-rules.md#the-responses-object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from codex_proxy.core.events import Stop, Usage
from codex_proxy.core.faults import CODES_OF_REFUSALS, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.json_values import without_surrogates
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.answers.renderer import Count, JsonText, Yes, one_of, raw_text
from codex_proxy.surfaces.requests.body import JsonSchemaFormat
from codex_proxy.surfaces.responses.history import encode_summary
from codex_proxy.surfaces.responses.tools import ResponsesTools
from codex_proxy.surfaces.responses.wire import ResponseRequest, TextOptions

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


def echo_of(
    request: ResponseRequest,
    offered: ResponsesTools,
    turn: Turn,
    *,
    service_tier: str,
    conversation: str | None,
) -> ResponseEcho:
    """Returns the fields that repeat the request, or effective defaults; of its `turn` the effort and the summary."""
    reasoning: ResponseReasoning | None = None
    if turn.effort is not None or turn.summary is not None:
        reasoning = {"effort": turn.effort, "summary": None if turn.summary == "none" else turn.summary}
    echo: ResponseEcho = {
        "background": bool(request.background),
        "frequency_penalty": 0.0 if request.frequency_penalty is None else request.frequency_penalty,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": {key: value for key, value in (request.metadata or {}).items() if value is not None},
        "model": request.model,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": 0.0 if request.presence_penalty is None else request.presence_penalty,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": reasoning,
        "safety_identifier": request.safety_identifier,
        "service_tier": service_tier,
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": _text(request.text),
        "tool_choice": offered.shown_choice,
        "tools": offered.shown,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
    }
    if conversation is not None:
        echo["conversation"] = {"id": conversation}
    if request.user is not None:
        echo["user"] = request.user
    return echo


def summary_of(request: ResponseRequest) -> str | None:
    """Returns the kind of summary that the current or the older field asks for."""
    options = request.reasoning
    return None if options is None else options.summary or options.generate_summary


def _text(options: TextOptions | None) -> ResponseText:
    wanted = options.format if options else None
    shown: ResponseText = {"format": {"type": wanted.type if wanted else "text"}}
    if isinstance(wanted, JsonSchemaFormat):
        shown["format"] = {
            "type": wanted.type,
            "name": wanted.name,
            "description": wanted.description,
            "schema": wanted.schema_,
            "strict": bool(wanted.strict),
        }
    if options and options.verbosity:
        shown["verbosity"] = options.verbosity
    return shown


_REASONS: Final[dict[str, str]] = {Stop.LENGTH: "max_output_tokens", Stop.CONTENT_FILTER: "content_filter"}
_CODES: Final = CODES_OF_REFUSALS | {"server_error", "rate_limit_exceeded", "vector_store_timeout"}
"""The values of `error.code` that OpenAI's types allow."""
_LIMITS: Final = frozenset(
    {
        FaultKind.RATE_LIMITED,
        FaultKind.CONCURRENCY_EXCEEDED,
        FaultKind.AGENT_RATE_LIMITED,
        FaultKind.USAGE_LIMIT_REACHED,
        FaultKind.INSUFFICIENT_QUOTA,
    }
)


_STATUSES: Final[dict[str, str]] = {
    Stop.LENGTH: "incomplete",
    Stop.CONTENT_FILTER: "incomplete",
    Stop.FAILED: "failed",
    Stop.INTERRUPTED: "cancelled",
}


def status_of(stop: str) -> str:
    """Returns the response's status; `completed` for unknown reasons."""
    return _STATUSES.get(stop, "completed")


def incomplete_details(stop: str) -> IncompleteDetails | None:
    """Returns the field for a response that was cut off; None if it is complete."""
    return {"reason": _REASONS[stop]} if stop in _REASONS else None


def error_object(failure: Failure) -> ResponseError:
    """Returns an error with a code that OpenAI's types allow."""
    code = failure.code if failure.code in _CODES else None
    if code is None:
        code = "rate_limit_exceeded" if failure.kind in _LIMITS else "server_error"
    return {"code": code, "message": without_surrogates(failure.message)}


def usage_object(usage: Usage, *, estimated: bool = False) -> ResponseUsage:
    figures: ResponseUsage = {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
    if estimated:
        figures["estimated"] = True
    return figures


class ResponseHead:
    """The fields of a response object that stay the same while the response is made."""

    def __init__(self, id: str, created_at: int, echo: Mapping[str, msgspec.Raw]) -> None:
        self._first = {"id": raw_text(id), "object": "response", "created_at": created_at}
        self._echo = dict(echo)

    def set_service_tier(self, tier: msgspec.Raw) -> None:
        """Sets the service tier. `tier`: JSON, from the model server."""
        self._echo["service_tier"] = tier

    def object(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        completed_at: int | None = None,
        error: ResponseError | None = None,
        incomplete: IncompleteDetails | None = None,
        usage: ResponseUsage | None = None,
    ) -> dict[str, Any]:
        """Returns the response object. `completed_at`: seconds since 1970."""
        return {
            **self._first,
            "status": status,
            "completed_at": completed_at,
            "error": error,
            "incomplete_details": incomplete,
            "output": output,
            "usage": usage,
            **self._echo,
        }


INPUT_ITEMS_LIMIT: Final = 20
_RUNNING: Final = frozenset({"queued", "in_progress"})


def deleted_response(id: str) -> ResponseDeleted:
    return {"id": id, "object": "response.deleted", "deleted": True}


def cancel_action(response: Mapping[str, Any]) -> Literal["cancel", "keep"]:
    """Returns `cancel` for a running background response, `keep` for an ended one."""
    if not response["background"]:
        raise bad_request(
            "This response was not created with 'background': true. Synchronous and streaming responses cannot be "
            "cancelled: closing the connection ends them.",
            code="cancellation_not_supported",
        )
    return "cancel" if response["status"] in _RUNNING else "keep"


def cancelled_response(response: Mapping[str, Any]) -> dict[str, Any]:
    return {**response, "status": "cancelled"}


def failed_response(response: Mapping[str, Any], failure: Failure) -> dict[str, Any]:
    return {**response, "status": "failed", "error": error_object(failure)}


def compaction_object(*, id: str, created_at: int, item_id: str, summary: str, usage: Usage) -> Compaction:
    """Returns an object whose output begins the client's next input. `created_at`: seconds since 1970."""
    item = {"type": "compaction", "id": item_id, "encrypted_content": encode_summary(summary)}
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": [item],
        "usage": usage_object(usage),
    }


def token_count(tokens: int) -> InputTokens:
    # Agents cannot count without a model call.
    return {"object": "response.input_tokens", "input_tokens": max(1, tokens), "estimated": True}


# --- what is not there --------------------------------------------------------------------------


def not_found(id: str) -> Fault:
    """Returns the fault for an unknown or deleted response, or another key's."""
    return Fault.of(FaultKind.NOT_FOUND, f"Response with id '{excerpt(id)}' not found.")


def previous_not_found(id: str) -> Fault:
    """Returns the fault for a previous response that is unknown or was not stored."""
    return bad_request(
        f"Previous response with id '{excerpt(id)}' not found.",
        "previous_response_id",
        "previous_response_not_found",
    )


def previous_too_large(detail: str) -> Fault:
    """Returns the fault for previous responses that are too large together. `detail`: how large they are."""
    return bad_request(
        f"The responses up to this one are too large to continue from: {detail}. Start again "
        "without 'previous_response_id', with what matters from them in 'input'.",
        "previous_response_id",
        "context_too_large",
    )


def references_too_large(detail: str) -> Fault:
    """Returns the fault for items in `input` that refer to too much. `detail`: how large it is."""
    message = f"The items that 'input' refers to are too large together: {detail}. Refer to fewer of them."
    return bad_request(message, "input", "context_too_large")


def not_resumable(id: str) -> Fault:
    return bad_request(
        f"The stream of response '{excerpt(id)}' cannot be resumed: only background responses that were "
        "created with 'stream': true keep their events.",
        "stream",
        "stream_not_resumable",
    )
