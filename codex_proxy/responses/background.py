"""Responses in the background (`background: true`): created and cancelled by requests, run without a client, and run
again or failed after a restart.

A response is in the store before its client gets its id. Of a streamed one, the frames (encoded, numbered events) are
stored before readers get them, so that a stream can be followed from any event on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog

from codex_proxy.admission.clients import Client
from codex_proxy.core.events import TurnEnded
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.media import PdfTexts
from codex_proxy.responses.context import read_context
from codex_proxy.responses.frame_buffer import Frames
from codex_proxy.responses.prepare import (
    PreparedResponse,
    prepare,
    prepare_in_context,
    renderer_of,
    start_run,
)
from codex_proxy.responses.running import RunningResponse
from codex_proxy.responses.saving import conversation_append, end_stored_response, output_items
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.store.health import failure_of, required_store, store_errors_as_faults
from codex_proxy.store.interface import (
    UNFINISHED,
    Frame,
    NotStored,
    Store,
    StoredItem,
    StoredResponse,
    StoreError,
    StoreUnavailable,
)
from codex_proxy.surfaces.base import json_bytes
from codex_proxy.surfaces.request_options import RequestHints
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse
from codex_proxy.surfaces.responses.response_object import cancelled, failed
from codex_proxy.workers.slots import Slot

log = structlog.get_logger(__name__)

RETRY_SECONDS = 2.0
"""Seconds between two attempts to start a turn or to save a response."""


class BackgroundResponse(RunningResponse):
    """Runs the turn of a response stored as `queued`, and stores its frames and final object."""

    def __init__(self, service: ResponsesService, prepared: PreparedResponse, store: Store) -> None:
        super().__init__(service, prepared, "sse" if prepared.parsed.stream else "whole", paced=False)
        self._store = store
        self._slot: Slot | None = None
        self._unstored: Frames = []
        self._saved = False

    # --- its start ------------------------------------------------------------------------------

    async def _start(self) -> Run:
        """Starts the turn and returns its run, after waiting without limit for other background responses, the
        conversation's other turns, and the scheduler. Raises `Fault`.
        """
        self._slot = await self._service.background.slots.take(self.owner)
        try:
            if self._prepared.parsed.conversation is not None:
                await self._enter_conversation()
            while True:
                run = await self._try_to_start()
                if run is not None:
                    return run
        except BaseException:
            self._slot.give_back()
            raise

    async def _enter_conversation(self) -> None:
        """Waits for the conversation's other turns, then prepares the response from its present items.
        Raises `Fault`.
        """
        old = self._prepared
        self._prepared = await prepare(
            self._service, old.parsed, old.owner, id=old.id, created=old.created, wait=None
        )

    async def _try_to_start(self) -> Run | None:
        """Starts the turn and returns its run. Without room, unlocks the conversation for `RETRY_SECONDS` and returns
        None. Raises `Fault`.
        """
        try:
            return await start_run(self._service, self._prepared)
        except Fault as fault:
            if fault.failure.kind is not FaultKind.CONCURRENCY_EXCEEDED:
                raise
        in_conversation = self._prepared.conversation_turn is not None
        self._prepared.release()
        with contextlib.suppress(TimeoutError):  # where the server stops, the next try raises that
            async with asyncio.timeout(RETRY_SECONDS):
                await self._service.runs.until_draining()
        if in_conversation:
            await self._enter_conversation()
        return None

    async def _render_log(self, cursor: Cursor) -> TurnEnded:
        await self._mark_running()
        return await super()._render_log(cursor)

    async def _mark_running(self) -> None:
        status = "in_progress"
        json = json_bytes({**self._renderer.snapshot(), "status": status})
        with contextlib.suppress(StoreError):  # it shows as queued; nothing depends on it
            await self._store.update_response(
                self.owner, self.id, status=status, json=json, only_from=UNFINISHED
            )

    # --- its frames -----------------------------------------------------------------------------

    async def _release(self, frames: Frames) -> None:
        with contextlib.suppress(StoreError):  # they are kept for the next try
            await self._store_frames(frames)

    async def _store_frames(self, frames: Frames) -> None:
        """Stores frames, and earlier ones that failed, then gives them to the readers. Raises `StoreError`; they are
        kept for the next call.
        """
        self._unstored += frames
        if self._unstored:
            await self._store.append_frames(self.owner, self.id, [Frame(*each) for each in self._unstored])
            self._release_unstored()

    def _release_unstored(self) -> None:
        frames, self._unstored = self._unstored, []
        self.buffer.append(frames)

    # --- its end --------------------------------------------------------------------------------

    async def _finish(self, ended: TurnEnded) -> None:
        if self._runs_again(ended.failure):
            self.failure = ended.failure
        else:
            await super()._finish(ended)

    def _runs_again(self, failure: Failure | None) -> bool:
        """Whether the turn failed because the server stops, and its next start will run it again."""
        stops = failure is not None and failure.kind is FaultKind.STOPPING
        return stops and can_run_again(self._service, self._prepared)

    async def _save(self, final: dict[str, Any], ended: TurnEnded) -> None:
        if self._run is not None:
            await self._save_end(final, output_items(self._service, final, self._run))

    async def _save_end(self, final: dict[str, Any], output: Sequence[StoredItem]) -> None:
        append = conversation_append(self._prepared.parsed, final["status"])
        await end_stored_response(self._service, self._store, self.owner, final, output=output, append=append)
        self._saved = True

    async def _complete(self, frames: Frames) -> None:
        """Saves the final object if `_save` has not, until that succeeds; then stores and passes on the last frames."""
        assert self.final is not None
        while not self._saved:
            try:
                await self._save_end(self.final, ())
            except StoreError as error:
                log.error("background_end_not_saved", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        try:
            await self._store_frames(frames)
        except NotStored:
            """It was deleted. Its readers find that out from the store."""
        except StoreError:
            self._release_unstored()  # later readers get a last frame that is made of the object

    def _close(self) -> None:
        super()._close()
        if self._slot is not None:
            self._slot.give_back()


def can_run_again(service: ResponsesService, prepared: PreparedResponse) -> bool:
    """Whether the server's next start may run the turn again: `background_recovery` is `rerun`, it is not streamed, and
    runs no tools, which might change something twice.
    """
    parsed = prepared.parsed
    return (
        service.background_recovery == "rerun"
        and prepared.turn.mode == "model"
        and not service.admission.has_server_tools
        and not parsed.stream
    )


CUT_OFF = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The server was restarted while this response was in progress. Create it again.",
)


class Recovery(msgspec.Struct, frozen=True):
    """A request to run again: its JSON body, and the headers `X-Codex-Mode`, `X-Codex-Workdir` and `X-Codex-Activity`
    (or None).
    """

    body: str
    mode: str | None
    workdir: str | None
    activity: str | None


def recovery_of(body: bytes, hints: RequestHints) -> bytes:
    """Returns the request as JSON for the store (`Recovery`)."""
    return msgspec.json.encode(Recovery(body.decode(), hints.mode, hints.workdir, hints.activity))


async def unfinished_responses(service: ResponsesService) -> list[StoredResponse]:
    """Returns responses that an earlier process left unfinished; called before requests are accepted. Raises
    `StoreError`.
    """
    store = service.store
    return [] if store is None else await store.unfinished_responses()


async def recover_responses(service: ResponsesService, unfinished: Sequence[StoredResponse]) -> None:
    """Runs unfinished responses again if they have a `Recovery`, the setting is `rerun` and the turn is admitted; else
    saves them as failed. A task repeats this while the store fails.
    """
    store = service.store
    if store is None:
        return
    refused = [found for found in unfinished if not await _recover(service, store, found)]
    if refused:
        service.background.tasks.spawn(_recover_until_stored(service, store, refused))


async def _recover_until_stored(
    service: ResponsesService, store: Store, unfinished: Sequence[StoredResponse]
) -> None:
    for found in unfinished:
        while not await _recover(service, store, found):  # noqa: ASYNC110 - a disk gives no event
            await asyncio.sleep(RETRY_SECONDS)


async def _recover(service: ResponsesService, store: Store, found: StoredResponse) -> bool:
    """Runs one response again, or saves it as failed. Returns False if the store failed."""
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

        client = service.clients.by_name(found.owner)

        def parsed_again(pdfs: PdfTexts | None) -> ParsedResponse:
            return parse(
                recovery.body.encode(),
                settings=client.responses,
                catalog=client.catalog,
                headers=hints,
                pdfs=pdfs,
            )

        pdfs = None if service.pdfs is None else PdfTexts()
        parsed = parsed_again(pdfs)
        if service.pdfs is not None and pdfs is not None and pdfs.unread:
            parsed = parsed_again(await service.pdfs.texts_for(pdfs, found.owner))
        context = await read_context(parsed, store, found.owner, service.ids, found.created)
        prepared = await prepare_in_context(
            service, parsed, context, found.owner, id=found.id, created=found.created
        )
    except Fault as fault:
        if type(fault.__cause__) is StoreUnavailable:
            raise fault.__cause__ from None  # its context could not be read now, but may be later
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


class HeldBody(Protocol):
    """A body's bytes, which count against the server's limit until `release`."""

    def handed_over(self) -> HeldBody:
        """Returns an object that counts these bytes, to be released by the caller; this one counts none."""
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
    """Stores the response as `queued`, starts its task, and returns it. `body` and `hints` are kept for a restart; the
    bytes of `held` count until its end.

    Raises `Fault` for a bad request, too many background responses, or a failed store.
    """
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
            "A background response must be stored, and this server stores none (PROXY_STORE=off).",
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
    """Stores and starts the response, or raises `Fault` having done neither. `held` is released at its end, or if this
    raises.
    """
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
    """Deletes a stored response whose id no client has, as soon as the store is available."""
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
    """Returns the response as stored before its turn, with the request if it may be run again."""
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
    """Returns the response object with the status `queued`, as JSON."""
    return json_bytes({**renderer_of(service, prepared).snapshot(), "status": "queued"})


async def cancel_in_background(service: ResponsesService, store: Store, found: StoredResponse) -> None:
    """Cancels an unfinished response: stops its turn, or saves it as cancelled. Returns at its end, whichever that is.
    Raises `Fault`.
    """
    live = service.background.find(found.owner, found.id)
    if live is not None:
        await live.cancel_and_wait()
        return
    with store_errors_as_faults():
        await end_stored_response(service, store, found.owner, cancelled(msgspec.json.decode(found.json)))
