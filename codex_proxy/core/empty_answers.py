"""Decides what an answer without text, refusal and call becomes: a reason for `x-codex-empty`, or a failure. That the
agent itself has ended its turn early is a reason too, also behind a text.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind

EMPTY_HEADER: Final = "x-codex-empty"
"""The header, comment or field with an `EmptyReason`."""

EmptyReason: TypeAlias = Literal[
    "", "no-output", "reasoning-only", "activity-only", "stop-sequence", "cancelled"
]
"""Why a successful answer is empty; "" if it is not. `cancelled`: the agent itself ended its turn early; what it had
written is in the answer.
"""

NO_MODEL_CALL: Final = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The agent ended its turn without an answer, and reported no call of its model. Try again.",
)
PERMISSION_DECLINED: Final = Failure(
    FaultKind.NOT_ALLOWED,
    "The agent asked for a permission that this server does not give, and then ended its turn without "
    "another word. Ask for something that needs no permission, or let the operator allow it (docs/agents.md).",
)


class TurnSigns(msgspec.Struct):
    """What explains an empty answer, beside the turn's items."""

    has_asked: bool = False
    """Whether the agent has asked for a permission or for input, which is declined."""
    model_answered: bool = False
    """Whether the agent has reported a completed model call, or output tokens."""


def explain_empty_answer(signs: TurnSigns, *, reasoned: bool, acted: bool) -> EmptyReason | Failure:
    """Returns why a turn that ended well is empty, or its failure. `reasoned`, `acted`: whether the turn has
    reasoning, and activities.
    """
    if signs.has_asked:
        return PERMISSION_DECLINED
    if acted:
        return "activity-only"
    if reasoned:
        return "reasoning-only"
    return "no-output" if signs.model_answered else NO_MODEL_CALL
