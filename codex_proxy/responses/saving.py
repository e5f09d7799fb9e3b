"""Saves responses at their end, with each item as clients see it and as the model generated it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.interfaces import IdSource
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.model_items import ItemHead, ModelItem, model_items
from codex_proxy.runs.run import Run
from codex_proxy.store.store import Store
from codex_proxy.store.values import UNFINISHED, Frame, StoredItem, StoredResponse, StoreUnavailable
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses.items import ItemDict
from codex_proxy.surfaces.responses.mcp_items import call_id_of
from codex_proxy.surfaces.responses.output import HOSTED_TYPES, WHOLE_CALLS
from codex_proxy.surfaces.responses.parse import ParsedResponse

_Key: TypeAlias = tuple[str, str | None]
"""The kind and id that an item and the model's form of it have in common."""
_NO_PLACES: Final[deque[int]] = deque()

RETRY_SECONDS: Final = 2.0
"""Seconds between attempts to start a turn, or to reach a store that does not answer."""


async def save_response(
    service: ResponsesService, prepared: PreparedResponse, final: dict[str, Any], output: Sequence[StoredItem]
) -> None:
    """Saves a response unless `store: false`, and adds its items to the conversation. Raises `StoreError`, having
    stored nothing but perhaps for `UnsureWrite`.
    """
    store, parsed, context = service.store, prepared.parsed, prepared.context
    append = conversation_append(parsed, final["status"])
    if store is None:
        return
    if parsed.store:
        response = StoredResponse(
            owner=prepared.owner,
            id=prepared.id,
            status=final["status"],
            created=prepared.created,
            json=json_bytes(final),
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
) -> bool:
    """Stores a background response's end with webhooks and last `frames` in one transaction. `append`: the
    conversation to which the items are added, if any; `epoch`: that of the response's lease, `turn_epoch`: that of the
    conversation's. Returns False if the response has ended or was deleted. Raises `StoreError`: `StoreConflict`
    without the leases.
    """
    webhooks = service.webhooks
    try:
        return await store.update_response(
            owner,
            final["id"],
            status=final["status"],
            json=json_bytes(final),
            output=output,
            append=append,
            only_from=UNFINISHED,
            webhooks=() if webhooks is None else webhooks.make_for(final["id"], final["status"]),
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
    compacted = any(item["type"] == "compaction" for item in final["output"])
    if final["status"] == "completed" and not compacted:
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
