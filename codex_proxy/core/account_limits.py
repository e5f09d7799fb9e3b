"""What an agent's account may still use, as the agent tells it: values."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

WindowName: TypeAlias = Literal["primary", "secondary"]


class LimitWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time in which so much may be used."""

    name: WindowName
    used_percent: float
    seconds: int | None = None
    resets_at: int | None = None
    """Seconds since 1970."""
    resets_in: float | None = None
    """Seconds from when it was told: older agents tell this instead."""


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of the account; agents that know several name each."""

    id: str = ""
    name: str | None = None
    plan: str | None = None
    windows: tuple[LimitWindow, ...] = ()
    reached: str | None = None
    """Which limit is reached, in the agent's word; None where none is."""
