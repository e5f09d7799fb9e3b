"""The leases of a store's nodes: no other node acts on what one holds.

A node is a server process with its store object. It holds the background responses that it runs and the conversations
of its turns, and renews these leases every `RENEW_SECONDS`; after `LEASE_SECONDS` another node may take them over. The
epoch tells the holders of a response or conversation apart: a write with an old one raises `StoreConflict`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakValueDictionary

import msgspec

LEASE_SECONDS: Final = 30.0
"""Seconds for which a lease is valid, by the store's clock."""
RENEW_SECONDS: Final = 5.0
POLL_SECONDS: Final = 1.0
"""Seconds after which a `Watch` returns at the latest."""
FIRST_EPOCH: Final = 1
"""The epoch of the node that has added a response."""
ONLY_EPOCH: Final = 0
"""The epoch of a conversation that cannot be taken over, or does not exist."""

Key: TypeAlias = tuple[str, str]
"""The owner and the id of a response or conversation."""


class ResponseLease(NamedTuple):
    """The right to run a background response."""

    owner: str
    id: str
    epoch: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A server process with the store. Times: seconds since 1970."""

    id: str = ""
    """The node's id, which the store gives it."""
    name: str
    """The name of the machine and, if there are several, the number of the worker."""
    url: str
    version: str
    started: float
    seen: float = 0.0
    responses: int = 0


class Changes:
    """The changes of one stored object, for any number of watches. Whoever learns of one calls `report`."""

    def __init__(self) -> None:
        self.count = 0
        self.next = asyncio.Event()

    def report(self) -> None:
        self.count += 1
        self.next.set()
        self.next = asyncio.Event()


class Watch:
    """What waits for changes of one object."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._seen = changes.count

    async def wait(self) -> None:
        """Waits until the object may have changed, at most `POLL_SECONDS`."""
        if self._seen == self._changes.count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changes.next.wait()
        self._seen = self._changes.count


class ConversationLocks:
    """The locks of one process on conversations, each held by one turn, in the order of asking."""

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[Key, asyncio.Lock]()
        """The locks that a turn holds or waits for."""
        self._held: dict[Key, asyncio.Lock] = {}

    async def acquire(self, key: Key) -> None:
        lock = self._locks.setdefault(key, asyncio.Lock())
        await lock.acquire()
        self._held[key] = lock

    def release(self, key: Key) -> None:
        self._held.pop(key).release()


class ConversationLease:
    """The right to add a turn to a conversation. Writes of the turn name its `epoch`."""

    def __init__(self, leave: Callable[[Key], None], key: Key, epoch: int = ONLY_EPOCH) -> None:
        self.epoch = epoch
        self._leave: Callable[[Key], None] | None = leave
        self._key = key

    def release(self) -> None:
        """Lets the next turn in, once; never raises."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self._key)


class Leases(Protocol):
    """The leases of this node. Methods that read or write raise `StoreUnavailable`."""

    async def claim_responses(self, limit: int) -> list[ResponseLease]:
        """Takes over at most `limit` background responses that no node holds, oldest first."""

    async def renew(self, held: Collection[ResponseLease]) -> list[ResponseLease]:
        """Renews the leases `held`, and the leases of this node's conversations. Returns the leases that it has
        lost.
        """

    async def until_renewal(self) -> None:
        """Waits `RENEW_SECONDS`, or until another node may have changed what this one holds."""

    async def release(self) -> None:
        """Gives up all leases of this node."""

    async def enter_conversation(self, owner: str, id: str) -> ConversationLease:
        """Waits for the conversation's other turns on all nodes, then returns its lease."""

    def watch(self, id: str) -> Watch:
        """Returns a watch on a response or conversation."""

    async def announce(self, node: Node) -> None:
        """Adds this node to `nodes`, until `release`."""

    async def nodes(self) -> list[Node]:
        """Returns the live nodes, oldest first."""
