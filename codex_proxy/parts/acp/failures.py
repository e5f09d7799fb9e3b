"""Converts an agent's errors to failures: the official adapters' `sessionFailure` in a result's `_meta`, a JSON-RPC
error, or an error text as the answer.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.failures import (
    MAX_READ,
    MESSAGES,
    clean_text,
    failure_from_text,
    kind_in,
    kinds_by_text,
)
from codex_proxy.core.events import Retrying
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.json_values import text_at, value_at
from codex_proxy.parts.acp.messages import AUTH_REQUIRED, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from codex_proxy.parts.acp.presets import AcpPreset

K = FaultKind

KINDS_BY_TEXT: Final = kinds_by_text(
    (
        r"(?:prompt|input|request)\b.{0,40}\btoo long|context (?:length|limit)|prompt budget",
        K.CONTEXT_LENGTH_EXCEEDED,
    ),
    (
        r"unknown model|model\b.{0,200}?(?:not found|(?:does|may) not exist|not available)|^(?:\d{3} )?model: \S+$",
        K.MODEL_NOT_FOUND,
    ),
    (r"\b429\b|rate.?limit|too many requests", K.AGENT_RATE_LIMITED),
    (r"\b40[13]\b|unauthori[sz]ed|authenticat|api[ -]key|not logged in|sign in", K.AGENT_NOT_AUTHENTICATED),
    (r"\b(?:503|529)\b|overloaded", K.UNAVAILABLE),
    (
        r"\bterminated\b|stream disconnected|(?:connection|socket)\b.{0,12} (?:lost|reset|closed)|transport error|"
        r"error reading a body",
        K.UPSTREAM_DISCONNECTED,
    ),
    (r"\b50\d\b|internal server error", K.UPSTREAM_ERROR),
)
ADDRESSES: Final = re.compile(
    r" ?If it persists, check your inference gateway[^.(]{0,200}\([^()]{0,200}\)\.?"
    r"|\b(?:(?:\d{1,3}\.){3}\d{1,3}|localhost):\d+\b"
)
"""Matches what in an error text, besides links, reveals the model provider's address, and is removed."""
MAX_NOTE: Final = 400
INTERNAL: Final = re.compile(r"^Internal error(?:: )?")

ERROR_KINDS: Final = {
    "rate_limit": K.AGENT_RATE_LIMITED,
    "server_error": K.UPSTREAM_ERROR,
    "authentication_failed": K.AGENT_NOT_AUTHENTICATED,
    "model_not_found": K.MODEL_NOT_FOUND,
}
"""Kinds by `data.errorKind` of a JSON-RPC error."""
CATEGORIES: Final = {
    "limit": K.AGENT_RATE_LIMITED,
    "service": K.UPSTREAM_ERROR,
    "access": K.AGENT_NOT_AUTHENTICATED,
    "request": K.REJECTED_BY_PROVIDER,
}
"""Kinds by `sessionFailure.category`."""


def failure_of_error(error: RpcError, preset: AcpPreset) -> Failure:
    text = _text_of(error)
    if error.code == AUTH_REQUIRED:
        return not_signed_in(preset, text)
    kind = ERROR_KINDS.get(str(value_at(error.data, "errorKind")))
    if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND) and kind is None:
        message = (
            f"{preset.title} rejected a request from this server: {clean_text(text)}. The operator "
            "should update the agent or codex-proxy."
        )
        return Failure(K.AGENT_PROTOCOL, message)
    status = error.code if isinstance(error.code, int) and 400 <= error.code < 600 else None
    return failure_of_text(text, preset, kind=kind, status=status)


def failure_of_session(failure: dict[str, Any], preset: AcpPreset) -> Failure:
    kind = CATEGORIES.get(str(failure.get("category")))
    return failure_of_text(text_at(failure, "title"), preset, kind=kind)


def failure_of_text(
    text: str, preset: AcpPreset, *, kind: FaultKind | None = None, status: int | None = None
) -> Failure:
    """Converts an agent's error text. A kind that shows in the text has priority over the reported `kind`."""
    text = ADDRESSES.sub("", text[:MAX_READ].removeprefix("API Error: ").removeprefix("Error: "))
    found = failure_from_text(text, http_status=status)
    said = found.message.removeprefix(f"{MESSAGES.get(found.kind, '')}: ")
    told = kind_in(text, KINDS_BY_TEXT) or kind_in(said, KINDS_BY_TEXT) or kind or found.kind
    if told in (K.UPSTREAM_UNAUTHORIZED, K.AGENT_NOT_AUTHENTICATED):
        return not_signed_in(preset, said)
    message = f"{MESSAGES[told]}: {said}" if told in MESSAGES and said else found.message
    return found if told is found.kind else msgspec.structs.replace(found, kind=told, message=message)


def retry_event(text: str, preset: AcpPreset) -> Retrying:
    text = ADDRESSES.sub("", text[:MAX_READ])
    failure = None if kind_in(text, KINDS_BY_TEXT) is None else failure_of_text(text, preset)
    return Retrying(clean_text(text, MAX_NOTE), failure=failure)


def not_signed_in(preset: AcpPreset, text: str = "") -> Failure:
    """Returns the failure with the preset's advice and the agent's own `text`."""
    said = clean_text(text)
    quoted = f" ({said.rstrip('.')})" if said and said != "Authentication required" else ""
    advice = preset.sign_in or "Sign in with the agent's own program on the machine that runs this server."
    message = f"{preset.title} is not signed in to its model provider{quoted}. {advice}"
    return Failure(K.AGENT_NOT_AUTHENTICATED, message)


def unknown_model(model: str, preset: AcpPreset) -> Failure:
    message = (
        f"{preset.title} does not offer the model '{model[:100]}'. GET /v1/models lists the "
        "models that it offers."
    )
    return Failure(K.MODEL_NOT_FOUND, message, param="model")


def _text_of(error: RpcError) -> str:
    text = INTERNAL.sub("", error.message or "")
    for name in ("details", "message"):
        said = text_at(error.data, name)
        if said and said not in text:
            text = f"{text}: {said}" if text else said
    return text
