"""Responses in the background: created, followed, cancelled, and taken up again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog

from codex_proxy.admission.clients import Client
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.pdfs import PdfTexts
from codex_proxy.responses.context import context_of
from codex_proxy.responses.live_run import RETRY_SECONDS, LiveRun, can_run_again, end_response
from codex_proxy.responses.prepare import PreparedResponse, prepared_with, renderer_of
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.store_faults import failure_of, required_store, store_errors_as_faults
from codex_proxy.store.base import Store, StoredResponse, StoreError, StoreUnavailable
from codex_proxy.surfaces.base import RequestHints, json_bytes
from codex_proxy.surfaces.responses.objects import failed
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse
from codex_proxy.workers.pdf_reader import parsed_with_pdfs

log = structlog.get_logger(__name__)

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


class HeldBody(Protocol):
    """The bytes of a request's body that are counted as long as they are held."""

    def handed_over(self) -> HeldBody:
        """The same bytes, held by whoever releases what this returns."""
        ...

    def release(self) -> None: ...


def refuse_without_store(service: ResponsesService) -> None:
    if service.store is None:
        raise bad_request(
            "A background response has to be stored, and this server keeps none (PROXY_STORE=off).",
            "background",
            "store_disabled",
        )


async def create_in_background(
    service: ResponsesService,
    parsed: ParsedResponse,
    body: bytes,
    hints: RequestHints,
    client: Client,
    held: HeldBody,
) -> PreparedResponse:
    """Stores the response, and starts it. `held`: what its request holds of its body, which it holds from then on.
    Raises `Fault` for what is wrong with the request, before anything is stored."""
    refuse_without_store(service)
    store = required_store(service.store)
    owner, background, now = client.name, service.background, service.clock.epoch()
    with background.room(owner, client.concurrency):
        context = await context_of(parsed, store, owner, service.ids, now)
        prepared = await prepared_with(
            service, parsed, context, owner, id=service.ids.new("resp_"), created=now
        )
        queued = _queued(service, prepared, body, hints)
        # From the write on it is the server's: a client that leaves must not leave it queued with nobody to run it.
        await background.whole(_store_and_begin(service, store, prepared, queued, held.handed_over()))
    return prepared


async def _store_and_begin(
    service: ResponsesService,
    store: Store,
    prepared: PreparedResponse,
    queued: StoredResponse,
    held: HeldBody,
) -> None:
    """It is written and runs, or it is not written. Raises `Fault`. `held`: what it holds of its request's body."""
    try:
        live = await _stored(service, store, prepared, queued)
    except BaseException:
        held.release()
        raise
    service.background.begin(prepared.owner, prepared.id, live, held.release)


async def _stored(
    service: ResponsesService, store: Store, prepared: PreparedResponse, queued: StoredResponse
) -> LiveRun:
    background, manager = service.background, service.runs
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


def _queued(
    service: ResponsesService, prepared: PreparedResponse, body: bytes, hints: RequestHints
) -> StoredResponse:
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


def queued_json(service: ResponsesService, prepared: PreparedResponse) -> bytes:
    """The object of a response that waits."""
    return json_bytes({**renderer_of(service, prepared).snapshot(), "status": "queued"})


async def cancel_in_background(service: ResponsesService, store: Store, found: StoredResponse) -> None:
    """Returns when the response has ended, whichever way."""
    live = service.background.find(found.owner, found.id)
    if live is not None:
        await live.cancel()
        return
    object: dict[str, Any] = {**msgspec.json.decode(found.json), "status": "cancelled"}
    with store_errors_as_faults():
        await end_response(service, store, found.owner, object)


# --- after a restart ----------------------------------------------------------------------------


async def unfinished_of_last_process(service: ResponsesService) -> list[StoredResponse]:
    """What the last process left unfinished; to be asked before this one takes requests. Raises `StoreError`."""
    store = service.store
    return [] if store is None else await store.unfinished_responses()


async def take_up_again(service: ResponsesService, left: Sequence[StoredResponse]) -> None:
    """Each of these is run again or fails with the reason; what the store does not take now, as soon as it does."""
    store = service.store
    if store is None:
        return
    refused = [found for found in left if not await _taken_up(service, store, found)]
    if refused:
        service.background.spawn(_take_up_until_it_is(service, store, refused))


async def _take_up_until_it_is(
    service: ResponsesService, store: Store, left: Sequence[StoredResponse]
) -> None:
    for found in left:
        while not await _taken_up(service, store, found):  # noqa: ASYNC110 - a disk gives no event
            await asyncio.sleep(RETRY_SECONDS)


async def _taken_up(service: ResponsesService, store: Store, found: StoredResponse) -> bool:
    """False where the store does not take its end."""
    try:
        if not await _run_again(service, store, found):
            await _fail(service, store, found)
    except StoreError as error:
        log.error("background_not_taken_up", id=found.id, reason=str(error))
        return False
    return True


async def _run_again(service: ResponsesService, store: Store, found: StoredResponse) -> bool:
    if service.background_recovery != "rerun" or not found.recovery:
        return False
    try:
        recovery = msgspec.json.decode(found.recovery, type=Recovery)
        hints = RequestHints(mode=recovery.mode, workdir=recovery.workdir, activity=recovery.activity)

        async def parsed_again(pdfs: PdfTexts | None) -> ParsedResponse:
            return parse(
                recovery.body.encode(),
                settings=service.clients.named(found.owner).responses,
                catalog=service.catalog,
                headers=hints,
                pdfs=pdfs,
            )

        parsed = await parsed_with_pdfs(parsed_again, service.pdfs, found.owner)
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
    live = LiveRun(service, prepared, store, service.background.slots)
    service.background.begin(found.owner, found.id, live)
    return True


async def _fail(service: ResponsesService, store: Store, found: StoredResponse) -> None:
    object = failed(msgspec.json.decode(found.json), CUT_OFF)
    await end_response(service, store, found.owner, object)
    log.warning("background_cut_off", id=found.id)
