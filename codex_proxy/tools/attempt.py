"""One try of a turn: what the agent is given for it, and who watches what comes back.

A turn is tried once, and once more where its model did not do what the client required (a call, a text under a
schema): then with a reminder that is not remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.turn import Turn
from codex_proxy.tools.checks import StrictForm, Verdict
from codex_proxy.tools.output_check import ANY_OBJECT, OutputCheck, with_schema_words
from codex_proxy.tools.policy import PolicyResult, ToolPolicy, with_tool_choice
from codex_proxy.tools.server_calls import ToolOutput


class Attempt:
    """What the events of one try pass, in this order: the tool policy, then the check of the answer.

    Each method returns what may go on and what there is to do. Nothing passes while a check of `PolicyResult.checks`
    is under way; its verdicts come to `with_verdicts`.
    """

    def __init__(
        self,
        turn: Turn,
        policy: ToolPolicy,
        check: OutputCheck | None,
        form: StrictForm | None,
        *,
        as_asked: bool,
        keeps_choice: bool,
    ) -> None:
        self.turn = turn
        """As the agent is given it."""
        self.policy = policy
        self.check = check
        self.form = form
        """What the agent is given of the turn's output schema."""
        self.as_asked = as_asked
        """Nothing was added to what the client said."""
        self._keeps_choice = keeps_choice

    def feed(self, events: Sequence[Event]) -> PolicyResult:
        """Takes what the agent does."""
        return self._checked(self.policy.feed(events))

    def tool_finished(self, ask_id: str, output: ToolOutput) -> PolicyResult:
        """Takes the output of a call that this server has run."""
        return self._checked(self.policy.tool_finished(ask_id, output))

    def with_verdicts(self, verdicts: Sequence[Verdict]) -> PolicyResult:
        """Takes the verdicts on the checks that were asked for last, in their order."""
        if self.check is not None and self.check.checks:
            return self._with_check(PolicyResult(self.check.with_verdicts(verdicts), []))
        return self._checked(self.policy.with_verdicts(verdicts))

    def anew(self, turn: Turn) -> Attempt:
        """Another first try, of `turn`, under the same conditions."""
        return first_attempt(turn, self.form, keeps_choice=self._keeps_choice)

    def next(self, turn: Turn) -> Attempt:
        """The second try of `turn`, with a reminder of what was wrong in this one."""
        return _attempt(turn, self.form, again=True, wrong=None if self.check is None else self.check.wrong)

    def _checked(self, result: PolicyResult) -> PolicyResult:
        if self.check is None:
            return result
        result.events = self.check.feed(result.events)
        return self._with_check(result)

    def _with_check(self, result: PolicyResult) -> PolicyResult:
        """The result with what the check of the answer has to say."""
        assert self.check is not None
        result.checks = result.checks or self.check.checks
        result.again = result.again or self.check.wrong is not None
        return result


def first_attempt(turn: Turn, form: StrictForm | None, *, keeps_choice: bool = False) -> Attempt:
    """`form`: what the agent is given of the turn's output schema; None where it can be given nothing. `keeps_choice`:
    the agent makes its model keep `tool_choice`, which need not be told in words."""
    return _attempt(turn, form, again=False, wrong=None, keeps_choice=keeps_choice)


def _attempt(
    turn: Turn, form: StrictForm | None, *, again: bool, wrong: str | None, keeps_choice: bool = False
) -> Attempt:
    given = with_tool_choice(turn, again=again and wrong is None, in_words=not keeps_choice)
    check = None
    schema = bytes(turn.output_schema) if turn.output_schema is not None else None
    if schema is not None:
        fitted = form is not None and form.to_undo
        check = OutputCheck(
            schema, second_try=again, as_it_comes=form is not None and not fitted, fitted=fitted
        )
        # For any object the surface has told the model already, and a strict schema is told by the provider.
        if wrong is not None or not (form or schema == ANY_OBJECT):
            given = with_schema_words(given, schema if form is None else form.schema, wrong=wrong)
        given = msgspec.structs.replace(
            given,
            output_schema=None if form is None else msgspec.Raw(form.schema),
            json_object=form is None,
        )
    as_asked = given.history is turn.history
    return Attempt(
        given, ToolPolicy(turn, second_try=again), check, form, as_asked=as_asked, keeps_choice=keeps_choice
    )
