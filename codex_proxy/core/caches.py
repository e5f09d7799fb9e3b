"""Caches of limited size: one drops what was not used for the longest time; in the other, where entries of several
owners (API keys) share the room, the owner with most loses its oldest entry, so that no owner displaces what others
have.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A cache that removes the entries that were not used for the longest time, while the sum of sizes is above
    `most`.
    """

    def __init__(
        self,
        most: int,
        size_of: Callable[[K, V], int] = lambda key, value: 1,
        on_drop: Callable[[V], object] = lambda value: None,
    ) -> None:
        """`on_drop` is called with each value that is removed or replaced."""
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._room = most
        self._size_of = size_of
        self._on_drop = on_drop

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Returns a value, which counts as a use."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        self.drop(key)
        self._entries[key] = value
        self._room -= self._size_of(key, value)
        while self._room < 0:
            self.drop(next(iter(self._entries)))

    def drop(self, key: K) -> None:
        """Removes an entry, if it is there."""
        if key in self._entries:
            value = self._entries.pop(key)
            self._room += self._size_of(key, value)
            self._on_drop(value)

    def clear(self) -> None:
        while self._entries:
            self.drop(next(iter(self._entries)))


def subtract(counts: Counter[str], owner: str, by: int = 1) -> None:
    """Subtracts `by` from an owner's count. A count that has become 0 is removed, so that nothing is kept of owners
    without entries.
    """
    counts[owner] -= by
    if not counts[owner]:
        del counts[owner]


class OwnedEntries(MutableMapping[K, V]):
    """Entries by key, the oldest first; one that is set again keeps its place."""

    def __init__(self, owner_of: Callable[[K, V], str], size_of: Callable[[V], int] | None = None) -> None:
        """`size_of` is needed for `size` and `oldest_of_largest`."""
        self.size = 0
        """The sum of all sizes."""
        self._owner_of = owner_of
        self._size_of = size_of
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._keys_of: dict[str, OrderedDict[K, None]] = {}
        """The keys of each owner, the oldest first; none is empty."""
        self._sizes: Counter[str] = Counter()

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        owner = self._owner_of(key, value)
        keys = self._keys_of.get(owner)
        if keys is None:
            keys = self._keys_of[owner] = OrderedDict()
        if self._size_of is not None:
            before = self._size_of(self._entries[key]) if key in self._entries else 0
            self._grow(owner, self._size_of(value) - before)
        self._entries[key] = value
        keys.setdefault(key)

    def __delitem__(self, key: K) -> None:
        value = self._entries.pop(key)
        owner = self._owner_of(key, value)
        if self._size_of is not None:
            self._grow(owner, -self._size_of(value))
        del self._keys_of[owner][key]
        if not self._keys_of[owner]:
            del self._keys_of[owner], self._sizes[owner]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _grow(self, owner: str, by: int) -> None:
        self.size += by
        self._sizes[owner] += by

    def oldest_of_most(self) -> K:
        """Returns the key of the oldest entry of the owner with most entries."""
        owner = max(self._keys_of, key=lambda each: len(self._keys_of[each]))
        return next(iter(self._keys_of[owner]))

    def oldest_of_largest(self) -> K:
        """Returns the key of the oldest entry of the owner whose sizes have the largest sum."""
        return next(iter(self._keys_of[max(self._sizes, key=self._sizes.__getitem__)]))
