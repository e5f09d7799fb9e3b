"""A response under way: one task of the server's, from the start of its turn to its saved end.

The task reads the log of its run, renders frames into a buffer, saves the response when the turn has ended, and
releases the last frames after that: whoever reads of the end finds the response in the store. Clients are readers of
the buffer, over HTTP or a WebSocket, from the beginning or later. An answer that is wanted whole has no frames; its
reader waits for the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from codex_proxy.core.events import Event, Spending, Stop, TurnEnded
from codex_proxy.core.faults import STOPPING, UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.shown_text import trace_of
from codex_proxy.responses.frame_buffer import FrameBuffer, Frames
from codex_proxy.responses.prepare import PreparedResponse, renderer_of
from codex_proxy.responses.profiles import failed_end
from codex_proxy.responses.server_tasks import ServerTasks
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.store_faults import failure_of
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.store.base import StoreError
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.responses.render import ResponsesRenderer

log = structlog.get_logger(__name__)

SAVE_SECONDS = 30.0
"""How long an end may wait for the disk; the store gives up on a locked database earlier."""

Delivery: TypeAlias = Literal["whole", "sse", "websocket"]
"""How its client reads it."""

Observe: TypeAlias = Callable[[Sequence[Event]], None]

NOT_SAVED = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The answer could not be stored. Free some disk space, then try again.",
)


class RunningResponse:
    """What foreground and background responses have in common; `work` is the task.

    A subclass says how its turn starts (`_start`), how frames reach the readers (`_release`), and how the end is saved
    (`_save`, `_complete`).
    """

    def __init__(
        self,
        service: ResponsesService,
        prepared: PreparedResponse,
        delivery: Delivery,
        *,
        paced: bool,
        observe: Observe | None = None,
    ) -> None:
        """`paced`: a reader that is slow slows the agent down. `observe` is called with each batch of events before it
        is rendered."""
        self.id = prepared.id
        self.owner = prepared.owner
        self.streams = delivery != "whole"
        """It has readers of frames."""
        self.started = asyncio.Event()
        """Its turn has begun, or will never begin."""
        self.ended = False
        """Its end is saved, or never will be, and the last frames are released."""
        self.final: dict[str, Any] | None = None
        """The response object, once it has ended."""
        self.failure: Failure | None = None
        """Why it has failed, once it has ended."""
        self.buffer = FrameBuffer(self._pass_on)
        self._service = service
        self._prepared = prepared
        self._delivery = delivery
        self._paced = paced and self.streams
        self._observe = observe
        self._renderer = self._new_renderer()
        self._shown = False
        self._begun = False
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None
        self._run: Run | None = None
        self._cursor: Cursor | None = None

    def _new_renderer(self) -> ResponsesRenderer:
        return renderer_of(self._service, self._prepared, keep_frames=self.streams)

    # --- for its readers ------------------------------------------------------------------------

    @property
    def refusal(self) -> Failure | None:
        """The failure that it has ended with, where nothing was shown before it: it can be told without a stream."""
        return None if self._shown else self.failure

    def open(self) -> None:
        """Releases the first frames, where nothing has been said yet."""
        if not self._renderer.ended:
            self._renderer.open()
            self.buffer.append(self._renderer.take_frames())

    def cancel(self) -> None:
        """Stops the turn, if it has not ended by itself."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._run is not None:
            self._run.interrupt()
        elif self._begun and self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Stops the turn as `cancel` does. Returns when the response has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    # --- its life -------------------------------------------------------------------------------

    def start_in(self, tasks: ServerTasks) -> asyncio.Task[None]:
        """Starts the one task of this response."""
        self._task = tasks.spawn(self._work())
        return self._task

    async def _work(self) -> None:
        """From the start of the turn to the end of the response, whatever happens."""
        self._begun = True
        try:
            await self._run_turns()
        except Exception as error:  # noqa: BLE001 - a response must not stay open because of it
            log.error("internal_error", **trace_of(error))
            await self._break_off()
        finally:
            self._close()

    async def _run_turns(self) -> None:
        await self._run_turn()

    async def _run_turn(self) -> TurnEnded:
        """Runs the turn, and ends the response with its end, which is returned."""
        turn = self._prepared.turn
        with self._service.usage.turn(self.owner, billed_model(turn), self):
            ended = await self._ended_turn()
            await self._end(ended)
        return ended

    async def _ended_turn(self) -> TurnEnded:
        """Starts the turn, and renders its log up to its end."""
        try:
            self._run = await self._run_unless_cancelled()
        except Fault as fault:
            return TurnEnded(Stop.FAILED, "provider", fault.failure)
        finally:
            self.started.set()
        if self._run is None:
            return TurnEnded(Stop.INTERRUPTED)
        self._cursor = self._run.log.cursor()
        try:
            return await self._render_log(self._cursor)
        finally:
            self._cursor.detach()

    async def _run_unless_cancelled(self) -> Run | None:
        """The run; None where the response is cancelled before there is one. Raises `Fault`."""
        if self._cancelled:
            return None
        try:
            return await self._start()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._cancelled or (task is not None and task.uncancel()):
                raise  # by the server, which stops
            return None

    async def _render_log(self, cursor: Cursor) -> TurnEnded:
        renderer = self._renderer
        while True:
            await cursor.wait()
            events = cursor.take(passed_on=not self._paced)
            if self._observe is not None:
                self._observe(events)
            ended = events[-1] if isinstance(events[-1], TurnEnded) else None
            renderer.feed(events if ended is None else events[:-1])
            await self._release(renderer.take_frames())
            if ended is not None:
                return ended

    def _pass_on(self) -> None:
        """The readers have taken everything."""
        if self._cursor is not None:
            self._cursor.pass_on()

    # --- its end --------------------------------------------------------------------------------

    async def _end(self, ended: TurnEnded) -> None:
        """Renders the end, saves it, and shows it."""
        renderer = self._renderer
        self._shown = renderer.visible
        renderer.feed([ended])
        final, frames = renderer.response(), renderer.take_frames()
        failure = ended.failure
        not_saved = await self._failure_to_save(final, ended)
        if not_saved is not None:
            failure = not_saved
            final, frames = failed_end(self._service.profile, final, frames, not_saved)
        if failure is None or (self._delivery == "sse" and renderer.shows(failure)):
            self._shown = True
        self.final, self.failure = final, failure
        await self._complete(frames)

    async def _failure_to_save(self, final: dict[str, Any], ended: TurnEnded) -> Failure | None:
        """Saves the response. Returns the failure that it ends with where that cannot be."""
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await self._save(final, ended)
        except StoreError as error:
            return failure_of(error)
        except Exception:
            log.exception("save_failed")
            return NOT_SAVED
        return None

    async def _break_off(self) -> None:
        """Ends the response after a fault of this server."""
        if self.final is not None:
            return
        try:
            await self._end(TurnEnded(Stop.FAILED, "provider", UNFORESEEN))
        except Exception as error:  # noqa: BLE001 - the fault is in rendering itself
            log.error("internal_error", **trace_of(error))
            self.failure = UNFORESEEN

    def _close(self) -> None:
        if self.final is None and self.failure is None:
            self.failure = STOPPING
        if self._run is not None:
            self._run.interrupt()  # where rendering broke off
        self._run = self._cursor = None
        self._prepared.release()
        self.ended = True
        self.buffer.end()

    def spending(self) -> Spending:
        """What the turn has cost so far. An end that could not be saved is a failure."""
        spending = self._renderer.spending()
        return msgspec.structs.replace(spending, failed=spending.failed or self.failure is not None)

    # --- what a subclass says -------------------------------------------------------------------

    async def _start(self) -> Run:
        """Starts the turn. Raises `Fault`."""
        raise NotImplementedError

    async def _release(self, frames: Frames) -> None:
        """Gives frames to the readers."""
        raise NotImplementedError

    async def _save(self, final: dict[str, Any], ended: TurnEnded) -> None:
        """Saves the final object, where it is to be saved. Raises `StoreError`: then the response fails."""
        raise NotImplementedError

    async def _complete(self, frames: Frames) -> None:
        """Gives the last frames to the readers."""
        raise NotImplementedError
