"""One attempt at a turn, and the check of its answer. A second one follows if the model did not do what the client
requires (a call, a text that matches a schema), with a message about that, which neither the client nor later turns
see.

Under a strict schema an answer is streamed, and a wrong one fails the turn. Under any other it is held; if it is wrong,
the model is asked once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from codex_proxy.core.events import (
    Event,
    FullText,
    InputTaken,
    ItemStarted,
    RawItem,
    RefusalDelta,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import SERVER_ITEMS, HistoryMessage, Message, TextPart
from codex_proxy.core.json_values import allows_only_objects
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.tools.policy import NEVER_HELD, PolicyResult, ToolOutput, ToolPolicy, with_tool_choice
from codex_proxy.tools.replay import assistant_text
from codex_proxy.tools.schemas import TextCheck, Verdict, is_quick, unchecked_failure, verdict_on
from codex_proxy.tools.strict_schemas import StrictForm

ANY_OBJECT: Final = b'{"type":"object"}'


def with_schema_words(turn: Turn, schema: bytes, *, wrong: str | None = None) -> Turn:
    """Returns the turn with the schema in an instruction, and what was `wrong` with the first answer."""
    words = "Answer with exactly one JSON value and nothing else: no text around it, no code fence."
    if schema != ANY_OBJECT:
        words += f" It must be valid under this JSON schema: {schema.decode()}"
    if wrong is not None:
        words = f"Your last answer was thrown away: {wrong}. " + words
    instruction = HistoryMessage("developer", (TextPart(words),))
    return msgspec.structs.replace(turn, history=(*turn.history, instruction), output_schema=None)


class _Text(msgspec.Struct, frozen=True):
    """One choice's text, and its messages."""

    text: str
    ids: list[str]


class OutputCheck:
    """Checks the answer of one attempt against its schema. `second_try`: a wrong answer fails the turn; otherwise it
    sets `wrong`. `streams`: the provider enforces an object's schema, so an answer that begins with `{` passes at
    once. `in_strict_form`: whether the answer has placeholders.
    """

    def __init__(
        self, schema: bytes, *, second_try: bool = False, streams: bool = False, in_strict_form: bool = False
    ) -> None:
        self._schema = schema
        self._second_try = second_try
        self._in_strict_form = in_strict_form
        self._may_stream = streams
        self._streams = streams
        """Whether the answer passes at once; becomes False if it does not begin with `{`."""
        self._held: list[Event] = []
        self._shown: list[Event] = []
        """Events that were passed on without being held."""
        self._ours: set[str] = set()
        """Ids of items that this server added, such as calls of MCP tools."""
        self._over = False
        self._end: TurnEnded | None = None
        """The turn's end, which waits for the check."""
        self._texts: list[_Text] = []
        """The texts of an answer that has ended, in the order of `checks`."""
        self._rewritten: dict[str, str] = {}
        """The text that the client got, by the model's text."""
        self.checks: list[TextCheck] = []
        """Checks to run; nothing passes until `with_verdicts` has their results."""
        self.wrong: str | None = None
        """What was wrong, if the model must be asked again."""

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """Takes the next events of the agent. Returns those that the client may get now: others are held until the
        answer is checked, and dropped if it is `wrong`.
        """
        out: list[Event] = []
        for event in events:
            if self._over:
                break
            if type(event) is TurnEnded:
                self._over = True
                out += self._on_turn_ended(event)
            elif type(event) is InputTaken:
                # What was said before it is no answer to it: that is passed on unchecked, and the answer begins here.
                out += [*self._held, event]
                self._held, self._shown, self._streams = [], [], self._may_stream
            elif type(event) in NEVER_HELD or self._passes(event):
                out.append(event)
            elif self._shown:
                self._shown.append(event)
                out.append(event)
            else:
                self._held.append(event)
                if self._streams and isinstance(event, TextDelta | FullText) and event.text.strip():
                    self._streams = event.text.lstrip().startswith("{")
                    if self._streams:
                        self._shown, self._held = self._held, []
                        out += self._shown
        return out

    def _passes(self, event: Event) -> bool:
        if type(event) is RawItem:
            return True
        if type(event) is ItemStarted and isinstance(event.item, SERVER_ITEMS):
            self._ours.add(event.item.id)
            return True
        return getattr(event, "id", None) in self._ours

    def with_verdicts(self, verdicts: Sequence[Verdict]) -> list[Event]:
        """Takes the results of `checks`, in their order; returns what may be passed on now."""
        assert self._end is not None
        self.checks = []
        return self._apply_verdicts(self._end, verdicts)

    def as_shown(self, messages: tuple[HistoryMessage, ...]) -> tuple[HistoryMessage, ...]:
        """Returns the model's messages, or one with the text that the client got instead."""
        text = self._rewritten.get(assistant_text(messages).strip())
        return messages if text is None else (HistoryMessage("assistant", (TextPart(text),)),)

    def _on_turn_ended(self, event: TurnEnded) -> list[Event]:
        """Checks the answer, unless it was cut off, filtered or refused, or ends with calls. Returns the held events
        and the end, or a failure; nothing if a worker checks first (`checks`) or the model is asked again (`wrong`).
        """
        if event.stop == Stop.FAILED:
            return [event]
        self._texts = self._texts_of(event) if event.stop == Stop.STOP else []
        checks = [TextCheck(self._schema, each.text, self._in_strict_form) for each in self._texts]
        if not all(is_quick(check.schema, check.text) for check in checks):
            self._end = event
            self.checks = checks
            return []
        return self._apply_verdicts(event, [verdict_on(check) for check in checks])

    def _apply_verdicts(self, event: TurnEnded, verdicts: Sequence[Verdict]) -> list[Event]:
        unchecked = next((each.unchecked for each in verdicts if each.unchecked is not None), None)
        if unchecked is not None:
            return [TurnEnded(Stop.FAILED, event.trigger, unchecked_failure("The answer", unchecked))]
        for text, verdict in zip(self._texts, verdicts, strict=True):
            if verdict.rewritten is not None:
                self._rewritten[text.text] = verdict.rewritten
        wrong = next((each.wrong for each in verdicts if each.wrong is not None), None)
        if wrong is None:
            return [*(self._rewrite_held() if self._rewritten else self._held), event]
        if not (self._second_try or self._shown):
            self.wrong = wrong
            return []
        failure = Failure(
            FaultKind.UPSTREAM_ERROR,
            f"The model's answer did not follow the schema{', twice' if self._second_try else ''}: {wrong}.",
            code="invalid_structured_output",
        )
        return [TurnEnded(Stop.FAILED, event.trigger, failure)]

    def _rewrite_held(self) -> list[Event]:
        """Returns the held events; in each choice the last message has the whole text as one delta, the others are left
        out.
        """
        texts: dict[str, str] = {}
        merged: set[str] = set()
        """Messages whose text is now in another one."""
        for each in self._texts:
            *others, last = each.ids
            texts[last] = self._rewritten.get(each.text, each.text)
            merged.update(others)
        out: list[Event] = []
        for event in self._repair_held():
            id = event.item.id if type(event) is ItemStarted else getattr(event, "id", None)
            if id in merged or type(event) in (TurnStarted, TurnEnded):
                continue
            if type(event) is not TextDelta or id not in texts:
                out.append(event)
            elif texts[id]:
                out.append(TextDelta(id, texts[id]))
                texts[id] = ""
        return out

    def _repair_held(self) -> list[Event]:
        return TurnRepair().feed([*self._shown, *self._held, TurnEnded(Stop.STOP)])

    def _texts_of(self, event: TurnEnded) -> list[_Text]:
        """Returns each choice's text, without choices that did not end normally; none if the model refused."""
        texts: dict[str, str] = {}
        of_choice: dict[int | None, list[str]] = {}
        for each in self._repair_held():
            if type(each) is RefusalDelta:
                return []
            if type(each) is ItemStarted and isinstance(each.item, Message):
                texts[each.item.id] = ""
                of_choice.setdefault(each.item.choice, []).append(each.item.id)
            elif type(each) is TextDelta:
                texts[each.id] += each.text
            elif type(each) is TurnEnded and each.stop != Stop.STOP:
                return []  # a repetition with another text: the repair ends the turn for it
        for_all = of_choice.pop(None, [])
        stops = event.choice_stops or {}
        return [
            _Text("\n\n".join(texts[id] for id in ids).strip(), ids)
            for choice, own in (of_choice or {0: []}).items()
            if stops.get(choice or 0, Stop.STOP) == Stop.STOP
            for ids in [[id for id in (*for_all, *own) if texts[id]]]
        ]


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
