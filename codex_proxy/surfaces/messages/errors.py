"""The errors of Anthropic's API, and when clients must not try again."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, NotRequired, TypedDict

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces import fault_table
from codex_proxy.surfaces.answer_types import JsonText, one_of
from codex_proxy.surfaces.base import json_bytes, raw_text


class FaultRow(NamedTuple):
    """How one kind of fault is answered. `lasting`: the same request always fails."""

    status: int
    type: str
    lasting: bool


_STATUSES: Final[dict[FaultKind, int]] = {
    FaultKind.UNSUPPORTED_MEDIA_TYPE: 400,
    FaultKind.INSUFFICIENT_QUOTA: 402,
    FaultKind.UPSTREAM_UNAUTHORIZED: 500,
    FaultKind.UPSTREAM_ERROR: 500,
    FaultKind.UPSTREAM_DISCONNECTED: 500,
    FaultKind.UPSTREAM_UNREACHABLE: 500,
    FaultKind.UNAVAILABLE: 529,
    FaultKind.STOPPING: 529,
}
"""Statuses that differ from OpenAI's."""
_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Error types by status; other statuses are `invalid_request_error`."""
_LASTING: Final = frozenset(
    {
        FaultKind.INVALID_API_KEY,
        FaultKind.AGENT_NOT_AUTHENTICATED,
        FaultKind.INSUFFICIENT_QUOTA,
        FaultKind.CANCELLED,
        FaultKind.AGENT_MISCONFIGURED,
        FaultKind.UPSTREAM_UNAUTHORIZED,
    }
)
"""Kinds of failures with which the same request always fails."""


def _row(kind: FaultKind) -> FaultRow:
    status = _STATUSES.get(kind, fault_table.TABLE[kind].status)
    return FaultRow(status, _TYPES.get(status, "invalid_request_error"), kind in _LASTING)


TABLE: Final = {kind: _row(kind) for kind in fault_table.TABLE}

THREADS_UNSUPPORTED: Final = "thread_unsupported_request"
"""The code on which SDKs send the whole conversation."""

MAX_WAIT: Final = 60
"""Claude Code and the SDKs obey no longer `Retry-After`, in seconds."""


def status_of(failure: Failure) -> int:
    """Returns the status before the first byte of the answer."""
    return TABLE[failure.kind].status


def forbids_retry(failure: Failure) -> bool:
    """Whether a retry would fail, or help only much later."""
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
    """Returns an error, with `details` where SDKs act on them, and the field before the message."""
    message = failure.message
    if failure.param and failure.param not in message:
        message = f"{failure.param}: {message}"
    error: AnthropicErrorObject = {"type": TABLE[failure.kind].type, "message": raw_text(message)}
    if failure.code == THREADS_UNSUPPORTED:
        error["details"] = {"error_code": THREADS_UNSUPPORTED}
    body: AnthropicError = {"type": "error", "error": error, "request_id": request_id}
    return json_bytes(body)


def error_event(failure: Failure, request_id: str) -> bytes:
    """Returns the event that ends a stream."""
    return b"event: error\ndata: " + error_body(failure, request_id) + b"\n\n"


def prompt_too_long(failure: Failure, tokens: int, window: int | None) -> Failure:
    """Returns `prompt is too long: N tokens > M maximum`, on which Claude Code summarises. `window`: the model's."""
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED:
        return failure
    most = window or max(1, tokens - 1)
    message = f"prompt is too long: {max(tokens, most + 1)} tokens > {most} maximum"
    return msgspec.structs.replace(failure, message=message, param=None)
