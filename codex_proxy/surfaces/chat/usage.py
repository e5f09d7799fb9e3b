"""The `usage` of a chat answer: what was counted, by whom, or an estimate that says so.

In: what is known of a turn's tokens. Out: the `usage` object. Sources: docs/contract.md#whole-answers (the
sums over choices), docs/contract.md#streams (`emission_trigger` and the placeholders that may be null).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from codex_proxy.surfaces.usage import Spent


class StreamMetrics(msgspec.Struct, frozen=True):
    """Measured by whoever owns the clock: milliseconds, tokens per second."""

    time_to_first_token: float | None = None
    throughput_after_first_token: float | None = None


Measure: TypeAlias = Callable[[int], StreamMetrics]
"""Gives the metrics at the end of a stream, told the completion tokens."""


def chat_usage(
    spent: Spent, *, copies: int, prompt: Callable[[], int], answer: Callable[[], int]
) -> dict[str, Any]:
    """The `usage` object. `copies`: how many choices what is told of the output stands for. `prompt`, `answer`:
    estimates, of one answer that stands for as many."""
    usage = spent.tokens(prompt=prompt, answer=answer)
    completion = usage.output * copies
    figures: dict[str, Any] = {
        "prompt_tokens": usage.input,
        "completion_tokens": completion,
        "total_tokens": usage.input + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning * copies},
    }
    if spent.estimated:
        figures["estimated"] = True
    return figures
