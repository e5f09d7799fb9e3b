"""Status, type and code of each fault in OpenAI's APIs, for Ollama's the status; what differs in Anthropic's is in
`messages/answer.py`. Sources: docs/contract.md#errors-of-chat-completions, docs/wire-rules.md#errors.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from codex_proxy.core.faults import FaultKind


class FaultRow(NamedTuple):
    """How one kind of fault is answered. `wait`: the `Retry-After`, if the failure has none."""

    status: int
    type: str
    code: str | None
    wait: int | None = None


_REQUEST_ERROR: Final = "invalid_request_error"
_LIMIT_ERROR: Final = "rate_limit_error"
_SERVER_ERROR: Final = "server_error"

TABLE: Final[dict[FaultKind, FaultRow]] = {
    FaultKind.INVALID_REQUEST: FaultRow(400, _REQUEST_ERROR, None),
    FaultKind.REJECTED_BY_PROVIDER: FaultRow(400, _REQUEST_ERROR, "rejected_by_provider"),
    FaultKind.CONTEXT_LENGTH_EXCEEDED: FaultRow(400, _REQUEST_ERROR, "context_length_exceeded"),
    FaultKind.INVALID_API_KEY: FaultRow(401, "authentication_error", "invalid_api_key"),
    FaultKind.AGENT_NOT_AUTHENTICATED: FaultRow(401, "authentication_error", "agent_not_authenticated"),
    FaultKind.NOT_ALLOWED: FaultRow(403, "permission_error", "not_allowed"),
    FaultKind.MODEL_NOT_FOUND: FaultRow(404, _REQUEST_ERROR, "model_not_found"),
    FaultKind.NOT_FOUND: FaultRow(404, "not_found_error", "not_found"),
    FaultKind.METHOD_NOT_ALLOWED: FaultRow(405, _REQUEST_ERROR, "method_not_allowed"),
    FaultKind.CONFLICT: FaultRow(409, _REQUEST_ERROR, "conflict"),
    FaultKind.REQUEST_TOO_LARGE: FaultRow(413, _REQUEST_ERROR, "request_too_large"),
    FaultKind.HEADERS_TOO_LARGE: FaultRow(431, _REQUEST_ERROR, "headers_too_large"),
    FaultKind.UNSUPPORTED_MEDIA_TYPE: FaultRow(415, _REQUEST_ERROR, "unsupported_media_type"),
    FaultKind.RATE_LIMITED: FaultRow(429, _LIMIT_ERROR, "rate_limit_exceeded", wait=1),
    FaultKind.CONCURRENCY_EXCEEDED: FaultRow(429, _LIMIT_ERROR, "concurrency_exceeded", wait=1),
    FaultKind.AGENT_RATE_LIMITED: FaultRow(429, _LIMIT_ERROR, "rate_limit_exceeded"),
    FaultKind.USAGE_LIMIT_REACHED: FaultRow(429, _LIMIT_ERROR, "usage_limit_reached"),
    FaultKind.INSUFFICIENT_QUOTA: FaultRow(429, _LIMIT_ERROR, "insufficient_quota"),
    FaultKind.CANCELLED: FaultRow(499, _REQUEST_ERROR, "cancelled"),
    FaultKind.SPAWN_FAILED: FaultRow(500, _SERVER_ERROR, "spawn_error"),
    FaultKind.AGENT_CRASHED: FaultRow(500, _SERVER_ERROR, "agent_crashed"),
    FaultKind.AGENT_PROTOCOL: FaultRow(500, _SERVER_ERROR, "agent_protocol_error"),
    FaultKind.AGENT_MISCONFIGURED: FaultRow(500, _SERVER_ERROR, "agent_misconfigured"),
    FaultKind.INTERNAL: FaultRow(500, _SERVER_ERROR, "internal_error"),
    FaultKind.UPSTREAM_UNAUTHORIZED: FaultRow(502, _SERVER_ERROR, "upstream_unauthorized"),
    FaultKind.UPSTREAM_ERROR: FaultRow(502, _SERVER_ERROR, "upstream_error"),
    FaultKind.UPSTREAM_DISCONNECTED: FaultRow(502, _SERVER_ERROR, "upstream_disconnected"),
    FaultKind.UPSTREAM_UNREACHABLE: FaultRow(502, _SERVER_ERROR, "upstream_unreachable"),
    FaultKind.UNAVAILABLE: FaultRow(503, _SERVER_ERROR, "service_unavailable", wait=1),
    FaultKind.STOPPING: FaultRow(503, _SERVER_ERROR, "service_unavailable", wait=1),
    FaultKind.UPSTREAM_TIMEOUT: FaultRow(504, "timeout_error", "request_timeout"),
    FaultKind.TIMED_OUT: FaultRow(504, "timeout_error", "request_timeout"),
}
