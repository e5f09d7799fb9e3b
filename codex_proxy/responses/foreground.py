"""A response whose client waits. If the client leaves, it is saved as cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault
from codex_proxy.core.own_errors import release_all
from codex_proxy.responses.prepare import PreparedResponse, prepare_again, shorter_context, start_run
from codex_proxy.responses.running import NOT_SAVED, Delivery, Observe, RunningResponse
from codex_proxy.responses.saving import output_items, save_response, take_back
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.event_log import Cursor, Push, have_an_end
from codex_proxy.runs.run import Run
from codex_proxy.store.values import Frame, StoredItem, StoreError
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses.profile import STREAM_ENDS, end_frames

TAKE_BACK_SECONDS = 1.0
"""Seconds for which a client waits until its response, which may be stored after all, is removed."""


class ForegroundResponse(RunningResponse):
    """A response that is saved at its end. With `truncation: auto`, a turn whose context is too long runs again
    without the older half.
    """

    def __init__(
        self,
        service: ResponsesService,
        prepared: PreparedResponse,
        delivery: Delivery,
        observe: Observe | None,
    ) -> None:
        super().__init__(service, prepared, delivery, paced=True, observe=observe)
        self.output: Sequence[StoredItem] = ()
        self._continued = False
        """The value of `continued` for the last turn."""
        self._taken: tuple[Sequence[Event], TurnEnded | None] | None = None
        """The events and the turn's end that a push has taken from the log, and that the task has to render."""

    @property
    def continued(self) -> bool:
        """Whether the turn runs in a kept session."""
        return self._continued if self._run is None else self._run.continued

    async def _start(self) -> Run:
        return await start_run(self._service, self._prepared)

    async def _render_log(self, cursor: Cursor) -> TurnEnded:
        while True:
            await cursor.wait(self._push)
            (events, ended), self._taken = self._taken or self._take(cursor), None
            await self._render(events)
            self.buffer.append(self._renderer.take_frames())
            if ended is not None:
                if self.has_long_answer:
                    await asyncio.sleep(0)  # its text is in several of the last frames: not all in one go
                return ended

    def _push(self) -> bool:
        assert self._cursor is not None, "a push is for what is in the log"
        events, ended = self._take(self._cursor)
        if ended is not None or (self.has_long_answer and have_an_end(events)):
            self._taken = events, ended
            return False
        self._renderer.feed(events)
        self.buffer.append(self._renderer.take_frames())
        return True

    async def _finish(self, ended: TurnEnded) -> None:
        prepared = self._prepared
        self._continued = self.continued
        may_run_again = self._delivery != "websocket" and not self._renderer.visible
        context = shorter_context(prepared, ended.failure) if may_run_again else None
        if context is not None:
            self._run_again(ended, partial(prepare_again, self._service, prepared, context=context))
        elif self._run is None:  # its client has not got its id
            self.failure = ended.failure
        else:
            await super()._finish(ended)

    async def _save(self, final: dict[str, Any], ended: TurnEnded) -> None:
        assert self._run is not None, "a turn that never began is not saved"
        json, self.output = await self._work_on_answer(partial(self._to_store, final, self._run))
        failed = final["status"] == "failed"
        if failed and not self.streams:
            return  # its client gets an error, and no id
        # A failed response keeps its own failure where it cannot be saved.
        with contextlib.suppress(*((StoreError,) if failed else ())):
            await save_response(self._service, self._prepared, final["status"], json, self.output)

    def _to_store(self, final: dict[str, Any], run: Run) -> tuple[bytes, Sequence[StoredItem]]:
        return json_bytes(final), output_items(self._service, final, run)

    async def _complete(self, frames: list[Frame]) -> None:
        store = self._service.store
        may_be_stored = self.failure is NOT_SAVED or self._told is not None
        if may_be_stored and store is not None:
            removal = self._service.background.tasks.spawn(take_back(store, self.owner, self.id))
            await asyncio.wait({removal}, timeout=TAKE_BACK_SECONDS)
        self.buffer.append(frames, last=True)


class ResponseReader:
    """Reads a response as bytes or numbered frames. `close` stops the turn."""

    def __init__(self, service: ResponsesService, response: ForegroundResponse) -> None:
        self._response = response
        self._frames = response.buffer.reader()
        self._profile = service.profile
        self._end = STREAM_ENDS[service.profile]
        self._next = 0
        self._was_ended = False
        """Whether `take_frames` has ended a stream without its last event."""

    @property
    def finished(self) -> bool:
        return self._frames.finished

    @property
    def has_long_answer(self) -> bool:
        return self._response.has_long_answer

    @property
    def refusal(self) -> Failure | None:
        return self._response.refusal

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        return self._frames.wait(push)

    def take(self) -> bytes:
        data = b"".join([frame for _, frame in self.take_frames()])
        return data + self._end if data and self._frames.finished else data

    def take_frames(self) -> list[Frame]:
        """Returns new frames, each a message of a WebSocket. A stream without its last event gets one."""
        frames = self._frames.take()
        if frames:
            self._next = frames[-1][0] + 1
        has_end = self._was_ended or self._response.buffer.complete
        if self._frames.finished and self._response.streams and not (has_end or self.refusal):
            self._was_ended = True
            return [*frames, *self.missing_end(self._response.failure or UNFORESEEN)]
        return frames

    def missing_end(self, failure: Failure) -> list[Frame]:
        """Returns frames that end the stream: those of the final object, which may be stored, else of this failure."""
        final = self._response.final
        if final is None:
            return self._response.break_off(failure, self._next)
        return end_frames(self._profile, final, self._next, self._response.failure)

    def open(self) -> bytes:
        self._response.open()
        return self.take()

    def break_off(self, failure: Failure) -> bytes:
        """Makes the response fail, unless it has ended; returns the bytes that end its stream."""
        return b"".join([frame for _, frame in self.missing_end(failure)]) + self._end

    def result(self) -> bytes:
        if self._response.failure is not None:
            raise Fault(self._response.failure)
        return json_bytes(self._response.final)

    def close(self) -> None:
        release_all(self._frames.close, self._response.cancel)


async def start_foreground(
    service: ResponsesService, prepared: PreparedResponse, delivery: Delivery, observe: Observe | None = None
) -> tuple[ForegroundResponse, ResponseReader]:
    """Starts a response; returns when its turn has begun, or failed to (the reader's `refusal`). `observe` gets each
    batch of events.
    """
    response = ForegroundResponse(service, prepared, delivery, observe)
    reader = ResponseReader(service, response)
    service.background.start_foreground(response, stored=prepared.parsed.store)
    try:
        await response.started.wait()
    except BaseException:
        reader.close()
        raise
    return response, reader
