"""What the dialects with a Codex process per turn share."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from codex_proxy.agents.dialect import NOTHING, Ended, SingleTurn, Step
from codex_proxy.agents.dialects.failures import failure_from_exit, failure_from_text, stop_from_text
from codex_proxy.core.events import Event, Notice, Stop, TurnEnded, TurnStarted, Usage
from codex_proxy.core.faults import Failure


class TokenCounts(msgspec.Struct, gc=False):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    cache_write_input_tokens: int = 0

    @property
    def usage(self) -> Usage:
        return Usage(
            self.input_tokens,
            self.cached_input_tokens,
            self.output_tokens,
            self.reasoning_output_tokens,
            self.cache_write_input_tokens,
        )


class ChildTurn(SingleTurn):
    """The turn of a process that serves only this one. If the process ends first, the turn fails with its
    `_error_text`.
    """

    _kind_of_plain_text: ClassVar[str | None] = None
    """The name in `codexErrorInfo` that stands for an error text without a status, if any."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        """The next step's events; the dialect's readers append to the same list."""
        self._started = False
        self._interrupted = False
        self._error_text: str | None = None

    def eof(self, ended: Ended) -> Step:
        """Ends an open turn: interrupted, or failed by the child's error or exit."""
        if self.ended:
            return NOTHING
        if self._interrupted:
            self._end(Stop.INTERRUPTED, "eof")
        elif self._error_text is not None:
            self._end_by_error(self._error_text)
        else:
            self._end(Stop.FAILED, "eof", failure_from_exit(ended))
        return self._take_step()

    def _take_step(self, writes: bytes = b"") -> Step:
        if not self._events and not writes:
            return NOTHING
        step = Step(self._events[:], writes)
        self._events.clear()
        return step

    def _add_bad_line_notice(self, line: bytes) -> None:
        if line.strip():
            self._events.append(Notice("bad_line", f"{len(line)} bytes that are not an event"))

    def _start(self, thread: str, model: str) -> None:
        if not self._started:
            self._started = True
            self._events.append(TurnStarted(thread, model))

    def _end(self, stop: str, trigger: str, failure: Failure | None = None) -> None:
        self.ended = True
        self._events.append(TurnEnded(stop, trigger, failure))

    def _end_by_error(self, text: str) -> None:
        stop = stop_from_text(text)
        if stop is not None:
            self._end(stop, "error")
            return
        kind = self._kind_of_plain_text if text else None
        self._end(Stop.FAILED, "error", failure_from_text(text, kind=kind))
