"""Responses in the background: created, followed, cancelled, and taken up again after a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.http.clients import CLIENT
from codex_proxy.http.middleware.frame import OWNER
from codex_proxy.http.responses.context import context_of
from codex_proxy.http.responses.live_run import LiveRun, can_run_again
from codex_proxy.http.responses.prepare import Prepared, check_request, headers_of, prepared_with, renderer_of
from codex_proxy.http.responses.store_faults import failure_of, opened, told_as_faults
from codex_proxy.http.service import Service
from codex_proxy.store.base import UNFINISHED, Store, StoredResponse, StoreError
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
    store = opened(service.responses.store)
    check_request(service, parsed)
    owner, background, now = request[OWNER], service.responses.background, service.clock.epoch()
    with background.room(owner, request[CLIENT].concurrency):
        context = await context_of(parsed, store, owner, service.ids, now)
        prepared = await prepared_with(
            service, parsed, context, owner, id=service.ids.new("resp_"), created=now
        )
        await _store_queued(service, store, prepared, body, hints)
        background.begin(owner, prepared.id, LiveRun(service, prepared, store, background.place))
    return prepared


async def _store_queued(
    service: Service, store: Store, prepared: Prepared, body: bytes, hints: RequestHints
) -> None:
    recovery = b""
    if can_run_again(service, prepared):
        recovery = msgspec.json.encode(Recovery(body.decode(), hints.mode, hints.workdir, hints.activity))
    queued = StoredResponse(
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
    with told_as_faults():
        try:
            await store.add_response(queued, input=prepared.context.input)
        except StoreError as error:
            raise Fault(failure_of(error)) from error


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
    with told_as_faults():
        await store.update_response(
            found.owner, found.id, status="cancelled", json=json_bytes(object), only_from=UNFINISHED
        )


# --- after a restart ----------------------------------------------------------------------------


async def take_up_again(service: Service) -> None:
    """Every response that the last process left unfinished is run again or fails with the reason."""
    store = service.responses.store
    if store is None:
        return
    try:
        for found in await store.unfinished_responses():
            if not await _run_again(service, store, found):
                await _fail(service, store, found)
    except StoreError as error:
        log.error("background_not_taken_up", reason=str(error))


async def _run_again(service: Service, store: Store, found: StoredResponse) -> bool:
    if service.responses.background_recovery != "rerun" or not found.recovery:
        return False
    recovery = msgspec.json.decode(found.recovery, type=Recovery)
    hints = RequestHints(mode=recovery.mode, workdir=recovery.workdir, activity=recovery.activity)
    try:
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
    log.info("background_run_again", id=found.id)
    live = LiveRun(service, prepared, store, service.responses.background.place)
    service.responses.background.begin(found.owner, found.id, live)
    return True


async def _fail(service: Service, store: Store, found: StoredResponse) -> None:
    object = failed(msgspec.json.decode(found.json), CUT_OFF)
    await store.update_response(
        found.owner, found.id, status="failed", json=json_bytes(object), only_from=UNFINISHED
    )
    log.warning("background_cut_off", id=found.id)
    if service.responses.webhooks is not None:
        await service.responses.webhooks.tell(found.id, "failed")
