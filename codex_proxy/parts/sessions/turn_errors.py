"""How turns of the Agents API end, and the errors of failed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from codex_proxy.core.events import Stop, TurnElsewhere, TurnEnded
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.shown_text import number_text
from codex_proxy.parts.sessions.sessions import Session, SessionTurn, TurnError, TurnStatus

_CODES: Final[Mapping[FaultKind, str]] = {
    FaultKind.INVALID_REQUEST: "invalid_request",
    FaultKind.NOT_ALLOWED: "invalid_request",
    FaultKind.REQUEST_TOO_LARGE: "invalid_request",
    FaultKind.REJECTED_BY_PROVIDER: "invalid_request",
    FaultKind.CONTEXT_LENGTH_EXCEEDED: "context_length_exceeded",
    FaultKind.MODEL_NOT_FOUND: "resource_not_found",
    FaultKind.NOT_FOUND: "resource_not_found",
    FaultKind.INVALID_API_KEY: "authentication_error",
    FaultKind.AGENT_NOT_AUTHENTICATED: "authentication_error",
    FaultKind.UPSTREAM_UNAUTHORIZED: "authentication_error",
    FaultKind.RATE_LIMITED: "rate_limit_exceeded",
    FaultKind.AGENT_RATE_LIMITED: "rate_limit_exceeded",
    FaultKind.CONCURRENCY_EXCEEDED: "server_overloaded",
    FaultKind.UNAVAILABLE: "server_overloaded",
    FaultKind.STOPPING: "server_overloaded",
    FaultKind.USAGE_LIMIT_REACHED: "usage_limit_exceeded",
    FaultKind.INSUFFICIENT_QUOTA: "credit_balance_exhausted",
    FaultKind.UPSTREAM_ERROR: "server_error",
    FaultKind.UPSTREAM_DISCONNECTED: "connection_failed",
    FaultKind.UPSTREAM_UNREACHABLE: "connection_failed",
    FaultKind.UPSTREAM_TIMEOUT: "request_timeout",
    FaultKind.TIMED_OUT: "request_timeout",
    FaultKind.CONFLICT: "active_turn_not_steerable",
}
"""The codes of failed turns; others are `internal_error`."""

TOO_LONG: Final = TurnError(
    "max_output_tokens", "The answer was cut at the model's limit of output tokens, or at one of this server."
)
RESTARTED: Final = TurnError(
    "internal_error",
    "The server was restarted, or had an internal error, while this turn was in progress. Send another message to go "
    "on.",
)


def expired(seconds: float) -> TurnError:
    """Returns the error of a turn that has waited for the client for so long."""
    message = (
        f"What the turn waits for, a result or an answer, did not come within {number_text(seconds)} seconds"
    )
    return TurnError("request_timeout", f"{message}, which the operator has set (PROXY_ACTION_TIMEOUT).")


def code_of(kind: FaultKind) -> str:
    return _CODES.get(kind, "internal_error")


def outcome_of(ended: TurnEnded) -> tuple[TurnStatus, TurnError | None]:
    """Returns how a turn has ended for clients, and why it failed if it has."""
    if ended.failure is not None:
        return "failed", TurnError(code_of(ended.failure.kind), ended.failure.message)
    if ended.stop == Stop.LENGTH:
        return "failed", TOO_LONG
    return "cancelled" if ended.stop == Stop.INTERRUPTED else "completed", None


def is_refusal(ended: TurnEnded) -> bool:
    """Whether the model has refused to go on."""
    return ended.failure is None and ended.stop == Stop.CONTENT_FILTER


_ELSEWHERE: Final[Mapping[str, TurnStatus]] = {Stop.STOP: "completed", Stop.INTERRUPTED: "cancelled"}
"""The status of a turn that another program has run, by its end; others have failed."""
_FAILED_ELSEWHERE: Final = TurnError("internal_error", "The turn failed in the program that ran it.")


def turn_elsewhere(found: TurnElsewhere, session: Session, id: str, before: str, now: int) -> SessionTurn:
    """Returns a turn that another program has run as a turn of the session, with this id. `before`: the id of the
    session's last item; `now`: seconds since 1970, if the program does not tell the times.
    """
    return SessionTurn(
        id=id,
        session=session.id,
        agent_id=session.agent_id,
        created_at=found.started_at or now,
        started_at=found.started_at or now,
        completed_at=found.completed_at or found.started_at or now,
        status=_ELSEWHERE.get(found.stop, "failed"),
        error=None if found.stop in _ELSEWHERE else _FAILED_ELSEWHERE,
        before=before,
    )
