"""One attempt at a turn. A second one follows if the model did not do what the client requires (a call, a text that
matches a schema), with a message about that, which neither the client nor later turns see.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.json_values import allows_only_objects
from codex_proxy.core.turn import Turn
from codex_proxy.tools.checks import StrictForm, Verdict
from codex_proxy.tools.output_check import ANY_OBJECT, OutputCheck, with_schema_words
from codex_proxy.tools.policy import PolicyResult, ToolOutput, ToolPolicy, with_tool_choice


class Attempt:
    """Passes events through the tool policy and then the check of the answer, if any. The methods return what may be
    passed on and what the caller has to do. While `PolicyResult.checks` run nothing is passed on.
    """

    def __init__(
        self,
        turn: Turn,
        form: StrictForm | None,
        *,
        keeps_choice: bool = False,
        again: bool = False,
        wrong: str | None = None,
    ) -> None:
        """`form` is the strict form of the output schema; without it the model is told the schema. `keeps_choice`: the
        agent enforces `tool_choice`. `again`: the second attempt, after a first answer that was `wrong`.
        """
        given = with_tool_choice(turn, again=again and wrong is None, in_words=not keeps_choice)
        self.check: OutputCheck | None = None
        if turn.output_schema is not None:
            schema = bytes(turn.output_schema)
            self.check = OutputCheck(
                schema,
                second_try=again,
                streams=form is not None and not form.to_undo,
                in_strict_form=form is not None and form.to_undo,
            )
            # For any object the surface has told the model already, and a strict schema is told by the provider.
            if wrong is not None or not (form or schema == ANY_OBJECT):
                given = with_schema_words(given, schema if form is None else form.schema, wrong=wrong)
            given = msgspec.structs.replace(
                given,
                output_schema=None if form is None else msgspec.Raw(form.schema),
                json_object=form is None and allows_only_objects(schema),
            )
        self.turn = given
        self.policy = ToolPolicy(turn, second_try=again)
        self.as_asked = given.history is turn.history
        """Whether the agent got the client's history without messages of this server, so that the session may be kept.
        """
        self._form = form
        self._keeps_choice = keeps_choice

    @property
    def awaited_events(self) -> frozenset[type[Event]] | None:
        """The types of events that `feed` needs at once; None: all, as always if the answer is checked."""
        return self.policy.awaited_events if self.check is None else None

    def feed(self, events: Sequence[Event]) -> PolicyResult:
        return self._check_answer(self.policy.feed(events))

    def on_tool_output(self, request_id: str, output: ToolOutput) -> PolicyResult:
        """Takes the output of a call that ran here."""
        return self._check_answer(self.policy.on_tool_output(request_id, output))

    def with_verdicts(self, verdicts: Sequence[Verdict]) -> PolicyResult:
        """Takes the results of `checks`, and handles what came meanwhile."""
        if self.check is not None and self.check.checks:
            return self._with_check(PolicyResult(self.check.with_verdicts(verdicts)))
        return self._check_answer(self.policy.with_verdicts(verdicts))

    def restart(self, turn: Turn) -> Attempt:
        """Returns a new first attempt at `turn`."""
        return Attempt(turn, self._form, keeps_choice=self._keeps_choice)

    def retry(self, turn: Turn) -> Attempt:
        """Returns the second attempt at `turn`."""
        return Attempt(turn, self._form, again=True, wrong=None if self.check is None else self.check.wrong)

    def _check_answer(self, result: PolicyResult) -> PolicyResult:
        if self.check is None:
            return result
        result.events = self.check.feed(result.events)
        return self._with_check(result)

    def _with_check(self, result: PolicyResult) -> PolicyResult:
        assert self.check is not None
        result.checks = result.checks or self.check.checks
        result.again = result.again or self.check.wrong is not None
        return result
