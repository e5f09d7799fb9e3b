"""What servers with one store share besides its content: the keys of clients, and the requests that count against a
key's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from codex_proxy.core.keys import Key


class KeyRequests(msgspec.Struct, frozen=True):
    """The requests of one key: let through since the last exchange, and running."""

    taken: int = 0
    running: int = 0


NO_REQUESTS: Final = KeyRequests()


class OtherNodes(msgspec.Struct, frozen=True):
    """The requests of each key on all other nodes, and the `version` of the stored keys (0: there has
    never been one).
    """

    version: int
    others: Mapping[str, KeyRequests]


class Team(Protocol):
    """The keys and requests of all nodes. Methods raise `StoreUnavailable`."""

    async def exchange(self, own: Mapping[str, KeyRequests]) -> OtherNodes:
        """Reports this node's requests by key (unchanged ones may be left out); returns the others'."""

    async def keys(self) -> tuple[Key, ...]:
        """Returns the keys, sorted by name."""

    async def put_key(self, key: Key, *, replace: bool) -> bool:
        """Saves a key; returns whether it replaced one. Raises `KeysError` if it exists and `replace` is false, or
        there are too many.
        """

    async def remove_key(self, name: str) -> bool:
        """Removes a key; returns False if there is none."""
