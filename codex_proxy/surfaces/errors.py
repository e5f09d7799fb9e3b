"""Errors in each API's form. A failure's own code replaces the table's. Sources:
docs/contract.md#errors-of-chat-completions, docs/contract.md#errors-of-responses, docs/wire-rules.md#errors.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, TypeAlias, TypedDict

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.answers.fault_table import TABLE, FaultRow
from codex_proxy.surfaces.answers.renderer import JsonText, json_bytes, one_of, raw_text
from codex_proxy.surfaces.messages import answer as messages
from codex_proxy.surfaces.ollama import answer as ollama

OpenAISurface: TypeAlias = Literal["chat", "responses", "agents"]
"""`agents`: the Agents API."""
Surface: TypeAlias = OpenAISurface | Literal["messages", "ollama"]


DONE: Final = b"data: [DONE]\n\n"
"""The last frame of a chat stream."""
RESPONSES_TYPES: Final = {500: "internal_error", 503: "service_unavailable"}
"""Types by status, where they differ from Chat Completions."""

_LASTING_KINDS: Final = frozenset(
    {
        FaultKind.INVALID_API_KEY,
        FaultKind.AGENT_NOT_AUTHENTICATED,
        FaultKind.INSUFFICIENT_QUOTA,
        FaultKind.CANCELLED,
        FaultKind.CONFLICT,
        FaultKind.AGENT_MISCONFIGURED,
        FaultKind.UPSTREAM_UNAUTHORIZED,
    }
)
"""Kinds of failures with which the same request always fails."""
_AGENTS_STATUSES: Final = {FaultKind.UNSUPPORTED_MEDIA_TYPE: 400, FaultKind.REQUEST_TOO_LARGE: 400}
"""Statuses of the Agents API, where they differ from Chat Completions."""
_AGENTS_TYPES: Final = {
    400: "invalid_request_error",
    403: "forbidden",
    404: "not_found_error",
    409: "conflict_error",
    500: "internal_error",
    503: "service_unavailable_error",
}
"""Types of the Agents API by status, where they differ; each is the code, too."""
_AGENTS_OWN_CODES: Final = frozenset({"store_disabled", "unsupported_by_agent", "unsupported_by_server"})
"""Codes of refused fields that the Agents API shows; for others it has `invalid_request_error`."""
INVALID_BETA: Final = "invalid_beta"
INPUT_FIELDS: Final[dict[OpenAISurface, str]] = {"chat": "messages", "responses": "input", "agents": "input"}
"""The field that a context that is too long is blamed on, as OpenAI does."""
MAX_WAIT: Final = 60
"""The longest `Retry-After` in seconds: Claude Code and the SDKs ignore a longer one."""


def row_of(failure: Failure, surface: OpenAISurface) -> FaultRow:
    row = TABLE[failure.kind]
    if surface == "agents":
        return _agents_row(failure, row)
    if surface == "responses":
        row = row._replace(type=RESPONSES_TYPES.get(row.status, row.type))
    return row if failure.code is None else row._replace(code=failure.code)


def _agents_row(failure: Failure, row: FaultRow) -> FaultRow:
    if failure.kind is FaultKind.INVALID_API_KEY:
        return row._replace(type="invalid_request_error", code=None)
    if failure.kind in (FaultKind.MODEL_NOT_FOUND, FaultKind.CONTEXT_LENGTH_EXCEEDED):
        return row
    if failure.code == INVALID_BETA:
        return row._replace(type=INVALID_BETA, code=INVALID_BETA)
    status = _AGENTS_STATUSES.get(failure.kind, row.status)
    kind = _AGENTS_TYPES.get(status)
    if kind is None:
        return row
    return FaultRow(status, kind, failure.code if failure.code in _AGENTS_OWN_CODES else kind, row.wait)


def status_of(failure: Failure, surface: Surface) -> int:
    """Returns the status before the first byte of the answer."""
    if surface == "messages":
        return messages.status_of(failure)
    return row_of(failure, "agents" if surface == "agents" else "chat").status


def statuses(surface: Surface) -> tuple[int, ...]:
    found = messages.STATUSES.values() if surface == "messages" else (row.status for row in TABLE.values())
    return tuple(sorted(set(found)))


def forbids_retry(failure: Failure) -> bool:
    """Whether `x-should-retry: false` is sent, without which SDKs repeat the request: a retry would fail, or help only
    much later.
    """
    if not failure.repeatable or failure.kind in _LASTING_KINDS:
        return True
    if failure.retry_after is None:
        return failure.kind is FaultKind.USAGE_LIMIT_REACHED
    return failure.retry_after > MAX_WAIT


def error_body(failure: Failure, surface: Surface, request_id: str = "") -> bytes:
    """Returns an error in an API's form. `request_id` is for Anthropic's."""
    if surface == "messages":
        return messages.error_body(failure, request_id)
    if surface == "ollama":
        return ollama.error_body(failure)
    too_long = failure.kind is FaultKind.CONTEXT_LENGTH_EXCEEDED
    return _envelope(
        failure, surface, INPUT_FIELDS[surface] if too_long and failure.param is None else failure.param
    )


def error_frames(failure: Failure) -> bytes:
    """Returns the frames that end a chat stream; `param` is null."""
    return b"data: " + _envelope(failure, "chat", None) + b"\n\n" + DONE


def retry_after(failure: Failure) -> int | None:
    """Returns whole seconds; None for no header."""
    if failure.retry_after is not None and math.isfinite(failure.retry_after):
        return max(1, math.ceil(failure.retry_after))
    return TABLE[failure.kind].wait


class ErrorObject(TypedDict):
    message: JsonText
    type: Annotated[
        str, one_of(sorted({row.type for row in TABLE.values()} | {*_AGENTS_TYPES.values(), INVALID_BETA}))
    ]
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
