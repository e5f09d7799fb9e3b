"""Reads the limits of the user's account from an agent's messages: app-server's `RateLimitSnapshot` or
`GetAccountRateLimitsResponse` (camelCase), the `token_count` of `codex proto` (snake_case), or Claude Code's
`rate_limit_info`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.account import AccountLimits, LimitWindow, WindowName
from codex_proxy.core.json_values import UNREADABLE

MAX_COUNT: Final = 16
"""Maximum limits of one message. An account has one to three."""
_MAX_CHARS: Final = 200  # letters of a name that the agent gives
_WINDOWS: Final[tuple[WindowName, ...]] = ("primary", "secondary")
_CLAUDE_WINDOWS: Final[Mapping[str, tuple[WindowName, int]]] = {
    "five_hour": ("primary", 300),
    "seven_day": ("secondary", 10_080),
}
"""The window and its minutes for each limit of the whole account."""
_END_OF_9999: Final = 253_402_300_799  # the last second of the year 9999


def limits_in(json: bytes) -> tuple[AccountLimits, ...]:
    """Reads a message; none if it is unreadable."""
    try:
        value = msgspec.json.decode(json)
    except UNREADABLE:
        return ()
    found = (_limits(each) for each in _snapshots(value))
    return tuple(each for each in found if each.windows or each.reached)[:MAX_COUNT]


def _snapshots(value: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, dict):
        return
    if "rateLimitType" in value or "unifiedWindows" in value:
        yield from _claude_snapshots(value)
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


def _claude_snapshots(reported: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Converts the windows of the account, then those of a single model. Releases before 2.1.310 report one window at a
    time, often without `utilization`.
    """
    named = reported.get("rateLimitType")
    windows = reported.get("unifiedWindows")
    if not isinstance(windows, dict):
        windows = {named: reported}
    whole: dict[str, Any] = {}
    for name, window in windows.items():
        if not isinstance(name, str) or not isinstance(window, dict):
            continue
        place, minutes = _CLAUDE_WINDOWS.get(name, ("primary", None))
        share = _number(window, "utilization")
        used = {
            "usedPercent": None if share is None else round(100 * share, 2),
            "windowDurationMins": minutes,
        }
        used["resetsAt"] = window.get("resetsAt")
        if name in _CLAUDE_WINDOWS:
            whole[place] = used
        else:
            yield {"limitId": name, "primary": used}
    if reported.get("status") == "rejected":
        whole["rateLimitReachedType"] = named
    yield whole


def _limits(reported: Mapping[str, Any]) -> AccountLimits:
    windows = (_window(name, reported.get(name)) for name in _WINDOWS)
    return AccountLimits(
        id=_text(reported, "limitId", "limit_id") or "",
        name=_text(reported, "limitName", "limit_name"),
        plan=_text(reported, "planType", "plan_type"),
        windows=tuple(each for each in windows if each is not None),
        reached=_text(reported, "rateLimitReachedType", "rate_limit_reached_type"),
    )


def _window(name: WindowName, reported: Any) -> LimitWindow | None:
    if not isinstance(reported, dict):
        return None
    used = _number(reported, "usedPercent", "used_percent")
    if used is None:
        return None
    minutes = _number(reported, "windowDurationMins", "window_minutes")
    resets_at = _number(reported, "resetsAt", "resets_at")
    return LimitWindow(
        name=name,
        used_percent=used,
        seconds=None if minutes is None else int(minutes * 60),
        resets_at=None if resets_at is None else int(resets_at),
        resets_in=_number(reported, "resets_in_seconds"),
    )


def _text(reported: Mapping[str, Any], *names: str) -> str | None:
    found = next((reported[name] for name in names if isinstance(reported.get(name), str)), None)
    return None if found is None else found[:_MAX_CHARS]


def _number(reported: Mapping[str, Any], *names: str) -> float | None:
    """Returns the first of these fields with a number up to the year 9999, if any."""
    for name in names:
        value = reported.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _END_OF_9999:
            return value
    return None


class NewestLimits:
    def __init__(self) -> None:
        self._known: dict[str, AccountLimits] = {}
        self._newest: bytes | None = None
        """The newest message."""
        self._newest_counts = False
        """Whether it has limits."""
        self._told_at = 0.0
        self._asked_at: float | None = None
        self._answered = asyncio.Event()

    def update(self, json: bytes) -> None:
        """Merges the limits in the agent's message into the known ones, and wakes who waits for them. Empty `json`: the
        agent refused to report any.
        """
        if json != self._newest:  # an agent repeats its limits at every call of its model
            self._newest, self._newest_counts = json, self._merge(json)
        if self._newest_counts:
            self._told_at = _now()
        self._answered.set()

    def _merge(self, json: bytes) -> bool:
        """Returns whether there are limits in the message."""
        has_some = False
        for reported in limits_in(json):
            if reported.id in self._known or len(self._known) < MAX_COUNT:
                self._known[reported.id] = _merge(self._known.get(reported.id), reported)
                has_some = True
        return has_some

    def newest(self) -> tuple[tuple[AccountLimits, ...], float]:
        """Returns all known limits, and the seconds since the last report; `()` and 0 if none is known."""
        if not self._known:
            return (), 0.0
        return tuple(self._known.values()), _now() - self._told_at

    def claim_request(self, every: float) -> bool:
        """Whether to ask the agent now: nothing was reported or asked in the last `every` seconds. After True the
        caller must ask.
        """
        now = _now()
        last = self._told_at if self._known else None
        if any(at is not None and now - at < every for at in (last, self._asked_at)):
            return False
        self._asked_at = now
        return True

    async def wait_for_update(self, within: float) -> None:
        self._answered.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._answered.wait()


def _merge(known: AccountLimits | None, reported: AccountLimits) -> AccountLimits:
    if known is None:
        return reported
    windows = {each.name: each for each in (*known.windows, *reported.windows)}
    return msgspec.structs.replace(
        reported,
        name=reported.name or known.name,
        plan=reported.plan or known.plan,
        windows=tuple(windows.values()),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
