"""The whole history of a turn that was given only what the agent's stored session has not seen of it
(`StoredSession.before`): it is read where that session cannot go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from codex_proxy.core.items import HistoryItem


class WholeHistory:
    """A history that is read when it is needed. `read` returns all of it; it may raise `Fault`."""

    def __init__(
        self, read: Callable[[], Awaitable[tuple[HistoryItem, ...]]], added: tuple[HistoryItem, ...] = ()
    ) -> None:
        self._read, self._added = read, added

    def followed_by(self, items: Sequence[HistoryItem]) -> WholeHistory:
        return WholeHistory(self._read, (*self._added, *items))

    async def items(self) -> tuple[HistoryItem, ...]:
        return (*await self._read(), *self._added)


Replay: TypeAlias = tuple[HistoryItem, ...] | WholeHistory
"""What a new session of the agent gets in place of a turn's history."""


def followed_by(replay: Replay | None, items: Sequence[HistoryItem]) -> Replay | None:
    """Returns what a new session gets with further items behind it."""
    if isinstance(replay, WholeHistory):
        return replay.followed_by(items)
    return None if replay is None else (*replay, *items)
