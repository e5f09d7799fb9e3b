"""Determines the reasoning effort of a turn from a request's `thinking` and `output_config`.

Input: the request, the effort that the model's name contains, the efforts that the model supports. Output: one of
these efforts, or None for the agent's default. Nothing is refused: an effort that the model does not support
becomes the nearest lower one, or the lowest if there is none. Source: docs/messages.md#thinking.
"""

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
    """Whether the client asks for `thinking` blocks in the answer (`enabled`, `adaptive` or `between_tools`).
    `thinking` is None if the request has no such field.
    """
    return thinking is not None and thinking.type in ("enabled", "adaptive", "between_tools")


def effort_asked(request: MessagesRequest) -> str | None:
    """Returns the `effort` that a request asks for: that of the newest message that has one, else that of the
    request's `output_config`; None if there is none. It is returned as the client wrote it, valid or not.
    """
    for message in reversed(request.messages):
        if message.output_config is not None and message.output_config.effort is not None:
            return message.output_config.effort
    return request.output_config.effort if request.output_config else None


def effort_of(request: MessagesRequest, by_name: str | None, efforts: Sequence[str]) -> str | None:
    """Returns the reasoning effort of a turn; None for the agent's default. `by_name` is the effort in the model's
    name, None if it has none; `efforts` are those that the model supports, empty if unknown.
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
