"""The errors of Anthropic's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, NotRequired, TypedDict

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.answers.fault_table import TABLE
from codex_proxy.surfaces.answers.renderer import JsonText, json_bytes, message_with_param, one_of, raw_text

STATUSES: Final = {kind: row.status for kind, row in TABLE.items()} | {
    FaultKind.UNSUPPORTED_MEDIA_TYPE: 400,
    FaultKind.INSUFFICIENT_QUOTA: 402,
    FaultKind.UPSTREAM_UNAUTHORIZED: 500,
    FaultKind.UPSTREAM_ERROR: 500,
    FaultKind.UPSTREAM_DISCONNECTED: 500,
    FaultKind.UPSTREAM_UNREACHABLE: 500,
    FaultKind.UNAVAILABLE: 529,
    FaultKind.STOPPING: 529,
}
"""The status by kind of fault. Those that are listed differ from OpenAI's."""
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
"""Error types by status; others are `OTHER_TYPE`."""
OTHER_TYPE: Final = "invalid_request_error"
THREADS_UNSUPPORTED: Final = "thread_unsupported_request"
"""The code on which SDKs send the whole conversation."""


def status_of(failure: Failure) -> int:
    """Returns the status before the first byte of the answer."""
    return STATUSES[failure.kind]


def type_of(status: int) -> str:
    return _TYPES.get(status, OTHER_TYPE)


class ErrorDetails(TypedDict):
    error_code: str


class AnthropicErrorObject(TypedDict):
    type: Annotated[str, one_of(sorted({*_TYPES.values(), OTHER_TYPE}))]
    message: JsonText
    details: NotRequired[ErrorDetails]


class AnthropicError(TypedDict):
    """The body of an error in Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


def error_body(failure: Failure, request_id: str) -> bytes:
    """Returns an error, with `details` where SDKs act on them, and the field before the message."""
    message = raw_text(message_with_param(failure))
    error: AnthropicErrorObject = {"type": type_of(status_of(failure)), "message": message}
    if failure.code == THREADS_UNSUPPORTED:
        error["details"] = {"error_code": THREADS_UNSUPPORTED}
    body: AnthropicError = {"type": "error", "error": error, "request_id": request_id}
    return json_bytes(body)


def error_event(failure: Failure, request_id: str) -> bytes:
    """Returns the event that ends a stream."""
    return b"event: error\ndata: " + error_body(failure, request_id) + b"\n\n"


def prompt_too_long(failure: Failure, count_tokens: Callable[[], int], window: int | None) -> Failure:
    """Returns a failure of the kind CONTEXT_LENGTH_EXCEEDED with the message `prompt is too long: N tokens > M
    maximum`, on which Claude Code summarises; others unchanged. `window`: the model's context window, if known.
    """
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED:
        return failure
    tokens = count_tokens()
    most = window or max(1, tokens - 1)
    message = f"prompt is too long: {max(tokens, most + 1)} tokens > {most} maximum"
    return msgspec.structs.replace(failure, message=message, param=None)
