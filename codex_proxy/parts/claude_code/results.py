"""What a turn has cost, and why it failed. Tokens are counted for each model call at its end, and for the turn from its
`result`; unlike in Anthropic's API, the input tokens of a `Usage` include the cache, and each request reports the
tokens since the one before. An error is a message of the model `<synthetic>` with a code, then a `result` with the
status: it becomes a failure by Claude Code's codes, its provider's HTTP status, and its texts.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec.structs import astuple

from codex_proxy.agents.shared.failures import MESSAGES, clean_text, kind_in, kind_of_status, kinds_by_text
from codex_proxy.core.events import Retrying, Usage
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.parts.claude_code.messages import Retry, StreamTokens


def usage_of(tokens: StreamTokens) -> Usage:
    details = tokens.output_tokens_details
    cached, written = tokens.cache_read_input_tokens or 0, tokens.cache_creation_input_tokens or 0
    return Usage(
        input=(tokens.input_tokens or 0) + cached + written,
        cached=cached,
        cache_written=written,
        output=tokens.output_tokens or 0,
        reasoning=(details.thinking_tokens or 0) if details is not None else 0,
    )


class TurnUsage:
    """The tokens of one turn of the program, and of the client's current request."""

    def __init__(self) -> None:
        self._calls = Usage()
        """The tokens of ended model calls."""
        self._before = Usage()
        self._begun = StreamTokens()

    def begin_turn(self) -> None:
        self._calls = self._before = Usage()
        self._begun = StreamTokens()

    def begin_request(self) -> None:
        self._before = self._calls

    def begin_call(self, tokens: StreamTokens | None) -> Usage | None:
        """Returns the tokens of the request so far, with the call's input, which is known at its beginning; None if
        the call has none.
        """
        self._begun = tokens or StreamTokens()
        begun = msgspec.structs.replace(usage_of(self._begun), output=0, reasoning=0)
        return self.request + begun if begun.input else None

    def end_call(self, tokens: StreamTokens | None) -> Usage:
        """Returns the call's tokens, from its `message_delta` or else its `message_start`."""
        begun, last = self._begun, tokens or StreamTokens()
        self._begun = StreamTokens()
        counts = zip(astuple(last), astuple(begun), strict=True)
        usage = usage_of(StreamTokens(*(earlier if count is None else count for count, earlier in counts)))
        self._calls += usage
        return usage

    def end_turn(self, tokens: StreamTokens | None) -> None:
        """Takes the total of the `result` if it is larger: a call may have broken off."""
        if tokens is None:
            return
        whole = usage_of(tokens)
        if whole.input + whole.output >= self._calls.input + self._calls.output:
            self._calls = whole

    @property
    def request(self) -> Usage:
        return self._calls.since(self._before)


K = FaultKind

SIGN_IN: Final = (
    "Claude Code is not signed in. On the machine that runs this server, run `claude auth "
    "login`, or set an API key or a token from `claude setup-token` in the server's "
    "environment and name its variable in PROXY_CHILD_ENV. Then try again."
)
NOT_SIGNED_IN: Final = Failure(K.AGENT_NOT_AUTHENTICATED, SIGN_IN)

CODES: Final[dict[str, FaultKind]] = {
    "authentication_failed": K.AGENT_NOT_AUTHENTICATED,
    "oauth_org_not_allowed": K.AGENT_NOT_AUTHENTICATED,
    "account_on_hold": K.AGENT_NOT_AUTHENTICATED,
    "verification_required": K.AGENT_NOT_AUTHENTICATED,
    "cloud_credential_error": K.AGENT_NOT_AUTHENTICATED,
    "billing_error": K.INSUFFICIENT_QUOTA,
    "rate_limit": K.AGENT_RATE_LIMITED,
    "overloaded": K.UNAVAILABLE,
    "model_not_found": K.MODEL_NOT_FOUND,
}

STATUSES: Final[dict[int, FaultKind]] = {
    401: K.AGENT_NOT_AUTHENTICATED,
    403: K.AGENT_NOT_AUTHENTICATED,
    404: K.MODEL_NOT_FOUND,
}
"""Kinds of statuses that mean something else with other agents."""
BROKE_OFF: Final = "Claude Code is retrying its model request: the connection was lost."
TOO_LONG: Final = "prompt_too_long"
"""The `terminal_reason` of a conversation that is too long."""

_LIMIT: Final = re.compile(
    r"(?:usage|session|weekly|\d-hour) limit|hit your limit|limit reached", re.IGNORECASE
)
KINDS_BY_TEXT: Final = kinds_by_text(
    (
        r"ECONNREFUSED|ENOTFOUND|EAI_AGAIN|connection (?:refused|error)|unable to connect",
        K.UPSTREAM_UNREACHABLE,
    ),
    (
        r"connection (?:to the api was )?(?:lost|closed|reset)|ECONNRESET|socket hang up|terminated",
        K.UPSTREAM_DISCONNECTED,
    ),
    (r"ETIMEDOUT|timed? ?out", K.UPSTREAM_TIMEOUT),
    (_LIMIT.pattern, K.USAGE_LIMIT_REACHED),
)
"""Kinds by the text, if neither a code nor a status decides."""
_FRAME: Final = re.compile(
    r"^(?:Failed to authenticate\. )?API Error: (?:Request rejected \(\d+\) · |\d{3} )?"
)
_ADVICE: Final = re.compile(
    r" This is a server-side issue.*|\s{0,9}Run (?:--model|/model|/login)\b.*| · Please run /login.*",
    re.DOTALL,
)


def failure_of(text: str, *, code: str | None, status: int | None, reason: str | None) -> Failure:
    """Converts an error. `code` is the error's code in the `<synthetic>` message, `reason` the `terminal_reason` of
    the `result`.
    """
    kind = _kind(text, code, status, reason)
    if kind is K.AGENT_NOT_AUTHENTICATED and status is None:
        return NOT_SIGNED_IN
    said = clean_text(_ADVICE.sub("", _FRAME.sub("", text, count=1)))
    if kind is K.AGENT_NOT_AUTHENTICATED:
        refused = f"Claude Code's sign-in was refused (HTTP {status})"
        reason = f"{refused}: {said.rstrip('.')}" if said else refused
        return Failure(kind, f"{reason}. {SIGN_IN}")
    return Failure(kind, f"{MESSAGES[kind]}: {said}" if said else f"{MESSAGES[kind]}.")


def retry_event(retry: Retry) -> Retrying:
    code = retry.error if retry.error != "unknown" else None
    if code is None and retry.error_status is None:
        return Retrying(BROKE_OFF)
    nth = ""
    if retry.attempt is not None and retry.max_retries is not None:
        nth = f", attempt {retry.attempt} of {retry.max_retries}"
    status = f", HTTP {retry.error_status}" if retry.error_status is not None else ""
    text = f"Claude Code is retrying its model request{nth} ({code or 'error'}{status})."
    return Retrying(
        text, retry.error_status, failure_of("", code=code, status=retry.error_status, reason=None)
    )


def _kind(text: str, code: str | None, status: int | None, reason: str | None) -> FaultKind:
    if reason == TOO_LONG or "prompt is too long" in text.lower():
        return K.CONTEXT_LENGTH_EXCEEDED
    if code == "rate_limit" and status is None and _LIMIT.search(text):
        return K.USAGE_LIMIT_REACHED
    if code in CODES:
        return CODES[code]
    if status is not None and status >= 400:
        return STATUSES.get(status) or kind_of_status(status)
    by_default = K.REJECTED_BY_PROVIDER if code == "invalid_request" else K.UPSTREAM_ERROR
    return kind_in(text, KINDS_BY_TEXT) or by_default
