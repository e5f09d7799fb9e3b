"""A response that is being made: one task of the server, from the start of its turn until the response is saved.

The task reads the log of the run and renders frames into a buffer. When the turn has ended it saves the response,
and then releases the last frames, so that a client that has read the end finds the response in the store. Clients
read the buffer, over HTTP or a WebSocket, from the beginning or from a later frame. A response that is returned as
a whole has no frames; its reader waits for the end.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from codex_proxy.core.events import Event, Spending, Stop, TurnEnded
from codex_proxy.core.faults import STOPPING, UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.shown_text import trace_of
from codex_proxy.responses.background_responses import ServerTasks
from codex_proxy.responses.frame_buffer import FrameBuffer, Frames
from codex_proxy.responses.prepare import PreparedResponse, renderer_of
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.store.base import StoreError
from codex_proxy.store.health import failure_of
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.responses.profile import failed_end
from codex_proxy.surfaces.responses.render import ResponsesRenderer

log = structlog.get_logger(__name__)

SAVE_SECONDS = 30.0
"""The most seconds that saving a response may take. The store gives up on a locked database earlier."""

Delivery: TypeAlias = Literal["whole", "sse", "websocket"]
"""How the client reads the response: as one object, as server-sent events, or as WebSocket frames."""

Observe: TypeAlias = Callable[[Sequence[Event]], None]

NOT_SAVED = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The answer could not be stored. Free some disk space, then try again.",
)


class RunningResponse(ABC):
    """The common part of foreground and background responses.

    A subclass defines how the turn starts (`_start`), how frames get to the readers (`_release`), and how the end is
    saved (`_save`) and released (`_complete`).
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
        """`paced`: the agent is slowed down when the reader does not take frames. `observe` is called with each
        batch of events before it is rendered; None: nothing is called.
        """
        self.id = prepared.id
        self.owner = prepared.owner
        self.streams = delivery != "whole"
        """Whether frames are rendered and kept for readers; False if the response is returned as a whole."""
        self.started = asyncio.Event()
        """Set when the turn has begun, or has failed to begin."""
        self.ended = False
        """Whether the response is over: nothing more will be saved or released."""
        self.final: dict[str, Any] | None = None
        """The final response object; None until the response has ended."""
        self.failure: Failure | None = None
        """The failure that the response has ended with; None before, and where it has not failed."""
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
        """The failure of a response that has sent nothing before it; else None. The client can then get an HTTP
        error instead of a stream.
        """
        return None if self._shown else self.failure

    def open(self) -> None:
        """Renders and releases the events that begin every stream, before the agent has put anything out."""
        if not self._renderer.ended:
            self._renderer.open()
            self.buffer.append(self._renderer.take_frames())

    def cancel(self) -> None:
        """Stops the turn, if it has not ended."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._run is not None:
            self._run.interrupt()
        elif (
            self._begun and self._task is not None
        ):  # a task that is cancelled before it begins would end nothing
            self._task.cancel()

    async def cancel_and_wait(self) -> None:
        """Stops the turn, if it has not ended. Returns when the response has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    # --- the task -------------------------------------------------------------------------------

    def start_in(self, tasks: ServerTasks) -> asyncio.Task[None]:
        """Starts the task of this response."""
        self._task = tasks.spawn(self._work())
        return self._task

    async def _work(self) -> None:
        """Runs the response from the start of its turn to its end. This is the body of its task, and raises
        nothing.
        """
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

    async def _run_turn(self) -> None:
        """Runs the turn, then finishes the response."""
        with self._service.usage.turn(self.owner, billed_model(self._prepared.turn), self):
            await self._finish(await self._end_of_turn())

    async def _end_of_turn(self) -> TurnEnded:
        """Starts the turn and renders its log except the last event, which it returns."""
        try:
            self._run = await self._start_unless_cancelled()
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

    async def _start_unless_cancelled(self) -> Run | None:
        """Starts the turn. Returns None if the response is cancelled before the run has started. Raises `Fault`."""
        if self._cancelled:
            return None
        try:
            return await self._start()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._cancelled or (task is not None and task.uncancel()):
                raise  # the server stops
            return None

    async def _render_log(self, cursor: Cursor) -> TurnEnded:
        while True:
            await cursor.wait(self._push)
            ended = self._render_next(cursor)
            await self._release(self._renderer.take_frames())
            if ended is not None:
                return ended

    def _render_next(self, cursor: Cursor) -> TurnEnded | None:
        """Renders what is new in the log. Returns the last event of the turn if it has come; that is not rendered."""
        events = cursor.take(passed_on=not self._paced)
        if self._observe is not None:
            self._observe(events)
        ended = events[-1] if isinstance(events[-1], TurnEnded) else None
        self._renderer.feed(events if ended is None else events[:-1])
        return ended

    def _push(self) -> bool:
        """Renders and releases what is new in the log at once (see `Wakeup`). Returns False where a release takes
        time."""
        return False

    def _pass_on(self) -> None:
        """Tells the log that the readers have taken all frames, so that the agent is not slowed down."""
        if self._cursor is not None:
            self._cursor.pass_on()

    # --- its end --------------------------------------------------------------------------------

    async def _finish(self, ended: TurnEnded) -> None:
        """Renders the end, saves the response, and releases the last frames."""
        renderer = self._renderer
        self._shown = renderer.visible
        renderer.feed([ended])
        final, frames = renderer.response(), renderer.take_frames()
        failure = ended.failure
        not_saved = await self._try_to_save(final, ended)
        if not_saved is not None:
            failure = not_saved
            final, frames = failed_end(self._service.profile, final, frames, not_saved)
        if failure is None or (self._delivery == "sse" and renderer.shows(failure)):
            self._shown = True
        self.final, self.failure = final, failure
        await self._complete(frames)

    async def _try_to_save(self, final: dict[str, Any], ended: TurnEnded) -> Failure | None:
        """Saves the response. Returns None, or the failure that the response ends with because it could not be
        saved.
        """
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
        """Ends the response as failed, after an exception in this server."""
        if self.final is not None:
            return
        try:
            await self._finish(TurnEnded(Stop.FAILED, "provider", UNFORESEEN))
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
        self.started.set()
        self.ended = True
        self.buffer.end()

    def spending(self) -> Spending:
        """Returns the tokens of the turn so far. A response that could not be saved counts as failed."""
        spending = self._renderer.spending()
        return msgspec.structs.replace(spending, failed=spending.failed or self.failure is not None)

    # --- what a subclass defines ----------------------------------------------------------------

    @abstractmethod
    async def _start(self) -> Run:
        """Starts the turn. Raises `Fault`."""

    @abstractmethod
    async def _release(self, frames: Frames) -> None:
        """Gives frames to the readers."""

    @abstractmethod
    async def _save(self, final: dict[str, Any], ended: TurnEnded) -> None:
        """Saves the final object, unless it is not to be stored. Raises `StoreError`, which makes the response
        fail.
        """

    @abstractmethod
    async def _complete(self, frames: Frames) -> None:
        """Gives the last frames to the readers. `final` has been set."""
