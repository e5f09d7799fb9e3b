"""The newest that an agent has told of its account's limits, whichever of its processes told it.

An update may leave out what it does not know: it replaces what it tells of, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from codex_proxy.agents.account_limits import MAX_COUNT, limits_in
from codex_proxy.core.account import AccountLimits


class NewestLimits:
    """By the limit's id. Not for several threads."""

    def __init__(self) -> None:
        self._known: dict[str, AccountLimits] = {}
        self._told_at = 0.0
        self._asked_at: float | None = None
        self._answered = asyncio.Event()

    def update(self, json: bytes) -> None:
        """What an agent told; empty where it was asked and would not tell."""
        for told in limits_in(json):
            if told.id in self._known or len(self._known) < MAX_COUNT:
                self._known[told.id] = _merged(self._known.get(told.id), told)
                self._told_at = _now()
        self._answered.set()

    def newest(self) -> tuple[tuple[AccountLimits, ...], float]:
        """All that is known, and how many seconds ago something of it was told; nothing, and 0."""
        if not self._known:
            return (), 0.0
        return tuple(self._known.values()), _now() - self._told_at

    def due(self, every: float) -> bool:
        """Whether to ask the agent now: where nothing so new is known. At most once in `every` seconds."""
        now = _now()
        last = self._told_at if self._known else None
        if any(at is not None and now - at < every for at in (last, self._asked_at)):
            return False
        self._asked_at = now
        return True

    async def answered(self, within: float) -> None:
        """Returns when something is heard from now on, or after `within` seconds."""
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
