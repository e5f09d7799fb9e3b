"""Reads what agents tell of their account's limits: `usedPercent` is app-server's spelling, `used_percent` proto's.

In: JSON. Out: `AccountLimits`, none where the agent has told nothing (all null: the provider sent no such headers).
Never raises. Sources: app-server's `RateLimitSnapshot` and `GetAccountRateLimitsResponse`, proto's `token_count`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.account import AccountLimits, LimitWindow, WindowName

MAX_COUNT: Final = 16
"""Limits that are read of one message: an account has one to three."""
_MAX_CHARS: Final = 200  # letters of a name that the agent gives
_WINDOWS: Final[tuple[WindowName, ...]] = ("primary", "secondary")
_FARTHEST: Final = 253_402_300_799  # the last second of the year 9999


def limits_in(json: bytes) -> tuple[AccountLimits, ...]:
    """Every limit that the message tells of."""
    try:
        value = msgspec.json.decode(json)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    found = (_limits(each) for each in _snapshots(value))
    return tuple(each for each in found if each.windows or each.reached)[:MAX_COUNT]


def _snapshots(value: Any) -> Iterator[Mapping[str, Any]]:
    """A snapshot alone, or the answer to `account/rateLimits/read`, which has one by each id."""
    if not isinstance(value, dict):
        return
    several = value.get("rateLimitsByLimitId")
    if isinstance(several, dict) and several:
        for id, each in several.items():
            if isinstance(each, dict):
                yield {"limitId": id, **each}
        return
    one = value.get("rateLimits", value)
    if isinstance(one, dict):
        yield one


def _limits(told: Mapping[str, Any]) -> AccountLimits:
    windows = (_window(name, told.get(name)) for name in _WINDOWS)
    return AccountLimits(
        id=_text(told, "limitId", "limit_id") or "",
        name=_text(told, "limitName", "limit_name"),
        plan=_text(told, "planType", "plan_type"),
        windows=tuple(each for each in windows if each is not None),
        reached=_text(told, "rateLimitReachedType", "rate_limit_reached_type"),
    )


def _window(name: WindowName, told: Any) -> LimitWindow | None:
    if not isinstance(told, dict):
        return None
    used = _number(told, "usedPercent", "used_percent")
    if used is None:
        return None
    minutes = _number(told, "windowDurationMins", "window_minutes")
    resets_at = _number(told, "resetsAt", "resets_at")
    return LimitWindow(
        name=name,
        used_percent=used,
        seconds=None if minutes is None else int(minutes * 60),
        resets_at=None if resets_at is None else int(resets_at),
        resets_in=_number(told, "resets_in_seconds"),
    )


def _text(told: Mapping[str, Any], *names: str) -> str | None:
    found = next((told[name] for name in names if isinstance(told.get(name), str)), None)
    return None if found is None else found[:_MAX_CHARS]


def _number(told: Mapping[str, Any], *names: str) -> float | None:
    """A number that is none of a broken clock or of a broken agent."""
    for name in names:
        value = told.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _FARTHEST:
            return value
    return None
