"""Makes the items that the store gets of an answer: what the client saw, each with the model's own item."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.ids import IdSource
from codex_proxy.runs.model_items import ItemHead, ModelItem
from codex_proxy.store.base import StoredItem
from codex_proxy.surfaces.items import ItemDict
from codex_proxy.surfaces.responses.mcp_items import call_id_of


def stored_output(
    output: Sequence[ItemDict], said: Sequence[ModelItem], ids: IdSource, now: float
) -> list[StoredItem]:
    """The items in the order of the output. Items that only the model sees (`said` has them) stand between them, where
    the model put them out, without JSON for clients."""
    heads = [item.head for item in said]
    placed = _Placed(said, heads, ids, now)
    for item in output:
        placed.put(item)
    placed.rest(len(said))
    return placed.out


class _Placed:
    """The items so far, and how many of the model's own are among them."""

    def __init__(
        self, said: Sequence[ModelItem], heads: Sequence[ItemHead], ids: IdSource, now: float
    ) -> None:
        self.out: list[StoredItem] = []
        self._said = said
        self._heads = heads
        self._ids = ids
        self._now = now
        self._next = 0

    def put(self, item: ItemDict) -> None:
        """An item of the output, behind what the model had said before it."""
        raw = b""
        place = next(
            (place for place in range(self._next, len(self._said)) if _same(item, self._heads[place])), None
        )
        if place is not None:
            self.rest(place)
            self._next = place + 1
            # Where a text was cut (at a stop sequence, say), what was seen counts.
            if item["type"] != "message" or _text_of(item) == self._heads[place].text:
                raw = msgspec.json.encode(self._said[place])
        self.out.append(StoredItem(item["id"], msgspec.json.encode(item), raw, self._now))

    def rest(self, end: int) -> None:
        """What the client did not see, up to here. It has seen every message."""
        for place in range(self._next, end):
            if self._heads[place].kind != "message":
                raw = msgspec.json.encode(self._said[place])
                self.out.append(StoredItem(self._ids.new("item_"), b"", raw, self._now))
        self._next = max(self._next, end)


def _same(item: ItemDict, head: ItemHead) -> bool:
    """Whether the model said there what the client saw as this item; messages are told in their order."""
    kind = item["type"]
    if kind in ("function_call", "custom_tool_call", "tool_search_call"):
        return head.kind == "call" and head.call_id == item["call_id"]
    if kind in ("mcp_call", "mcp_approval_request"):
        return head.kind == "call" and head.call_id == call_id_of(item["id"])
    if kind == "message":
        return head.kind == "message"
    return kind == "reasoning" and head.kind == "reasoning" and bool(head.id) and head.id == item["id"]


def _text_of(message: ItemDict) -> str:
    return "".join(part.get("text", "") for part in message["content"])
