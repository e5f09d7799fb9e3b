"""The values that describe what has gone wrong: the kind of fault, and what a person can do about it.

A `Failure` is such a value. It ends a turn as `TurnEnded.failure`; everywhere else, as for a request that is
refused, the exception `Fault` carries it. Neither knows HTTP: `surfaces/errors.py` maps a kind to status, type and
code.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FaultKind(StrEnum):
    """Every kind of fault. `surfaces/errors.py` has a table of the error codes that the APIs use for each kind."""

    # The client's.
    INVALID_REQUEST = "invalid_request"
    INVALID_API_KEY = "invalid_api_key"
    NOT_ALLOWED = "not_allowed"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TOO_LARGE = "request_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    # The model provider refused the content of the request (its 400).
    REJECTED_BY_PROVIDER = "rejected_by_provider"
    # Limits: ours, then the agent's.
    RATE_LIMITED = "rate_limited"
    CONCURRENCY_EXCEEDED = "concurrency_exceeded"
    AGENT_RATE_LIMITED = "agent_rate_limited"
    USAGE_LIMIT_REACHED = "usage_limit_reached"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    # The agent's.
    AGENT_NOT_AUTHENTICATED = "agent_not_authenticated"
    SPAWN_FAILED = "spawn_failed"
    AGENT_CRASHED = "agent_crashed"
    AGENT_PROTOCOL = "agent_protocol"
    AGENT_MISCONFIGURED = "agent_misconfigured"
    # The model provider's.
    UPSTREAM_UNAUTHORIZED = "upstream_unauthorized"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_DISCONNECTED = "upstream_disconnected"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    # Nobody's, or ours.
    TIMED_OUT = "timed_out"
    UNAVAILABLE = "unavailable"
    STOPPING = "stopping"
    INTERNAL = "internal"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. `message` is for the user of the client: it says what to do, and contains no upstream URL
    and no secret.
    """

    kind: FaultKind
    message: str
    code: str | None = None
    """The provider's own error code (`invalid_prompt`); None: the client gets the usual code for the kind."""
    param: str | None = None
    """The path of the request's field at fault, as OpenAI writes it: `messages[0].content`. None if no field is."""
    retry_after: float | None = None
    """Seconds until another try makes sense; None if that is not known."""
    repeatable: bool = True
    """Whether a client may send the request again. False if tools were run for it, because they would be run again."""
    quoted: str = ""
    """The part of the message that quotes the agent. It is sent to the client only, and is left out of the log."""

    @property
    def unquoted(self) -> str:
        """The message without the text that it quotes from the agent (`quoted`), for logs and for readers other
        than the client.
        """
        return self.message.replace(f": {self.quoted}", ".") if self.quoted else self.message


STOPPING = Failure(
    kind=FaultKind.STOPPING, message="The server is stopping. Try again in a moment.", retry_after=5
)
"""The failure of turns that the stopping server ends or does not begin."""

UNFORESEEN = Failure(
    kind=FaultKind.INTERNAL,
    message="The server failed in an unforeseen way. Its log has the reason under this request's id.",
)
"""The failure of a turn that ended because of a bug in this server."""


class Fault(Exception):  # noqa: N818 - the field's word; a Failure that is raised
    """The exception that carries a `Failure` where it does not end a turn, such as that of a request that is
    refused.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def bad_request(message: str, param: str | None = None, code: str | None = None) -> Fault:
    """Returns a `Fault` for a request that the client has to change. `param` is the path of the field at fault,
    None if there is no single one. `code` is OpenAI's error code, None if there is none.
    """
    return Fault(Failure(kind=FaultKind.INVALID_REQUEST, message=message, param=param, code=code))
