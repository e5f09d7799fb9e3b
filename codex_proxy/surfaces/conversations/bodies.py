"""The bodies of requests about conversations. Raises `Fault` INVALID_REQUEST with `param`.

In: bytes. Out: metadata and normalised items, without ids (`items.with_ids`). Source:
docs/contract.md#conversations: at most 20 items at once, metadata of 16 keys, null deletes a key on update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from pydantic import Field

from codex_proxy.core.faults import bad_request
from codex_proxy.surfaces.body import Wire, parse_as
from codex_proxy.surfaces.item_wire import AnyItem, Metadata
from codex_proxy.surfaces.items import ItemDict, normalised

ITEMS_AT_ONCE: Final = 20
KEYS: Final = 16


class CreateBody(Wire):
    """Of `POST /v1/conversations`."""

    metadata: Metadata | None = None
    items: Annotated[list[AnyItem], Field(max_length=ITEMS_AT_ONCE)] | None = None


class UpdateBody(Wire):
    """Of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None


class AddItemsBody(Wire):
    """Of `POST /v1/conversations/{id}/items`."""

    items: Annotated[list[AnyItem], Field(max_length=ITEMS_AT_ONCE)]


class NewConversation(msgspec.Struct, frozen=True):
    """What a conversation begins with."""

    metadata: dict[str, str]
    items: tuple[ItemDict, ...]


def parse_create(body: bytes) -> NewConversation:
    """`POST /v1/conversations`. A body may be missing: then there is nothing in it."""
    request = parse_as(CreateBody, body or b"{}")
    metadata = {key: value for key, value in (request.metadata or {}).items() if value is not None}
    return NewConversation(metadata, normalised(request.items or [], "items"))


def parse_update(body: bytes) -> dict[str, str | None]:
    """`POST /v1/conversations/{id}`: what to merge, null where a key is to go."""
    return dict(parse_as(UpdateBody, body).metadata or {})


def parse_items(body: bytes) -> tuple[ItemDict, ...]:
    """`POST /v1/conversations/{id}/items`."""
    return normalised(parse_as(AddItemsBody, body).items, "items")


def merged(metadata: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The metadata after an update: a null deletes its key, other keys stay."""
    whole = {**metadata, **changes}
    kept = {key: value for key, value in whole.items() if value is not None}
    if len(kept) > KEYS:
        raise bad_request(
            f"Invalid value for 'metadata': expected at most {KEYS} elements, there would be {len(kept)}.",
            "metadata",
            "array_above_max_length",
        )
    return kept
