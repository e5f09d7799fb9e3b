"""One attempt at a turn: what the agent is given, and the policies through which its events pass.

A turn gets a second attempt if the model did not do what the client requires (a call, a text that matches a
schema). The agent is then given the turn with a message to the model about that; neither the client nor later turns
get this message.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.turn import Turn
from codex_proxy.tools.checks import StrictForm, Verdict
from codex_proxy.tools.output_check import ANY_OBJECT, OutputCheck, with_schema_words
from codex_proxy.tools.policy import PolicyResult, ToolOutput, ToolPolicy, with_tool_choice


class Attempt:
    """Passes the events of one attempt through the tool policy and then through the check of the answer. `turn` is
    the turn as the agent is given it; `check` is None if the answer need not match a schema; `as_asked`: the agent
    is given the client's history without messages of this server.

    The methods return the events that may be passed on and what the caller has to do. No event is passed on while a
    check in `PolicyResult.checks` is running; `with_verdicts` takes the results.
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
        """The turn as the agent gets it."""
        self.policy = policy
        self.check = check
        self.form = form
        """The strict form of the turn's output schema, which the agent is given; None where it is given no schema."""
        self.as_asked = as_asked
        """Whether the agent got the client's history without messages of this server. Only then may the session be
        kept for the next request."""
        self._keeps_choice = keeps_choice

    @property
    def decisive(self) -> frozenset[type[Event]] | None:
        """The types of events that `feed` has to be given at once (see `ToolPolicy.decisive`). None: all types;
        always None if the answer is checked.
        """
        return self.policy.decisive if self.check is None else None

    def feed(self, events: Sequence[Event]) -> PolicyResult:
        """Passes events of the agent through the tool policy and the check of the answer. Returns the events that
        may be passed on, and what else the caller has to do.
        """
        return self._checked(self.policy.feed(events))

    def tool_finished(self, request_id: str, output: ToolOutput) -> PolicyResult:
        """Handles the output of a call that this server has run. `request_id` is the agent's id of the request for the
        call. Returns the events that may be passed on, and what else the caller has to do.
        """
        return self._checked(self.policy.tool_finished(request_id, output))

    def with_verdicts(self, verdicts: Sequence[Verdict]) -> PolicyResult:
        """Takes the results of the schema checks that the last `PolicyResult` listed in `checks`, in that order.
        Returns the events that depended on them, and what else the caller has to do.
        """
        if self.check is not None and self.check.checks:
            return self._with_check(PolicyResult(self.check.with_verdicts(verdicts), []))
        return self._checked(self.policy.with_verdicts(verdicts))

    def restarted(self, turn: Turn) -> Attempt:
        """Returns a new attempt at `turn` that counts as its first, with the same schema and settings as this
        attempt.
        """
        return first_attempt(turn, self.form, keeps_choice=self._keeps_choice)

    def retry(self, turn: Turn) -> Attempt:
        """Returns the second attempt at `turn`, with a message to the model about what was wrong in this one (a
        call that was required, or the text).
        """
        return _attempt(turn, self.form, again=True, wrong=None if self.check is None else self.check.wrong)

    def _checked(self, result: PolicyResult) -> PolicyResult:
        if self.check is None:
            return result
        result.events = self.check.feed(result.events)
        return self._with_check(result)

    def _with_check(self, result: PolicyResult) -> PolicyResult:
        """Returns the result with what the check of the answer requires: its checks to run, and whether the turn
        needs a second attempt.
        """
        assert self.check is not None
        result.checks = result.checks or self.check.checks
        result.again = result.again or self.check.wrong is not None
        return result


def first_attempt(turn: Turn, form: StrictForm | None, *, keeps_choice: bool = False) -> Attempt:
    """Returns the first attempt at a turn. `form` is the strict form of the turn's output schema; if it is None,
    the schema is put into a message to the model. `keeps_choice`: the agent enforces `tool_choice` itself, so the
    model gets no message about it.
    """
    return _attempt(turn, form, again=False, wrong=None, keeps_choice=keeps_choice)


def _attempt(
    turn: Turn, form: StrictForm | None, *, again: bool, wrong: str | None, keeps_choice: bool = False
) -> Attempt:
    given = with_tool_choice(turn, again=again and wrong is None, in_words=not keeps_choice)
    check = None
    schema = bytes(turn.output_schema) if turn.output_schema is not None else None
    if schema is not None:
        in_strict_form = form is not None and form.to_undo
        check = OutputCheck(
            schema,
            second_try=again,
            streams=form is not None and not in_strict_form,
            in_strict_form=in_strict_form,
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
