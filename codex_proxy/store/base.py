"""The interface of a store, its promises, and its values. Independent of any database, and cheap to import.

Promises that each implementation keeps:

- A write that returned is on disk, and every later read sees it. A write whose caller was cancelled, or that raised
  `StoreUnavailable`, is either there as a whole or not at all.
- Every object has an owner. An object of another owner does not exist: reads return None or nothing, writes raise
  `NotStored`.
- Order is the order of writing. Times and ids come from the caller or the injected clock.

Errors: `StoreUnavailable` (not possible now; no acknowledged write is lost), `NotStored`, `StoreConflict`, and when a
store is opened `StoreRefused`. Anything else that a method raises is a bug.
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
    """A call of the store failed. The message is for a person."""


class StoreUnavailable(StoreError):  # noqa: N818 - says what it is
    """The store cannot do this now, but may be able to later: locked by another process, disk full, closed, or
    overloaded.
    """


class StoreDamaged(StoreUnavailable):
    """A stored row does not match its checksum. The row is not returned; other rows can still be read."""


class StoreRefused(StoreError):  # noqa: N818
    """The file cannot be opened as a store: damaged, made by a newer version, or not a store. It was not changed."""


class NotStored(StoreError):  # noqa: N818
    """The object does not exist, or belongs to another owner. `kind` says which of the objects in the call it is."""

    def __init__(self, kind: Literal["response", "conversation", "item"], id: str) -> None:
        super().__init__(f"there is no {kind} {id!r}")
        self.kind = kind
        self.id = id


class StoreConflict(StoreError):  # noqa: N818
    """The write contradicts what is stored: an id is taken, the conversation has another version, or metadata has
    too many keys.
    """

    def __init__(self, reason: Literal["id_taken", "version", "too_many_keys"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ContextTooLarge(StoreError):  # noqa: N818
    """A conversation, or a chain of responses, has more content than one turn may read, or would have with this
    write.
    """

    def __init__(self, items: int, size: int, limits: ContextLimits) -> None:
        super().__init__(
            f"{items} items of {size} bytes; the limits are {limits.max_items or 'any number of'} items and"
            f" {limits.max_bytes or 'any number of'} bytes"
        )


# --- settings -----------------------------------------------------------------------------------


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of what is kept; None is no limit. The least recently used object is removed first.

    A response is removed only when no other response continues it, so a chain that is in use keeps its beginning.
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
    """Seconds after the last use of an object during which it is not removed for number or size, so that no work in
    progress loses its context."""


class ContextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most content that a conversation, or a chain of responses, may have to be continued; None is no limit."""

    max_items: int | None = 20_000
    """The most items of a context: twice what one request may have."""
    max_bytes: int | None = 64 << 20
    """The most bytes: twice the largest request body, and far more than any model reads. A turn holds this much in
    memory."""

    def check(self, items: int, size: int) -> None:
        """Raises `ContextTooLarge` for more items or bytes (`size`) than the limits."""
        too_many = self.max_items is not None and items > self.max_items
        if too_many or (self.max_bytes is not None and size > self.max_bytes):
            raise ContextTooLarge(items, size, self)


# --- values -------------------------------------------------------------------------------------


class StoredItem(msgspec.Struct, frozen=True):
    """One item of a response or conversation. The id is unique within each of them."""

    id: str
    json: bytes
    """The item as the client sees it; empty for items that only the model sees (hidden calls and their outputs)."""
    raw: bytes = b""
    """The item as the model must see it again; empty where that is the same as `json`."""
    created: float = 0.0

    @property
    def visible(self) -> bool:
        return bool(self.json)

    @property
    def size(self) -> int:
        return len(self.json) + len(self.raw)


class ItemReference(msgspec.Struct, frozen=True):
    """Refers to an existing item of the same owner, in any response or conversation."""

    id: str


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response without its items. `json` is the whole object as the client gets it. `previous_id` and
    `conversation_id` are None if it continues no response, or no conversation.
    """

    owner: str
    id: str
    status: str
    created: float
    json: bytes
    previous_id: str | None = None
    conversation_id: str | None = None
    background: bool = False
    recovery: bytes = b""
    """Data that the caller needs to run a background response again after a restart; the store does not read it."""


class PendingWebhook(msgspec.Struct, frozen=True):
    """A webhook event that has yet to be delivered to one URL."""

    event_id: str
    url: str
    body: bytes
    tries: int = 0
    """How many delivery attempts were made."""


class ChainTurn(msgspec.Struct, frozen=True):
    """One turn of a chain of responses: its input items and its output items."""

    response_id: str
    input: tuple[StoredItem, ...]
    output: tuple[StoredItem, ...]


class Frame(msgspec.Struct, frozen=True):
    """One stored event of a background response's stream."""

    number: int
    """The event's `sequence_number`."""
    data: bytes


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    id: str
    created: float
    metadata: dict[str, str] = {}
    version: int = 0
    """Increases with every change of the items. The items of a turn can be appended on condition that the version
    is still the one at which the turn began."""


class Append(msgspec.Struct, frozen=True):
    """Names the conversation to which the input and the output of a response are appended when the response is
    saved.
    """

    conversation_id: str
    version: int | None = None
    """The version of the conversation at which the turn began; another one raises `StoreConflict`. None accepts any
    version."""


class ConversationContext(msgspec.Struct, frozen=True):
    """All items of a conversation, hidden ones included, oldest first, and the version of the conversation."""

    version: int
    items: tuple[StoredItem, ...]


class PageRequest(msgspec.Struct, frozen=True):
    """Asks for a part of a list: at most `limit` items, beginning after the item with the id `after` in the given
    order; with the first one if it is None.
    """

    limit: int = 20
    order: Order = "desc"
    after: str | None = None


class Page(msgspec.Struct, frozen=True):
    items: tuple[StoredItem, ...]
    has_more: bool


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    location: str
    schema_version: int
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
    """How many stored rows were compared with their checksums, and which of them are damaged."""

    rows: int
    damaged: tuple[str, ...]


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects of each kind were removed."""

    responses: int = 0
    conversations: int = 0
    frames: int = 0
    steps: int = 0
    usage: int = 0


NewItem: TypeAlias = StoredItem | ItemReference


# --- the interface ------------------------------------------------------------------------------


class Responses(Protocol):
    """The interface of the stored responses, with their items, and the event frames of those that run in the
    background.
    """

    async def add_response(
        self,
        response: StoredResponse,
        *,
        input: Sequence[StoredItem] = (),
        output: Sequence[StoredItem] = (),
        append: Append | None = None,
    ) -> None:
        """Saves a response with its items and appends the input and output to the conversation in `append`; None:
        to none.

        Items whose id is already in the conversation are not appended again. Raises `NotStored` where `previous_id`
        or the conversation does not exist, `StoreConflict` where an id is taken.
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
        recovery: bytes | None = None,
        append: Append | None = None,
        only_from: Collection[str] | None = None,
        webhooks: Sequence[PendingWebhook] = (),
    ) -> bool:
        """Replaces the status and the object, and also the output items and the `recovery` data where these are not
        None. `append`: the stored input and the output are appended to a conversation; None: to none. `webhooks`
        are put into the outbox. All of this happens, or nothing. Returns False, and changes nothing, if the
        response was deleted or its status is not in `only_from` (None permits any). So a response that was
        cancelled is not completed afterwards.
        """
        ...

    async def response(self, owner: str, id: str) -> StoredResponse | None: ...

    async def delete_response(self, owner: str, id: str) -> bool:
        """Deletes a response. Returns False if it does not exist. Responses that continue it keep it in their
        context; no other call returns it.
        """
        ...

    async def input_items(self, owner: str, response_id: str, page: PageRequest) -> Page:
        """Returns a page of the visible input items. Raises `NotStored` if the response, or the item `after` in
        `page`, does not exist.
        """
        ...

    async def context(self, owner: str, response_id: str) -> list[ChainTurn]:
        """Returns the chain of responses that ends with this one, oldest first. Raises `NotStored` if there is no
        such response.
        """
        ...

    async def scan_context(self, owner: str, response_id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` with each item of the chain of responses that ends with this one, hidden ones too, oldest
        first, in a thread of the store while rows are read. Raises `NotStored` and, before the first call,
        `ContextTooLarge`.
        """
        ...

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
        """Returns visible items by id, from any response or conversation of the owner; the newest where there are
        several."""
        ...

    async def unfinished_responses(self) -> list[StoredResponse]:
        """Returns the background responses of all owners whose status is in `UNFINISHED`, oldest first. Responses
        whose row is damaged are left out; reading one by its id raises `StoreDamaged`.
        """
        ...

    async def append_frames(self, owner: str, response_id: str, frames: Sequence[Frame]) -> None:
        """Adds events to the stored stream of the response. Raises `NotStored`, and `StoreConflict` for a number that
        is stored already."""
        ...

    async def frames(
        self, owner: str, response_id: str, *, after: int = -1, limit: int = 1000
    ) -> list[Frame]:
        """Returns at most `limit` events with a number above `after`, in order; an empty list if none is stored.
        Raises `NotStored` if there is no such response.
        """
        ...


class Conversations(Protocol):
    """The interface of the stored conversations and their items. An item that is in several conversations and
    responses is stored once.
    """

    async def add_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> tuple[StoredItem, ...]:
        """Adds a conversation with its first items, and returns these with references resolved. Raises
        `StoreConflict` if an id is taken, `NotStored` for a reference to an item that does not exist, and
        `ContextTooLarge`.
        """
        ...

    async def conversation(self, owner: str, id: str) -> StoredConversation | None: ...

    async def update_conversation(
        self, owner: str, id: str, changes: Mapping[str, str | None]
    ) -> StoredConversation:
        """Merges `changes` into the metadata; None deletes a key. Returns the conversation. Raises `NotStored`, and
        `StoreConflict` for too many keys."""
        ...

    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Deletes a conversation. Returns False if it does not exist. Items that are also in other conversations or
        responses stay there.
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
        """Appends all items or none, and returns them with references resolved.

        Raises `NotStored` (the conversation, or a referenced item), `StoreConflict` (an id that the conversation
        already has, or another version than `version`; None permits any) and, where `limited`, `ContextTooLarge`.
        The items of a finished turn are appended without limit; the next turn is refused instead.
        """
        ...

    async def items(self, owner: str, conversation_id: str, page: PageRequest) -> Page:
        """Returns a page of the visible items. Raises `NotStored` if the conversation, or the item `after` in
        `page`, does not exist.
        """
        ...

    async def item(self, owner: str, conversation_id: str, item_id: str) -> StoredItem | None:
        """Returns a visible item, or None. Raises `NotStored` for a conversation that does not exist."""
        ...

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Removes the item from this conversation only, and returns the conversation. Raises `NotStored` if the
        conversation or the item does not exist.
        """
        ...

    async def scan_conversation(self, owner: str, id: str, visit: Callable[[StoredItem], object]) -> None:
        """Calls `visit` with each item, hidden ones too, oldest first. It is called in a thread of the store while
        rows are read, so that only one item at a time is in memory. Raises `NotStored` and, before the first call,
        `ContextTooLarge`."""
        ...

    async def conversation_context(self, owner: str, id: str) -> ConversationContext:
        """Returns every item of the conversation, and its version. Raises `NotStored` if there is no such
        conversation.
        """
        ...


class Outbox(Protocol):
    """The interface of the stored webhook events that were not delivered yet. `Responses.update_response` adds them
    when a response ends.
    """

    async def count_webhook_try(self, pending: PendingWebhook) -> None:
        """Saves the number of delivery attempts of a pending webhook."""
        ...

    async def drop_webhook(self, event_id: str, url: str) -> None:
        """Removes a webhook that was delivered or given up; does nothing where there is none."""
        ...

    async def webhooks(self, limit: int) -> list[PendingWebhook]:
        """Returns at most `limit` pending webhooks, oldest first."""
        ...


class StoreMaintenance(Protocol):
    """The interface for the operator's commands and for the background task that applies `Retention`."""

    async def stats(self) -> StoreStats: ...

    async def check_writable(self) -> None:
        """Writes a row and removes it again. Raises `StoreUnavailable` where that fails."""
        ...

    async def prune(self, now: float | None = None) -> Pruned:
        """Removes what `Retention` and the step memory's age no longer permit at `now` (seconds since 1970; None: the
        present), in small writes. Returns how much was removed."""
        ...

    async def sweep(self) -> None:
        """Removes the rows of deleted objects, in small writes. Every deletion starts this; a call is needed only
        for objects that an earlier process deleted.
        """
        ...

    async def export(self, write: Callable[[bytes], object]) -> int:
        """Calls `write` with one line of JSON (with its line feed) per response and conversation. Returns their
        number."""
        ...

    async def check(self) -> Checked:
        """Compares every stored row with its checksum, in small reads. Damaged rows are named in the result;
        nothing is changed.
        """
        ...

    async def vacuum(self) -> int:
        """Gives unused pages back to the file system, in small steps. Returns the number of bytes."""
        ...

    async def close(self) -> None:
        """Finishes the operations that were begun, then closes the file. A second call does nothing."""
        ...


class Store(StepMemory, Responses, Conversations, UsageLedger, Outbox, StoreMaintenance, Protocol):
    """The interface of the whole store. A function should take the narrowest of its parts that it needs."""
