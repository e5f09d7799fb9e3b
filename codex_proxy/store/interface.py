"""The interface of a store, its guarantees, and its values. Independent of any database, and cheap to import.

What each implementation guarantees:

- A write that has returned is on disk, and every later read sees it. A write whose caller was cancelled, or that raised
  `StoreUnavailable`, is stored completely or not at all.
- Every object has an owner (the name of a client's key). For other owners the object does not exist: reads return None
  or an empty result, or raise `NotStored`; writes raise `NotStored`.
- Lists are in the order of writing. Times and ids come from the caller or the injected clock.

Any method may raise `StoreUnavailable` (not possible now; no completed write is lost); reads may raise its subclass
`StoreDamaged`. `NotStored` and `StoreConflict` are named at the methods that raise them, and `StoreRefused` is
raised when a store is opened. Any other exception is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from codex_proxy.core.step_memory import StepMemory
from codex_proxy.store.usage import UsageLedger

Order = Literal["asc", "desc"]

UNFINISHED: Final = frozenset({"queued", "in_progress"})
"""The statuses of a response that has not ended."""

MAX_METADATA_KEYS: Final = 16
"""OpenAI's limit of metadata keys. It is checked in the store because it holds for the metadata after a merge."""


# --- errors -------------------------------------------------------------------------------------


class StoreError(Exception):
    """A call of the store failed. The message is for the operator."""


class StoreUnavailable(StoreError):  # noqa: N818 - says what it is
    """The store cannot be used now, but may be usable later: the file is locked by another process, the disk is
    full, or the store is closed or overloaded.
    """


class StoreDamaged(StoreUnavailable):
    """A stored row does not match its checksum. The row is not returned; other rows can still be read."""


class StoreRefused(StoreError):  # noqa: N818
    """The file cannot be opened as a store: damaged, made by a newer version, or not a store. It was not changed."""


class NotStored(StoreError):  # noqa: N818
    """The object does not exist, or belongs to another owner. `kind` and `id` say which object of the call it is."""

    def __init__(self, kind: Literal["response", "conversation", "item"], id: str) -> None:
        super().__init__(f"there is no {kind} {id!r}")
        self.kind = kind
        self.id = id


class StoreConflict(StoreError):  # noqa: N818
    """The write contradicts stored data. `reason` is `id_taken`, `version` (the conversation has changed), or
    `too_many_keys` (in the metadata).
    """

    def __init__(self, reason: Literal["id_taken", "version", "too_many_keys"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ContextTooLarge(StoreError):  # noqa: N818
    """A conversation or a chain of responses has more items or bytes than `ContextLimits` permits, or would have
    after this write.
    """

    def __init__(self, items: int, size: int, limits: ContextLimits) -> None:
        super().__init__(
            f"{items} items of {size} bytes; the limits are {limits.max_items or 'any number of'} items and"
            f" {limits.max_bytes or 'any number of'} bytes"
        )


# --- settings -----------------------------------------------------------------------------------


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the stored data; None is no limit. If there is too much, the oldest responses and the least
    recently used conversations are removed first.

    A response that another one continues (by `previous_response_id`) is not removed, so a chain of responses is
    removed from its end.
    """

    age: float | None = 30 * 86400.0
    """Seconds for which responses are kept; 30 days as at OpenAI."""
    conversation_age: float | None = None
    """Seconds for which a conversation is kept after its last use. OpenAI keeps them until they are deleted."""
    usage_age: float | None = 400 * 86400.0
    """Seconds for which the sums of usage are kept: a year, and the month to compare it with."""
    frames_age: float = 86400.0
    """Seconds for which the stream of a finished background response can be read again."""
    max_responses: int | None = 100_000
    """The most responses. This many responses of usual size take some hundred MB."""
    max_conversations: int | None = None
    """The most conversations that responses form by continuing each other; responses of a stored conversation,
    which has an id of its own, do not count. If there is one more, the one that was continued the longest time ago
    is removed.

    `spared` protects only those that a turn is continuing, and background responses that have just ended."""
    max_bytes: int | None = 4 << 30
    """The most bytes of all stored content together. Images take up most of it."""
    spared: float = 3600.0
    """Seconds after the creation of a response, or the last use of a conversation, during which it is not removed for
    number or size, so that work in progress keeps its context."""


class ContextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest conversation or chain of responses that can be continued; None is no limit."""

    max_items: int | None = 20_000
    """The most items of a context: twice what one request may have."""
    max_bytes: int | None = 64 << 20
    """The most bytes: twice the largest request body, and far more than any model reads. A turn holds this much in
    memory."""

    def check(self, items: int, size: int) -> None:
        """Raises `ContextTooLarge` if there are more `items`, or more bytes (`size`), than the limits."""
        too_many = self.max_items is not None and items > self.max_items
        if too_many or (self.max_bytes is not None and size > self.max_bytes):
            raise ContextTooLarge(items, size, self)


# --- values -------------------------------------------------------------------------------------


class StoredItem(msgspec.Struct, frozen=True):
    """One item of a response or conversation. Its id is unique within the response or conversation. `created` is in
    seconds since 1970.
    """

    id: str
    json: bytes
    """The item as the client sees it; empty for items that only the model sees (hidden calls and their outputs)."""
    raw: bytes = b""
    """The item as the model must see it again; empty if that is the same as `json`."""
    created: float = 0.0

    @property
    def visible(self) -> bool:
        return bool(self.json)

    @property
    def size(self) -> int:
        return len(self.json) + len(self.raw)


class ItemReference(msgspec.Struct, frozen=True):
    """A reference to an existing item of the same owner, in any response or conversation."""

    id: str


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response without its items. `json` is the response object as the client gets it. `created` is in seconds
    since 1970. `previous_id` and `conversation_id` are None if the response continues no other response, or no
    conversation.
    """

    owner: str
    id: str
    status: str
    """The `status` of the response object (`queued`, `in_progress`, `completed` ...)."""
    created: float
    json: bytes
    previous_id: str | None = None
    conversation_id: str | None = None
    background: bool = False
    recovery: bytes = b""
    """Data that the caller needs to run a background response again after a restart; the store does not read it."""


class PendingWebhook(msgspec.Struct, frozen=True):
    """A webhook event that still has to be delivered to one URL. `body` is the bytes to post."""

    event_id: str
    url: str
    body: bytes
    tries: int = 0
    """How many delivery attempts were made."""


class ChainTurn(msgspec.Struct, frozen=True):
    """One response of a chain (responses that continue each other): its input items and its output items."""

    response_id: str
    input: tuple[StoredItem, ...]
    output: tuple[StoredItem, ...]


class Frame(msgspec.Struct, frozen=True):
    """One stored event of a background response's stream; `data` is the event as SSE bytes."""

    number: int
    """The event's `sequence_number`."""
    data: bytes


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items. `created` is in seconds since 1970."""

    owner: str
    id: str
    created: float
    metadata: dict[str, str] = {}
    version: int = 0
    """Increases with every change of the items. The items of a turn can be appended on condition that the version
    is still the one at which the turn began."""


class Append(msgspec.Struct, frozen=True):
    """The conversation to which the input and output items of a response are appended when the response is saved."""

    conversation_id: str
    version: int | None = None
    """The version of the conversation at which the turn began; another one raises `StoreConflict`. None accepts any
    version."""


class PageRequest(msgspec.Struct, frozen=True):
    """A part of a list of items: at most `limit` items in this order, beginning after the item with the id `after`;
    None: from the beginning.
    """

    limit: int = 20
    order: Order = "desc"
    """`asc` for the oldest items first, `desc` for the newest first."""
    after: str | None = None


class Page(msgspec.Struct, frozen=True):
    """A part of a list of items. `has_more`: further items follow."""

    items: tuple[StoredItem, ...]
    has_more: bool


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a store: its file, and the number of objects of each kind. `unfinished` counts background
    responses that have not ended, `steps` the entries of the step memory, `frames` the stored stream events.
    """

    location: str
    """The path of the store's file, or a name for a store in RAM."""
    schema_version: int
    """The version of the file's tables."""
    bytes_used: int
    bytes_free: int
    """Bytes of the file that are unused; `vacuum` gives them back to the file system."""
    responses: int
    unfinished: int
    conversations: int
    items: int
    frames: int
    steps: int
    oldest: float | None
    """When the oldest response was created, in seconds since 1970; None if there are no responses."""


class Checked(msgspec.Struct, frozen=True):
    """The result of a check of the store: the number of rows that were compared with their checksums, and the names
    of the damaged ones.
    """

    rows: int
    damaged: tuple[str, ...]


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects of each kind were removed. `frames` are stream events, `steps` entries of the step memory,
    and `usage` hourly sums of usage.
    """

    responses: int = 0
    conversations: int = 0
    frames: int = 0
    steps: int = 0
    usage: int = 0


NewItem: TypeAlias = StoredItem | ItemReference


# --- the interface ------------------------------------------------------------------------------


class Responses(Protocol):
    """The interface of the stored responses with their items, and of the stream events of background responses."""

    async def add_response(
        self,
        response: StoredResponse,
        *,
        input: Sequence[StoredItem] = (),
        output: Sequence[StoredItem] = (),
        append: Append | None = None,
    ) -> None:
        """Saves a response with its items. `append` names a conversation to which the input and output items are
        appended; None: none. Items whose ids the conversation has already are not appended again.

        Raises `NotStored` if the previous response or the conversation does not exist, and `StoreConflict` if an id
        is taken or the conversation has another version than `append` names.
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
    ) -> bool:
        """Replaces the status and the object of a response, and also its output items unless `output` is None. If the
        response has ended, its `recovery` data are removed. `append` names a conversation to which the stored input
        and output items are appended; None: none. `webhooks` are added to the outbox. All of this is written
        together.

        Returns False, and changes nothing, if the response was deleted or its status is not in `only_from` (None:
        any status). With `only_from=UNFINISHED`, a response that was cancelled is not completed later. Raises
        `NotStored` or `StoreConflict` as `add_response` does.
        """
        ...

    async def response(self, owner: str, id: str) -> StoredResponse | None: ...

    async def delete_response(self, owner: str, id: str) -> bool:
        """Deletes a response. Returns False if it does not exist. Responses that continue it can still be
        continued: `context` and `scan_context` return its items for them. No other method returns it.
        """
        ...

    async def input_items(self, owner: str, response_id: str, page: PageRequest) -> Page:
        """Returns a page of the response's input items that clients see. Raises `NotStored` if the response, or the
        item `after` of the page request, does not exist.
        """
        ...

    async def context(self, owner: str, response_id: str) -> list[ChainTurn]:
        """Returns the chain of responses that ends with this one, the oldest first. Raises `NotStored` if there is
        no such response.
        """
        ...

    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` with each item of the chain of responses that ends with this one, oldest first, including
        items that clients do not see. `visit` is called in one of the store's worker threads while rows are read.
        Raises `NotStored` if there is no such response, and `ContextTooLarge` before the first call.
        """
        ...

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
        """Returns the items with these ids that clients see, by id, from any response or conversation of the owner.
        If several items have an id, the newest is returned; ids that are not found are left out.
        """
        ...

    async def unfinished_responses(self) -> list[StoredResponse]:
        """Returns the background responses of all owners that have not ended (status in `UNFINISHED`), oldest
        first. Responses whose row is damaged are left out; reading one by its id raises `StoreDamaged`.
        """
        ...

    async def append_frames(self, owner: str, response_id: str, frames: Sequence[Frame]) -> None:
        """Adds events to the stored stream of a response. Raises `NotStored` if there is no such response, and
        `StoreConflict` if an event with the same number is stored already.
        """
        ...

    async def frames(
        self, owner: str, response_id: str, *, after: int = -1, limit: int = 1000
    ) -> list[Frame]:
        """Returns at most `limit` events of the response's stream with a number above `after`, in order; an empty
        list if there are none. Raises `NotStored` if there is no such response.
        """
        ...


class Conversations(Protocol):
    """The interface of the stored conversations and their items."""

    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        """Adds a conversation with its first items, and returns the items, with the referenced items in place of
        references. Raises `StoreConflict` if an id is taken, `NotStored` if a referenced item does not exist, and
        `ContextTooLarge`.
        """
        ...

    async def conversation(self, owner: str, id: str) -> StoredConversation | None: ...

    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        """Merges `changes` into the metadata of a conversation; the value None deletes a key. Returns the changed
        conversation. Raises `NotStored` if it does not exist, and `StoreConflict` for more than `MAX_METADATA_KEYS`
        keys.
        """
        ...

    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Deletes a conversation. Returns False if it does not exist. Its items that are also in other
        conversations or in responses are not deleted from those.
        """
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
        """Appends all items or none. Returns them, with the referenced items in place of references.

        Raises `NotStored` if the conversation or a referenced item does not exist; `StoreConflict` if the
        conversation has an item with the same id, or another version than `version` (None: any version); and
        `ContextTooLarge` if `limited` is True. The items of a finished turn are appended with `limited=False`, so
        that no answer is lost; the next turn is refused instead.
        """
        ...

    async def items(self, owner: str, conversation_id: str, page: PageRequest) -> Page:
        """Returns a page of the conversation's items that clients see. Raises `NotStored` if the conversation, or
        the item `after` of the page request, does not exist.
        """
        ...

    async def item(self, owner: str, conversation_id: str, item_id: str) -> StoredItem | None:
        """Returns an item that clients see; None if the conversation has none with this id. Raises `NotStored` if
        the conversation does not exist.
        """
        ...

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Removes the item from this conversation only, and returns the conversation. Raises `NotStored` if the
        conversation or the item does not exist.
        """
        ...

    async def scan_conversation(self, owner: str, id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` with each item of the conversation, oldest first, including items that clients do not see.
        `visit` is called in one of the store's worker threads while rows are read, so that only one item at a time
        is in memory. Raises `NotStored` if there is no such conversation, and `ContextTooLarge` before the first
        call.
        """
        ...


class Outbox(Protocol):
    """The interface of the outbox: the stored webhook events that have not been delivered yet.
    `Responses.update_response` adds them when a response ends.
    """

    async def count_webhook_try(self, pending: PendingWebhook) -> None:
        """Saves `pending.tries`, the number of delivery attempts so far, which the caller has already increased."""
        ...

    async def drop_webhook(self, event_id: str, url: str) -> None:
        """Removes a webhook that was delivered or given up. Does nothing if there is no such webhook."""
        ...

    async def webhooks(self, limit: int) -> list[PendingWebhook]:
        """Returns at most `limit` pending webhooks, oldest first."""
        ...


class StoreMaintenance(Protocol):
    """The interface for the operator's commands and for the background task that applies `Retention`."""

    async def stats(self) -> StoreStats: ...

    async def check_writable(self) -> None:
        """Checks that the store can be written, by writing a row and removing it. Raises `StoreUnavailable` if that
        fails.
        """
        ...

    async def prune(self, now: float | None = None) -> Pruned:
        """Removes the objects that `Retention` does not permit at the time `now` (seconds since 1970; None: the
        present), and entries of the step memory that are too old, in small writes. Returns how many were removed.
        """
        ...

    async def sweep(self) -> None:
        """Removes the rows of deleted objects, in small writes. Every deletion starts this by itself; a call is
        needed only for objects that an earlier process has deleted.
        """
        ...

    async def export(self, write: Callable[[bytes], object]) -> int:
        """Calls `write` for each response and conversation, with its JSON in one line that ends with a line feed.
        Returns the number of lines.
        """
        ...

    async def check(self) -> Checked:
        """Compares every stored row with its checksum, in small reads, and returns which rows are damaged. Changes
        nothing.
        """
        ...

    async def vacuum(self) -> int:
        """Gives the file's unused pages back to the file system, in small steps. Returns the number of bytes given
        back.
        """
        ...

    async def close(self) -> None:
        """Waits for the operations that have begun, then closes the file. A second call does nothing."""
        ...


class Store(StepMemory, Responses, Conversations, UsageLedger, Outbox, StoreMaintenance, Protocol):
    """The interface of the whole store. A function that needs only a part of it takes that part (`Responses`,
    `Outbox`).
    """
