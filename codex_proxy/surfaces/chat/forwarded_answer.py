"""The answer to a request that went to a server of Chat Completions as it came: that server's own bytes.

In: the events of the turn. Out: the bytes as they are, or one body of them; an error frame behind what was passed on
where the turn has failed. Source: docs/contract.md#failures-of-a-stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from codex_proxy.core.events import Event, ForwardedBytes, Spending, TurnEnded, UsageReported
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.surfaces.chat.render import DONE
from codex_proxy.surfaces.errors import error_frame
from codex_proxy.surfaces.usage import Spent


class ForwardedAnswer:
    """A renderer that renders nothing. `prompt_tokens` estimates the request, for where the upstream tells no usage."""

    def __init__(self, *, stream: bool, prompt_tokens: Callable[[], int]) -> None:
        self.visible = False
        """Something was passed on, so that a failure can no longer be a plain status."""
        self.failure: Failure | None = None
        self.finish_reasons: tuple[str, ...] = ()
        """One for each choice, once the turn has ended well."""
        self.spent = Spent()
        self._stream = stream
        self._prompt_tokens = prompt_tokens
        self._deltas = 0
        self._body: list[bytes] = []

    def feed(self, events: Iterable[Event]) -> bytes:
        """The bytes of a batch; nothing where the answer is given whole."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, ForwardedBytes):
                out.append(event.data)
                self._deltas += event.deltas
            elif isinstance(event, UsageReported):
                self.spent.seen(event)
            elif isinstance(event, TurnEnded):
                self._ended(event, out)
        self.visible = self.visible or bool(out)
        if self._stream:
            return b"".join(out)
        self._body += out
        return b""

    def open(self) -> bytes:
        """Nothing: the upstream's first words are its own."""
        return b""

    def result(self) -> bytes:
        """The whole answer. Raises the `Fault` of a failed turn."""
        if self.failure is not None:
            raise Fault(self.failure)
        return b"".join(self._body)

    def spending(self) -> Spending:
        """The tokens as the upstream told them; else an estimate, by which a delta is a token."""
        return self.spent.spending(
            prompt=self._prompt_tokens, answer=lambda: self._deltas, failed=self.failure is not None
        )

    def _ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.spent.ended(event)
        if event.failure is None:
            stops = event.choice_stops or {0: event.stop}
            self.finish_reasons = tuple(stop for _, stop in sorted(stops.items()))
            return
        self.failure = event.failure
        if self.visible or out:
            out += (error_frame(event.failure), DONE)
