"""The leases of a store that one server uses alone: in RAM, since they end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from codex_proxy.core.interfaces import Clock
from codex_proxy.store.leases import (
    FIRST_EPOCH,
    RENEW_SECONDS,
    Changes,
    ConversationLease,
    ConversationLocks,
    Key,
    Node,
    ResponseLease,
    Watch,
)
from codex_proxy.store.values import DELIVERY_SECONDS, PendingWebhook, lease_lost


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
        return Watch(Changes())

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
