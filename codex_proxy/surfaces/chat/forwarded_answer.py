"""The answer to a chat request that was forwarded as a whole to an upstream: the upstream's bytes.

Input: the events of the turn. Output: the bytes unchanged, as a stream or joined to one body; if the turn fails
after bytes were sent, an error frame after them. Source: docs/contract.md#failures-of-a-stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from codex_proxy.core.events import Event, ForwardedBytes, Spending, TurnEnded, UsageReported
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.surfaces.chat.render import DONE
from codex_proxy.surfaces.errors import error_frame
from codex_proxy.surfaces.usage import TurnTokens


class ForwardedAnswer:
    """Passes on the bytes of a forwarded answer, with the interface of `ChatRenderer`. `stream`: the client has
    asked for a stream. `prompt_tokens` estimates the tokens of the request, and is called if the upstream reports
    no usage.
    """

    def __init__(self, *, stream: bool, prompt_tokens: Callable[[], int]) -> None:
        self.visible = False
        """Whether bytes were passed on or the stream was opened, so that a failure can no longer be answered with an
        HTTP status."""
        self.failure: Failure | None = None
        self.finish_reasons: tuple[str, ...] = ()
        """The finish reason of each choice, once the turn has ended without a failure."""
        self.spent = TurnTokens()
        self._stream = stream
        self._prompt_tokens = prompt_tokens
        self._deltas = 0
        self._body: list[bytes] = []

    def feed(self, events: Iterable[Event]) -> bytes:
        """Returns the answer's bytes in a batch of events; empty if the answer is not streamed."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, ForwardedBytes):
                out.append(event.data)
                self._deltas += event.deltas
            elif isinstance(event, UsageReported):
                self.spent.add_total(event)
            elif isinstance(event, TurnEnded):
                self._ended(event, out)
        self.visible = self.visible or bool(out)
        if self._stream:
            return b"".join(out)
        self._body += out
        return b""

    def open(self) -> bytes:
        """Returns empty bytes, because the upstream's answer contains its own first chunk. As the stream begins with
        a keepalive, a failure from now on is an error frame.
        """
        self.visible = True
        return b""

    def result(self) -> bytes:
        """Returns the bytes of the whole answer. Raises the `Fault` of a failed turn."""
        if self.failure is not None:
            raise Fault(self.failure)
        return b"".join(self._body)

    def spending(self) -> Spending:
        """Returns the tokens of the turn so far: those that the upstream reported, or else an estimate, with one
        output token for each delta.
        """
        return self.spent.spending(
            prompt=self._prompt_tokens, answer=lambda: self._deltas, failed=self.failure is not None
        )

    def _ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.spent.end(event)
        if event.failure is None:
            stops = event.choice_stops or {0: event.stop}
            self.finish_reasons = tuple(stop for _, stop in sorted(stops.items()))
            return
        self.failure = event.failure
        if self.visible or out:
            out += (error_frame(event.failure), DONE)
