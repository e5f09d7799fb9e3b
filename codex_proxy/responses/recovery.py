"""Recovers background responses that the end of a server has cut off: runs them again, or fails them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.pdfs import PdfTexts
from codex_proxy.responses.background_response import RETRY_SECONDS, BackgroundResponse
from codex_proxy.responses.context import read_context
from codex_proxy.responses.prepare import prepare_in_context
from codex_proxy.responses.saving import end_stored_response
from codex_proxy.responses.service import ResponsesService
from codex_proxy.store.base import Store, StoredResponse, StoreError
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.responses.objects import failed
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse
from codex_proxy.workers.pdf_reader import parsed_with_pdfs

log = structlog.get_logger(__name__)

CUT_OFF = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The server was started anew while this response was under way. Create it again.",
)


class Recovery(msgspec.Struct, frozen=True):
    """The request of a turn that can be run again, as the store keeps it."""

    body: str
    mode: str | None
    workdir: str | None
    activity: str | None


def recovery_of(body: bytes, hints: RequestHints) -> bytes:
    """Encodes the request of a turn that can be run again."""
    return msgspec.json.encode(Recovery(body.decode(), hints.mode, hints.workdir, hints.activity))


async def unfinished_responses(service: ResponsesService) -> list[StoredResponse]:
    """Reads what an earlier server left unfinished. To be called before requests are taken. Raises `StoreError`."""
    store = service.store
    return [] if store is None else await store.unfinished_responses()


async def recover_responses(service: ResponsesService, left: Sequence[StoredResponse]) -> None:
    """Runs each of these again, or fails it. Where the store does not take that now, goes on trying in a task."""
    store = service.store
    if store is None:
        return
    refused = [found for found in left if not await _recovered(service, store, found)]
    if refused:
        service.background.tasks.spawn(_recover_until_stored(service, store, refused))


async def _recover_until_stored(
    service: ResponsesService, store: Store, left: Sequence[StoredResponse]
) -> None:
    for found in left:
        while not await _recovered(service, store, found):  # noqa: ASYNC110 - a disk gives no event
            await asyncio.sleep(RETRY_SECONDS)


async def _recovered(service: ResponsesService, store: Store, found: StoredResponse) -> bool:
    """Runs it again or fails it. Returns False where the store does not take its end."""
    try:
        if not await _run_again(service, store, found):
            await _fail(service, store, found)
    except StoreError as error:
        log.error("background_not_recovered", id=found.id, reason=str(error))
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
        context = await read_context(parsed, store, found.owner, service.ids, found.created)
        prepared = await prepare_in_context(
            service, parsed, context, found.owner, id=found.id, created=found.created
        )
    except Fault as fault:
        log.warning("background_not_run_again", id=found.id, reason=fault.failure.kind.value)
        return False
    except msgspec.DecodeError:
        log.warning("background_not_run_again", id=found.id, reason="written by another version")
        return False
    log.info("background_run_again", id=found.id)
    service.background.start(BackgroundResponse(service, prepared, store))
    return True


async def _fail(service: ResponsesService, store: Store, found: StoredResponse) -> None:
    object = failed(msgspec.json.decode(found.json), CUT_OFF)
    await end_stored_response(service, store, found.owner, object)
    log.warning("background_cut_off", id=found.id)
