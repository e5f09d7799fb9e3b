"""Conversations and their items: parses requests (into a value, and findings about the body's fields), makes objects.
Raises `Fault` INVALID_REQUEST. Source:
docs/contract.md#conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypedDict

import msgspec
from msgspec import Meta
from pydantic import Field

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.answers.renderer import Count, Yes
from codex_proxy.surfaces.requests.body import Metadata, RequestModel, parse_as
from codex_proxy.surfaces.requests.fields import FieldNotes
from codex_proxy.surfaces.responses.item_wire import AnyItem
from codex_proxy.surfaces.responses.items import ItemDict, asks_for_compaction, normalise_items

ITEMS_AT_ONCE: Final = 20


class CreateBody(RequestModel):
    """The body of `POST /v1/conversations`."""

    metadata: Metadata | None = None
    items: Annotated[list[AnyItem], Field(max_length=ITEMS_AT_ONCE)] | None = None


class UpdateBody(RequestModel):
    """The body of `POST /v1/conversations/{id}`; null metadata changes nothing."""

    metadata: Metadata | None


class AddItemsBody(RequestModel):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[list[AnyItem], Field(max_length=ITEMS_AT_ONCE)]


class NewConversation(msgspec.Struct, frozen=True):
    metadata: dict[str, str]
    items: tuple[ItemDict, ...]


def parse_create(body: bytes, pdfs: PdfTexts | None = None) -> tuple[NewConversation, FieldNotes]:
    """Parses a body; an empty one asks for an empty conversation."""
    request, notes = parse_as(CreateBody, body or b"{}")
    metadata = {key: value for key, value in (request.metadata or {}).items() if value is not None}
    return NewConversation(metadata, _new_items(request.items or [], pdfs)), notes


def parse_update(body: bytes, pdfs: PdfTexts | None = None) -> tuple[dict[str, str | None], FieldNotes]:
    """Returns metadata to merge, in which None removes a key. `pdfs` is not used."""
    request, notes = parse_as(UpdateBody, body)
    return dict(request.metadata or {}), notes


def parse_items(body: bytes, pdfs: PdfTexts | None = None) -> tuple[tuple[ItemDict, ...], FieldNotes]:
    """Returns normalised items without ids."""
    request, notes = parse_as(AddItemsBody, body)
    return _new_items(request.items, pdfs), notes


def _new_items(given: Sequence[AnyItem], pdfs: PdfTexts | None) -> tuple[ItemDict, ...]:
    items = normalise_items(given, "items", pdfs)
    if asks_for_compaction(items, "items"):
        raise bad_request(
            "Only the 'input' of a response may end with a 'compaction_trigger'.", f"items[{len(items) - 1}]"
        )
    return items


ITEMS_LIMIT: Final = 100


class Conversation(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: Count
    metadata: Annotated[dict[str, str], Meta(max_length=16)]


class ConversationDeleted(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Yes


class ConversationItem(TypedDict):
    type: str
    id: str
    status: str
    created_at: Count


def conversation(id: str, created_at: int, metadata: Mapping[str, str]) -> Conversation:
    """Returns a conversation's object. `created_at`: seconds since 1970."""
    return {"id": id, "object": "conversation", "created_at": created_at, "metadata": dict(metadata)}


def deleted_conversation(id: str) -> ConversationDeleted:
    return {"id": id, "object": "conversation.deleted", "deleted": True}


def item(item: ItemDict, created_at: int) -> ItemDict:
    """Returns an item with a status, `created_at`, and the `role` and `content` that programs print of every item."""
    kind = item["type"]
    shown: ItemDict = {"role": "user" if kind.endswith(("_output", "_response")) else "assistant"}
    if kind != "reasoning":  # its `content` is the raw reasoning, or left out
        shown["content"] = []
    return {"status": "completed", **shown, **item, "created_at": created_at}


def not_found(id: str) -> Fault:
    """Returns the fault for an unknown conversation, also one of another key."""
    return Fault.of(FaultKind.NOT_FOUND, f"Conversation with id '{excerpt(id)}' not found.")


def too_large(detail: str, param: str) -> Fault:
    """Returns the fault for a conversation that would be too large. `detail`: how large it would be."""
    return bad_request(
        f"The conversation is too large, or would be: {detail}. Delete items of it, or begin another one with what "
        "matters.",
        param,
        "context_too_large",
    )


def item_not_found(id: str) -> Fault:
    return Fault.of(FaultKind.NOT_FOUND, f"Item with id '{excerpt(id)}' not found.")
