"""The `usage` of a chat answer: what was counted, by whom, or an estimate that says so.

In: the usage events of a turn. Out: the `usage` object. Source: seed 001 (`completion_tokens` is summed over
the choices, `prompt_tokens` counted once; `emission_trigger`; the nullable placeholders of story 2.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.events import StepCompleted, Usage, UsageSeen

LETTERS_PER_TOKEN: Final = 4
_TRIGGERS: Final = frozenset({"token_count", "task_complete", "provider"})


class StreamMetrics(msgspec.Struct, frozen=True):
    """Measured by whoever owns the clock: milliseconds, tokens per second."""

    time_to_first_token: float | None = None
    throughput_after_first_token: float | None = None


Measure: TypeAlias = Callable[[int], StreamMetrics]
"""Gives the metrics at the end of a stream, told the completion tokens."""


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

    def figures(self, *, copies: int, prompt_letters: int, answer_letters: int) -> dict[str, Any]:
        """The `usage` object. `copies`: how many choices the counted output stands for."""
        usage = self.told
        if usage is None:
            usage = Usage(
                input=max(1, prompt_letters // LETTERS_PER_TOKEN),
                output=max(1, answer_letters // LETTERS_PER_TOKEN),
            )
            copies = 1  # the letters of every choice were counted
        completion = usage.output * copies
        figures: dict[str, Any] = {
            "prompt_tokens": usage.input,
            "completion_tokens": completion,
            "total_tokens": usage.input + completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning * copies},
        }
        if self.told is None:
            figures["estimated"] = True
        return figures
