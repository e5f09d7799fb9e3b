"""Handlers for a stored response: it is shown, deleted, cancelled, or its input listed."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from codex_proxy.core.faults import bad_request
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.listing import check_include, listed, shown
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.http.replies import json_response
from codex_proxy.http.responses.create import follow
from codex_proxy.http.stream_slots import stream_slot
from codex_proxy.responses.background import cancel_in_background
from codex_proxy.responses.follow import check_followable, starting_after
from codex_proxy.store.base import Store, StoredResponse
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.surfaces.responses import response_object


def store_for(request: web.Request) -> Store:
    """The store that may hold the response of the path. Where there is none, nothing is there."""
    store = request.app[RESPONSES].store
    if store is None:
        raise response_object.not_found(request.match_info["id"])
    return store


async def stored_response(request: web.Request) -> StoredResponse:
    """The response of the path. Raises `Fault` NOT_FOUND, also for somebody else's."""
    id = request.match_info["id"]
    store = store_for(request)
    with store_errors_as_faults():
        found = await store.response(request[OWNER], id)
    if found is None:
        raise response_object.not_found(id)
    return found


async def retrieve(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{id}; with `stream=true` the events of one in the background, from `starting_after` on."""
    check_include(request)
    if not _is_streamed(request):
        found = await stored_response(request)
        return web.Response(body=found.json, content_type="application/json")
    after = starting_after(request.query)
    found = await stored_response(request)
    service, store = request.app[RESPONSES], store_for(request)
    await check_followable(store, found, service.background.find(found.owner, found.id))
    with stream_slot(request):
        return await follow(request, found.owner, found.id, after, {})


def _is_streamed(request: web.Request) -> bool:
    """Whether the query has `stream=true`. Raises `Fault` for a value that is neither true nor false."""
    given = request.query.get("stream", "").lower()
    if given not in ("", "true", "1", "false", "0"):
        raise bad_request(
            "Invalid value for 'stream': expected 'true' or 'false'.", "stream", "invalid_value"
        )
    return given in ("true", "1")


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/responses/{id}. What continues it keeps its context."""
    id = request.match_info["id"]
    store = store_for(request)
    with store_errors_as_faults():
        was_there = await store.delete_response(request[OWNER], id)
    if not was_there:
        raise response_object.not_found(id)
    live = request.app[RESPONSES].background.find(request[OWNER], id)
    if live is not None:
        await live.cancel_and_wait()
    return json_response(response_object.deleted(id))


async def list_input_items(request: web.Request) -> web.Response:
    """GET /v1/responses/{id}/input_items: what this response was asked with, not what came before."""
    id = request.match_info["id"]
    return json_response(
        await listed(
            request,
            partial(store_for(request).input_items, request[OWNER], id),
            default=response_object.INPUT_ITEMS_LIMIT,
            form=shown,
            missing=response_object.not_found(id),
        )
    )


async def cancel(request: web.Request) -> web.Response:
    """POST /v1/responses/{id}/cancel: one in the background is stopped, its agent too; one that is over stays."""
    found = await stored_response(request)
    if response_object.cancelling(msgspec.json.decode(found.json)) == "cancel":
        await cancel_in_background(request.app[RESPONSES], store_for(request), found)
        found = await stored_response(request)
    return web.Response(body=found.json, content_type="application/json")
