"""What an agent lists of its models and tells of its account's limits, and what that adds to a fault.

Clients recognise a context that is too long by OpenAI's words, and then leave something out or summarise; so the
message of such a fault has those words, whatever the agent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class AgentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the agent lists it."""

    id: str
    display_name: str = ""
    context_window: int | None = None
    input_modalities: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()
    default_effort: str | None = None
    is_default: bool = False
    owned_by: str = "codex"
    agent: str = ""
    """Of several agents the one whose it is; its name begins the `id`. Empty where one serves alone."""
    service_tiers: tuple[str, ...] = ()
    """What it may be served in, beside `default`, by OpenAI's names."""
    default_tier: str = "default"
    """What it is served in where a request names none."""
    hidden: bool = False
    """Not in our lists, though its name is accepted."""
    native: bytes = b""
    """The agent's own entry for it, JSON, which only Codex as a client reads; empty where there is none."""


WindowName: TypeAlias = Literal["primary", "secondary"]


class LimitWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a limit: how much of it is used, and when it begins anew."""

    name: WindowName
    used_percent: float
    seconds: int | None = None
    resets_at: int | None = None
    """Seconds since 1970."""
    resets_in: float | None = None
    """Seconds from the time of the report, which older agents give instead of `resets_at`."""


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of the agent's account. An agent that reports several gives each an id."""

    id: str = ""
    name: str | None = None
    plan: str | None = None
    windows: tuple[LimitWindow, ...] = ()
    reached: str | None = None
    """Which limit is reached, in the agent's word; None where none is."""


_OPENAIS_WORDS: Final = "This model's maximum context length is"
_TOO_LONG: Final = "The input exceeds the context window of this model (context_length_exceeded)."
"""LangChain looks for the code in the text, which has only the message."""


def with_context_length(failure: Failure, model: str, models: Sequence[AgentModel]) -> Failure:
    """Adds the model's context window to a failure of a context that is too long, where `models` has it; else returns
    the failure as it is. An empty `model` is the default one."""
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED or failure.message.startswith(_OPENAIS_WORDS):
        return failure
    meant = (each for each in models if (each.id == model if model else each.is_default))
    window = next((each.context_window for each in meant), None)
    length = "exceeded" if window is None else f"{window} tokens"
    message = f"{_OPENAIS_WORDS} {length}. {_TOO_LONG} {failure.message}"
    return msgspec.structs.replace(failure, message=message)


def with_reset(failure: Failure, limits: Sequence[AccountLimits], *, told_at: float, now: float) -> Failure:
    """Adds the seconds until the reset to a failure of a usage limit that is reached. `told_at`, when the limits were
    reported, and `now` are seconds since 1970."""
    if failure.kind is not FaultKind.USAGE_LIMIT_REACHED or failure.retry_after is not None:
        return failure
    resets = {
        window: reset
        for limit in limits
        for window in limit.windows
        if (reset := resets_at(window, told_at)) is not None and reset > now
    }
    if not resets:
        return failure
    # All of the account's use may be a little less than the whole of a window: then it is the fullest one.
    full = min(100.0, max(window.used_percent for window in resets))
    last = max(reset for window, reset in resets.items() if window.used_percent >= full)
    return msgspec.structs.replace(failure, retry_after=last - now)


def resets_at(window: LimitWindow, told_at: float) -> int | None:
    """Returns when the window starts again, in seconds since 1970; None where the agent did not report it."""
    if window.resets_at is None and window.resets_in is not None:
        return int(told_at + window.resets_in)
    return window.resets_at
