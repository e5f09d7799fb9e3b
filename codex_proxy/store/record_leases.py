"""The leases of records, such as sessions at work: only the node that holds one acts on the record, and its writes
name the lease's epoch (`Store.write_records`). Other nodes may follow it: then they get a message with each such write.
And nodes send each other messages. A store that one server uses alone has one holder, and nobody to tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol, Self, TypeAlias

ONLY_EPOCH: Final = 0
"""The epoch of what cannot be taken over."""

NodeId: TypeAlias = str
NO_NODE: Final = ""
"""Instead of the id of the node that holds a record, if none does."""


class _UntilLost:
    """Something that this node has of a record until it gives it back, or loses it."""

    def __init__(self, leave: Callable[[Self], None]) -> None:
        self.on_lost: Callable[[], None] = _nothing
        """Called once if it is lost."""
        self._leave: Callable[[Self], None] | None = leave

    def release(self: Self) -> None:
        """Gives it back, once; never raises."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self)

    def lose(self) -> None:
        if self._leave is not None:
            self._leave = None
            self.on_lost()


class RecordLease(_UntilLost):
    """The right to act on a record. When it is released any node may take the record; it is lost to one that has taken
    the record over.
    """

    def __init__(self, leave: Callable[[Self], None], epoch: int = ONLY_EPOCH) -> None:
        super().__init__(leave)
        self.epoch = epoch


class Following(_UntilLost):
    """Has the messages about a record sent to this node. `holder`: the node that held the record when this had begun.
    It is lost when messages may be missing, since this node was stopped or cut off for too long.
    """

    def __init__(self, leave: Callable[[Self], None], holder: NodeId = NO_NODE) -> None:
        super().__init__(leave)
        self.holder = holder


class WrittenRecords(NamedTuple):
    """The outcome of a write of records: the lease of the record that this node was to hold, and whether other nodes
    follow the record that was required.
    """

    lease: RecordLease | None = None
    followed: bool = False


class RecordLeases(Protocol):
    """The leases of this node. Methods that are awaited raise `StoreUnavailable`."""

    node: NodeId
    """This node."""

    async def take(self, owner: str, kind: str, id: str) -> RecordLease | NodeId:
        """Takes the lease of a record that no other node holds, or returns the node that does. Raises `NotStored`."""

    async def follow(self, owner: str, kind: str, id: str) -> Following:
        """Has this node told of what is written from now on by nodes that take the record; its `holder` has to be told
        that this node follows. Raises `NotStored`.
        """

    async def post(self, node: NodeId, message: bytes) -> None:
        """Sends a message to a node."""

    async def receive(self) -> list[bytes]:
        """Returns messages to this node, those about one record in their order. They are removed by the next call."""


class SingleNodeRecords:
    """The leases of records of the only node: it holds what it takes, and there is nobody who could follow."""

    node: NodeId = "node_1"

    async def take(self, owner: str, kind: str, id: str) -> RecordLease | NodeId:
        return self.hold()

    def hold(self) -> RecordLease:
        return RecordLease(_nothing)

    async def follow(self, owner: str, kind: str, id: str) -> Following:
        return Following(_nothing)

    async def post(self, node: NodeId, message: bytes) -> None:
        raise AssertionError("there is no other node")

    async def receive(self) -> list[bytes]:
        return []


def _nothing(*_: object) -> Literal[None]:
    return None
