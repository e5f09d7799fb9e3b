"""Responses in the background (`background: true`). A response is stored before its client gets its id, and streamed
frames before readers get them, so that a stream can be followed from any event on. Only the server that holds its lease
(`store/leases.py`) runs and stores it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
import structlog

from codex_proxy.admission.clients import Client
from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.faults import STOPPING, UNFORESEEN, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.own_errors import trace_of
from codex_proxy.responses.context import read_context
from codex_proxy.responses.prepare import (
    PreparedResponse,
    prepare,
    prepare_again,
    prepare_in_context,
    renderer_of,
    try_to_start,
)
from codex_proxy.responses.running import RunningResponse
from codex_proxy.responses.saving import (
    StoredLog,
    conversation_append,
    end_for_another,
    end_stored_response,
    output_items,
    take_back,
)
from codex_proxy.responses.service import RETRY_SECONDS, ResponsesService
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.store.health import failure_of, require_store, store_errors_as_faults
from codex_proxy.store.leases import FIRST_EPOCH
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    UNFINISHED,
    Frame,
    NotStored,
    StoreConflict,
    StoreDamaged,
    StoredItem,
    StoredResponse,
    StoreError,
    StoreUnavailable,
    UnsureWrite,
)
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.requests.options import RequestHints
from codex_proxy.surfaces.responses.kept_log import LogWriter
from codex_proxy.surfaces.responses.parse import ParsedResponse
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.responses.response_object import cancelled_response
from codex_proxy.workers.slots import Slot

log = structlog.get_logger(__name__)


PAUSE_SECONDS = 0.05
"""Seconds between two writes of a stream's events. The first event and the end are written at once."""
SAVE_SECONDS = 30.0
"""Seconds for which a store that does not answer is asked again. Then the response fails, which is saved instead."""
MAX_UNSTORED = 1 << 20
"""Bytes of frames that are written at once, if more is there."""

ParseAgain: TypeAlias = Callable[[Failure], Awaitable[ParsedResponse | None]]
"""Parses a request for another model after this failure; returns None if there is none. Raises `Fault`."""


class BackgroundResponse(RunningResponse):
    """Runs a `queued` response, and stores the log of its stream and its final object."""

    def __init__(
        self,
        service: ResponsesService,
        prepared: PreparedResponse,
        store: Store,
        client: Client,
        epoch: int = FIRST_EPOCH,
        parse_again: ParseAgain | None = None,
    ) -> None:
        self.epoch = epoch
        self._log = LogWriter()
        super().__init__(service, prepared, "sse" if prepared.parsed.stream else "whole", paced=False)
        self._client = client
        self._store = store
        self._parse_again = parse_again
        self._slot: Slot | None = None
        self._unreleased: list[Frame] = []
        """Frames whose events are not stored yet."""
        self._next_write = 0.0
        """When events may be written again, in seconds of the event loop."""
        self._saved = False
        self._lost = False
        """Whether another server has ended, deleted or taken over the response; the store has the rest."""

    def _new_renderer(self) -> ResponsesRenderer:
        renderer = super()._new_renderer()
        if self.streams:  # also of a turn that never begins: its end is a stream, too
            self._log.begin(self._rendering)
        return renderer

    def on_lease_lost(self) -> None:
        self._lost = True
        self.cancel()

    async def _run_turns(self) -> None:
        give_up = self._service.rights.hold(self._client, self.fail)
        try:
            await super()._run_turns()
        finally:
            give_up()

    # --- its start ------------------------------------------------------------------------------

    async def add_to_store(self, queued: StoredResponse) -> None:
        """Stores the response as queued, with the head of its stream's log, so that others can follow, cancel and end
        it before it begins. Raises `StoreError`.
        """
        await self._store.add_response(queued, input=self._prepared.context.input, frames=self._log.rows())
        self._log.note_stored()

    async def _start(self) -> Run:
        """Waits without limit for other background responses, the conversation's other turns, and the scheduler. Raises
        `Fault`.
        """
        if self._slot is None:
            self._slot = await self._service.background.slots.take(self.owner)
        prepared = self._prepared
        try:
            if prepared.parsed.conversation is not None and prepared.conversation_turn is None:
                await self._enter_conversation()
            while True:
                run = await try_to_start(self._service, self._prepared)
                if run is not None:
                    return run
                if self._prepared.conversation_turn is not None:
                    await self._enter_conversation()
        except BaseException:
            self._slot.give_back()
            self._slot = None
            raise

    async def _enter_conversation(self) -> None:
        old = self._prepared
        self._prepared = await prepare(
            self._service, old.parsed, old.owner, id=old.id, created=old.created, wait=None
        )

    async def _render_log(self, cursor: Cursor) -> TurnEnded:
        await self._mark_running()
        size = 0
        while True:
            await cursor.wait()
            await cursor.wait_for_end_or_long_text(until=self._next_write)
            events, ended = self._take(cursor)
            await self._render(events)
            frames = self._renderer.take_frames()
            if self.streams:
                self._log.add(self._renderer.events_to_keep(events))
            self._unreleased += frames
            if ended is not None:  # the last events are written with the final object
                await asyncio.sleep(0)  # a long text is in several of them: not all in one go
                return ended
            size += sum([len(frame) for _, frame in frames])
            if cursor.at_end or size > MAX_UNSTORED:
                await self._store_events()
                size = 0

    async def _mark_running(self) -> None:
        status = "in_progress"
        json = json_bytes({**self._renderer.snapshot(), "status": status})
        try:
            marked = await self._store.update_response(
                self.owner,
                self.id,
                status=status,
                json=json,
                only_from=UNFINISHED,
                frames=self._log.rows(),
                epoch=self.epoch,
            )
        except StoreUnavailable:
            return  # it shows as queued
        except StoreConflict:
            marked = False
        if marked:
            self._log.note_stored()
        else:
            self.on_lease_lost()

    # --- its events -----------------------------------------------------------------------------

    async def _store_events(self) -> None:
        if not self._unreleased or self._lost:
            return
        self._next_write = asyncio.get_running_loop().time() + PAUSE_SECONDS
        try:
            await self._store.append_frames(self.owner, self.id, self._log.rows(), epoch=self.epoch)
        except StoreUnavailable:
            return
        except (StoreConflict, NotStored):
            self.on_lease_lost()
        else:
            self._log.note_stored()
            self._release([])

    def _release(self, frames: Sequence[Frame]) -> None:
        ready, self._unreleased = [*self._unreleased, *frames], []
        self.buffer.append(ready)

    # --- its end --------------------------------------------------------------------------------

    async def _finish(self, ended: TurnEnded) -> None:
        if self._lost or self._runs_again(ended.failure):
            self.failure = ended.failure
            return
        try:
            parsed = await self._parse_for_next_target(ended.failure)
        except Fault as fault:
            parsed, ended = None, TurnEnded.with_failure(fault.failure)
        if parsed is None:
            await super()._finish(ended)
        else:
            self._run_again(ended, partial(prepare_again, self._service, self._prepared, parsed=parsed))

    async def _parse_for_next_target(self, failure: Failure | None) -> ParsedResponse | None:
        """Parses the request again after a failure; None if nothing has failed, or output has begun."""
        if failure is None or self._parse_again is None or self._cancelled:
            return None
        if self._renderer.visible or self._renderer.ended:
            return None
        return await self._parse_again(failure)

    async def _refuse(self, failure: Failure) -> None:
        self._renderer = self._new_renderer()  # the last one has rendered the end of the turn before
        await super()._finish(TurnEnded.with_failure(failure))

    def _runs_again(self, failure: Failure | None) -> bool:
        stops = failure is not None and failure.kind is FaultKind.STOPPING
        return stops and can_run_again(self._service, self._prepared)

    async def _save(self, final: dict[str, Any], ended: TurnEnded) -> None:
        if self._run is None:
            return
        output = await self._work_on_answer(partial(output_items, self._service, final, self._run))
        async with asyncio.timeout(SAVE_SECONDS):
            while not (self._saved or self._lost):
                try:
                    await self._save_end(final, output)
                except StoreDamaged:
                    raise
                except StoreUnavailable as error:
                    # A database that is started again is no reason to lose an answer.
                    log.warning("background_end_not_saved", reason=str(error))
                    await asyncio.sleep(RETRY_SECONDS)

    async def _save_end(self, final: dict[str, Any], output: Sequence[StoredItem] = ()) -> None:
        append = conversation_append(self._prepared.parsed, final["status"])
        frames: Sequence[Frame] = ()
        if self.streams:
            frames = await self._work_on_answer(partial(self._log.ended_by, self._ends, self._renderer))
        try:
            self._saved = await end_stored_response(
                self._service,
                self._store,
                self.owner,
                final,
                output=output,
                append=append,
                frames=frames,
                long=self.has_long_answer,
                epoch=self.epoch,
                turn_epoch=self._prepared.turn_epoch,
            )
        except StoreConflict as conflict:
            if conflict.reason != "lease":
                raise
        self._lost = not self._saved

    async def _complete(self, frames: list[Frame]) -> None:
        assert self.final is not None
        while not (self._saved or self._lost):
            try:
                await self._save_end(self.final)
            except StoreError as error:
                log.error("background_end_not_saved", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        if self._saved:
            self._release(frames)

    async def _break_off(self) -> None:
        if self.streams and self.final is None:
            # What broke has no place in the log: a reader would break, too.
            try:
                await self._render_anew()
            except Exception as error:  # noqa: BLE001 - as in `RunningResponse._break_off`
                log.error("internal_error", **trace_of(error))
                self.failure = UNFORESEEN
        else:
            await super()._break_off()

    async def _render_anew(self) -> None:
        """Ends the stream behind the last events that could be rendered."""
        stored, frames = await self._read_log()
        self._unreleased, self._ends = [*frames, *stored.read_unstored(self._log.rows())], []
        if stored.rendered is not None:
            self._renderer = stored.rendered
        await self._finish(TurnEnded.with_failure(UNFORESEEN))

    async def _read_log(self) -> tuple[StoredLog, list[Frame]]:
        """Returns the stored log, and its frames that were not released. Waits until the store answers."""
        while True:
            stored = StoredLog(self._store, self.owner, self.id, after=self.buffer.next - 1)
            frames: list[Frame] = []
            try:
                while (more := await stored.read()) is not None:
                    frames += more
            except StoreDamaged:
                raise
            except StoreUnavailable as error:
                log.warning("background_log_not_read", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return stored, frames

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            if self._slot is not None:
                self._slot.give_back()


def can_run_again(service: ResponsesService, prepared: PreparedResponse) -> bool:
    """Whether a response may run again after a restart: the setting allows it, it is not streamed, and no tool could
    change something twice.
    """
    parsed = prepared.parsed
    return (
        service.background_recovery == "rerun"
        and prepared.turn.mode == "model"
        and not service.admission.has_server_tools
        and not parsed.stream
    )


class Recovery(msgspec.Struct, frozen=True):
    """A request to run again: its JSON body, its headers `X-Codex-Mode`, `X-Codex-Workdir` and `X-Codex-Activity`,
    and the digest of its key.
    """

    body: str
    mode: str | None
    workdir: str | None
    activity: str | None
    key: str = ""


async def create_in_background(
    service: ResponsesService,
    parsed: ParsedResponse,
    body: bytes,
    hints: RequestHints,
    client: Client,
    hold: Callable[[int], Callable[[], None]],
    parse_again: ParseAgain | None = None,
) -> PreparedResponse:
    """Stores the response as `queued`, and starts it. `body` and `hints` are kept for a restart. `hold(more)` keeps
    the body's bytes and `more` bytes counted in the memory budget, until the function that it returns is called.
    Raises `Fault`: too many background responses, or a failed store.
    """
    refuse_without_store(service)
    store = require_store(service.store)
    owner, background, now = client.name, service.background, service.clock.epoch()
    with background.room(owner, client.concurrency):
        context = await read_context(parsed, store, owner, service.ids, now)
        prepared = await prepare_in_context(
            service, parsed, context, owner, id=service.ids.new("resp_"), created=now
        )
        queued = _queued_response(service, prepared, body, hints, client)
        # From the write on it is the server's: a client that leaves must not leave it queued with nobody to run it.
        work = _store_and_start(service, store, prepared, queued, client, hold(prepared.size), parse_again)
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
    client: Client,
    on_end: Callable[[], None],
    parse_again: ParseAgain | None,
) -> None:
    """Stores and starts the response, or raises `Fault` having done neither. `on_end` is called at its end, or if this
    raises.
    """
    try:
        response = BackgroundResponse(service, prepared, store, client, parse_again=parse_again)
        await _add_to_store(service, store, response, queued)
    except BaseException:
        on_end()
        raise
    service.background.start(response, on_end)


async def _add_to_store(
    service: ResponsesService, store: Store, response: BackgroundResponse, queued: StoredResponse
) -> None:
    if service.runs.draining:
        raise Fault(STOPPING)
    with store_errors_as_faults():
        try:
            await response.add_to_store(queued)
        except UnsureWrite:
            service.background.tasks.spawn(take_back(store, queued.owner, queued.id))
            raise
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise Fault(failure_of(error)) from error
    if service.runs.draining:  # it would only fail
        await take_back(store, queued.owner, queued.id)
        raise Fault(STOPPING)


def _queued_response(
    service: ResponsesService, prepared: PreparedResponse, body: bytes, hints: RequestHints, client: Client
) -> StoredResponse:
    recovery = Recovery(body.decode(), hints.mode, hints.workdir, hints.activity, client.digest)
    return StoredResponse(
        owner=prepared.owner,
        id=prepared.id,
        status="queued",
        created=prepared.created,
        json=queued_json(service, prepared),
        previous_id=prepared.parsed.previous_response_id,
        conversation_id=prepared.parsed.conversation,
        background=True,
        recovery=msgspec.json.encode(recovery) if can_run_again(service, prepared) else b"",
    )


def queued_json(service: ResponsesService, prepared: PreparedResponse) -> bytes:
    return json_bytes({**renderer_of(service, prepared).snapshot(), "status": "queued"})


async def cancel_in_background(service: ResponsesService, store: Store, stored: StoredResponse) -> None:
    """Stops the turn of the response, or saves it as cancelled, which stops it on another server. Waits for its end."""
    live = service.background.find(stored.owner, stored.id)
    if live is not None:
        await live.cancel_and_wait()
        if live._saved:
            return
    with store_errors_as_faults():  # also of a turn that another server has taken over
        object = cancelled_response(msgspec.json.decode(stored.json))
        await end_for_another(service, store, stored.owner, object, TurnEnded(Stop.INTERRUPTED))
