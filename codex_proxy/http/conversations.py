"""`/v1/conversations`. Handlers raise `Fault` NOT_FOUND also for another key's. Source:
docs/contract.md#conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from aiohttp import web

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import name_ignored, parse_body, read_body
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import check_include, decode_item, list_object, list_page
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.responses.service import ResponsesService
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    ContextTooLarge,
    ItemReference,
    NewItem,
    NotStored,
    StoreConflict,
    StoredConversation,
    StoredItem,
)
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.requests.fields import FieldNotes, ignored_fields
from codex_proxy.surfaces.responses import conversations as objects
from codex_proxy.surfaces.responses.conversations import parse_create, parse_items, parse_update
from codex_proxy.surfaces.responses.items import ItemDict, with_ids

T = TypeVar("T")

# --- conversations ------------------------------------------------------------------------------


async def create_conversation(request: web.Request) -> web.Response:
    """Creates a conversation."""
    service = request.app[RESPONSES]
    require_store(service.store)
    given = await _parse(request, parse_create)
    now = service.clock.epoch()
    made = StoredConversation(
        owner=request[OWNER], id=service.ids.new("conv_"), created=now, metadata=given.metadata
    )
    with _store_of(request, given.items) as store:
        await store.add_conversation(made, _new_items(given.items, service, now))
    return json_response(_conversation_object(made))


async def retrieve_conversation(request: web.Request) -> web.Response:
    """Returns a conversation."""
    with _store_of(request) as store:
        found = await store.conversation(*_path(request))
    if found is None:
        raise _not_found(request)
    return json_response(_conversation_object(found))


async def update_conversation(request: web.Request) -> web.Response:
    """Merges metadata into that of a conversation. A value of null deletes its key."""
    with _store_of(request) as store:
        changes = await _parse(request, parse_update)
        try:
            found = await store.update_conversation(*_path(request), changes)
        except StoreConflict as error:
            raise bad_request(
                f"Invalid value for 'metadata': {error}.", "metadata", "array_above_max_length"
            ) from None
    return json_response(_conversation_object(found))


async def delete_conversation(request: web.Request) -> web.Response:
    """Deletes a conversation.

    Its items stay in other conversations and responses.
    """
    with _store_of(request) as store:
        was_there = await store.delete_conversation(*_path(request))
    if not was_there:
        raise _not_found(request)
    return json_response(objects.deleted_conversation(request.match_info["id"]))


# --- items --------------------------------------------------------------------------------------


async def list_conversation_items(request: web.Request) -> web.Response:
    """Lists the items of a conversation."""
    store = require_store(request.app[RESPONSES].store)
    return json_response(
        await list_page(
            request,
            partial(store.items, *_path(request)),
            default=objects.ITEMS_LIMIT,
            form=_item_object,
            missing=_not_found(request),
        )
    )


async def create_conversation_items(request: web.Request) -> web.Response:
    """Adds up to 20 items to a conversation: all, or none."""
    service = request.app[RESPONSES]
    require_store(service.store)
    check_include(request)
    given = await _parse(request, parse_items)
    items = _new_items(given, service, service.clock.epoch())
    with _store_of(request, given) as store:
        added = await store.append_items(*_path(request), items)
    return json_response(list_object([_item_object(item) for item in added], has_more=False))


async def retrieve_conversation_item(request: web.Request) -> web.Response:
    """Returns an item of a conversation."""
    id = request.match_info["item_id"]
    with _store_of(request) as store:
        check_include(request)
        found = await store.item(*_path(request), id)
    if found is None:
        raise objects.item_not_found(id)
    return json_response(_item_object(found))


async def delete_conversation_item(request: web.Request) -> web.Response:
    """Removes an item from a conversation.

    Returns the conversation.
    """
    with _store_of(request) as store:
        found = await store.delete_item(*_path(request), request.match_info["item_id"])
    return json_response(_conversation_object(found))


# --- values -------------------------------------------------------------------------------------


async def _parse(request: web.Request, parse: Callable[[bytes, PdfTexts | None], tuple[T, FieldNotes]]) -> T:
    given, notes = await parse_body(request, await read_body(request), parse)
    name_ignored(request, ignored_fields(notes))
    return given


def _path(request: web.Request) -> tuple[str, str]:
    return request[OWNER], request.match_info["id"]


@contextmanager
def _store_of(request: web.Request, given: Sequence[ItemDict] = ()) -> Iterator[Store]:
    with store_errors_as_faults():
        try:
            yield require_store(request.app[RESPONSES].store)
        except NotStored as error:
            if error.kind == "conversation":
                raise _not_found(request) from None
            if not given:
                raise objects.item_not_found(error.id) from None
            raise _fault_for(error, given) from None
        except (StoreConflict, ContextTooLarge) as error:
            raise _fault_for(error, given) from None


def _not_found(request: web.Request) -> Fault:
    return objects.not_found(request.match_info["id"])


def _conversation_object(found: StoredConversation) -> objects.Conversation:
    return objects.conversation(found.id, int(found.created), found.metadata)


def _item_object(item: StoredItem) -> ItemDict:
    return objects.item(decode_item(item), int(item.created))


def _new_items(given: Sequence[ItemDict], service: ResponsesService, now: float) -> list[NewItem]:
    return [
        ItemReference(item["id"])
        if item["type"] == "item_reference"
        else StoredItem(item["id"], json_bytes(item), created=now)
        for item in with_ids(given, service.ids)
    ]


def _fault_for(error: NotStored | StoreConflict | ContextTooLarge, given: Sequence[ItemDict]) -> Fault:
    if isinstance(error, ContextTooLarge):
        return objects.too_large(str(error), "items")
    if isinstance(error, StoreConflict):
        message = (
            "The conversation already has one of these items, or one is there twice. Leave out the 'id' of a new item, "
            "and references to items that the conversation has."
        )
        return bad_request(message, "items", "item_already_in_conversation")
    index = next((n for n, item in enumerate(given) if item.get("id") == error.id), 0)
    return bad_request(
        f"Item with id '{excerpt(error.id)}' not found.", f"items[{index}].id", "item_not_found"
    )
