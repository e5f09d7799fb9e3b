"""`GET /v1/usage/limits`: what the agent's account may still use.

In: what the agent has told, and when. Out: the object. Its shape is ours: OpenAI's API has no such thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codex_proxy.core.account import AccountLimits, LimitWindow, resets_at


def limits_object(
    agent: str, known: Sequence[AccountLimits], *, told_at: float, now: float, reason: str
) -> dict[str, Any]:
    """`limits` is null, with the `reason`, where nothing is known. `told_at`, `now`: seconds since 1970."""
    found = [_limit(each, told_at, now) for each in known]
    return {
        "object": "usage.limits",
        "agent": agent,
        "limits": found or None,
        "as_of": int(told_at) if found else None,
        "reason": None if found else reason,
    }


def _limit(limit: AccountLimits, told_at: float, now: float) -> dict[str, Any]:
    return {
        "id": limit.id or None,
        "name": limit.name,
        "plan": limit.plan,
        "reached": limit.reached,
        "windows": [_window(each, told_at, now) for each in limit.windows],
    }


def _window(window: LimitWindow, told_at: float, now: float) -> dict[str, Any]:
    reset = resets_at(window, told_at)
    return {
        "name": window.name,
        "window_seconds": window.seconds,
        "used_percent": window.used_percent,
        "resets_at": reset,
        # The agent tells the figure of its last call: a window that is over since then counts from nothing again.
        "over": reset is not None and reset <= now,
    }
