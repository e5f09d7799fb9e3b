"""Runs a response as one task, from its start until it is saved. Renders the turn's log (`runs/event_log.py`) into a
buffer of frames (encoded, numbered events), from which any number of clients read; frames that all have taken are
dropped. The last frames are released after saving: a client that has read them finds the response in the store.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import structlog

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.events import Event, Spending, Stop, TurnEnded
from codex_proxy.core.faults import STOPPING, UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.own_errors import release_all, trace_of
from codex_proxy.responses.prepare import PreparedResponse, renderer_of, rendering_of
from codex_proxy.responses.service import ResponsesService, ServerTasks
from codex_proxy.runs.event_log import TAKEN_AT_ONCE, Cursor, Push, Wakeup, have_an_end
from codex_proxy.runs.observers import REQUEST_RECORDER
from codex_proxy.runs.run import Run
from codex_proxy.store.health import failure_of
from codex_proxy.store.leases import FIRST_EPOCH
from codex_proxy.store.values import Frame, StoreError, UnsureWrite
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.answers.usage import TurnTokens
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.responses.profile import end_frames
from codex_proxy.surfaces.responses.render import ResponsesRenderer

R = TypeVar("R")

log = structlog.get_logger(__name__)

Delivery: TypeAlias = Literal["whole", "sse", "websocket"]
"""How a response is sent: as one object, server-sent events, or WebSocket frames."""

Observe: TypeAlias = Callable[[Sequence[Event]], None]

NOT_SAVED = Failure(
    FaultKind.UNAVAILABLE,
    "The store did not say that it has stored the answer; the server's log says why. Before you try again in a "
    "conversation, list its items: they may be there.",
)


class RunningResponse(ABC):
    """What foreground and background responses share. A subclass starts the turn, releases frames, saves and
    completes.
    """

    epoch = FIRST_EPOCH
    """The epoch of its lease, if it has one."""

    def __init__(
        self,
        service: ResponsesService,
        prepared: PreparedResponse,
        delivery: Delivery,
        *,
        paced: bool,
        observe: Observe | None = None,
    ) -> None:
        """`paced`: the agent waits while readers are slow. `observe` gets each batch of events first."""
        self.id = prepared.id
        self.owner = prepared.owner
        self.streams = delivery != "whole"
        """Whether frames are rendered."""
        self.started = asyncio.Event()
        """Set when the turn has begun, or failed to."""
        self.ended = False
        """Whether nothing more will be saved or released."""
        self.final: dict[str, Any] | None = None
        """The final object; None until the end."""
        self.failure: Failure | None = None
        self.buffer = FrameBuffer(self._on_drained)
        self._service = service
        self._prepared = prepared
        self._delivery = delivery
        self._paced = paced and self.streams
        self._observe = observe
        self._turns = 0
        """The number of turns that were begun for the response."""
        self._renderer = self._new_renderer()
        self._shown = False
        self._begun = False
        self._cancelled = False
        self._fails_with: Failure | None = None
        """With which failure the response ends, if it was cancelled for one."""
        self._task: asyncio.Task[None] | None = None
        self._run: Run | None = None
        self._cursor: Cursor | None = None
        self.has_long_answer = False
        """Whether the answer is so long that frames which repeat all of it take long to make."""
        self._working = False
        """Whether a thread works on the answer, and so with the renderer."""
        self._told: Failure | None = None
        """With which failure the stream was ended while the response was saved, if it was."""
        self._ends: list[TurnEnded] = []
        """The turn's end, and the failure that took its place, if it could not be saved."""
        self._again: Callable[[], Awaitable[PreparedResponse]] | None = None
        """Prepares another turn, if the last one is not to be the answer."""

    def _new_renderer(self) -> ResponsesRenderer:
        self._turns += 1
        self._rendering = rendering_of(self._service, self._prepared, f"{self.epoch}.{self._turns}")
        return renderer_of(self._service, self._prepared, keep_frames=self.streams, rendering=self._rendering)

    # --- for its readers ------------------------------------------------------------------------

    @property
    def refusal(self) -> Failure | None:
        """The failure before anything was sent, for an HTTP error."""
        return None if self._shown else self.failure

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """The status of the response, if it has ended."""
        return () if self.final is None else (self.final["status"],)

    @property
    def spent(self) -> TurnTokens:
        return self._renderer.spent

    def open(self) -> None:
        """Releases the stream's first events before the agent's output, once."""
        if not (self._working or self._renderer.ended):
            self._renderer.open()
            self.buffer.append(self._renderer.take_frames())

    def cancel(self) -> None:
        """Makes the response end as cancelled, unless it has ended."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._run is not None:
            self._run.interrupt()
        elif self._begun and self._task is not None:
            self._task.cancel()  # before it has begun it would end nothing

    def fail(self, failure: Failure) -> None:
        """Makes the response end with a failure, unless it has ended."""
        self._fails_with = failure
        if self._run is not None:
            self._run.fail(failure)
        self.cancel()

    def break_off(self, failure: Failure, next: int) -> list[Frame]:
        """Makes the response fail, after an exception in this server's code. Returns the frames that end its stream,
        of which a reader waits for the number `next`.
        """
        self._told = failure
        if self._working:  # with the renderer, of which this end needs nothing but the number
            renderer = renderer_of(self._service, self._prepared, rendering=self._rendering)
            renderer.break_off(failure)
            return end_frames(self._service.profile, renderer.response(), next, failure)
        self._renderer.break_off(failure)
        return self._renderer.take_frames()

    async def cancel_and_wait(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    # --- the task -------------------------------------------------------------------------------

    def start_in(self, tasks: ServerTasks) -> asyncio.Task[None]:
        self._task = tasks.spawn(self._work())
        return self._task

    async def _work(self) -> None:
        self._begun = True
        try:
            await self._run_turns()
        except Exception as error:  # noqa: BLE001 - a response must not stay open because of it
            log.error("internal_error", **trace_of(error))
            await self._break_off()
        finally:
            self._close()

    async def _run_turns(self) -> None:
        while True:
            with self._service.usage.turn(self.owner, billed_model(self._prepared.turn), self):
                await self._finish(await self._end_of_turn())
            if self._again is None:
                return
            again, self._again = self._again, None
            try:
                self._prepared = await again()
            except Fault as fault:
                await self._refuse(fault.failure)
                return
            self._renderer = self._new_renderer()

    async def _refuse(self, failure: Failure) -> None:
        self.failure = failure

    def _run_again(self, ended: TurnEnded, again: Callable[[], Awaitable[PreparedResponse]]) -> None:
        self._renderer.feed([ended])  # what it has cost is counted
        self._again = again

    async def _end_of_turn(self) -> TurnEnded:
        try:
            self._run = await self._start_unless_cancelled()
        except Fault as fault:
            return TurnEnded.with_failure(fault.failure)
        finally:
            self.started.set()
        if self._run is None:
            failure = self._fails_with
            return TurnEnded(Stop.INTERRUPTED) if failure is None else TurnEnded.with_failure(failure)
        self._cursor = self._run.log.cursor()
        try:
            return await self._render_log(self._cursor)
        finally:
            self._cursor.detach()

    async def _start_unless_cancelled(self) -> Run | None:
        if self._cancelled:
            return None
        try:
            return await self._start()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._cancelled or (task is not None and task.uncancel()):
                raise  # the server stops
            return None

    def _take(self, cursor: Cursor) -> tuple[Sequence[Event], TurnEnded | None]:
        """Returns the next events to be rendered, and the turn's end, if it has come."""
        events = cursor.take(passed_on=not self._paced)
        self.has_long_answer = cursor.has_long_answer
        if self._observe is not None:
            self._observe(events)
        ended = events[-1] if isinstance(events[-1], TurnEnded) else None
        return (events if ended is None else events[:-1]), ended

    async def _render(self, events: Sequence[Event]) -> None:
        long = self.has_long_answer and have_an_end(events)
        await self._work_on_answer(partial(self._renderer.feed, events), long=long)
        if self._told is not None and not self._renderer.ended:
            self._renderer.break_off(self._told)  # it was told while the thread worked

    async def _work_on_answer(self, work: Callable[[], R], *, long: bool = True) -> R:
        """Returns what `work` returns, which takes long if the answer is long, unless `long` says no."""
        if not (long and self.has_long_answer):
            return work()
        self._working = True
        try:
            return await beside_the_loop(work, long=True)
        finally:
            self._working = False

    def _on_drained(self) -> None:
        if self._cursor is not None:
            self._cursor.pass_on()

    # --- its end --------------------------------------------------------------------------------

    async def _finish(self, ended: TurnEnded) -> None:
        """Renders the turn's end, saves, and releases the last frames. If saving fails, so does the response."""
        renderer = self._renderer
        self._shown = renderer.visible
        self._told = None  # what was told before is in `final`
        final = await self._work_on_answer(partial(self._render_end, ended))
        if self._told is not None:  # while the thread worked
            ended, self._told = TurnEnded.with_failure(self._told), None
            final = await self._work_on_answer(partial(self._render_end, ended))
        not_saved = await self._try_to_save(final, ended) or self._told
        if not_saved is not None:
            failed = partial(self._render_end, TurnEnded.with_failure(not_saved))
            final = await self._work_on_answer(failed)
        # At once: whatever breaks from here on, clients get what the store has.
        self.final, self.failure = final, renderer.failure
        failure, frames = renderer.failure, renderer.take_frames()
        if failure is None or (self._delivery == "sse" and renderer.sends_as_event(failure)):
            self._shown = True
        if self.has_long_answer:
            await asyncio.sleep(0)  # as before: saving need not wait for anything
        recording = REQUEST_RECORDER.get()
        if recording is not None:
            recording.on_final_object(await self._work_on_answer(partial(json_bytes, final)))
        await self._complete(frames)

    def _render_end(self, ended: TurnEnded) -> dict[str, Any]:
        """Renders the turn's end, in place of an earlier one. Returns the final object."""
        self._ends.append(ended)
        self._renderer.feed([ended])
        return self._renderer.response()

    async def _try_to_save(self, final: dict[str, Any], ended: TurnEnded) -> Failure | None:
        try:
            await self._save(final, ended)
        except StoreError as error:
            failure = failure_of(error)
            return NOT_SAVED if isinstance(error, UnsureWrite) else failure
        except Exception:
            log.exception("save_failed")
            return NOT_SAVED
        return None

    async def _break_off(self) -> None:
        if self.final is not None:
            return
        try:
            self._renderer.break_off(UNFORESEEN)
            await self._finish(TurnEnded.with_failure(UNFORESEEN))
        except Exception as error:  # noqa: BLE001 - the fault is in rendering itself
            log.error("internal_error", **trace_of(error))
            self.failure = UNFORESEEN

    def _close(self) -> None:
        run, self._run, self._cursor = self._run, None, None
        if self.final is None and self.failure is None:
            self.failure = STOPPING
        self.ended = True
        release_all(
            *(() if run is None else (run.interrupt,)),  # where rendering broke off
            self._prepared.release,
            self.started.set,
            self.buffer.end,
        )

    def spending(self) -> Spending:
        """Returns the response's tokens, and whether anything has failed."""
        spending = self._renderer.spending()
        return msgspec.structs.replace(spending, failed=spending.failed or self.failure is not None)

    # --- what a subclass defines ----------------------------------------------------------------

    @abstractmethod
    async def _start(self) -> Run:
        """Starts the turn. Raises `Fault`."""

    @abstractmethod
    async def _render_log(self, cursor: Cursor) -> TurnEnded:
        """Renders the log for the readers until the turn's end, which it returns unrendered."""

    @abstractmethod
    async def _save(self, final: dict[str, Any], ended: TurnEnded) -> None:
        """Saves the final object, unless `store: false`. Raises `StoreError`, which fails
        the response.
        """

    @abstractmethod
    async def _complete(self, frames: list[Frame]) -> None:
        """Gives the last frames to the readers, when `self.final` is set."""


def _nothing() -> None: ...


class FrameBuffer:
    """The frames of one response. `on_drained` is called when no reader has frames left."""

    def __init__(self, on_drained: Callable[[], None] = _nothing) -> None:
        self.next = 0
        """The next frame's sequence number."""
        self.ended = False
        self.complete = False
        """Whether the last frames were added."""
        self._on_drained = on_drained
        self._readers: list[FrameReader] = []

    def append(self, frames: list[Frame], *, last: bool = False) -> None:
        """Adds frames for all readers. After the `last`, `end` must follow."""
        if frames:
            self.next = frames[-1][0] + 1
            self.complete = self.complete or last
            for reader in self._readers:
                reader.put(frames, last=last)
        if not (frames and self._readers):  # else it is drained when they have taken these
            self.report_drained()

    def end(self) -> None:
        """Wakes all readers: no frame will follow."""
        self.ended = True
        self._on_drained = _nothing  # its owner holds this buffer: no cycle outlives the response
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.wakeup.wake(last=True)

    def reader(self, max_bytes: int | None = None) -> FrameReader:
        """Returns a reader of later frames. `max_bytes`: see `FrameReader`; None: no limit."""
        reader = FrameReader(self, max_bytes)
        if not self.ended:
            self._readers.append(reader)
        return reader

    def remove(self, reader: FrameReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            self.report_drained()

    def report_drained(self) -> None:
        for reader in self._readers:
            if reader.frames:
                return
        self._on_drained()


class FrameReader:
    """The frames that wait for one reader. Above `max_bytes` all are dropped until the next `take`."""

    def __init__(self, buffer: FrameBuffer, max_bytes: int | None) -> None:
        self.finished = False
        """Whether all frames were taken and none will follow."""
        self.overrun = False
        """Whether frames were lost since the last `take`."""
        self._buffer = buffer
        self._max_bytes = max_bytes
        self._took_part = False
        """Whether the last `take` has left frames."""
        self.frames: deque[Frame] = deque()
        self._size = 0
        self.wakeup = Wakeup()
        """Wakes the reader for each batch, and at the end."""

    async def wait(self, push: Push | None = None) -> None:
        """Waits for frames that `push` has not delivered, an `overrun` or the end. May be cancelled and called
        again.
        """
        if not (self.frames or self.overrun or self._buffer.ended):
            await self.wakeup.wait(push)
        elif self._took_part:
            await asyncio.sleep(0)  # others are served first

    def take(self) -> list[Frame]:
        """Returns new frames without waiting; of many only `TAKEN_AT_ONCE` bytes, or one longer frame."""
        frames, taken = self.frames, list[Frame]()
        if self._size <= TAKEN_AT_ONCE:
            taken += frames
            frames.clear()
            self._size = 0
        else:
            room = TAKEN_AT_ONCE
            while frames and (not taken or len(frames[0][1]) <= room):
                taken.append(frames.popleft())
                room -= len(taken[-1][1])
            self._size -= TAKEN_AT_ONCE - room
        self._took_part = bool(frames)
        self.overrun, self.finished = False, self._buffer.ended and not frames
        if taken and not frames:
            self._buffer.report_drained()
        return taken

    def close(self) -> None:
        self._forget()
        self._buffer.remove(self)

    def put(self, frames: list[Frame], *, last: bool) -> None:
        if not self.overrun:
            self.frames += frames
            self._size += sum([len(frame) for _, frame in frames])
            if self._max_bytes is not None and self._size > self._max_bytes:
                self._forget()
                self.overrun = True
        self.wakeup.wake(last=last or self._size > TAKEN_AT_ONCE)  # more than a push may send at once

    def _forget(self) -> None:
        self.frames.clear()
        self._size = 0
