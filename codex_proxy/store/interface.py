"""The interface of a store, its guarantees, and its values.

Each implementation guarantees:

- A write that has returned is on disk, and later reads see it. One whose caller was cancelled, or that raised
  `StoreUnavailable`, is stored completely or not at all.
- An object exists only for its owner (the name of a client's key): for others reads return None or an empty result, or
  raise `NotStored`, as writes do.
- Lists are in the order of writing. Times and ids come from the caller or the injected clock.

Any method may raise `StoreUnavailable`, reads also `StoreDamaged`; methods name other errors themselves; opening raises
`StoreRefused`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from codex_proxy.core.step_memory import StepMemory
from codex_proxy.store.leases import Leases
from codex_proxy.store.team import Team
from codex_proxy.store.usage import UsageLedger

Order = Literal["asc", "desc"]

UNFINISHED: Final = frozenset({"queued", "in_progress"})
"""The statuses of a response that has not ended."""

MAX_SEARCHED: Final = 5000
"""How many responses a search looks at."""
MAX_TREE: Final = 500
"""The most responses of a tree."""
DELIVERY_SECONDS: Final = 30.0
"""Seconds for which a claimed webhook is reserved: twice as long as a delivery may take."""
MAX_METADATA_KEYS: Final = 16
"""OpenAI's limit of metadata keys, checked after a merge."""


# --- errors -------------------------------------------------------------------------------------


class StoreError(Exception):
    """A call of the store failed. The message is for the operator."""


class StoreUnavailable(StoreError):  # noqa: N818 - says what it is
    """Not usable now: locked, full, closed, overloaded or out of reach."""


class StoreDamaged(StoreUnavailable):
    """A row does not match its checksum, and is not returned."""


class StoreRefused(StoreError):  # noqa: N818
    """The store is damaged, of a newer version, or none; nothing was changed."""


class NotStored(StoreError):  # noqa: N818
    """The owner has no object `kind` `id`."""

    def __init__(self, kind: Literal["response", "conversation", "item"], id: str) -> None:
        super().__init__(f"there is no {kind} {id!r}")
        self.kind = kind
        self.id = id


class NotFinished(StoreError):  # noqa: N818
    """The background response `id`, which is to be continued, has not ended."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the response {id!r} has not ended")


class StoreConflict(StoreError):  # noqa: N818
    """The write contradicts stored data: `version`, the conversation has changed; `lease`, another node holds the
    response.
    """

    def __init__(
        self, reason: Literal["id_taken", "version", "too_many_keys", "lease"], message: str
    ) -> None:
        super().__init__(message)
        self.reason = reason


def not_held(id: str) -> StoreConflict:
    """Returns the error for a write to a response that this node no longer holds."""
    return StoreConflict("lease", f"this server no longer runs the response {id!r}")


class ContextTooLarge(StoreError):  # noqa: N818
    """A conversation or chain has, or would have, more than `ContextLimits` permits."""

    def __init__(self, items: int, size: int, limits: ContextLimits) -> None:
        super().__init__(
            f"{items} items of {size} bytes; the limits are {limits.max_items or 'any number of'} items and"
            f" {limits.max_bytes or 'any number of'} bytes"
        )


# --- settings -----------------------------------------------------------------------------------


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the stored data (None: no limit). The oldest responses and least recently used conversations are
    removed first, a chain from its end.
    """

    age: float | None = 30 * 86400.0
    """Seconds for which responses are kept; 30 days as at OpenAI."""
    conversation_age: float | None = None
    """Seconds after its last use for which a conversation is kept."""
    usage_age: float | None = 400 * 86400.0
    """Seconds for which sums of usage are kept: a year and a month."""
    frames_age: float = 86400.0
    """Seconds for which the events of a finished background response are kept."""
    max_responses: int | None = 100_000
    """The most responses: this many take some hundred MB."""
    max_conversations: int | None = None
    """The most chains that are not of a conversation. `spared` protects only those that a turn is continuing, and
    background responses that have just ended.
    """
    max_bytes: int | None = 4 << 30
    """The most bytes of all stored content."""
    spared: float = 3600.0
    """Seconds since its last use during which an object is not removed for number or size."""


class ContextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest conversation or chain that can be continued; None: no limit."""

    max_items: int | None = 20_000
    """The most items of a context: twice what one request may have."""
    max_bytes: int | None = 64 << 20
    """Twice the largest body; a turn holds this much in memory."""

    def check(self, items: int, size: int) -> None:
        """Raises `ContextTooLarge` if there are more `items` or bytes (`size`)."""
        too_many = self.max_items is not None and items > self.max_items
        if too_many or (self.max_bytes is not None and size > self.max_bytes):
            raise ContextTooLarge(items, size, self)


# --- values -------------------------------------------------------------------------------------


class StoredItem(msgspec.Struct, frozen=True):
    """An item of a response or conversation, in which its id is unique. `created`: seconds since 1970."""

    id: str
    json: bytes
    """The item for clients; empty if only the model sees it."""
    raw: bytes = b""
    """The item for the model, unless it is `json`."""
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
    """A response without its items; `json` is the object that the client gets, `created` in seconds since 1970."""

    owner: str
    id: str
    status: str
    """The `status` of the response object."""
    created: float
    json: bytes
    previous_id: str | None = None
    conversation_id: str | None = None
    background: bool = False
    recovery: bytes = b""
    """What the caller needs to run a background response again."""


class PendingWebhook(msgspec.Struct, frozen=True):
    """A webhook event to be delivered to one URL; `body` is what to post."""

    event_id: str
    url: str
    body: bytes
    tries: int = 0
    """How many delivery attempts were made."""


class ChainTurn(msgspec.Struct, frozen=True):
    """A response of a chain."""

    response_id: str
    input: tuple[StoredItem, ...]
    output: tuple[StoredItem, ...]


class Frame(msgspec.Struct, frozen=True):
    """An event of a background response's stream; `data` is SSE bytes."""

    number: int
    """The event's `sequence_number`."""
    data: bytes


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items."""

    owner: str
    id: str
    created: float
    metadata: dict[str, str] = {}
    version: int = 0
    """Increases with every change of the items."""


class Append(msgspec.Struct, frozen=True):
    """The conversation to which a response's items are appended when it is saved."""

    conversation_id: str
    version: int | None = None
    """The version at which the turn began; None: any."""


class PageRequest(msgspec.Struct, frozen=True):
    """At most `limit` items in this order, after the item `after` (None: from the beginning)."""

    limit: int = 20
    order: Order = "desc"
    """`asc` for the oldest items first, `desc` for the newest first."""
    after: str | None = None


class Page(msgspec.Struct, frozen=True):
    """A part of a list; `has_more`: further items follow."""

    items: tuple[StoredItem, ...]
    has_more: bool


class ResponsePage(msgspec.Struct, frozen=True):
    """A part of a list; `has_more`: further responses follow."""

    responses: tuple[StoredResponse, ...]
    has_more: bool


class ConversationPage(msgspec.Struct, frozen=True):
    """A part of a list; `has_more`: further conversations follow."""

    conversations: tuple[StoredConversation, ...]
    has_more: bool


class TreeNode(msgspec.Struct, frozen=True):
    """A response of a tree, of which it is a part until those that continue it are deleted, too."""

    id: str
    previous_id: str | None
    deleted: bool


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a store. `unfinished`: background responses that have not ended; `steps`: entries of the step memory;
    `frames`: stream events.
    """

    location: str
    """The path or URL of the store, or a name for one in RAM."""
    schema_version: int
    """The version of the tables."""
    bytes_used: int
    bytes_free: int
    """Unused bytes of the file, which `vacuum` gives back."""
    responses: int
    unfinished: int
    conversations: int
    items: int
    frames: int
    steps: int
    oldest: float | None
    """When the oldest response was created, in seconds since 1970, if there is one."""


class Checked(msgspec.Struct, frozen=True):
    """How many rows were checked, and the names of the damaged ones."""

    rows: int
    damaged: tuple[str, ...]


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects were removed. `usage` are hourly sums."""

    responses: int = 0
    conversations: int = 0
    frames: int = 0
    steps: int = 0
    usage: int = 0


NewItem: TypeAlias = StoredItem | ItemReference


# --- the interface ------------------------------------------------------------------------------


class Responses(Protocol):
    """Responses with their items, and the stream events of background responses."""

    async def add_response(
        self,
        response: StoredResponse,
        *,
        input: Sequence[StoredItem] = (),
        output: Sequence[StoredItem] = (),
        append: Append | None = None,
    ) -> None:
        """Saves a response with its items, and appends those that it does not have to the conversation of `append`. A
        background response that has not ended is then held by this node (`Leases`).

        Raises `NotStored` without the previous response or the conversation, `StoreConflict` if an id is taken or the
        conversation has another version.
        """
        ...

    async def update_response(
        self,
        owner: str,
        id: str,
        *,
        status: str,
        json: bytes,
        output: Sequence[StoredItem] | None = None,
        append: Append | None = None,
        only_from: Collection[str] | None = None,
        webhooks: Sequence[PendingWebhook] = (),
        frames: Sequence[Frame] = (),
        epoch: int | None = None,
    ) -> bool:
        """Replaces the status and object of a response, and its output unless None; appends its items as `add_response`
        does; adds `webhooks` to the outbox and `frames` to the stream: all together. If the response has ended, its
        `recovery` data are removed.

        Returns False, and changes nothing, if the response was deleted or its status is not in `only_from` (None: any).
        Raises as `add_response` does, and `StoreConflict` if it is held with another epoch (None: any).
        """
        ...

    async def response(self, owner: str, id: str) -> StoredResponse | None: ...

    async def newest_responses(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ResponsePage:
        """Returns a page of the owner's responses, newest first, behind the response `after`. `search` is a text that
        the id or the object contains, in any case of ASCII letters; it is looked for in `MAX_SEARCHED` responses.
        Raises `NotStored` without the response `after`.
        """
        ...

    async def response_tree(self, owner: str, id: str) -> list[TreeNode]:
        """Returns the responses with the same first response, parents first, at most `MAX_TREE`. Raises `NotStored`."""
        ...

    async def delete_response(self, owner: str, id: str) -> bool:
        """Deletes a response; returns False if there is none. Its items stay in the context of those that continue
        it.
        """
        ...

    async def input_items(self, owner: str, response_id: str, page: PageRequest) -> Page:
        """Returns a page of the input that clients see. Raises `NotStored` without the response or the item `after`."""
        ...

    async def context(self, owner: str, response_id: str) -> list[ChainTurn]:
        """Returns the chain that ends with this response, oldest first. Raises `NotStored`."""
        ...

    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` in a worker thread with each item of the chain that ends with this response, oldest first.
        Raises `NotStored`, `NotFinished`, or `ContextTooLarge` before the first call.
        """
        ...

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
        """Returns the owner's items with these ids that clients see, of several with one id the newest."""
        ...

    async def append_frames(
        self, owner: str, response_id: str, frames: Sequence[Frame], *, epoch: int | None = None
    ) -> None:
        """Adds the events whose numbers the stream of a response does not have. Raises `NotStored`, or `StoreConflict`
        if this node does not hold it with this epoch (None: any node may write).
        """
        ...

    async def frames(
        self,
        owner: str,
        response_id: str,
        *,
        after: int = -1,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[Frame]:
        """Returns at most `limit` events above the number `after`, in order, of at most `max_bytes` (None: any) unless
        it is one. Raises `NotStored`.
        """
        ...


class Conversations(Protocol):
    """Conversations and their items."""

    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        """Adds a conversation; returns its items, with references resolved. Raises `StoreConflict` if an id is taken,
        `NotStored` for a missing reference, and `ContextTooLarge`.
        """
        ...

    async def conversation(self, owner: str, id: str) -> StoredConversation | None: ...

    async def newest_conversations(
        self, owner: str, *, search: str = "", after: str | None = None, limit: int = 20
    ) -> ConversationPage:
        """As `newest_responses`; `search` is a text that the id or the metadata contain."""
        ...

    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        """Merges `changes` into the metadata; None deletes a key. Raises `NotStored`, and `StoreConflict` for more than
        `MAX_METADATA_KEYS` keys.
        """
        ...

    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Deletes a conversation; returns False if there is none."""
        ...

    async def append_items(
        self,
        owner: str,
        conversation_id: str,
        items: Sequence[NewItem],
        *,
        version: int | None = None,
        limited: bool = True,
    ) -> tuple[StoredItem, ...]:
        """Appends all items or none; returns them, with references resolved. Raises `NotStored` without the
        conversation or a referenced item, `StoreConflict` if an id is taken or `version` (None: any) is another,
        `ContextTooLarge` if `limited`.
        """
        ...

    async def items(self, owner: str, conversation_id: str, page: PageRequest) -> Page:
        """Returns a page of the items that clients see. Raises `NotStored`."""
        ...

    async def item(self, owner: str, conversation_id: str, item_id: str) -> StoredItem | None:
        """Returns an item that clients see. Raises `NotStored` without the conversation."""
        ...

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Removes the item from this conversation, which is returned. Raises `NotStored`."""
        ...

    async def scan_conversation(self, owner: str, id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` in a worker thread with each item, oldest first. Raises `NotStored`, or `ContextTooLarge`
        before the first call.
        """
        ...


class Outbox(Protocol):
    """The webhook events to be delivered, which `Responses.update_response` adds."""

    async def claim_webhooks(self, limit: int) -> list[PendingWebhook]:
        """Returns at most `limit` webhooks, oldest first, and reserves them for this node for `DELIVERY_SECONDS`."""
        ...

    async def retry_webhook(self, pending: PendingWebhook, delay: float) -> None:
        """Saves `pending.tries`; any node may claim it again after `delay` seconds."""
        ...

    async def drop_webhook(self, event_id: str, url: str) -> None:
        """Removes a webhook, if it is there."""
        ...


class StoreMaintenance(Protocol):
    """What the operator's commands need, and the task that applies `Retention`."""

    async def stats(self) -> StoreStats: ...

    async def check_writable(self) -> None:
        """Writes a row and removes it."""
        ...

    async def prune(self, now: float | None = None) -> Pruned:
        """Removes in small writes what `Retention` does not permit at `now` (None: the present), and old entries of the
        step memory.
        """
        ...

    async def sweep(self) -> None:
        """Removes the rows of objects that an earlier process has deleted, in small writes."""
        ...

    async def export(self, write: Callable[[bytes], object]) -> int:
        """Calls `write` with a line of JSON for each response and conversation. Returns how many."""
        ...

    async def check(self) -> Checked:
        """Compares every row with its checksum, in small reads."""
        ...

    async def vacuum(self) -> int:
        """Gives unused pages back to the file system, in small steps. Returns their bytes."""
        ...

    async def close(self) -> None:
        """Waits for operations that have begun, then closes the store. A second call does nothing."""
        ...


class Store(StepMemory, Responses, Conversations, UsageLedger, Outbox, StoreMaintenance, Protocol):
    """The whole store."""

    @property
    def leases(self) -> Leases:
        """What this node holds."""
        ...

    @property
    def team(self) -> Team | None:
        """What all nodes share besides; None if there is only one."""
        ...
