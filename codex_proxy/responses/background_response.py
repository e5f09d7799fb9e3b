"""A response in the background: its turn goes on without its client, until it ends or is cancelled.

The store has it before its client gets its id. Where it streams, frames are stored before readers get them, so that it
can be followed from any frame on, now or later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import structlog

from codex_proxy.core.events import TurnEnded
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.responses.frame_buffer import Frames
from codex_proxy.responses.prepare import PreparedResponse, prepare, start_run
from codex_proxy.responses.running import RunningResponse
from codex_proxy.responses.saving import conversation_append, end_stored_response, output_items
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.store.base import UNFINISHED, Frame, NotStored, Store, StoredItem, StoreError
from codex_proxy.surfaces.base import json_bytes
from codex_proxy.workers.slots import Slot

log = structlog.get_logger(__name__)

RETRY_SECONDS = 2.0
"""Between two tries to start the turn, or to save the end."""


class BackgroundResponse(RunningResponse):
    """Started for a response that the store has as `queued`."""

    def __init__(self, service: ResponsesService, prepared: PreparedResponse, store: Store) -> None:
        super().__init__(service, prepared, "sse" if prepared.parsed.stream else "whole", paced=False)
        self._store = store
        self._slot: Slot | None = None
        self._unstored: Frames = []
        self._saved = False

    # --- its start ------------------------------------------------------------------------------

    async def _start(self) -> Run:
        """Waits for a slot and for its conversation, without a bound, then starts the turn."""
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
        """Prepares the response anew: its context is the conversation as it is now."""
        old = self._prepared
        self._prepared = await prepare(
            self._service, old.parsed, old.owner, id=old.id, created=old.created, wait=None
        )

    async def _try_to_start(self) -> Run | None:
        """Starts the turn. Returns None, after some time, where there is no room for it. Raises `Fault`."""
        try:
            return await start_run(self._service, self._prepared)
        except Fault as fault:
            if fault.failure.kind is not FaultKind.CONCURRENCY_EXCEEDED:
                raise
        held = self._prepared.held is not None
        self._prepared.release()
        with contextlib.suppress(TimeoutError):  # where the server stops, the next try raises that
            async with asyncio.timeout(RETRY_SECONDS):
                await self._service.runs.until_draining()
        if held:
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
        """Stores and releases frames, with those that could not be stored before. Raises `StoreError`."""
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
        """Whether the server stops in the middle of a turn that its next start will run again."""
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
        """Goes on trying to save the end, then releases the last frames."""
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
    """Whether the next start of the server may run this turn again: it changes nothing, and nobody reads it before its
    end. A turn with tools of the server may have changed something."""
    parsed = prepared.parsed
    return (
        service.background_recovery == "rerun"
        and prepared.turn.mode == "model"
        and not service.admission.has_server_tools
        and not parsed.stream
    )
