"""Converts an agent's error text to a `Failure`. The tables come from real binaries (proto 0.42, exec and app-server
0.169) whose provider failed on purpose. The first known wins: the provider's error code; a clear error kind; a clear
text; the HTTP status; a vague text; a vague error kind.
"""

from __future__ import annotations

import json
import math
import re
import signal

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import Retrying, Stop
from codex_proxy.core.faults import CODES_OF_REFUSALS, Failure, FaultKind
from codex_proxy.core.json_values import UNREADABLE

K = FaultKind

CONVERSATION_LOST = Failure(K.AGENT_CRASHED, "The agent has lost this conversation. Send the request again.")

BAD_ANSWER = Failure(
    K.AGENT_PROTOCOL,
    "The agent sent a message that this server does not understand. Try again, or update the agent.",
)

UNREADABLE_ERROR = Failure(K.UPSTREAM_ERROR, "The agent reported an error that this server could not read.")

MAX_READ = 65_536
MAX_MESSAGE = 600

MAX_LINE = 300

CODES: dict[str, FaultKind] = {
    "context_length_exceeded": K.CONTEXT_LENGTH_EXCEEDED,
    "model_not_found": K.MODEL_NOT_FOUND,
    "usage_limit_reached": K.USAGE_LIMIT_REACHED,
    "usage_not_included": K.INSUFFICIENT_QUOTA,
    "insufficient_quota": K.INSUFFICIENT_QUOTA,
    "rate_limit_exceeded": K.AGENT_RATE_LIMITED,
    "server_is_overloaded": K.UNAVAILABLE,
    "slow_down": K.UNAVAILABLE,
    "invalid_api_key": K.UPSTREAM_UNAUTHORIZED,
    "server_error": K.UPSTREAM_ERROR,
    "vector_store_timeout": K.UPSTREAM_ERROR,
    "cyber_policy": K.REJECTED_BY_PROVIDER,
    **dict.fromkeys(CODES_OF_REFUSALS, K.REJECTED_BY_PROVIDER),
}
"""Kinds by the provider's error `code` (or `type`), in the text's JSON body."""

CLEAR_KINDS: dict[str, FaultKind] = {
    "contextWindowExceeded": K.CONTEXT_LENGTH_EXCEEDED,
    "modelNotFound": K.MODEL_NOT_FOUND,
    "rateLimitExceeded": K.AGENT_RATE_LIMITED,
    "serverOverloaded": K.UNAVAILABLE,
}
"""Kinds by values of `codexErrorInfo` with one meaning."""

VAGUE_KINDS: dict[str, FaultKind] = {
    "usageLimitExceeded": K.USAGE_LIMIT_REACHED,
    "internalServerError": K.UPSTREAM_ERROR,
    "unauthorized": K.UPSTREAM_UNAUTHORIZED,
    "badRequest": K.REJECTED_BY_PROVIDER,
    "httpConnectionFailed": K.UPSTREAM_UNREACHABLE,
    "responseStreamConnectionFailed": K.UPSTREAM_UNREACHABLE,
    "responseStreamDisconnected": K.UPSTREAM_DISCONNECTED,
    "responseTooManyFailedAttempts": K.UPSTREAM_ERROR,
    # What the provider refuses with a 400 comes as `other`, its message (or whole body) being the text.
    "other": K.REJECTED_BY_PROVIDER,
}
"""Kinds by ambiguous values of `codexErrorInfo`, if neither text nor status decide."""

KindsByText = tuple[tuple[re.Pattern[str], FaultKind], ...]


def kinds_by_text(*rows: tuple[str, FaultKind]) -> KindsByText:
    """Returns a table for `kind_in`, from regular expressions, which ignore case."""
    return tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in rows)


def kind_in(text: str, table: KindsByText) -> FaultKind | None:
    return next((kind for pattern, kind in table if pattern.search(text)), None)


CLEAR_TEXTS = kinds_by_text(
    (r"missing environment variable", K.AGENT_MISCONFIGURED),
    (r"context[ _]window|context_length_exceeded|maximum context length", K.CONTEXT_LENGTH_EXCEEDED),
    (r"usage limit", K.USAGE_LIMIT_REACHED),
    (r"quota|upgrade to plus", K.INSUFFICIENT_QUOTA),
    (r"rate limit (?:reached|exceeded)|rate_limit_exceeded", K.AGENT_RATE_LIMITED),
    (r"at capacity|overloaded", K.UNAVAILABLE),
    (r"high demand", K.UPSTREAM_ERROR),
    (r"flagged\b.{0,80}\bpolicy|invalid prompt", K.REJECTED_BY_PROVIDER),
    (r"model\b.{0,200}?(?:does not exist|not found|is not supported)", K.MODEL_NOT_FOUND),
    (
        r"not (?:signed|logged) in|codex login|missing bearer|refresh token|(?:sign|log) ?in again",
        K.AGENT_NOT_AUTHENTICATED,
    ),
    (
        r"codex_home points to|toml parse error|config\.toml|load(?:ing)? config|codex-linux-sandbox",
        K.AGENT_MISCONFIGURED,
    ),
)

VAGUE_TEXTS = kinds_by_text(
    (r"timeout|timed out", K.UPSTREAM_TIMEOUT),
    (r"connection failed|error sending request|connection refused|dns error", K.UPSTREAM_UNREACHABLE),
    (
        r"stream disconnected|stream closed|transport error|error decoding response|connection reset",
        K.UPSTREAM_DISCONNECTED,
    ),
    (r"agent loop died|fatal error", K.AGENT_CRASHED),
    (r"incomplete response returned", K.UPSTREAM_ERROR),
)

STATUSES: dict[int, FaultKind] = {
    401: K.UPSTREAM_UNAUTHORIZED,
    402: K.INSUFFICIENT_QUOTA,
    403: K.UPSTREAM_UNAUTHORIZED,
    404: K.UPSTREAM_ERROR,
    407: K.UPSTREAM_UNREACHABLE,
    408: K.UPSTREAM_TIMEOUT,
    413: K.REQUEST_TOO_LARGE,
    429: K.AGENT_RATE_LIMITED,
    503: K.UNAVAILABLE,
    504: K.UPSTREAM_TIMEOUT,
    529: K.UNAVAILABLE,  # Anthropic's
}
"""Exceptions to the rule that 4xx is the request's fault, and 5xx the provider's."""

MESSAGES: dict[FaultKind, str] = {
    K.AGENT_NOT_AUTHENTICATED: "The agent is not signed in to its model provider (`codex-proxy doctor` says "
    "how; Codex: `codex login`)",
    K.AGENT_MISCONFIGURED: "The agent's configuration is not valid",
    K.AGENT_CRASHED: "The agent failed",
    K.AGENT_RATE_LIMITED: "The model provider's rate limit is reached",
    K.CONTEXT_LENGTH_EXCEEDED: "The input is longer than the model's context window",
    K.INSUFFICIENT_QUOTA: "The quota at the model provider is used up",
    K.MODEL_NOT_FOUND: "The model provider does not know this model",
    K.REJECTED_BY_PROVIDER: "The model provider refused the request",
    K.REQUEST_TOO_LARGE: "The request is too large for the model provider",
    K.UNAVAILABLE: "The model provider is overloaded",
    K.UPSTREAM_DISCONNECTED: "The connection to the model provider broke off",
    K.UPSTREAM_ERROR: "The model provider failed",
    K.UPSTREAM_TIMEOUT: "The model provider did not answer in time",
    K.UPSTREAM_UNAUTHORIZED: "The model provider refused the agent's credentials",
    K.UPSTREAM_UNREACHABLE: "The model provider cannot be reached",
    K.USAGE_LIMIT_REACHED: "The usage limit of the agent's account is reached",
}
"""Messages if the agent's text has nothing readable."""

EXPLAINED = frozenset(
    {
        K.AGENT_NOT_AUTHENTICATED,
        K.AGENT_CRASHED,
        K.REQUEST_TOO_LARGE,
        K.UPSTREAM_DISCONNECTED,
        K.UPSTREAM_ERROR,
        K.UPSTREAM_TIMEOUT,
        K.UPSTREAM_UNAUTHORIZED,
        K.UPSTREAM_UNREACHABLE,
    }
)
"""Kinds for which an agent's text (`internal`, `forbidden`) says too little, so the text of `MESSAGES` is put
before it.
"""

_STOPS = {"max_output_tokens": Stop.LENGTH, "content_filter": Stop.CONTENT_FILTER}
_INCOMPLETE = re.compile(r"Incomplete response returned, reason: (\w+)")
_STATUS = re.compile(r"(?:unexpected|last) status:? (\d{3})\b")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RECONNECTING = re.compile(r"^Reconnecting\.\.\. \d+/\d+\s*")
# What Codex puts around the provider's own words.
_FRAME = re.compile(
    r"^(?:stream error: )?(?:stream disconnected before completion: |unexpected status \d{3}[^:{<]{0,60}: )?"
)
_RETRY_LIMIT = re.compile(r"exceeded retry limit, last status: .*", re.DOTALL)
_RETRY_TAIL = re.compile(r"; retrying \d+/\d+ in \S+$")
_WAIT = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:\d{1,9}(?:\.\d{1,9})?\s*[a-z]+[\s,]{0,3}(?:and\s)?){1,6})",
    re.IGNORECASE,
)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# A line of Rust's tracing: time, level, module. Only errors and warnings say why a child went away.
_LOG_HEAD = re.compile(r"^\d{4}-\d\d-\d\dT\S+\s+(?:ERROR|WARN)\s+\S+\s+")
_QUIET_LOG = re.compile(r"^\d{4}-\d\d-\d\dT\S+\s+(?:INFO|DEBUG|TRACE)\b")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Nothing unbounded stands in front: from every letter of a long word it would look to the word's end again.
# In this order: whole phrases around an address or an id first, then every address that is left.
_CUTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[\x00-\x08\x0b-\x1f\x7f]"), ""),
    (re.compile(r"\s{0,9}Please include the request id \S+ in your \w+\.?", re.IGNORECASE), ""),
    (re.compile(r"[,;]?\s{0,9}\(?\b(?:(?:x-)?request[ _-]?id|cf-ray)\b[:\s]+[\w.-]+\)?", re.IGNORECASE), ""),
    (re.compile(r"\breq_\w+"), "[id]"),
    (re.compile(r"\bsk-[\w*.-]+"), "[key]"),
    (re.compile(r",\s*url:\s*\S+", re.IGNORECASE), ""),
    (re.compile(r"\s{0,9}for url \([^()]*\)", re.IGNORECASE), ""),
    (re.compile(r"[\w+.-]{0,40}://[^\s\"'<>)\]]*"), "[link]"),
)


def stop_from_text(text: str) -> str | None:
    """Returns `length` or `content_filter` if the error only says that the answer was cut off; else None."""
    found = _INCOMPLETE.search(text[:MAX_READ])
    return _STOPS.get(found.group(1)) if found else None


def clean_text(text: str, limit: int = MAX_MESSAGE) -> str:
    """Returns the text without terminal colours, addresses, keys and request ids, cut to `limit`."""
    text = _ANSI.sub("", text[:MAX_READ])
    for pattern, instead in _CUTS:
        text = pattern.sub(instead, text)
    text = text.strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def failure_from_text(
    text: str, *, kind: str | None = None, http_status: int | None = None, details: str | None = None
) -> Failure:
    """Converts an error text; UPSTREAM_ERROR if it is unknown. `kind` is the name in `codexErrorInfo`, `http_status`
    its number, `details` the `additionalDetails`.
    """
    provider_text = _provider_text(text[:MAX_READ], (details or "")[:MAX_READ])
    body = _body_in(provider_text)
    code = body.get("code") or body.get("type")
    readable = _readable_text(provider_text, body)
    status = http_status or status_in(provider_text)
    code = code if isinstance(code, str) else None
    fault, own_code = _classify(code, kind, readable, provider_text, status)
    given = body.get("code")
    return Failure(
        fault,
        _message(fault, clean_text(readable), status),
        code=given if isinstance(given, str) and _CODE.fullmatch(given) else own_code,
        retry_after=_seconds_to_wait(readable, body),
    )


def retrying_event(failure: Failure, status: int | None) -> Retrying:
    """Returns the event for a failure after which the agent tries again. Leaves out a failure of the kind
    UPSTREAM_ERROR without a status: it is only a guess.
    """
    told = failure.kind is not K.UPSTREAM_ERROR or status is not None
    return Retrying(failure.message, status, failure if told else None)


def _classify(
    code: str | None, kind: str | None, readable: str, provider_text: str, status: int | None
) -> tuple[FaultKind, str | None]:
    if code in CODES:
        return CODES[code], None
    if kind in CLEAR_KINDS:
        return CLEAR_KINDS[kind], None
    if found := kind_in(readable, CLEAR_TEXTS):
        return found, "invalid_prompt" if found is K.REJECTED_BY_PROVIDER else None
    if status is not None and status >= 400:
        return kind_of_status(status), None
    # Here the frame counts ("stream disconnected ...: <anything>"), not only what stands in it.
    return kind_in(provider_text, VAGUE_TEXTS) or VAGUE_KINDS.get(kind or "", K.UPSTREAM_ERROR), None


def kind_of_status(status: int) -> FaultKind:
    by_default = K.REJECTED_BY_PROVIDER if status < 500 else K.UPSTREAM_ERROR
    return STATUSES.get(status, by_default)


def _provider_text(text: str, details: str) -> str:
    note = _RECONNECTING.match(text)
    if note:
        wrapped = text[note.end() :].strip()
        text = details or (wrapped[1:-1] if wrapped[:1] == "(" and wrapped[-1:] == ")" else wrapped)
    return _RETRY_TAIL.sub("", text)


def _body_in(text: str) -> dict[str, object]:
    start = text.find("{")
    if start < 0:
        return {}
    try:
        whole, _ = json.JSONDecoder().raw_decode(text, start)
    except UNREADABLE:
        return {}
    if not isinstance(whole, dict):
        return {}
    error = whole.get("error", whole)
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _readable_text(provider_text: str, body: dict[str, object]) -> str:
    for name in ("message", "detail"):
        message = body.get(name)
        if isinstance(message, str) and message.strip():
            return message[:MAX_READ]
    unframed = _FRAME.sub("", provider_text, count=1)
    hollow = unframed.lstrip()[:1] in ("<", "{") or _RETRY_LIMIT.fullmatch(unframed)
    return "" if hollow else unframed


def _message(fault: FaultKind, provider_text: str, status: int | None) -> str:
    ours = MESSAGES.get(fault, "The agent failed")
    if not provider_text:
        return f"{ours} (HTTP {status})." if status else f"{ours}."
    return f"{ours}: {provider_text}" if fault in EXPLAINED else provider_text


def status_in(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


def _seconds_to_wait(text: str, body: dict[str, object]) -> float | None:
    told = body.get("resets_in_seconds")
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < math.inf:
        return float(told)
    found = _WAIT.search(text)
    if not found:
        return None
    spans = [(number, _unit_seconds(name)) for number, name in _SPAN.findall(found.group(1))]
    if any(unit is None for _, unit in spans):
        return None
    return sum(float(number) * unit for number, unit in spans if unit is not None)


def _unit_seconds(name: str) -> float | None:
    name = name.lower()
    if name.startswith(("ms", "milli")):
        return _UNITS["ms"]
    return _UNITS.get(name[:1])


def failure_from_exit(ended: Ended) -> Failure:
    """Returns the failure of a turn whose child ended, also with exit code 0."""
    line = last_useful_line(ended.stderr_tail)
    told = failure_from_text(line).kind if line else K.AGENT_CRASHED
    kind = told if told in (K.AGENT_NOT_AUTHENTICATED, K.AGENT_MISCONFIGURED) else K.AGENT_CRASHED
    advice = f" {MESSAGES[kind]}." if kind is K.AGENT_NOT_AUTHENTICATED and line else ""
    message = f"The agent's process ended before its answer was complete{describe_end(ended)}"
    return Failure(kind, f"{message}{advice}")


def describe_end(ended: Ended) -> str:
    """Returns the end of a sentence: ` (exit code 1): ` and the last useful line of stderr, or ` (signal 15).`"""
    line = last_useful_line(ended.stderr_tail)
    return f"{describe_exit(ended)}: {line}" if line else f"{describe_exit(ended)}."


def describe_exit(ended: Ended) -> str:
    """Returns ` (exit code 1)` or ` (signal 15)`; empty if not known."""
    if ended.signal is not None:
        why = ": killed, perhaps for lack of memory" if ended.signal == signal.SIGKILL else ""
        return f" (signal {ended.signal}{why})"
    return "" if ended.code is None else f" (exit code {ended.code})"


def last_useful_line(stderr: str) -> str:
    """Returns the last line that begins with `Error`, else the last above level INFO."""
    lines = [line for raw in stderr[-MAX_READ:].splitlines() if (line := clean_text(raw, MAX_LINE))]
    loud = [line for line in lines if not _QUIET_LOG.match(line)]
    errors = [line for line in loud if line.startswith("Error")]
    found = (errors or loud or [""])[-1]
    return _LOG_HEAD.sub("", found)
