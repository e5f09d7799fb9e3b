"""The leases of a store's nodes: no other node acts on what one holds.

A node is a server process with its store object. It holds the background responses that it runs and the conversations
of its turns, and renews these leases every `RENEW_SECONDS`; after `LEASE_SECONDS` another node may take them over. The
epoch tells the holders of a response or conversation apart: a write with an old one raises `StoreConflict`. A store
that one server uses alone has its leases in RAM, since they end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from codex_proxy.core.interfaces import Clock
from codex_proxy.store.record_leases import ONLY_EPOCH, RecordLeases, SingleNodeRecords
from codex_proxy.store.values import DELIVERY_SECONDS, PendingWebhook, lease_lost

LEASE_SECONDS: Final = 30.0
"""Seconds for which a lease is valid, by the store's clock."""
RENEW_SECONDS: Final = 5.0
POLL_SECONDS: Final = 1.0
"""Seconds after which a `Watch` returns at the latest."""
FIRST_EPOCH: Final = 1
"""The epoch of the node that has added a response."""
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


class ChangeSignal:
    """Tells any number of watches that one stored object has changed. Whoever learns of a change calls `report`."""

    def __init__(self) -> None:
        self.count = 0
        self.next = asyncio.Event()

    def report(self) -> None:
        self.count += 1
        self.next.set()
        self.next = asyncio.Event()


class Watch:
    """Waits for changes of one stored object."""

    def __init__(self, changes: ChangeSignal) -> None:
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

    @property
    def records(self) -> RecordLeases: ...

    async def claim_responses(self, limit: int) -> list[ResponseLease]:
        """Takes over at most `limit` background responses that no node holds, oldest first."""

    async def renew(self, held: Collection[ResponseLease]) -> list[ResponseLease]:
        """Renews the leases `held`, and those of this node's conversations and records. Returns the leases `held` that
        it has lost.
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


class SingleNodeLeases:
    """The leases of the only node, in RAM."""

    def __init__(self, unfinished: Callable[[], Awaitable[list[Key]]], clock: Clock) -> None:
        """`unfinished` returns the background responses that have not ended, oldest first."""
        self._unfinished = unfinished
        self._clock = clock
        self._held: dict[Key, int] = {}
        """The epoch of each response that this node holds."""
        self._epochs: dict[Key, int] = {}
        """The last epoch (see `store.leases`) of each response that was given up."""
        self._all_held = False
        """Whether every unfinished response is held."""
        self._conversations = ConversationLocks()
        self.records = SingleNodeRecords()
        self._nodes: list[Node] = []

    async def claim_responses(self, limit: int) -> list[ResponseLease]:
        if self._all_held:
            return []
        free = [key for key in await self._unfinished() if key not in self._held]
        self._all_held = len(free) <= limit
        return [self._hold(key, self._epochs.pop(key, 0) + 1) for key in free[:limit]]

    async def renew(self, held: Collection[ResponseLease]) -> list[ResponseLease]:
        return [each for each in held if self._held.get((each.owner, each.id)) != each.epoch]

    async def until_renewal(self) -> None:
        await asyncio.sleep(RENEW_SECONDS)

    async def release(self) -> None:
        self._epochs |= self._held
        self._held.clear()
        self._all_held = False
        self._nodes.clear()

    async def enter_conversation(self, owner: str, id: str) -> ConversationLease:
        await self._conversations.acquire((owner, id))
        return ConversationLease(self._conversations.release, (owner, id))

    def watch(self, id: str) -> Watch:
        return Watch(ChangeSignal())

    async def announce(self, node: Node) -> None:
        self._nodes = [msgspec.structs.replace(node, id="node_1")]

    async def nodes(self) -> list[Node]:
        seen, held = self._clock.epoch(), len(self._held)
        return [msgspec.structs.replace(node, seen=seen, responses=held) for node in self._nodes]

    # --- for the store ----------------------------------------------------------------------------

    def hold_new(self, owner: str, id: str) -> bool:
        """Holds a background response that is to be added, so that it is never claimed; returns False if it is held."""
        if (owner, id) in self._held:
            return False
        self._hold((owner, id), FIRST_EPOCH)
        return True

    def _hold(self, key: Key, epoch: int) -> ResponseLease:
        self._held[key] = epoch
        return ResponseLease(*key, epoch)

    def end(self, owner: str, id: str) -> None:
        """Gives up a response that has ended or was deleted."""
        self._held.pop((owner, id), None)

    def check(self, owner: str, id: str, epoch: int | None, *, ended: bool = False) -> None:
        """Raises `StoreConflict` unless the response is held with this epoch (None: any), or has ended and `ended`
        permits that.
        """
        held = self._held.get((owner, id))
        if epoch is not None and held != epoch and not (held is None and ended):
            raise lease_lost(id)


class ReservedWebhooks:
    """The webhooks that the only node has claimed, and until when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def first(self, pending: Sequence[PendingWebhook], limit: int) -> list[PendingWebhook]:
        """Reserves and returns the first of `pending` that are not reserved, at most `limit`."""
        now = self._clock.monotonic()
        # One that was dropped stays: `pending` may have been read before.
        self._until = {key: until for key, until in self._until.items() if until > now}
        free = [each for each in pending if (each.event_id, each.url) not in self._until][:limit]
        for each in free:
            self.reserve(each, DELIVERY_SECONDS)
        return free

    def reserve(self, pending: PendingWebhook, seconds: float) -> None:
        self._until[pending.event_id, pending.url] = self._clock.monotonic() + seconds
