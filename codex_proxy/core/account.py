"""The models of an agent, and the limits of its account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class AgentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the agent lists it; what it does not report is None or empty."""

    id: str
    display_name: str = ""
    context_window: int | None = None
    input_modalities: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()
    default_effort: str | None = None
    is_default: bool = False
    owned_by: str = ""
    """The owner that lists name; empty: its agent."""
    agent: str = ""
    """The name of the model's agent, with which `id` begins; empty if the server has a single one."""
    serves_unnamed: bool = False
    """Whether requests without a model name get this model."""
    service_tiers: tuple[str, ...] = ()
    """The model's service tiers beside `default`, by OpenAI's names."""
    default_tier: str = "default"
    """The tier of requests that name none."""
    verbosity: bool = True
    """Whether the model gets a request's verbosity, if the agent has that capability."""
    hidden: bool = False
    """Whether the model is left out of lists; requests may name it."""
    native: bytes = b""
    """The agent's JSON entry, for Codex as a client, if any."""


WindowName: TypeAlias = Literal["primary", "secondary"]


class LimitWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A time window of a limit, `seconds` long. None: not reported."""

    name: WindowName
    used_percent: float
    seconds: int | None = None
    resets_at: int | None = None
    """The reset, in seconds since 1970."""
    resets_in: float | None = None
    """Seconds from the report to the reset, which older agents report instead."""


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of the agent's account. None: not reported."""

    id: str = ""
    name: str | None = None
    plan: str | None = None
    windows: tuple[LimitWindow, ...] = ()
    reached: str | None = None
    """The agent's name of the reached limit, if one is."""


_OPENAIS_WORDS: Final = "This model's maximum context length is"
_TOO_LONG: Final = "The input exceeds the context window of this model (context_length_exceeded)."
"""The message, with OpenAI's error code, for which LangChain looks."""


def with_context_length(failure: Failure, model: str, models: Sequence[AgentModel]) -> Failure:
    """Returns a `CONTEXT_LENGTH_EXCEEDED` failure in OpenAI's words, by which clients recognise it, with the model's
    context window if known (an empty name: the default model); others unchanged.
    """
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED or failure.message.startswith(_OPENAIS_WORDS):
        return failure
    meant = (each for each in models if (each.id == model if model else each.is_default))
    window = next((each.context_window for each in meant), None)
    length = "exceeded" if window is None else f"{window} tokens"
    message = f"{_OPENAIS_WORDS} {length}. {_TOO_LONG} {failure.message}"
    return msgspec.structs.replace(failure, message=message)


def with_reset(
    failure: Failure, limits: Sequence[AccountLimits], *, reported_at: float, now: float
) -> Failure:
    """Returns a `USAGE_LIMIT_REACHED` failure with `retry_after` until a known reset; others unchanged. Times: seconds
    since 1970.
    """
    if failure.kind is not FaultKind.USAGE_LIMIT_REACHED or failure.retry_after is not None:
        return failure
    resets = {
        window: reset
        for limit in limits
        for window in limit.windows
        if (reset := resets_at(window, reported_at)) is not None and reset > now
    }
    if not resets:
        return failure
    # All of the account's use may be a little less than the whole of a window: then it is the fullest one.
    full = min(100.0, max(window.used_percent for window in resets))
    last = max(reset for window, reset in resets.items() if window.used_percent >= full)
    return msgspec.structs.replace(failure, retry_after=last - now)


def resets_at(window: LimitWindow, reported_at: float) -> int | None:
    """Returns the reset in seconds since 1970, if reported."""
    if window.resets_at is None and window.resets_in is not None:
        return int(reported_at + window.resets_in)
    return window.resets_at
