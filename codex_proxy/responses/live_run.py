"""A response in the background: a run that belongs to no client, and goes on until it ends or is cancelled.

It is stored before its id is told. Its events are stored as they come where they were asked for, so that any number
of readers can follow, now or later, from the store alone; this object only tells them when there is more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import structlog

from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.shown_text import trace_of
from codex_proxy.responses.answer import Answer
from codex_proxy.responses.prepare import (
    PreparedResponse,
    answer_of,
    append_of,
    begin,
    output_of,
    prepare,
)
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.store_faults import failure_of
from codex_proxy.runs.run import Run
from codex_proxy.store.base import UNFINISHED, Append, Frame, Store, StoredItem, StoreError
from codex_proxy.surfaces.base import json_bytes
from codex_proxy.surfaces.models import billed_model
from codex_proxy.workers.slots import Slot, Slots

log = structlog.get_logger(__name__)

RETRY_SECONDS = 2.0
"""Between two tries to get a place among the turns, or to write the end down."""


class LiveRun:
    """One response in the background. `slots` limits how many of them run at once."""

    def __init__(
        self, service: ResponsesService, prepared: PreparedResponse, store: Store, slots: Slots
    ) -> None:
        self.ended = False
        """Its end is stored, or it is gone."""
        self.streams = prepared.parsed.stream
        self.version = 0
        """Grows when there is more to read in the store."""
        self._service = service
        self._prepared = prepared
        self._store = store
        self._slots = slots
        self._slot: Slot | None = None
        self._answer = answer_of(service, prepared, self._save, stream=False)
        self._run: Run | None = None
        self._cancelled = asyncio.Event()
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._unwritten: list[Frame] = []
        self._saved = False

    # --- who reads, and who cancels -------------------------------------------------------------

    async def more(self, seen: int) -> None:
        """Returns when there is more to read than at version `seen`, or it has ended."""
        while self.version == seen and not self.ended:
            await self._changed.wait()

    async def cancel(self) -> None:
        """Stops the turn, if it has not ended by itself. Returns when its end is stored."""
        self._cancelled.set()
        if self._run is not None:
            self._run.interrupt()
        while not self.ended:
            await self._changed.wait()

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    # --- its life -------------------------------------------------------------------------------

    async def work(self) -> None:
        """From the queue to the end. Whatever happens, the response ends in the store."""
        prepared = self._prepared
        try:
            with self._service.usage.turn(prepared.owner, billed_model(prepared.turn), self._answer):
                await self._begin_and_follow()
        except Fault as fault:
            await self._end_without_run(TurnEnded(Stop.FAILED, "provider", fault.failure))
        except asyncio.CancelledError:
            raise  # the server ends: at its next start the response is taken up again
        except Exception as error:  # noqa: BLE001 - a response must not run for ever because of it
            log.error("internal_error", **trace_of(error))
            await self._end_without_run(TurnEnded(Stop.FAILED, "provider", UNFORESEEN))
        finally:
            self._prepared.release()
            self._answer.let_go()
            self.ended = True
            self._tell()

    async def _begin_and_follow(self) -> None:
        starting = asyncio.ensure_future(self._start())
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait({starting, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled.cancel()
            if not starting.done():
                starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        if self._run is None:
            if starting.cancelled() and not self._cancelled.is_set():
                raise asyncio.CancelledError
            await self._end_without_run(TurnEnded(Stop.INTERRUPTED))
            return
        if self._cancelled.is_set():
            self._run.interrupt()
        try:
            await self._follow()
        finally:
            self._give_back()

    async def _start(self) -> None:
        """Waits for a place, and for its conversation; both take as long as they take."""
        self._slot = await self._slots.take(self._prepared.owner)
        try:
            if self._prepared.parsed.conversation is not None:
                await self._enter_conversation()
            while self._run is None:
                await self._try_to_start()
        except BaseException:
            if self._run is None:
                self._give_back()
            raise

    def _give_back(self) -> None:
        if self._slot is not None:
            self._slot.give_back()

    async def _enter_conversation(self) -> None:
        """What is said in it meanwhile belongs to the context."""
        old = self._prepared
        self._prepared = await prepare(
            self._service, old.parsed, old.owner, id=old.id, created=old.created, wait=None
        )

    async def _try_to_start(self) -> None:
        try:
            self._run = await begin(self._service, self._prepared, self._answer)
        except Fault as fault:
            if fault.failure.kind is not FaultKind.CONCURRENCY_EXCEEDED:
                raise
            with contextlib.suppress(TimeoutError):  # a server that stops says so when it is asked again
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._service.runs.until_draining()
            if self._prepared.held is not None:
                await self._enter_conversation()
            return
        await self._mark_running()

    async def _mark_running(self) -> None:
        status = "in_progress"
        json = json_bytes({**self._answer.snapshot(), "status": status})
        with contextlib.suppress(StoreError):  # it shows as queued; nothing depends on it
            await self._store.update_response(
                self._prepared.owner, self._prepared.id, status=status, json=json, only_from=UNFINISHED
            )

    async def _follow(self) -> None:
        """Keeps the events as they come, until the end is saved."""
        answer = self._answer
        while not answer.finished:
            await answer.wait()
            answer.take()
            if not answer.ended:
                with contextlib.suppress(StoreError):  # they are kept for the next try
                    await self._write(answer)
        await self._save_until_it_is()

    # --- what is stored -------------------------------------------------------------------------

    async def _write(self, answer: Answer) -> None:
        """Stores the frames that are new, in order. Raises `StoreError`, and keeps them."""
        frames = answer.frames()
        if not self.streams:
            return
        async with self._writing:
            self._unwritten += [Frame(*frame) for frame in frames]
            if self._unwritten:
                await self._store.append_frames(self._prepared.owner, self._prepared.id, self._unwritten)
                self._unwritten = []
        self._tell()

    async def _save(self, answer: Answer, run: Run) -> Failure | None:
        """Awaited by the run before its log ends."""
        assert answer.ending is not None
        if self._is_taken_up_again(answer.ending.failure):
            self._saved = True
            return None
        try:
            await self._save_end(answer, run)
        except StoreError as error:
            return failure_of(error)
        return None

    async def _save_end(self, answer: Answer, run: Run | None) -> None:
        """The object, and then its last frames. Where these cannot be written, whoever reads the stream makes its
        last frame from the object. Raises `StoreError`."""
        final, prepared = answer.final, self._prepared
        assert final is not None
        output: Sequence[StoredItem] = () if run is None else output_of(self._service, final, run)
        await end_response(
            self._service,
            self._store,
            prepared.owner,
            final,
            output=output,
            append=append_of(prepared.parsed, final["status"]),
        )
        self._saved = True

    async def _save_until_it_is(self) -> None:
        """Writes down an end that could not be saved when it came."""
        while not self._saved:
            try:
                await self._save_end(self._answer, None)
            except StoreError as error:
                log.error("background_end_not_saved", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        with contextlib.suppress(StoreError):
            await self._write(self._answer)

    def _is_taken_up_again(self, failure: Failure | None) -> bool:
        """The server stops in the middle of a turn that its next start will run again."""
        stops = failure is not None and failure.kind is FaultKind.STOPPING
        return stops and can_run_again(self._service, self._prepared)

    async def _end_without_run(self, ended: TurnEnded) -> None:
        """The end of a response whose turn never began."""
        if not self._is_taken_up_again(ended.failure):
            self._answer.feed([ended])
            await self._save_until_it_is()


async def end_response(
    service: ResponsesService,
    store: Store,
    owner: str,
    final: dict[str, Any],
    *,
    output: Sequence[StoredItem] | None = None,
    append: Append | None = None,
) -> None:
    """Stores the last object of a background response and, in the same transaction, the webhooks that tell of it.
    Nothing where it has ended already. Raises `StoreError`."""
    sender = service.webhooks
    try:
        await store.update_response(
            owner,
            final["id"],
            status=final["status"],
            json=json_bytes(final),
            output=output,
            append=append,
            only_from=UNFINISHED,
            webhooks=() if sender is None else sender.pending(final["id"], final["status"]),
        )
    finally:
        if sender is not None:
            sender.wake()  # also where the store was too slow to say that it has written it


def can_run_again(service: ResponsesService, prepared: PreparedResponse) -> bool:
    """Whether a start of the server runs this turn again: it changed nothing, and nobody has read of it. What tools
    that the server runs have changed is not known."""
    parsed = prepared.parsed
    return (
        service.background_recovery == "rerun"
        and prepared.turn.mode == "model"
        and not service.admission.has_server_tools
        and not parsed.stream
    )
