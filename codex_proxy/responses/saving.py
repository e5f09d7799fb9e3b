"""Saves responses at their end, with each item as clients see it and as the model generated it. Reads the stored log
of a background response's stream, and ends it where no server runs the response any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.events import TurnEnded
from codex_proxy.core.interfaces import IdSource
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.responses.service import RETRY_SECONDS, ResponsesService
from codex_proxy.runs.event_log import LONG_ANSWER
from codex_proxy.runs.model_items import ItemHead, ModelItem, model_items
from codex_proxy.runs.run import Run
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    UNFINISHED,
    Frame,
    NotStored,
    PendingWebhook,
    StoredItem,
    StoredResponse,
    StoreUnavailable,
)
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses.items import ItemDict
from codex_proxy.surfaces.responses.kept_log import FIRST, LAST, LogReplay, LogWriter, NotRenderableError
from codex_proxy.surfaces.responses.mcp import call_id_of
from codex_proxy.surfaces.responses.output import HOSTED_TYPES, WHOLE_CALLS
from codex_proxy.surfaces.responses.parse import ParsedResponse
from codex_proxy.surfaces.responses.profile import is_last
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.responses.webhooks import event_id_of

_Key: TypeAlias = tuple[str, str | None]
"""The kind and id that an item and the model's form of it have in common."""
_NO_PLACES: Final[deque[int]] = deque()


async def save_response(
    service: ResponsesService,
    prepared: PreparedResponse,
    status: str,
    json: bytes,
    output: Sequence[StoredItem],
) -> None:
    """Saves a response unless `store: false`, and adds its items to the conversation. `json`: the final object.
    Raises `StoreError`, having stored nothing but perhaps for `UnsureWrite`.
    """
    store, parsed, context = service.store, prepared.parsed, prepared.context
    append = conversation_append(parsed, status)
    if store is None:
        return
    if parsed.store:
        response = StoredResponse(
            owner=prepared.owner,
            id=prepared.id,
            status=status,
            created=prepared.created,
            json=json,
            previous_id=parsed.previous_response_id,
            conversation_id=parsed.conversation,
        )
        await store.add_response(
            response,
            input=context.input,
            output=output,
            append=append,
            turn_epoch=prepared.turn_epoch,
        )
    elif append is not None:
        items = [*context.input, *output]
        # Without the limits, so that no answer is lost: the next turn is refused.
        await store.append_items(prepared.owner, append, items, limited=False, turn_epoch=prepared.turn_epoch)


async def take_back(store: Store, owner: str, id: str) -> None:
    """Deletes a response whose client was told that it is not stored, as soon as that is possible."""
    while True:
        try:
            await store.delete_response(owner, id)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def end_stored_response(
    service: ResponsesService,
    store: Store,
    owner: str,
    final: dict[str, Any],
    *,
    output: Sequence[StoredItem] | None = None,
    append: str | None = None,
    frames: Sequence[Frame] = (),
    epoch: int | None = None,
    turn_epoch: int | None = None,
    long: bool = False,
) -> bool:
    """Stores a background response's end with webhooks and last `frames` in one transaction. `append`: the
    conversation to which the items are added, if any; `epoch`: that of the response's lease, `turn_epoch`: that of the
    conversation's; `long`: whether the response is. Returns False if the response has ended or was deleted. Raises
    `StoreError`: `StoreConflict` without the leases.
    """
    webhooks = service.webhooks
    told: Sequence[PendingWebhook] = ()
    if webhooks is not None:
        told = webhooks.make(event_id_of(final["id"]), f"response.{final['status']}", {"id": final["id"]})
    try:
        return await store.update_response(
            owner,
            final["id"],
            status=final["status"],
            json=await beside_the_loop(partial(json_bytes, final), long=long),
            output=output,
            append=append,
            only_from=UNFINISHED,
            webhooks=told,
            frames=frames,
            epoch=epoch,
            turn_epoch=turn_epoch,
        )
    finally:
        if webhooks is not None:
            webhooks.wake()  # also where the store was too slow to say that it has written it


def output_items(service: ResponsesService, final: dict[str, Any], run: Run) -> Sequence[StoredItem]:
    """Returns the items to store, with those hidden from clients only for a complete response that is no compaction."""
    from_model: list[ModelItem] = []
    if run.raw_items and final["status"] == "completed":
        compacted = any(item["type"] == "compaction" for item in final["output"])
        if not compacted:
            from_model = model_items(run, service.runs.services.agent_and_model(run.turn))
    return stored_output(final["output"], from_model, service.ids, service.clock.epoch())


def conversation_append(parsed: ParsedResponse, status: object) -> str | None:
    """Returns the conversation to append to, if any; none for a failed or cancelled response."""
    return parsed.conversation if status in ("completed", "incomplete") else None


# --- the items of an answer ---------------------------------------------------------------------


def stored_output(
    output: Sequence[ItemDict], from_model: Sequence[ModelItem], ids: IdSource, now: float
) -> list[StoredItem]:
    """Puts the hidden items of `from_model` into `output` at their places. `now`: seconds since 1970."""
    merged = _OutputItems(from_model, ids, now)
    for item in output:
        merged.put(item)
    merged.put_rest(len(from_model))
    return merged.out


class _OutputItems:
    """Merges, in order, clients' items and the model's items into `out`."""

    def __init__(self, from_model: Sequence[ModelItem], ids: IdSource, now: float) -> None:
        self.out: list[StoredItem] = []
        self._from_model = from_model
        self._heads = [item.head for item in from_model]
        self._ids = ids
        self._now = now
        self._next = 0
        self._indexes: dict[_Key | None, deque[int]] = {}
        """Indexes of the model's items by key, in order."""
        for index, head in enumerate(self._heads):
            self._indexes.setdefault((head.kind, _id_of(head)), deque()).append(index)

    def put(self, item: ItemDict) -> None:
        """Adds a client's item behind the model's items that come before it; with the model's form of it, if the client
        saw all of the item.
        """
        raw = b""
        indexes = self._indexes.get(_key_of(item), _NO_PLACES)
        while indexes and indexes[0] < self._next:
            indexes.popleft()
        index = indexes[0] if indexes else None
        if index is not None:
            self.put_rest(index)
            self._next = index + 1
            # Where a text was cut (at a stop sequence, say), what was seen counts.
            if item["type"] != "message" or _text_of(item) == self._heads[index].text:
                raw = msgspec.json.encode(self._from_model[index])
        self.out.append(StoredItem(item["id"], msgspec.json.encode(item), raw, self._now))

    def put_rest(self, end: int) -> None:
        """Adds the model's items before `end`, but for messages, which `put` adds."""
        for index in range(self._next, end):
            if self._heads[index].kind != "message":
                raw = msgspec.json.encode(self._from_model[index])
                self.out.append(StoredItem(self._ids.new("item_"), b"", raw, self._now))
        self._next = max(self._next, end)


def _id_of(head: ItemHead) -> str | None:
    """Returns the id by which an item is found; None for a message, found by its place, the type for another item."""
    if head.kind == "call":
        return head.call_id
    if head.kind == "other":
        return head.type
    return head.id if head.kind == "reasoning" else None


def _key_of(item: ItemDict) -> _Key | None:
    """Returns the key that a client's item has in common with the model's form of it."""
    kind = item["type"]
    if kind in ("function_call", "custom_tool_call") or kind in WHOLE_CALLS:
        return "call", item.get("call_id")
    if kind in ("mcp_call", "mcp_approval_request"):
        return "call", call_id_of(item["id"])
    if kind in HOSTED_TYPES:
        return "other", kind
    if kind == "message":
        return "message", None
    return ("reasoning", item["id"]) if kind == "reasoning" else None


def _text_of(message: ItemDict) -> str:
    return "".join(part.get("text", "") for part in message["content"])


ROWS_AT_ONCE: Final = 500
SLICE: Final = 1 << 16
"""Bytes of rows that are read and rendered at once, in some 20 ms."""
MAX_FRAMES: Final = 1 << 20
"""Bytes of frames that are read at once, of a log from before there were rows."""
BEFORE_ALL: Final = FIRST - 1


async def has_stream(store: Store, owner: str, id: str) -> bool:
    """Whether a response has a log that can be followed. Raises `NotStored`."""
    first = await store.frames(owner, id, after=BEFORE_ALL, limit=1)
    return bool(first) and (first[0][0] == FIRST or first[0][0] >= 0)


class StoredLog:
    """The frames above the number `after`, rendered from the stored log in slices."""

    def __init__(self, store: Store, owner: str, id: str, after: int = -1) -> None:
        self._store = store
        self._owner = owner
        self._id = id
        self._after = after
        self._replay = LogReplay()
        self._size = 0
        """Bytes of the rows that were read."""
        self._rendering: asyncio.Task[list[Frame]] | None = None
        """The rendering of the next rows in a thread."""
        self._ended = False
        self._has_frames = False
        """Whether a release before rows has written the log: as frames, which are read until they are removed."""

    @property
    def last(self) -> int:
        """The number of the last row that was read."""
        return self._replay.last

    @property
    def is_long(self) -> bool:
        """Whether the answer is so long that frames which repeat all of it take long to make."""
        return self._size >= LONG_ANSWER

    @property
    def next(self) -> int:
        """The number of the stream's next frame."""
        return self._after + 1 if self._has_frames else self._replay.next

    @property
    def ended(self) -> bool:
        """Whether the stream's end was read."""
        return self._ended or self._replay.ended

    async def read(self) -> list[Frame] | None:
        """Returns the frames of the next rows, of which none may be above `after`; None if no more rows are stored.
        Raises `NotStored`, `NotRenderableError`.
        """
        if self._has_frames:
            return await self._read_frames()
        if self._rendering is None:
            rows = await self._store.frames(
                self._owner, self._id, after=self._replay.last, limit=ROWS_AT_ONCE, max_bytes=SLICE
            )
            if rows and rows[0][0] >= 0 and self._replay.renderer is None:
                self._has_frames = True
                return await self._read_frames()
            if not rows:
                return None
            self._size += sum([len(data) for _, data in rows])
            if not self.is_long:
                return self._new(self._replay.read(rows))
            self._rendering = asyncio.create_task(asyncio.to_thread(self._replay.read, rows))
        rendering = self._rendering
        frames = await asyncio.shield(rendering)  # whoever waits may be cancelled, and calls again
        self._rendering = None
        return self._new(frames)

    def _new(self, frames: list[Frame]) -> list[Frame]:
        return [frame for frame in frames if frame[0] > self._after]

    async def _read_frames(self) -> list[Frame] | None:
        frames = await self._store.frames(
            self._owner, self._id, after=self._after, limit=ROWS_AT_ONCE, max_bytes=MAX_FRAMES
        )
        if frames:
            self._after = frames[-1][0]
            self._ended = is_last(frames[-1][1])
        return frames or None

    @property
    def rendered(self) -> ResponsesRenderer | None:
        """The renderer to which the rows that were read so far were replayed; None before the first."""
        return self._replay.renderer

    def read_unstored(self, rows: Sequence[Frame]) -> list[Frame]:
        """Returns the frames of rows that are not stored yet."""
        new = [row for row in rows if row[0] > self.last]
        return self._new(self._replay.read(new))

    async def renderer(self) -> ResponsesRenderer | None:
        """Returns the renderer that has rendered the whole log; None if there is none that it can render."""
        try:
            while await self.read() is not None:
                """Nobody wants its frames."""
        except (NotRenderableError, NotStored):  # it was deleted a moment ago
            return None
        return self._replay.renderer


async def end_for_another(
    service: ResponsesService,
    store: Store,
    owner: str,
    object: dict[str, Any],
    ended: TurnEnded,
    *,
    epoch: int | None = None,
) -> None:
    """Ends a background response that another server runs, or none any more: `ended` becomes the end of its stored
    log, and what that log shows the final object. `object`: the final object of a response without a log. Raises
    `StoreError`.
    """
    id = object["id"]
    log = StoredLog(store, owner, id)
    renderer = await log.renderer()
    if renderer is None:
        await end_stored_response(service, store, owner, object, epoch=epoch)
        return
    final, rows = await beside_the_loop(partial(_end, renderer, ended, log.last), long=log.is_long)
    if not await end_stored_response(
        service, store, owner, final, frames=rows, epoch=epoch, long=log.is_long
    ):
        return
    # What its server had written meanwhile is in front of the end, and belongs into the object.
    try:
        after = await store.frames(owner, id, after=log.last, limit=1)
    except NotStored:  # deleted since
        return
    renderer = None if not after or after[0][0] == LAST else await StoredLog(store, owner, id).renderer()
    if renderer is not None:
        final, json = await beside_the_loop(partial(_final_object, renderer), long=log.is_long)
        status = final["status"]
        await store.update_response(owner, id, status=status, json=json, only_from=(status,))


def _end(renderer: ResponsesRenderer, ended: TurnEnded, after: int) -> tuple[dict[str, Any], Sequence[Frame]]:
    """Returns the final object, and the rows that end the log behind the row `after`."""
    renderer.feed([ended])
    return renderer.response(), LogWriter(after=after).ended_by([ended], renderer)


def _final_object(renderer: ResponsesRenderer) -> tuple[dict[str, Any], bytes]:
    final = renderer.response()
    return final, json_bytes(final)
