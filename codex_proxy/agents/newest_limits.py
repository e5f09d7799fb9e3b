"""The newest limits of the user's account, from all processes of an agent.

A report may leave out limits: it replaces those that it contains, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from codex_proxy.agents.account_limits import MAX_COUNT, limits_in
from codex_proxy.core.account import AccountLimits


class NewestLimits:
    """The newest limits by their ids. Not for use by several threads."""

    def __init__(self) -> None:
        self._known: dict[str, AccountLimits] = {}
        self._told_at = 0.0
        self._asked_at: float | None = None
        self._answered = asyncio.Event()

    def update(self, json: bytes) -> None:
        """Takes the JSON that an agent reported; empty bytes where it was asked and gave no answer."""
        for told in limits_in(json):
            if told.id in self._known or len(self._known) < MAX_COUNT:
                self._known[told.id] = _merged(self._known.get(told.id), told)
                self._told_at = _now()
        self._answered.set()

    def newest(self) -> tuple[tuple[AccountLimits, ...], float]:
        """Returns all limits and how many seconds ago one was last reported; no limits and 0 where none was."""
        if not self._known:
            return (), 0.0
        return tuple(self._known.values()), _now() - self._told_at

    def due(self, every: float) -> bool:
        """Whether to ask the agent now, because nothing was reported or asked for `every` seconds."""
        now = _now()
        last = self._told_at if self._known else None
        if any(at is not None and now - at < every for at in (last, self._asked_at)):
            return False
        self._asked_at = now
        return True

    async def answered(self, within: float) -> None:
        """Waits until the next report, at most `within` seconds."""
        self._answered.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._answered.wait()


def _merged(known: AccountLimits | None, told: AccountLimits) -> AccountLimits:
    if known is None:
        return told
    windows = {each.name: each for each in (*known.windows, *told.windows)}
    return msgspec.structs.replace(
        told,
        name=told.name or known.name,
        plan=told.plan or known.plan,
        windows=tuple(windows.values()),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
