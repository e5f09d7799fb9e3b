"""Responses in the background: created, followed, cancelled, and taken up again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from aiohttp import web

from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind, bad_request
from codex_proxy.http.middleware.bodies import HELD, HeldBytes
from codex_proxy.http.middleware.frame import CLIENT, OWNER
from codex_proxy.http.responses.live_run import RETRY_SECONDS, LiveRun, can_run_again, end_response
from codex_proxy.http.responses.prepare import Prepared, headers_of, prepared_with, renderer_of
from codex_proxy.http.service import Service
from codex_proxy.responses.context import context_of
from codex_proxy.responses.store_faults import failure_of, required_store, store_errors_as_faults
from codex_proxy.store.base import Store, StoredResponse, StoreError, StoreUnavailable
from codex_proxy.surfaces.base import RequestHints, json_bytes
from codex_proxy.surfaces.responses.objects import failed
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse

log = structlog.get_logger("codex_proxy.http")

CUT_OFF = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The server was started anew while this response was under way. Create it again.",
)


class Recovery(msgspec.Struct, frozen=True):
    """What a turn is run again from."""

    body: str
    mode: str | None
    workdir: str | None
    activity: str | None


def refuse_without_store(service: Service) -> None:
    if service.responses.store is None:
        raise bad_request(
            "A background response has to be stored, and this server keeps none (PROXY_STORE=off).",
            "background",
            "store_disabled",
        )


async def create_in_background(
    request: web.Request, service: Service, parsed: ParsedResponse, body: bytes, hints: RequestHints
) -> Prepared:
    """Stores the response, and starts it. What is wrong with the request is raised before that."""
    refuse_without_store(service)
    store = required_store(service.responses.store)
    owner, background, now = request[OWNER], service.responses.background, service.clock.epoch()
    with background.room(owner, request[CLIENT].concurrency):
        context = await context_of(parsed, store, owner, service.ids, now)
        prepared = await prepared_with(
            service, parsed, context, owner, id=service.ids.new("resp_"), created=now
        )
        queued = _queued(service, prepared, body, hints)
        # From the write on it is the server's: a client that leaves must not leave it queued with nobody to run it.
        held = request[HELD].handed_over()
        await background.whole(_store_and_begin(service, store, prepared, queued, held))
    return prepared


async def _store_and_begin(
    service: Service, store: Store, prepared: Prepared, queued: StoredResponse, held: HeldBytes
) -> None:
    """It is written and runs, or it is not written. Raises `Fault`. `held`: what it holds of its request's body."""
    try:
        live = await _stored(service, store, prepared, queued)
    except BaseException:
        held.release()
        raise
    service.responses.background.begin(prepared.owner, prepared.id, live, held.release)


async def _stored(service: Service, store: Store, prepared: Prepared, queued: StoredResponse) -> LiveRun:
    background, manager = service.responses.background, service.manager
    if manager.draining:
        raise Fault(STOPPING)
    live = LiveRun(service, prepared, store, background.slots)
    with store_errors_as_faults():
        try:
            await store.add_response(queued, input=prepared.context.input)
        except StoreUnavailable:
            # The disk may have been too slow to say that it has written it.
            background.spawn(_take_back(store, queued))
            raise
        except StoreError as error:
            raise Fault(failure_of(error)) from error
    if manager.draining:  # it would only fail
        await _take_back(store, queued)
        raise Fault(STOPPING)
    return live


async def _take_back(store: Store, queued: StoredResponse) -> None:
    """Deletes a response of which no client knows, as soon as the store takes it."""
    while True:
        try:
            await store.delete_response(queued.owner, queued.id)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def _queued(service: Service, prepared: Prepared, body: bytes, hints: RequestHints) -> StoredResponse:
    """What is stored of a response that waits."""
    recovery = b""
    if can_run_again(service, prepared):
        recovery = msgspec.json.encode(Recovery(body.decode(), hints.mode, hints.workdir, hints.activity))
    return StoredResponse(
        owner=prepared.owner,
        id=prepared.id,
        status="queued",
        created=prepared.created,
        json=queued_json(service, prepared),
        previous_id=prepared.parsed.previous_response_id,
        conversation_id=prepared.parsed.conversation,
        background=True,
        recovery=recovery,
    )


def queued_json(service: Service, prepared: Prepared) -> bytes:
    """The object of a response that waits."""
    return json_bytes({**renderer_of(service, prepared).snapshot(), "status": "queued"})


def queued_reply(service: Service, prepared: Prepared) -> web.Response:
    """What its creator gets at once."""
    return web.Response(
        body=queued_json(service, prepared),
        content_type="application/json",
        headers=headers_of(service, prepared),
    )


async def cancel_in_background(service: Service, store: Store, found: StoredResponse) -> None:
    """Returns when the response has ended, whichever way."""
    live = service.responses.background.find(found.owner, found.id)
    if live is not None:
        await live.cancel()
        return
    object: dict[str, Any] = {**msgspec.json.decode(found.json), "status": "cancelled"}
    with store_errors_as_faults():
        await end_response(service, store, found.owner, object)


# --- after a restart ----------------------------------------------------------------------------


async def unfinished_of_last_process(service: Service) -> list[StoredResponse]:
    """What the last process left unfinished; to be asked before this one takes requests. Raises `StoreError`."""
    store = service.responses.store
    return [] if store is None else await store.unfinished_responses()


async def take_up_again(service: Service, left: Sequence[StoredResponse]) -> None:
    """Each of these is run again or fails with the reason; what the store does not take now, as soon as it does."""
    store = service.responses.store
    if store is None:
        return
    refused = [found for found in left if not await _taken_up(service, store, found)]
    if refused:
        service.responses.background.spawn(_take_up_until_it_is(service, store, refused))


async def _take_up_until_it_is(service: Service, store: Store, left: Sequence[StoredResponse]) -> None:
    for found in left:
        while not await _taken_up(service, store, found):  # noqa: ASYNC110 - a disk gives no event
            await asyncio.sleep(RETRY_SECONDS)


async def _taken_up(service: Service, store: Store, found: StoredResponse) -> bool:
    """False where the store does not take its end."""
    try:
        if not await _run_again(service, store, found):
            await _fail(service, store, found)
    except StoreError as error:
        log.error("background_not_taken_up", id=found.id, reason=str(error))
        return False
    return True


async def _run_again(service: Service, store: Store, found: StoredResponse) -> bool:
    if service.responses.background_recovery != "rerun" or not found.recovery:
        return False
    try:
        recovery = msgspec.json.decode(found.recovery, type=Recovery)
        hints = RequestHints(mode=recovery.mode, workdir=recovery.workdir, activity=recovery.activity)
        parsed = parse(
            recovery.body.encode(),
            settings=service.clients.named(found.owner).responses,
            catalog=service.catalog,
            headers=hints,
        )
        context = await context_of(parsed, store, found.owner, service.ids, found.created)
        prepared = await prepared_with(
            service, parsed, context, found.owner, id=found.id, created=found.created
        )
    except Fault as fault:
        log.warning("background_not_run_again", id=found.id, reason=fault.failure.kind.value)
        return False
    except msgspec.DecodeError:
        log.warning("background_not_run_again", id=found.id, reason="written by another version")
        return False
    log.info("background_run_again", id=found.id)
    live = LiveRun(service, prepared, store, service.responses.background.slots)
    service.responses.background.begin(found.owner, found.id, live)
    return True


async def _fail(service: Service, store: Store, found: StoredResponse) -> None:
    object = failed(msgspec.json.decode(found.json), CUT_OFF)
    await end_response(service, store, found.owner, object)
    log.warning("background_cut_off", id=found.id)
