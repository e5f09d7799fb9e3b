"""The answer to a forwarded request: the upstream's bytes, and an error frame if the turn fails later. Source:
docs/contract.md#failures-of-a-stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from codex_proxy.core.events import Event, ForwardedBytes, TurnEnded, UsageReported
from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.base import Renderer, RenderOptions
from codex_proxy.surfaces.errors import error_frames


class ForwardedAnswer(Renderer):
    """Passes on the bytes of an answer. Without reported usage, a delta counts as an output token."""

    def __init__(self, **options: Unpack[RenderOptions]) -> None:
        super().__init__(**options)
        self._stops: tuple[str, ...] = ()
        self._deltas = 0
        self._body: list[bytes] = []

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        return self._stops

    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        out: list[bytes] = []
        for event in events:
            if isinstance(event, ForwardedBytes):
                out.append(event.data)
                self._deltas += event.deltas
            elif isinstance(event, UsageReported):
                self.spent.add_total(event)
            elif isinstance(event, TurnEnded):
                self._on_turn_ended(event, out)
        self.visible = self.visible or bool(out)
        if self._stream:
            return out
        self._body += out
        return []

    def open(self) -> bytes:
        self.visible = True  # the upstream sends its own first chunk; from now on a failure is an error frame
        return b""

    def _whole(self) -> bytes:
        return b"".join(self._body)

    def _count_tokens(self) -> int:
        return self._deltas

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.spent.end(event)
        if event.failure is None:
            stops = event.choice_stops or {0: event.stop}
            self._stops = tuple(stop for _, stop in sorted(stops.items()))
            return
        self.failure = event.failure
        if self.visible or out:
            out.append(self._error(event.failure))

    def _error(self, failure: Failure) -> bytes:
        return error_frames(failure)
