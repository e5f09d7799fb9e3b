"""The faults of Anthropic's API: status and type of each kind, and when clients must not try again. Claude Code repeats
a 401 for minutes unless `x-should-retry` forbids it, and summarises on a 400 "prompt is too long".
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, NotRequired, TypedDict

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.answer_types import JsonText, one_of
from codex_proxy.surfaces.base import json_bytes, raw_text


class FaultRow(NamedTuple):
    """Status and type of a kind of fault. `lasting`: the same request always fails."""

    status: int
    type: str
    lasting: bool = False


_REQUEST: Final = "invalid_request_error"
_LIMIT: Final = "rate_limit_error"
_SERVER: Final = "api_error"

TABLE: Final[dict[FaultKind, FaultRow]] = {
    FaultKind.INVALID_REQUEST: FaultRow(400, _REQUEST),
    FaultKind.REJECTED_BY_PROVIDER: FaultRow(400, _REQUEST),
    FaultKind.CONTEXT_LENGTH_EXCEEDED: FaultRow(400, _REQUEST),
    FaultKind.UNSUPPORTED_MEDIA_TYPE: FaultRow(400, _REQUEST),
    FaultKind.HEADERS_TOO_LARGE: FaultRow(431, _REQUEST),
    FaultKind.INVALID_API_KEY: FaultRow(401, "authentication_error", lasting=True),
    FaultKind.AGENT_NOT_AUTHENTICATED: FaultRow(401, "authentication_error", lasting=True),
    FaultKind.INSUFFICIENT_QUOTA: FaultRow(402, "billing_error", lasting=True),
    FaultKind.NOT_ALLOWED: FaultRow(403, "permission_error"),
    FaultKind.MODEL_NOT_FOUND: FaultRow(404, "not_found_error"),
    FaultKind.NOT_FOUND: FaultRow(404, "not_found_error"),
    FaultKind.METHOD_NOT_ALLOWED: FaultRow(405, _REQUEST),
    FaultKind.REQUEST_TOO_LARGE: FaultRow(413, "request_too_large"),
    FaultKind.RATE_LIMITED: FaultRow(429, _LIMIT),
    FaultKind.CONCURRENCY_EXCEEDED: FaultRow(429, _LIMIT),
    FaultKind.AGENT_RATE_LIMITED: FaultRow(429, _LIMIT),
    FaultKind.USAGE_LIMIT_REACHED: FaultRow(429, _LIMIT),
    FaultKind.CANCELLED: FaultRow(499, _REQUEST, lasting=True),
    FaultKind.SPAWN_FAILED: FaultRow(500, _SERVER),
    FaultKind.AGENT_CRASHED: FaultRow(500, _SERVER),
    FaultKind.AGENT_PROTOCOL: FaultRow(500, _SERVER),
    FaultKind.AGENT_MISCONFIGURED: FaultRow(500, _SERVER, lasting=True),
    FaultKind.INTERNAL: FaultRow(500, _SERVER),
    FaultKind.UPSTREAM_UNAUTHORIZED: FaultRow(500, _SERVER, lasting=True),
    FaultKind.UPSTREAM_ERROR: FaultRow(500, _SERVER),
    FaultKind.UPSTREAM_DISCONNECTED: FaultRow(500, _SERVER),
    FaultKind.UPSTREAM_UNREACHABLE: FaultRow(500, _SERVER),
    FaultKind.UPSTREAM_TIMEOUT: FaultRow(504, "timeout_error"),
    FaultKind.TIMED_OUT: FaultRow(504, "timeout_error"),
    FaultKind.UNAVAILABLE: FaultRow(529, "overloaded_error"),
    FaultKind.STOPPING: FaultRow(529, "overloaded_error"),
}

THREADS_UNSUPPORTED: Final = "thread_unsupported_request"
"""The code of a refused `thread`, on which the SDKs' tool runners send the whole conversation."""

MAX_WAIT: Final = 60
"""The longest `Retry-After`, in seconds, that Claude Code and the SDKs obey."""


def status_of(failure: Failure) -> int:
    """Returns the status of a fault before the first byte of the answer."""
    return TABLE[failure.kind].status


def forbids_retry(failure: Failure) -> bool:
    """Whether the answer needs `x-should-retry: false`: a retry would fail, or help only after a long time."""
    if not failure.repeatable or TABLE[failure.kind].lasting:
        return True
    if failure.retry_after is None:
        return failure.kind is FaultKind.USAGE_LIMIT_REACHED
    return failure.retry_after > MAX_WAIT


class ErrorDetails(TypedDict):
    error_code: str


class AnthropicErrorObject(TypedDict):
    type: Annotated[str, one_of(sorted({row.type for row in TABLE.values()}))]
    message: JsonText
    details: NotRequired[ErrorDetails]


class AnthropicError(TypedDict):
    """The body of an error in Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


def error_body(failure: Failure, request_id: str) -> bytes:
    """Returns `{"type": "error", "error": {type, message}, "request_id"}`, with `details` where SDKs act on them, and
    the field before the message.
    """
    message = failure.message
    if failure.param and failure.param not in message:
        message = f"{failure.param}: {message}"
    error: AnthropicErrorObject = {"type": TABLE[failure.kind].type, "message": raw_text(message)}
    if failure.code == THREADS_UNSUPPORTED:
        error["details"] = {"error_code": THREADS_UNSUPPORTED}
    body: AnthropicError = {"type": "error", "error": error, "request_id": request_id}
    return json_bytes(body)


def error_event(failure: Failure, request_id: str) -> bytes:
    """Returns the SSE event `error`, which ends a stream that has begun."""
    return b"event: error\ndata: " + error_body(failure, request_id) + b"\n\n"


def prompt_too_long(failure: Failure, tokens: int, window: int | None) -> Failure:
    """Returns a CONTEXT_LENGTH_EXCEEDED failure as `prompt is too long: N tokens > M maximum`; any other unchanged.
    `tokens` is an estimate, `window` the model's context window, if known.
    """
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED:
        return failure
    most = window or max(1, tokens - 1)
    message = f"prompt is too long: {max(tokens, most + 1)} tokens > {most} maximum"
    return msgspec.structs.replace(failure, message=message, param=None)
