"""The faults of OpenAI's APIs: status, type and code of each kind; Anthropic's are in `messages/errors.py`. A failure's
own code (the provider's) replaces the table's. Sources: docs/contract.md#errors-of-chat-completions,
docs/contract.md#errors-of-responses, docs/wire-rules.md#errors.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, TypedDict

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.answer_types import JsonText, one_of
from codex_proxy.surfaces.base import json_bytes, raw_text
from codex_proxy.surfaces.messages import errors as messages
from codex_proxy.surfaces.ollama import errors as ollama

OpenAISurface: TypeAlias = Literal["chat", "responses"]
Surface: TypeAlias = OpenAISurface | Literal["messages", "ollama"]


class FaultRow(NamedTuple):
    """Status, type and code of a kind of fault. `wait` is its `Retry-After` in seconds, if the failure has none."""

    status: int
    type: str
    code: str | None
    wait: int | None = None


_REQUEST: Final = "invalid_request_error"
_LIMIT: Final = "rate_limit_error"
_SERVER: Final = "server_error"

TABLE: Final[dict[FaultKind, FaultRow]] = {
    FaultKind.INVALID_REQUEST: FaultRow(400, _REQUEST, None),
    FaultKind.REJECTED_BY_PROVIDER: FaultRow(400, _REQUEST, "rejected_by_provider"),
    FaultKind.CONTEXT_LENGTH_EXCEEDED: FaultRow(400, _REQUEST, "context_length_exceeded"),
    FaultKind.INVALID_API_KEY: FaultRow(401, "authentication_error", "invalid_api_key"),
    FaultKind.AGENT_NOT_AUTHENTICATED: FaultRow(401, "authentication_error", "agent_not_authenticated"),
    FaultKind.NOT_ALLOWED: FaultRow(403, "permission_error", "not_allowed"),
    FaultKind.MODEL_NOT_FOUND: FaultRow(404, _REQUEST, "model_not_found"),
    FaultKind.NOT_FOUND: FaultRow(404, "not_found_error", "not_found"),
    FaultKind.METHOD_NOT_ALLOWED: FaultRow(405, _REQUEST, "method_not_allowed"),
    FaultKind.REQUEST_TOO_LARGE: FaultRow(413, _REQUEST, "request_too_large"),
    FaultKind.HEADERS_TOO_LARGE: FaultRow(431, _REQUEST, "headers_too_large"),
    FaultKind.UNSUPPORTED_MEDIA_TYPE: FaultRow(415, _REQUEST, "unsupported_media_type"),
    FaultKind.RATE_LIMITED: FaultRow(429, _LIMIT, "rate_limit_exceeded", wait=1),
    FaultKind.CONCURRENCY_EXCEEDED: FaultRow(429, _LIMIT, "concurrency_exceeded", wait=1),
    FaultKind.AGENT_RATE_LIMITED: FaultRow(429, _LIMIT, "rate_limit_exceeded"),
    FaultKind.USAGE_LIMIT_REACHED: FaultRow(429, _LIMIT, "usage_limit_reached"),
    FaultKind.INSUFFICIENT_QUOTA: FaultRow(429, _LIMIT, "insufficient_quota"),
    FaultKind.CANCELLED: FaultRow(499, _REQUEST, "cancelled"),
    FaultKind.SPAWN_FAILED: FaultRow(500, _SERVER, "spawn_error"),
    FaultKind.AGENT_CRASHED: FaultRow(500, _SERVER, "agent_crashed"),
    FaultKind.AGENT_PROTOCOL: FaultRow(500, _SERVER, "agent_protocol_error"),
    FaultKind.AGENT_MISCONFIGURED: FaultRow(500, _SERVER, "agent_misconfigured"),
    FaultKind.INTERNAL: FaultRow(500, _SERVER, "internal_error"),
    FaultKind.UPSTREAM_UNAUTHORIZED: FaultRow(502, _SERVER, "upstream_unauthorized"),
    FaultKind.UPSTREAM_ERROR: FaultRow(502, _SERVER, "upstream_error"),
    FaultKind.UPSTREAM_DISCONNECTED: FaultRow(502, _SERVER, "upstream_disconnected"),
    FaultKind.UPSTREAM_UNREACHABLE: FaultRow(502, _SERVER, "upstream_unreachable"),
    FaultKind.UNAVAILABLE: FaultRow(503, _SERVER, "service_unavailable", wait=1),
    FaultKind.STOPPING: FaultRow(503, _SERVER, "service_unavailable", wait=1),
    FaultKind.UPSTREAM_TIMEOUT: FaultRow(504, "timeout_error", "request_timeout"),
    FaultKind.TIMED_OUT: FaultRow(504, "timeout_error", "request_timeout"),
}

RESPONSES_TYPES: Final = {500: "internal_error", 503: "service_unavailable"}
"""Error types of the Responses API that differ from Chat Completions, by status."""


def row_of(failure: Failure, surface: OpenAISurface) -> FaultRow:
    """Returns the failure's row, with its own code if it has one."""
    row = TABLE[failure.kind]
    if surface == "responses":
        row = row._replace(type=RESPONSES_TYPES.get(row.status, row.type))
    return row if failure.code is None else row._replace(code=failure.code)


def _row(failure: Failure) -> FaultRow:
    """Returns the row of a failure, for what all APIs but Anthropic's have in common."""
    return row_of(failure, "chat")


def status_of(failure: Failure, surface: Surface) -> int:
    """Returns the status of a failure before the first byte of the answer."""
    return messages.status_of(failure) if surface == "messages" else _row(failure).status


def statuses(surface: Surface) -> tuple[int, ...]:
    """Returns every status of this API, ascending."""
    rows = messages.TABLE.values() if surface == "messages" else TABLE.values()
    return tuple(sorted({row.status for row in rows}))


def forbids_retry(failure: Failure, surface: Surface) -> bool:
    """Whether the answer gets `x-should-retry: false`, without which SDKs repeat the request."""
    return messages.forbids_retry(failure) if surface == "messages" else not failure.repeatable


def error_body(failure: Failure, surface: Surface, request_id: str = "") -> bytes:
    """Returns the body of an error in OpenAI's form, Anthropic's (with the request's id), or Ollama's."""
    if surface == "messages":
        return messages.error_body(failure, request_id)
    if surface == "ollama":
        return ollama.error_body(failure)
    return _envelope(failure, surface, failure.param)


def error_frame(failure: Failure) -> bytes:
    """Returns the SSE frame of an error that ends a chat stream; its `param` is null."""
    return b"data: " + _envelope(failure, "chat", None) + b"\n\n"


def retry_after(failure: Failure) -> int | None:
    """Returns the value of the `Retry-After` header in whole seconds; None for no header."""
    if failure.retry_after is not None and math.isfinite(failure.retry_after):
        return max(1, math.ceil(failure.retry_after))
    return TABLE[failure.kind].wait


class ErrorObject(TypedDict):
    message: JsonText
    type: Annotated[str, one_of(sorted({row.type for row in TABLE.values()}))]
    param: JsonText | None
    code: JsonText | None


class Error(TypedDict):
    """The body of every error. `param`: the field with the error. `code`: one of the codes in docs/api.md, or the
    provider's own.
    """

    error: ErrorObject


def _envelope(failure: Failure, surface: OpenAISurface, param: str | None) -> bytes:
    row = row_of(failure, surface)
    error: ErrorObject = {
        "message": raw_text(failure.message),
        "type": row.type,
        "param": None if param is None else raw_text(param),
        "code": None if row.code is None else raw_text(row.code),
    }
    body: Error = {"error": error}
    return json_bytes(body)
