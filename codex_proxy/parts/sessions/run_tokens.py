"""The tokens of one run of a session's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from codex_proxy.core.events import (
    Event,
    OfSubagent,
    Spending,
    StepCompleted,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.surfaces.answers.usage import TurnTokens


class RunTokens:
    """The tokens of a run, for the usage report and the turn."""

    def __init__(self) -> None:
        self.prompt: Callable[[], int] = lambda: 0
        """Returns an estimate of the input."""
        self._spent = TurnTokens()
        self._of_subagents = Usage()
        self._failed = False
        self._chars = 0

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, UsageReported):
                self._spent.add_total(event)
            elif isinstance(event, StepCompleted):
                self._spent.add_call(event)
            elif isinstance(event, OfSubagent):
                if isinstance(event.event, StepCompleted) and event.event.usage is not None:
                    self._of_subagents += event.event.usage
            elif isinstance(event, TurnEnded):
                self._spent.end(event)
                self._failed = event.failure is not None
            else:
                self._chars += len(getattr(event, "text", ""))

    @property
    def known(self) -> Usage | None:
        """The tokens, if the agent has reported all of them."""
        return None if self._spent.is_estimated else self._spent.reported

    def spending(self) -> Spending:
        """Returns what counts for the key: the turn's own tokens, and those of its subagents."""
        own = self._spent.spending(prompt=self.prompt, answer=lambda: self._chars // 4, failed=self._failed)
        return msgspec.structs.replace(own, tokens=own.tokens + self._of_subagents)
