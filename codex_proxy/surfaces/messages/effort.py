"""The reasoning effort of a turn, from `thinking` and `output_config`. Source: docs/messages.md#thinking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codex_proxy.surfaces.messages.wire import MessagesRequest, Thinking
from codex_proxy.surfaces.models import EFFORTS, nearest_effort

_BUDGETS: Final = ((2048, "low"), (8192, "medium"), (24576, "high"))
"""The largest budget of thinking tokens for each effort."""
_LARGEST: Final = "xhigh"
_NO_THINKING: Final = "none"


def wants_thinking(thinking: Thinking | None) -> bool:
    """Whether the client asks for `thinking` blocks."""
    return thinking is not None and thinking.type in ("enabled", "adaptive", "between_tools")


def effort_asked(request: MessagesRequest) -> str | None:
    """Returns the effort of the newest message that has one, else of `output_config`."""
    for message in reversed(request.messages):
        if message.output_config is not None and message.output_config.effort is not None:
            return message.output_config.effort
    return request.output_config.effort if request.output_config else None


def effort_of(request: MessagesRequest, by_name: str | None, efforts: Sequence[str]) -> str | None:
    """Returns a turn's effort; None for the agent's default. `by_name` is that of the model's name, `efforts` are the
    model's.
    """
    thinking = request.thinking
    if thinking is not None and thinking.type == "disabled":
        return nearest_effort(_NO_THINKING, efforts)
    asked = effort_asked(request)
    if asked not in EFFORTS:
        asked = None
    if asked is None and thinking is not None and thinking.budget_tokens is not None:
        asked = _of_budget(thinking.budget_tokens)
    asked = asked or by_name
    return None if asked is None else nearest_effort(asked, efforts)


def _of_budget(tokens: int) -> str:
    return next((effort for most, effort in _BUDGETS if tokens <= most), _LARGEST)
