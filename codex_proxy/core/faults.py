"""What has gone wrong, and what a person can do about it. `surfaces/answers/fault_table.py` maps each kind to status,
type and code.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Final, Self

import msgspec

from codex_proxy.core.shown_text import excerpt


class FaultKind(StrEnum):
    """The kinds of failures. "Provider" is the service or model server that the agent calls (`UPSTREAM_*`), "agent" the
    program that calls it, with its account there.
    """

    # The client's.
    INVALID_REQUEST = "invalid_request"
    """The request is invalid; `Failure.param` names the field to change."""
    INVALID_API_KEY = "invalid_api_key"
    """The request has no API key, or an unknown one."""
    NOT_ALLOWED = "not_allowed"
    """The key, host name, web page or reverse proxy may not make this request."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    """Neither this server nor the provider has the model."""
    NOT_FOUND = "not_found"
    """There is no such path or object, or it is another key's."""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    """The object is in a state in which this cannot be done to it."""
    REQUEST_TOO_LARGE = "request_too_large"
    """The body is too large for this server or the provider."""
    HEADERS_TOO_LARGE = "headers_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    REJECTED_BY_PROVIDER = "rejected_by_provider"
    """The provider refused the content with a 400."""
    # Limits: ours, then the agent's.
    RATE_LIMITED = "rate_limited"
    """The key has made too many requests in a minute, or the client's address has sent wrong keys."""
    CONCURRENCY_EXCEEDED = "concurrency_exceeded"
    """Too many requests, streams, turns or bodies are in progress."""
    AGENT_RATE_LIMITED = "agent_rate_limited"
    """The provider's rate limit is reached."""
    USAGE_LIMIT_REACHED = "usage_limit_reached"
    """The account's allowance is used up until the next reset."""
    INSUFFICIENT_QUOTA = "insufficient_quota"
    """The account has no credit, or its plan does not include this."""
    # The agent's.
    AGENT_NOT_AUTHENTICATED = "agent_not_authenticated"
    """Nobody is signed in to the agent."""
    SPAWN_FAILED = "spawn_failed"
    """The agent's program did not start."""
    AGENT_CRASHED = "agent_crashed"
    """The program ended during a turn, or lost the conversation."""
    AGENT_PROTOCOL = "agent_protocol"
    """The program broke its protocol, or failed without a reason."""
    AGENT_MISCONFIGURED = "agent_misconfigured"
    """The agent's configuration, or its settings here, cannot be used."""
    # The model provider's.
    UPSTREAM_UNAUTHORIZED = "upstream_unauthorized"
    """The provider refused the agent's credentials."""
    UPSTREAM_ERROR = "upstream_error"
    """The provider failed, or its answer has a wrong form."""
    UPSTREAM_DISCONNECTED = "upstream_disconnected"
    """The provider's answer broke off."""
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    """No connection could be opened."""
    UPSTREAM_TIMEOUT = "upstream_timeout"
    """The provider has not answered in time."""
    # Nobody's, or ours.
    TIMED_OUT = "timed_out"
    """A deadline here ended the turn."""
    UNAVAILABLE = "unavailable"
    """The agent, the provider, the store or memory for bodies is unavailable for now."""
    CANCELLED = "cancelled"
    """The operator has cancelled the turn."""
    STOPPING = "stopping"
    """This server is stopping."""
    INTERNAL = "internal"
    """An error of this server; its log has the cause."""


class _Reason(msgspec.Struct, frozen=True):
    kind: FaultKind
    message: str


class Failure(_Reason, frozen=True, kw_only=True):
    """A failed request or turn. `message` tells the client's user what to do, without upstream URLs and secrets."""

    code: str | None = None
    """The provider's own error code; None: the usual one of the kind."""
    param: str | None = None
    """The path of the field at fault (`messages[0].content`), if any."""
    retry_after: float | None = None
    """Seconds until another try makes sense, if known."""
    repeatable: bool = True
    """Whether the request may be sent again: not after tools were run for it."""
    quoted: str = ""
    """The part of the message that quotes the agent: for the client, never for the log."""

    @property
    def unquoted(self) -> str:
        """The message without `quoted`, for logs."""
        return self.message.replace(f": {self.quoted}", ".") if self.quoted else self.message


STOPPING = Failure(FaultKind.STOPPING, "The server is stopping. Try again in a moment.", retry_after=5)
"""The failure of turns that are ended or refused because the server stops."""

UNFORESEEN = Failure(
    FaultKind.INTERNAL, "The server had an internal error. Its log has the reason under this request's id."
)
"""The failure of a turn that ends by a bug of this server."""

CODES_OF_REFUSALS: Final = frozenset(
    {
        "invalid_prompt", "data_residency_mismatch", "bio_policy", "invalid_image", "invalid_image_format",
        "invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small",
        "image_parse_error", "image_content_policy_violation", "invalid_image_mode", "image_file_too_large",
        "unsupported_image_media_type", "empty_image_file", "failed_to_download_image",
        "image_file_not_found", "misalignment_policy_violation",
    }
)  # fmt: skip
"""The codes of OpenAI's `ResponseError` that blame the request."""

_SHORTAGE_BY_ERRNO: Final = {
    errno.EAGAIN: "the limit of processes is reached; stop some or raise it (ulimit -u)",
    errno.ENOMEM: "there is not enough memory; stop other programs or serve fewer requests at once",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n) or serve fewer requests at once",
    errno.ENFILE: "too many open files on the whole system; close some programs",
}


def shortage_of(error: BaseException | None) -> str:
    """Returns a sentence on what the machine lacked (memory, processes, open files) when `error` was raised,
    and what to do; empty if `error` is None or has another cause.
    """
    if isinstance(error, MemoryError):
        return _SHORTAGE_BY_ERRNO[errno.ENOMEM]
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return _SHORTAGE_BY_ERRNO[errno.EAGAIN]
    return _SHORTAGE_BY_ERRNO.get(error.errno or 0, "") if isinstance(error, OSError) else ""


class UserError(Exception):
    """A command cannot do what its user wants, or a server cannot start. The text says why, and what to do."""


class Fault(Exception):  # noqa: N818 - the field's word; a Failure that is raised
    """Raised when a request is refused before its turn runs."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def of(
        cls, kind: FaultKind, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> Self:
        """Returns a `Fault` with a new `Failure` of these fields."""
        return cls(Failure(kind, message, param=param, retry_after=retry_after))


MAX_MESSAGE: Final = 2_000
"""Maximum characters of a refused request's message, which may quote the client."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> Fault:
    """Returns a `Fault` for a wrong field `param`; `code` is OpenAI's, if any. Cuts a long message."""
    message = excerpt(message, MAX_MESSAGE)
    return Fault(Failure(FaultKind.INVALID_REQUEST, message, param=param, code=code))


def misconfigured(message: str) -> Fault:
    """Returns a `Fault` for an agent whose program, configuration or settings cannot be used."""
    return Fault.of(FaultKind.AGENT_MISCONFIGURED, message)
