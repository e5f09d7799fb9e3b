"""What has gone wrong, and what a person can do about it. A `Failure` ends a turn (`TurnEnded.failure`); elsewhere the
exception `Fault` carries it. `surfaces/fault_table.py` maps each kind to status, type and code.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from codex_proxy.core.shown_text import excerpt


class FaultKind(StrEnum):
    """Every kind of fault. "Provider" is the service or model server that the agent calls (`UPSTREAM_*`), "agent" the
    program that calls it, with its account there.
    """

    # The client's.
    INVALID_REQUEST = "invalid_request"
    """The request has to be changed; `Failure.param` names the field."""
    INVALID_API_KEY = "invalid_api_key"
    """The request has no API key, or one that is not this server's."""
    NOT_ALLOWED = "not_allowed"
    """The key, host name, web page or reverse proxy has no permission for this request."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    """This server, or the provider, has no such model."""
    NOT_FOUND = "not_found"
    """There is no such path or object, or the object belongs to another key."""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TOO_LARGE = "request_too_large"
    """The body is larger than this server or the provider accepts."""
    HEADERS_TOO_LARGE = "headers_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    REJECTED_BY_PROVIDER = "rejected_by_provider"
    """The provider refused the content of the request with a 400."""
    # Limits: ours, then the agent's.
    RATE_LIMITED = "rate_limited"
    """Too many requests of the key in a minute, or too many wrong keys from the client's address."""
    CONCURRENCY_EXCEEDED = "concurrency_exceeded"
    """A limit of this server is reached: of requests, streams, turns, or bodies at once."""
    AGENT_RATE_LIMITED = "agent_rate_limited"
    """The provider's rate limit is reached."""
    USAGE_LIMIT_REACHED = "usage_limit_reached"
    """The agent's account has used up its allowance until the next reset."""
    INSUFFICIENT_QUOTA = "insufficient_quota"
    """The agent's account has no credit, or its plan does not include this."""
    # The agent's.
    AGENT_NOT_AUTHENTICATED = "agent_not_authenticated"
    """Nobody is signed in to the agent."""
    SPAWN_FAILED = "spawn_failed"
    """The agent's program could not be started."""
    AGENT_CRASHED = "agent_crashed"
    """The agent ended during a turn, or has lost the conversation."""
    AGENT_PROTOCOL = "agent_protocol"
    """The agent broke its protocol, or failed without a reason."""
    AGENT_MISCONFIGURED = "agent_misconfigured"
    """The agent's own configuration, or this server's settings for the agent, cannot be used."""
    # The model provider's.
    UPSTREAM_UNAUTHORIZED = "upstream_unauthorized"
    """The provider refused the agent's credentials."""
    UPSTREAM_ERROR = "upstream_error"
    """The provider failed, or its answer does not have the required form."""
    UPSTREAM_DISCONNECTED = "upstream_disconnected"
    """The provider's answer broke off."""
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    """No connection to the provider could be opened."""
    UPSTREAM_TIMEOUT = "upstream_timeout"
    """The provider did not answer in time."""
    # Nobody's, or ours.
    TIMED_OUT = "timed_out"
    """A deadline of this server ended the turn."""
    UNAVAILABLE = "unavailable"
    """The agent, the provider, the store or memory for bodies is not available for now."""
    CANCELLED = "cancelled"
    """The operator has cancelled the turn."""
    STOPPING = "stopping"
    """This server is stopping and begins no further turn."""
    INTERNAL = "internal"
    """An error of this server, whose cause is in its log."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. `message` tells the client's user what to do; it contains no upstream URL and no secret."""

    kind: FaultKind
    message: str
    code: str | None = None
    """The provider's own error code; None: the usual one for the kind."""
    param: str | None = None
    """The path of the field at fault (`messages[0].content`), if there is one."""
    retry_after: float | None = None
    """Seconds until another try makes sense; None if that is not known."""
    repeatable: bool = True
    """Whether a client may send the request again. False if tools were run for it."""
    quoted: str = ""
    """The part of the message that quotes the agent, for the client only, never for the log."""

    @property
    def unquoted(self) -> str:
        """The message without its quotation of the agent, for logs and other readers than the client."""
        return self.message.replace(f": {self.quoted}", ".") if self.quoted else self.message


STOPPING = Failure(
    kind=FaultKind.STOPPING, message="The server is stopping. Try again in a moment.", retry_after=5
)
"""The failure of turns that the stopping server ends or does not begin."""

UNFORESEEN = Failure(
    kind=FaultKind.INTERNAL,
    message="The server had an internal error. Its log has the reason under this request's id.",
)
"""The failure of a turn that ended because of a bug in this server."""


class UserError(Exception):
    """A command cannot do what its user has asked for. The text says why, and what to do."""


class Fault(Exception):  # noqa: N818 - the field's word; a Failure that is raised
    """Raised with a `Failure` when a request is refused before its turn runs."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


MAX_MESSAGE: Final = 2_000
"""The most characters of the message of a refused request, which may quote names of the client."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> Fault:
    """Returns a `Fault` for a wrong request. `param` is the path of the field, `code` OpenAI's error code, if any. A
    long message is cut.
    """
    message = excerpt(message, MAX_MESSAGE)
    return Fault(Failure(kind=FaultKind.INVALID_REQUEST, message=message, param=param, code=code))
