"""A cache of limited size, which drops what was not used for the longest time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Keeps entries while the sum of their sizes is at most `most`."""

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
