"""How many bytes are held for whom: no more than a limit in all, and no more than a share of it for one owner."""

from __future__ import annotations

from collections import Counter
from typing import Literal

Refusal = Literal["owner", "total"]
"""Whose limit it is that has no room."""


class ByteBudget:
    """`total` for all owners together, `each` for one of them; 0 for any number."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, owner: str, size: int) -> Refusal | None:
        """Counts so many bytes more, or says which limit has no room for them. What holds nothing else always has
        room: one body may be larger than a limit, and is bounded by one of its own."""
        theirs = self._held[owner]
        if self.each and theirs and theirs + size > self.each:
            return "owner"
        if self.total and self.held and self.held + size > self.total:
            return "total"
        self._held[owner] += size
        return None

    def give_back(self, owner: str, size: int) -> None:
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
