"""Creates and cancels responses in the background."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from codex_proxy.admission.clients import Client
from codex_proxy.core.faults import STOPPING, Fault, bad_request
from codex_proxy.responses.background_response import RETRY_SECONDS, BackgroundResponse, can_run_again
from codex_proxy.responses.context import read_context
from codex_proxy.responses.prepare import PreparedResponse, prepare_in_context, renderer_of
from codex_proxy.responses.recovery import recovery_of
from codex_proxy.responses.saving import end_stored_response
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.store_faults import failure_of, required_store, store_errors_as_faults
from codex_proxy.store.base import Store, StoredResponse, StoreError, StoreUnavailable
from codex_proxy.surfaces.base import RequestHints, json_bytes
from codex_proxy.surfaces.responses.objects import cancelled
from codex_proxy.surfaces.responses.parse import ParsedResponse


class HeldBody(Protocol):
    """The bytes of a request's body, which count against a budget until they are released."""

    def handed_over(self) -> HeldBody:
        """Returns an object that holds the same bytes; this one holds none any more."""
        ...

    def release(self) -> None: ...


async def create_in_background(
    service: ResponsesService,
    parsed: ParsedResponse,
    body: bytes,
    hints: RequestHints,
    client: Client,
    held: HeldBody,
) -> PreparedResponse:
    """Stores the response, and starts it. `held`: what its request holds of its body; the response holds it from then
    on. Raises `Fault` for what is wrong with the request, before anything is stored."""
    refuse_without_store(service)
    store = required_store(service.store)
    owner, background, now = client.name, service.background, service.clock.epoch()
    with background.room(owner, client.concurrency):
        context = await read_context(parsed, store, owner, service.ids, now)
        prepared = await prepare_in_context(
            service, parsed, context, owner, id=service.ids.new("resp_"), created=now
        )
        queued = _queued(service, prepared, body, hints)
        # From the write on it is the server's: a client that leaves must not leave it queued with nobody to run it.
        work = _store_and_start(service, store, prepared, queued, held.handed_over())
        await background.tasks.run(work)
    return prepared


def refuse_without_store(service: ResponsesService) -> None:
    if service.store is None:
        raise bad_request(
            "A background response has to be stored, and this server keeps none (PROXY_STORE=off).",
            "background",
            "store_disabled",
        )


async def _store_and_start(
    service: ResponsesService,
    store: Store,
    prepared: PreparedResponse,
    queued: StoredResponse,
    held: HeldBody,
) -> None:
    """Stores the response and starts it, or does neither. Raises `Fault`."""
    try:
        response = BackgroundResponse(service, prepared, store)
        await _store(service, store, prepared, queued)
    except BaseException:
        held.release()
        raise
    service.background.start(response, held.release)


async def _store(
    service: ResponsesService, store: Store, prepared: PreparedResponse, queued: StoredResponse
) -> None:
    if service.runs.draining:
        raise Fault(STOPPING)
    with store_errors_as_faults():
        try:
            await store.add_response(queued, input=prepared.context.input)
        except StoreUnavailable:
            # The disk may have been too slow to say that it has written it.
            service.background.tasks.spawn(_take_back(store, queued))
            raise
        except StoreError as error:
            raise Fault(failure_of(error)) from error
    if service.runs.draining:  # it would only fail
        await _take_back(store, queued)
        raise Fault(STOPPING)


async def _take_back(store: Store, queued: StoredResponse) -> None:
    """Deletes a response whose id no client has, as soon as the store can."""
    while True:
        try:
            await store.delete_response(queued.owner, queued.id)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def _queued(
    service: ResponsesService, prepared: PreparedResponse, body: bytes, hints: RequestHints
) -> StoredResponse:
    """The response before its turn starts, as it is stored."""
    return StoredResponse(
        owner=prepared.owner,
        id=prepared.id,
        status="queued",
        created=prepared.created,
        json=queued_json(service, prepared),
        previous_id=prepared.parsed.previous_response_id,
        conversation_id=prepared.parsed.conversation,
        background=True,
        recovery=recovery_of(body, hints) if can_run_again(service, prepared) else b"",
    )


def queued_json(service: ResponsesService, prepared: PreparedResponse) -> bytes:
    """The response object before its turn starts."""
    return json_bytes({**renderer_of(service, prepared).snapshot(), "status": "queued"})


async def cancel_in_background(service: ResponsesService, store: Store, found: StoredResponse) -> None:
    """Stops a response that the store has as unfinished. Returns when it has ended, whichever way."""
    live = service.background.find(found.owner, found.id)
    if live is not None:
        await live.cancel_and_wait()
        return
    with store_errors_as_faults():
        await end_stored_response(service, store, found.owner, cancelled(msgspec.json.decode(found.json)))
