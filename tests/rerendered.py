"""Renders each Responses stream of a test anew, from what is kept of its events, and compares: a renderer that reads a
clock, makes a random id, or depends on the batches of its events would send other bytes to a client that resumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from codex_proxy.app.system import RandomIds
from codex_proxy.core.event_rows import decode_row, encode_row
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses.kept_log import DerivedIds
from codex_proxy.surfaces.responses.render import ResponsesRenderer


class _Known:
    """The clock and the estimate that the last row has."""

    def __init__(self, renderer: ResponsesRenderer) -> None:
        self._completed = renderer._final and renderer._final["completed_at"]
        self._failed = renderer.failure is not None
        self.estimate = renderer.estimated_prompt()

    def epoch(self) -> float:
        assert self._completed is not None or self._failed, "the clock is read for no end"
        return float(self._completed or 0)

    def monotonic(self) -> float:
        raise AssertionError("nothing that is rendered depends on it")

    def prompt_tokens(self) -> int:
        return self.estimate


class Record:
    """A renderer, with what it was made of and fed."""

    def __init__(self, renderer: ResponsesRenderer, given: dict[str, Any]) -> None:
        self.renderer = renderer
        self.given = given
        ids = given["ids"]
        self._seed = ids._seed if isinstance(ids, DerivedIds) else None
        self.kept: list[list[Event]] = []
        self.frames: list[bytes] = []
        self.whole = not isinstance(ids, RandomIds)  # of a compaction, which is no stream
        """Whether it was fed only with events, and has rendered them all."""

    def _again(self, batches: Iterable[list[Event]]) -> tuple[list[bytes], bytes]:
        ids: Any = DerivedIds("")
        if self._seed is None:
            ids = type(self.given["ids"])()
        else:
            ids._seed = self._seed
        known = _Known(self.renderer)
        own = {"ids": ids, "clock": known, "prompt_tokens": known.prompt_tokens}
        again = type(self.renderer)(**(self.given | own))
        for batch in batches:
            again.pieces(decode_row(encode_row(batch)))
        return again._record.frames, _final_of(again)  # type: ignore[attr-defined]

    def check(self) -> None:
        if not self.whole or not self.kept:
            return
        sent = self.frames, _final_of(self.renderer)
        at_once = [[event for batch in self.kept for event in batch]]
        assert (*self._again(self.kept),) == sent, "rendered from its rows"
        assert (*self._again(at_once),) == sent, "all events at once"


def _final_of(renderer: ResponsesRenderer) -> bytes:
    return json_bytes(renderer._current()) if renderer.ended else b""


@contextmanager
def all_rendered_anew() -> Iterator[None]:
    """Compares, at its end, what was rendered meanwhile."""
    names = ("__init__", "pieces", "open", "break_off", "_take_frames", "_end_again")
    own: dict[str, Any] = {name: getattr(ResponsesRenderer, name) for name in names}
    records: list[Record] = []

    def init(self: Any, **given: Any) -> None:
        self._record = Record(self, given)
        records.append(self._record)
        own["__init__"](self, **given)

    def pieces(self: Any, events: Iterable[Event]) -> Any:
        events, record = [*events], self._record
        rendered, record.whole = record.whole, False
        found = own["pieces"](self, events)
        record.whole = rendered
        record.kept.append(self.events_to_keep(events))
        return found

    def other(name: str) -> Any:
        def call(self: Any, *given: Any) -> Any:
            self._record.whole = False
            return own[name](self, *given)

        return call

    def take_frames(self: Any) -> Any:
        self._record.frames += self._events._frames
        return own["_take_frames"](self)

    def end_again(self: Any, failure: Failure | None) -> None:
        if failure not in (None, self.failure):
            self._take_frames()
            self._record.frames.pop()  # nobody gets the frame of the first end
        own["_end_again"](self, failure)

    patched = {
        "__init__": init,
        "pieces": pieces,
        "open": other("open"),
        "break_off": other("break_off"),
        "_take_frames": take_frames,
        "_end_again": end_again,
    }
    try:
        for name, function in patched.items():
            setattr(ResponsesRenderer, name, function)
        yield
        for record in [*records]:
            record.check()
    finally:
        for name, function in own.items():
            setattr(ResponsesRenderer, name, function)
