"""One try of a turn: what the agent is given for it, and who watches what comes back.

A turn is tried once, and once more where its model did not do what the client required (a call, a text under a
schema): then with a reminder that is not remembered.
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.turn import Turn
from codex_proxy.tools.checks import StrictForm
from codex_proxy.tools.choice import with_tool_choice
from codex_proxy.tools.output_check import ANY_OBJECT, OutputCheck, with_schema_words
from codex_proxy.tools.policy import ToolPolicy


class Attempt(msgspec.Struct, frozen=True):
    """`turn` is for the agent; `as_asked`: nothing was added to what the client said; `form`: of its output schema."""

    turn: Turn
    policy: ToolPolicy
    check: OutputCheck | None
    as_asked: bool
    form: StrictForm | None


def first_attempt(turn: Turn, form: StrictForm | None) -> Attempt:
    """`form`: what the agent is given of the turn's output schema; None where it can be given nothing."""
    return _attempt(turn, form, again=False, wrong=None)


def second_attempt(turn: Turn, form: StrictForm | None, wrong: str | None) -> Attempt:
    """`wrong`: what was the matter with the first answer's text, where that was the matter."""
    return _attempt(turn, form, again=True, wrong=wrong)


def _attempt(turn: Turn, form: StrictForm | None, *, again: bool, wrong: str | None) -> Attempt:
    given = with_tool_choice(turn, again=again and wrong is None)
    check = None
    schema = bytes(turn.output_schema) if turn.output_schema is not None else None
    if schema is not None:
        fitted = form is not None and form.nulls
        check = OutputCheck(
            schema, second_try=again, as_it_comes=form is not None and not fitted, fitted=fitted
        )
        # For any object the surface has told the model already, and a strict schema is told by the provider.
        if wrong is not None or not (form or schema == ANY_OBJECT):
            given = with_schema_words(given, schema if form is None else form.schema, wrong=wrong)
        given = msgspec.structs.replace(
            given, output_schema=None if form is None else msgspec.Raw(form.schema)
        )
    as_asked = given.history is turn.history
    return Attempt(given, ToolPolicy(turn, second_try=again), check, as_asked, form)
