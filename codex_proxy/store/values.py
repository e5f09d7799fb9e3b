"""The values, limits and errors of a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
Order = Literal["asc", "desc"]

UNFINISHED: Final = frozenset({"queued", "in_progress"})
"""Statuses of a response that has not ended."""

MAX_SEARCHED: Final = 5000
"""Maximum responses that a search looks at."""
MAX_PARENTS_SEARCHED: Final = 1000
"""Maximum records below which a search looks, and that lists in another order than that of writing look at."""
MAX_SEARCHED_BYTES: Final = 1 << 16
"""Maximum bytes of a record in which a search looks."""
MAX_RECORDS_FOUND: Final = 1000
MAX_TREE: Final = 500
DELIVERY_SECONDS: Final = 30.0
"""Seconds for which a claimed webhook is reserved: twice as long as a delivery may take."""
MAX_METADATA_KEYS: Final = 16
"""Maximum keys of metadata, as at OpenAI, checked after a merge."""


# --- errors -------------------------------------------------------------------------------------


class StoreError(Exception):
    """An error of the store, with a message for the operator."""


class StoreUnavailable(StoreError):  # noqa: N818 - says what it is
    """The store is locked, full, closed, overloaded or out of reach."""


class UnsureWrite(StoreUnavailable):
    """A write got no answer: it may be stored, or may still be."""


class StoreDamaged(StoreUnavailable):
    """A row does not match its checksum, so it is not returned."""


class StoreRefused(StoreError):  # noqa: N818
    """The store is damaged, of a newer version, or no store; nothing was changed."""


class StoreInUse(StoreRefused):
    """Another process has locked the store."""


class NotStored(StoreError):  # noqa: N818
    """The owner has no such object."""

    def __init__(self, kind: Literal["response", "conversation", "item", "record"], id: str) -> None:
        super().__init__(f"there is no {kind} {id!r}")
        self.kind = kind
        self.id = id


class NotFinished(StoreError):  # noqa: N818
    """The background response, which is to be continued, has not ended."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the response {id!r} has not ended")


class StoreConflict(StoreError):  # noqa: N818
    """The write contradicts stored data. The `reason` `lease`: another node holds the response or record; `turn`:
    another turn has begun in the conversation.
    """

    def __init__(self, reason: Literal["id_taken", "too_many_keys", "lease", "turn"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


def lease_lost(id: str) -> StoreConflict:
    """Returns the error for writing a response that this node no longer holds."""
    return StoreConflict("lease", f"this server no longer runs the response {id!r}")


def record_lost(id: str) -> StoreConflict:
    """Returns the error for writing under the lease of a record that this node no longer holds."""
    return StoreConflict("lease", f"this server no longer acts on the record {id!r}")


def turn_lost(id: str) -> StoreConflict:
    """Returns the error for ending a turn of a conversation in which another one has begun since."""
    return StoreConflict(
        "turn", f"another turn has begun in the conversation {id!r} since this one was stopped"
    )


class ContextTooLarge(StoreError):  # noqa: N818
    """A conversation or chain has, or would have, more than `ContextLimits`."""

    def __init__(self, items: int, size: int, limits: ContextLimits) -> None:
        super().__init__(
            f"{items} items of {size} bytes; the limits are {limits.max_items or 'any number of'} items and"
            f" {limits.max_bytes or 'any number of'} bytes"
        )


# --- settings -----------------------------------------------------------------------------------


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the stored data (None: no limit). The oldest responses, and the least recently used conversations and
    records, are removed first; of responses that continue each other, the last.
    """

    age: float | None = 30 * 86400.0
    """Seconds for which responses are kept; 30 days as at OpenAI."""
    conversation_age: float | None = None
    """Seconds for which a conversation or record is kept after its last use."""
    usage_age: float | None = 400 * 86400.0
    """Seconds for which sums of usage are kept: a year and a month."""
    frames_age: float = 86400.0
    """Seconds for which a finished background response's events are kept."""
    max_responses: int | None = 100_000
    """Maximum responses: so many take some hundred MB."""
    max_conversations: int | None = None
    """Maximum chains outside conversations. `spared` protects only those that a turn is continuing, and background
    responses that have just ended.
    """
    max_bytes: int | None = 4 << 30
    """Maximum bytes of all content."""
    spared: float = 3600.0
    """Seconds after its last use for which an object is not removed because of number or size."""


class ContextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest conversation or chain that can be continued; None: no limit."""

    max_items: int | None = 20_000
    """Maximum items: twice what one request may have."""
    max_bytes: int | None = 64 << 20
    """Maximum bytes: twice the largest body. A turn holds this much in memory."""

    def check(self, items: int, size: int) -> None:
        """Raises `ContextTooLarge` above the limits."""
        too_many = self.max_items is not None and items > self.max_items
        if too_many or (self.max_bytes is not None and size > self.max_bytes):
            raise ContextTooLarge(items, size, self)


# --- values -------------------------------------------------------------------------------------


class StoredItem(msgspec.Struct, frozen=True):
    """An item, whose id is unique in its response or conversation. `created`: seconds since 1970."""

    id: str
    json: bytes
    """The item as clients get it; empty if only the model sees it."""
    raw: bytes = b""
    """The item as the model gets it, if that differs."""
    created: float = 0.0

    @property
    def visible(self) -> bool:
        return bool(self.json)

    @property
    def size(self) -> int:
        return len(self.json) + len(self.raw)


class ItemReference(msgspec.Struct, frozen=True):
    """A reference to an item of the same owner, in any response or conversation."""

    id: str


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response without its items; `json` is the client's object, `created` in seconds since 1970."""

    owner: str
    id: str
    status: str
    created: float
    json: bytes
    previous_id: str | None = None
    conversation_id: str | None = None
    background: bool = False
    recovery: bytes = b""
    """What is needed to run a background response again."""

    @property
    def is_running(self) -> bool:
        """Whether it is in the background, and has not ended."""
        return self.background and self.status in UNFINISHED


class TextSearch(NamedTuple):
    """A search for the bytes `text`, in any case of ASCII letters, in the JSON of records of a `kind` that also has the
    `marker`. They are below records of the kind `above`, which have no parent.
    """

    above: str
    kind: str
    marker: bytes
    text: bytes


class PendingWebhook(msgspec.Struct, frozen=True):
    """An event to be posted to one URL."""

    event_id: str
    url: str
    body: bytes
    tries: int = 0
    claim: str | None = None
    """An id of this claim, which a later claim does not have; None if no other node can claim the webhook."""


class ResponseUpdate(NamedTuple):
    """What `Store.update_response` changes."""

    status: str
    json: bytes
    output: Sequence[StoredItem] | None = None
    append: str | None = None
    only_from: Collection[str] | None = None
    webhooks: Sequence[PendingWebhook] = ()
    frames: Sequence[Frame] = ()
    """The last rows of the stream's log."""
    epoch: int | None = None
    turn_epoch: int | None = None


class RecordWrite(NamedTuple):
    """What `Store.write_records` writes."""

    written: Sequence[Record]
    gone: Collection[RecordKey] = ()
    require: RecordKey | None = None
    epoch: int | None = None
    hold: RecordKey | None = None
    webhooks: Sequence[PendingWebhook] = ()
    tell: bytes | None = None


class ChainTurn(msgspec.Struct, frozen=True):
    """A response of a chain."""

    response_id: str
    input: tuple[StoredItem, ...]
    output: tuple[StoredItem, ...]


Frame: TypeAlias = tuple[int, bytes]
"""A row of the log of a response's stream: its number, and its data. From number 0 on these are the stream's events as
SSE, which releases before rows of events have stored.
"""


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items."""

    owner: str
    id: str
    created: float
    metadata: dict[str, str] = {}
    version: int = 0
    """A number that increases with every change of the items."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a part of the program: JSON that is found by its kind and id, and listed below its parent."""

    kind: str
    id: str
    json: bytes
    created: float
    parent: str = ""
    """The id of the record that it belongs to, and is removed with; empty for one that stands alone. Only one
    kind has a record with this id.
    """
    busy: bool = False
    """Whether work is in progress for it, so that retention leaves it."""

    @property
    def key(self) -> RecordKey:
        return self.kind, self.id


RecordKey: TypeAlias = tuple[str, str]
"""The kind and id of a record."""


class PageRequest(msgspec.Struct, frozen=True):
    """A request for at most `limit` items after the item `after` (None: from the beginning)."""

    limit: int = 20
    order: Order = "desc"
    """The order: `asc` begins with the oldest, `desc` with the newest."""
    after: str | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list; `has_more`: other items follow."""

    items: tuple[T, ...]
    has_more: bool


class TreeNode(msgspec.Struct, frozen=True):
    """A response of a tree; a deleted one is in it until those that continue it are deleted, too."""

    id: str
    previous_id: str | None
    deleted: bool


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of objects. `unfinished` counts background responses, `steps` entries of the step memory, `frames` stream
    events, and `records` those of all parts and levels.
    """

    location: str
    """The store's path or URL, or a name for one in RAM."""
    schema_version: int
    bytes_used: int
    bytes_free: int
    """Unused bytes of the file, which `vacuum` gives back."""
    responses: int
    unfinished: int
    conversations: int
    items: int
    frames: int
    steps: int
    records: int
    oldest: float | None
    """When the oldest response was created, in seconds since 1970."""


class CheckResult(msgspec.Struct, frozen=True):
    """How many rows were checked, and the names of damaged ones."""

    rows: int
    damaged: tuple[str, ...]


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects were removed; `usage` counts hourly sums, and `records` those without a parent."""

    responses: int = 0
    conversations: int = 0
    records: int = 0
    frames: int = 0
    steps: int = 0
    usage: int = 0

    def __add__(self, other: PruneResult) -> PruneResult:
        names = self.__struct_fields__
        return PruneResult(**{name: getattr(self, name) + getattr(other, name) for name in names})


NewItem: TypeAlias = StoredItem | ItemReference
