"""Runs the turns of one conversation one after the other. A turn waits for the one before it, for a bounded time."""

from __future__ import annotations

import asyncio

from codex_proxy.core.faults import Failure, Fault, FaultKind


class ConversationTurn:
    """The right to continue a conversation. `release` gives it to the next turn; calling it again does nothing."""

    def __init__(self, turns: ConversationTurns, key: tuple[str, str]) -> None:
        self._turns: ConversationTurns | None = turns
        self._key = key

    def release(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.give_back(self._key)


class ConversationTurns:
    """Locks, one per conversation that a turn continues or waits for."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._wanted: dict[tuple[str, str], int] = {}

    async def enter(self, owner: str, conversation_id: str, within: float | None) -> ConversationTurn:
        """Waits for the turn that runs, at most `within` seconds (None: without a bound). Raises `Fault`
        CONCURRENCY_EXCEEDED after that time."""
        key = (owner, conversation_id)
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._wanted[key] = self._wanted.get(key, 0) + 1
        try:
            async with asyncio.timeout(within):
                await lock.acquire()
        except TimeoutError:
            self._forget(key)
            raise Fault(
                Failure(
                    kind=FaultKind.CONCURRENCY_EXCEEDED,
                    message="Another turn of this conversation is still running. Try again when it has ended.",
                    retry_after=5,
                )
            ) from None
        except BaseException:
            self._forget(key)
            raise
        return ConversationTurn(self, key)

    def give_back(self, key: tuple[str, str]) -> None:
        self._locks[key].release()
        self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key], self._locks[key]
