"""Checks answers that must match a schema. A schema that the agent cannot be given is put into a message to the
model.

The agent's structured output takes only OpenAI's strict schemas. For other schemas and for `json_object` the model
gets an instruction instead, and the events of its answer are held (not passed on) until it is complete. An answer
that does not match is discarded, and the model is asked once more; if its second answer does not match either, the
turn fails with the code `invalid_structured_output`. Answers under strict schemas are checked too, because not every
provider enforces them. They are streamed to the client, so one that does not match fails the turn without a second
attempt. But if the schema was made strict by placeholders for absent properties, the answer is held, the placeholders
are removed before the check, and the model is asked once more in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from codex_proxy.core.events import (
    Event,
    FullText,
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
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.tools.checks import TextCheck, Verdict, not_checked
from codex_proxy.tools.policy import NEVER_HELD
from codex_proxy.tools.replay import assistant_text

ANY_OBJECT: Final = b'{"type":"object"}'


def with_schema_words(turn: Turn, schema: bytes, *, wrong: str | None = None) -> Turn:
    """Returns the turn with an instruction to the model that contains the schema, and without its output schema.
    `wrong` says what was wrong with the first answer; None for the first attempt.
    """
    words = "Answer with exactly one JSON value and nothing else: no text around it, no code fence."
    if schema != ANY_OBJECT:
        words += f" It must be valid under this JSON schema: {schema.decode()}"
    if wrong is not None:
        words = f"Your last answer was thrown away: {wrong}. " + words
    said = HistoryMessage("developer", (TextPart(words),))
    return msgspec.structs.replace(turn, history=(*turn.history, said), output_schema=None)


class _Text(msgspec.Struct, frozen=True):
    """The text of one choice, and the ids of the messages that it comes from."""

    text: str
    ids: list[str]


class OutputCheck:
    """Checks the answer of one turn when it ends, and holds its events (does not pass them on) until then. `schema`
    is JSON. `second_try`: this is the second attempt; if its answer is wrong, the turn fails. After a first attempt
    `wrong` is set instead.

    `streams`: the provider has the schema, which is that of an object, and nearly always enforces it. An answer
    that begins with `{` then passes while it is written; only the end of the turn waits for the check. If the
    answer is wrong, the turn fails: the model is not asked again, because the client has the answer already. An
    answer that begins otherwise is held. `in_strict_form`: the provider has the schema's strict form, whose answers
    have placeholders for absent properties. Events after the end of the turn are dropped.
    """

    def __init__(
        self, schema: bytes, *, second_try: bool = False, streams: bool = False, in_strict_form: bool = False
    ) -> None:
        self._schema = schema
        self._second_try = second_try
        self._in_strict_form = in_strict_form
        self._streams = streams
        """Whether the answer passes while it is written. Set to False when the answer does not begin with `{`."""
        self._held: list[Event] = []
        self._shown: list[Event] = []
        """The events of the answer that have already passed, where it is not held."""
        self._ours: set[str] = set()
        """The ids of items that this server itself put into the answer, such as calls of MCP tools."""
        self._over = False
        self._end: TurnEnded | None = None
        """The end of the turn, while it waits for the check."""
        self._texts: list[_Text] = []
        """The texts of an answer that has ended, in the order of `checks`."""
        self._rewritten: dict[str, str] = {}
        """The text that the client gets, by the text that the model wrote."""
        self.checks: list[TextCheck] = []
        """Checks to run. Nothing of the answer passes until `with_verdicts` has their results."""
        self.wrong: str | None = None
        """What was wrong with the text, if the model must be asked for another one; else None."""

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """Returns the events that may be passed on. If the answer is invalid and the model is to be asked again,
        `wrong` says why; no event of the answer has been passed on then.
        """
        out: list[Event] = []
        for event in events:
            if self._over:
                break
            if type(event) is TurnEnded:
                self._over = True
                out += self._ended(event)
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
        """Whether an event is passed on at once: a raw item, or an event of an item that this server made, such as
        an MCP call.
        """
        if type(event) is RawItem:
            return True
        if type(event) is ItemStarted and isinstance(event.item, SERVER_ITEMS):
            self._ours.add(event.item.id)
            return True
        return getattr(event, "id", None) in self._ours

    def with_verdicts(self, verdicts: Sequence[Verdict]) -> list[Event]:
        """Takes the results of `checks`, in their order. Returns the events that may be passed on now, as `_ended`
        does.
        """
        end, self._end = self._end, None
        assert end is not None
        self.checks = []
        return self._judged(end, verdicts)

    def as_shown(self, said: tuple[HistoryMessage, ...]) -> tuple[HistoryMessage, ...]:
        """Returns the model's messages (`said`). If the client got another text than the model wrote (without
        placeholders), one message with that text is returned instead.
        """
        text = self._rewritten.get(assistant_text(said).strip())
        return said if text is None else (HistoryMessage("assistant", (TextPart(text),)),)

    def _ended(self, event: TurnEnded) -> list[Event]:
        """Handles the end of the turn: checks the answer, unless it was cut off, filtered or refused, or ends with
        calls. Returns the events that may be passed on: the held events and the end, or an end with a failure if
        the answer is wrong. Returns none if a worker has to run the check first (`checks`), or if the model is to
        be asked again (`wrong`).
        """
        if event.stop == Stop.FAILED:
            return [event]
        from codex_proxy.tools.schemas import (  # bring the validator, which most do without
            is_quick,
            verdict_on,
        )

        self._texts = self._texts_of(event) if event.stop == Stop.STOP else []
        checks = [TextCheck(self._schema, each.text, self._in_strict_form) for each in self._texts]
        if not all(is_quick(check.schema, check.text) for check in checks):
            self._end = event
            self.checks = checks
            return []
        return self._judged(event, [verdict_on(check) for check in checks])

    def _judged(self, event: TurnEnded, verdicts: Sequence[Verdict]) -> list[Event]:
        for verdict in verdicts:
            if verdict.unchecked is not None:
                return [TurnEnded(Stop.FAILED, event.trigger, not_checked("The answer", verdict.unchecked))]
        for said, verdict in zip(self._texts, verdicts, strict=True):
            if verdict.rewritten is not None:
                self._rewritten[said.text] = verdict.rewritten
        return self._decided(event, next((each.wrong for each in verdicts if each.wrong is not None), None))

    def _decided(self, event: TurnEnded, wrong: str | None) -> list[Event]:
        if wrong is None:
            return [*(self._held_rewritten() if self._rewritten else self._held), event]
        if not (self._second_try or self._shown):
            self.wrong = wrong
            return []
        failure = Failure(
            kind=FaultKind.UPSTREAM_ERROR,
            code="invalid_structured_output",
            message=f"The model's answer did not follow the schema{', twice' if self._second_try else ''}: {wrong}.",
        )
        return [TurnEnded(Stop.FAILED, event.trigger, failure)]

    def _held_rewritten(self) -> list[Event]:
        """Returns the held events with the texts that the client gets (without placeholders). The last message of
        each choice gets the choice's whole text, joined from all of its messages, as one delta; its other messages
        are left out.
        """
        texts: dict[str, str] = {}
        merged: set[str] = set()
        """Messages whose text is now in another one."""
        for each in self._texts:
            *others, last = each.ids
            texts[last] = self._rewritten.get(each.text, each.text)
            merged.update(others)
        out: list[Event] = []
        for event in self._repaired():
            id = event.item.id if type(event) is ItemStarted else getattr(event, "id", None)
            if id in merged or type(event) in (TurnStarted, TurnEnded):
                continue
            if type(event) is not TextDelta or id not in texts:
                out.append(event)
            elif texts[id]:
                out.append(TextDelta(id, texts[id]))
                texts[id] = ""
        return out

    def _repaired(self) -> list[Event]:
        """Returns the held events after `TurnRepair`: each text occurs once, even if the agent repeated it, or sent
        the whole text after its pieces.
        """
        return TurnRepair().feed([*self._shown, *self._held, TurnEnded(Stop.STOP)])

    def _texts_of(self, event: TurnEnded) -> list[_Text]:
        """Returns the text of each choice, joined from its messages as the client would get it. Leaves out choices
        that did not end normally. Returns an empty list if the model refused.
        """
        said: dict[str, str] = {}
        of_choice: dict[int | None, list[str]] = {}
        for each in self._repaired():
            if type(each) is RefusalDelta:
                return []
            if type(each) is ItemStarted and isinstance(each.item, Message):
                said[each.item.id] = ""
                of_choice.setdefault(each.item.choice, []).append(each.item.id)
            elif type(each) is TextDelta:
                said[each.id] += each.text
            elif type(each) is TurnEnded and each.stop != Stop.STOP:
                return []  # a repetition that said something else: the repair ends the turn for it
        for_all = of_choice.pop(None, [])
        stops = event.choice_stops or {}
        return [
            _Text("\n\n".join(said[id] for id in ids).strip(), ids)
            for choice, own in (of_choice or {0: []}).items()
            if stops.get(choice or 0, Stop.STOP) == Stop.STOP
            for ids in [[id for id in (*for_all, *own) if said[id]]]
        ]
