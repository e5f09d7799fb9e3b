"""The answer to a forwarded chat request: the upstream's bytes, and an error frame if the turn fails after some were
sent. Source: docs/contract.md#failures-of-a-stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from codex_proxy.core.events import Event, ForwardedBytes, Spending, TurnEnded, UsageReported
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.surfaces.chat.render import DONE
from codex_proxy.surfaces.errors import error_frame
from codex_proxy.surfaces.usage import TurnTokens


class ForwardedAnswer:
    """Passes on the bytes of an answer, with the interface of `ChatRenderer`. `prompt_tokens` estimates the request if
    the upstream reports no usage.
    """

    def __init__(self, *, stream: bool, prompt_tokens: Callable[[], int]) -> None:
        self.visible = False
        """Whether something was sent, so that a failure can have no HTTP status."""
        self.failure: Failure | None = None
        self.finish_reasons: tuple[str, ...] = ()
        """The finish reason of each choice, once the turn has ended without a failure."""
        self.spent = TurnTokens()
        self._stream = stream
        self._prompt_tokens = prompt_tokens
        self._deltas = 0
        self._body: list[bytes] = []

    def feed(self, events: Iterable[Event]) -> bytes:
        """Returns the bytes in a batch; empty if the answer is not streamed."""
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
            return b"".join(out)
        self._body += out
        return b""

    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        """Returns what `feed` returns, in a list."""
        return [self.feed(events)]

    def open(self) -> bytes:
        """Returns nothing: the upstream sends its own first chunk. A failure is an error frame from now on."""
        self.visible = True
        return b""

    def result(self) -> bytes:
        """Returns the bytes of the whole answer. Raises the `Fault` of a failed turn."""
        if self.failure is not None:
            raise Fault(self.failure)
        return b"".join(self._body)

    def spending(self) -> Spending:
        """Returns the tokens so far: the upstream's, or an estimate of one output token per delta."""
        return self.spent.spending(
            prompt=self._prompt_tokens, answer=lambda: self._deltas, failed=self.failure is not None
        )

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.spent.end(event)
        if event.failure is None:
            stops = event.choice_stops or {0: event.stop}
            self.finish_reasons = tuple(stop for _, stop in sorted(stops.items()))
            return
        self.failure = event.failure
        if self.visible or out:
            out += (error_frame(event.failure), DONE)
