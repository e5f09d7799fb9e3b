"""One answer under way: its events, rendered once, for whoever sends them and whoever keeps them.

It reads the log of its run and is asked by the run before the log ends (`before_end`): there the last object is
made, and saved. So the whole answer, the stream and what is stored are the fold of the same events, and the
client hears of the end when it is on disk. A save that fails turns the end into a failure, in the stream too.
It is `Source` and `Renderer` of an exchange at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from codex_proxy.core.events import Event, Spending, TurnEnded
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.responses.profiles import Profile, end_of_profile, events_of_profile
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.surfaces.base import json_bytes
from codex_proxy.surfaces.responses.objects import failed
from codex_proxy.surfaces.responses.render import ResponsesRenderer

Frames = list[tuple[int, bytes]]
Save = Callable[["Answer", Run], Awaitable[Failure | None]]


class Answer:
    """`renderer` streams and keeps its frames. `save` is awaited with the final object; its failure is the turn's."""

    def __init__(
        self, renderer: ResponsesRenderer, save: Save, *, stream: bool, profile: Profile = "openai"
    ) -> None:
        self.failure: Failure | None = None
        self.visible = False
        """There is something to show beside a fault."""
        self.ended = False
        """The end is on disk, or never will be: readers may hear of it."""
        self.final: dict[str, Any] | None = None
        """The last object, as soon as it is known."""
        self.ending: TurnEnded | None = None
        """What that object tells of, before it is known whether it could be saved."""
        self._renderer = renderer
        self._save = save
        self._stream = stream
        self._profile = profile
        self._run: Run | None = None
        self._cursor: Cursor | None = None
        self._seen: list[Event] = []
        self._out: Frames = []
        self._last: Frames = []
        """The frames of the end, until the end may be told."""

    # --- the run --------------------------------------------------------------------------------

    def attach(self, run: Run) -> None:
        """The run whose events these are. Harmless when it is told again."""
        if self._cursor is None:
            self._run = run
            self._cursor = run.log.cursor()

    async def before_end(self, run: Run, ended: TurnEnded) -> Failure | None:
        """Renders the end, keeps it back, and saves. Gives the failure that the end becomes."""
        self.attach(run)
        self._read()
        self._renderer.feed([ended])
        self._last = self._renderer.take_frames()
        self.ending = ended
        self.final = self._renderer.response()
        return await self._save(self, run)

    def _read(self) -> None:
        """Renders what is new in the log."""
        assert self._cursor is not None
        events = self._cursor.take()
        if not events:
            return
        self._seen += events
        last = events[-1]
        ended = isinstance(last, TurnEnded)
        self._renderer.feed(events[:-1] if ended else events)
        self._out += self._renderer.take_frames()
        if self.ending is None:
            self.visible = self._renderer.visible
        if isinstance(last, TurnEnded):
            self._end(last)

    def _end(self, ended: TurnEnded) -> None:
        """The log has ended: what was kept back goes out, or the failure that it has become meanwhile."""
        if self.ending is None:
            self._renderer.feed([ended])
            self._last = self._renderer.take_frames()
            self.final = self._renderer.response()
        elif ended.failure is not None and ended.failure != self.ending.failure:
            self._fail(ended.failure)
        self.failure = ended.failure
        self.visible = self.visible or ended.failure is None or self._renderer.shows(ended.failure)
        self._out += self._last
        self._last = []
        self.ended = True

    def _fail(self, failure: Failure) -> None:
        """Another end than the one that was rendered: only its last frame differs."""
        assert self.final is not None
        self.final = failed({**self.final, "completed_at": None, "incomplete_details": None}, failure)
        events = events_of_profile(self._profile, self.final)
        first = events.number = self._last[-1][0]
        events.fail(failure)
        events.finish(self.final)
        self._last[-1:] = enumerate(events.take(), first)

    # --- what an exchange asks of its source ----------------------------------------------------

    @property
    def finished(self) -> bool:
        assert self._cursor is not None
        return self._cursor.finished and not self._seen

    async def wait(self) -> None:
        assert self._cursor is not None
        if not self._seen:
            await self._cursor.wait()

    def take(self) -> list[Event]:
        """What is new, rendered already."""
        self._read()
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Nobody reads on: a turn that is not over ends."""
        if self._cursor is not None and self._run is not None:
            self._cursor.detach()
            self._run.interrupt()

    def let_go(self) -> None:
        """Nobody reads on and nothing is saved any more, of a turn that is over: run and saver are forgotten."""
        if self._cursor is not None:
            self._cursor.detach()
        self._run, self._save = None, _unsaved

    # --- what an exchange asks of its renderer --------------------------------------------------

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes of what was taken; events that no log has are the end that the exchange makes."""
        if not self.ended and TurnEnded in map(type, events):
            self._end(next(event for event in events if isinstance(event, TurnEnded)))
        return self._bytes()

    def open(self) -> bytes:
        """`created` and `in_progress`, if they have not gone out."""
        if not self._renderer.ended:
            self._renderer.open()
            self.visible = True
        self._out += self._renderer.take_frames()
        return self._bytes()

    def result(self) -> bytes:
        """The whole answer. Raises the `Fault` of a failed turn."""
        if self.failure is not None:
            raise Fault(self.failure)
        return json_bytes(self.final)

    def frames(self) -> Frames:
        """What is new, as numbered frames: for whoever keeps or sends them otherwise."""
        out, self._out = self._out, []
        return out

    def snapshot(self) -> dict[str, Any]:
        """The object as it is now."""
        return self.final if self.final is not None else self._renderer.snapshot()

    def spending(self) -> Spending:
        """What the turn has cost so far; an end that could not be saved is a failure."""
        spending = self._renderer.spending()
        return msgspec.structs.replace(spending, failed=spending.failed or self.failure is not None)

    def _bytes(self) -> bytes:
        out = self.frames()
        if not self._stream:
            return b""
        done = b""
        if self.ended and out:
            done = end_of_profile(self._profile)
        return b"".join([frame for _, frame in out]) + done


async def _unsaved(answer: Answer, run: Run) -> Failure | None:
    """How an answer is saved that was let go."""
    return None
