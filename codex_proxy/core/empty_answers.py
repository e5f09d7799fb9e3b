"""The rule for answers without text, refusal and call: they are never silent. One that nothing explains is a failure;
every other one carries its reason, which clients get in the header `x-codex-empty`.

Such an answer can be honest: a model may say nothing, and the work of an agent's turn may be files. But it is also what
remains of a turn whose agent obeyed a command in place of asking its model, gave up after a declined permission, or
lost its connection without a word.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind

EmptyReason: TypeAlias = Literal["", "no-output", "reasoning-only", "activity-only", "stop-sequence"]
"""Why an answer that did not fail has no text, refusal or call: the model has answered with nothing, with reasoning
alone, or by the agent's own work alone; or it began with the client's stop sequence. Empty if it has some."""

UNANSWERED: Final = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    message="The agent ended its turn without an answer, and reported no call of its model. Try again.",
)
DECLINED: Final = Failure(
    kind=FaultKind.NOT_ALLOWED,
    message="The agent asked for a permission that this server does not give, and then ended its turn without "
    "another word. Ask for something that needs no permission, or let the operator allow it (docs/agents.md).",
)


class TurnSigns(msgspec.Struct):
    """What a turn has shown so far, beside its items."""

    asked: bool = False
    """Whether the agent has asked for a permission or for input; both are declined."""
    model_answered: bool = False
    """Whether the agent has reported a completed call of the model, or tokens that the model has generated."""


def end_of_empty(signs: TurnSigns, *, reasoned: bool, acted: bool) -> EmptyReason | Failure:
    """Returns why a turn that ended well has no text, refusal and call, or the failure that it ends with instead.
    `reasoned`: the client got reasoning; `acted`: it got activities of the agent.
    """
    if signs.asked:
        return DECLINED
    if acted:
        return "activity-only"
    if reasoned:
        return "reasoning-only"
    return "no-output" if signs.model_answered else UNANSWERED
