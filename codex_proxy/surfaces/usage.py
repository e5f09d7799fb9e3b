"""What is known of the tokens of one turn: counted by the agent, or estimated by the letters.

In: the usage events of a turn. Out: a `Usage`, and whether it is an estimate. Each surface spells it its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from codex_proxy.core.events import StepCompleted, Usage, UsageSeen
from codex_proxy.core.items import HistoryItem, PastCall, PastOutput, SaidMessage, TextPart

LETTERS_PER_TOKEN: Final = 4
_TRIGGERS: Final = frozenset({"token_count", "task_complete", "provider"})


def letters_in(history: Iterable[HistoryItem]) -> int:
    """Length of the history's text: what an estimate of its tokens goes by."""
    return sum(map(_letters, history))


def _letters(item: HistoryItem) -> int:
    if isinstance(item, SaidMessage | PastOutput):
        return sum(len(part.text) for part in item.parts if isinstance(part, TextPart))
    return len(item.arguments) if isinstance(item, PastCall) else 0


class Spending(msgspec.Struct, frozen=True):
    """What a turn has cost the agent, told by it or estimated. Nothing where it never came to speak."""

    tokens: Usage = Usage()
    estimated: bool = False
    failed: bool = False


class Spent:
    """What is known of the tokens of one turn."""

    def __init__(self) -> None:
        self.told: Usage | None = None
        self.trigger = "provider"
        self._total_told = False

    def seen(self, event: UsageSeen) -> None:
        """A total of the turn so far: it replaces all that was known."""
        self.told = event.usage
        self.trigger = event.trigger
        self._total_told = True

    def step(self, event: StepCompleted) -> None:
        """Tokens of one model call: they count only where nobody told a total."""
        if event.usage is None or self._total_told:
            return
        self.told = event.usage if self.told is None else self.told + event.usage
        self.trigger = "token_count"

    def ended(self, trigger: str) -> None:
        """Without usage of the agent's, the turn's end is what prompts the estimate."""
        if self.told is None:
            self.trigger = trigger if trigger in _TRIGGERS else "provider"

    def tokens(self, *, prompt_letters: int, answer_letters: int) -> Usage:
        """What was told, or else an estimate: at least one token each."""
        if self.told is not None:
            return self.told
        return self._estimate(prompt_letters, answer_letters)

    def spending(self, *, prompt_letters: int, answer_letters: Callable[[], int], failed: bool) -> Spending:
        """What the turn has cost up to now; an estimate where it said something and nobody counted."""
        if self.told is not None:
            return Spending(self.told, failed=failed)
        letters = answer_letters()
        if not letters:
            return Spending(failed=failed)
        return Spending(self._estimate(prompt_letters, letters), estimated=True, failed=failed)

    def _estimate(self, prompt_letters: int, answer_letters: int) -> Usage:
        return Usage(
            input=max(1, prompt_letters // LETTERS_PER_TOKEN),
            output=max(1, answer_letters // LETTERS_PER_TOKEN),
        )
