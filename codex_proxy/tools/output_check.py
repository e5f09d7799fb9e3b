"""Answers that must follow a schema the agent cannot be given: told in words, checked here, tried twice.

The agent's own structured output takes OpenAI's strict schemas only. For the others, and for `json_object`, the
model is told, its answer is held until it is complete, and one that does not fit is thrown away and asked for
once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from codex_proxy.core.events import Event, ItemStarted, RawItem, RefusalDelta, Stop, TextDelta, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import OURS, Message, SaidMessage, TextPart
from codex_proxy.core.rules import Rules
from codex_proxy.core.turn import Turn
from codex_proxy.tools.broker import NEVER_HELD

ANY_OBJECT: Final = b'{"type":"object"}'


def told_of_schema(turn: Turn, schema: bytes, *, wrong: str | None = None) -> Turn:
    """The turn with its schema said in words; `wrong`: what was the matter with the first answer."""
    words = "Answer with exactly one JSON value and nothing else: no text around it, no code fence."
    if schema != ANY_OBJECT:
        words += f" It must be valid under this JSON schema: {schema.decode()}"
    if wrong is not None:
        words = f"Your last answer was thrown away: {wrong}. " + words
    said = SaidMessage("developer", (TextPart(words),))
    return msgspec.structs.replace(turn, history=(*turn.history, said), output_schema=None)


class OutputCheck:
    """Holds the answer of one turn until its end and checks it. `second_try`: it was told once already.

    What comes after the end is dropped.
    """

    def __init__(self, schema: bytes, *, second_try: bool = False) -> None:
        self._schema = schema
        self._second_try = second_try
        self._held: list[Event] = []
        self._ours: set[str] = set()
        """Items of ours in this answer."""
        self._over = False
        self.wrong: str | None = None
        """What was the matter with the text, where it has to be asked for again."""

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """What may pass. Once `wrong` is set the turn is to be tried again, and nothing of this try's answer was
        let through."""
        out: list[Event] = []
        for event in events:
            if self._over:
                break
            if type(event) is TurnEnded:
                self._over = True
                out += self._ended(event)
            elif type(event) in NEVER_HELD or self._passes(event):
                out.append(event)
            else:
                self._held.append(event)
        return out

    def _passes(self, event: Event) -> bool:
        """What stays, whatever becomes of the text: calls that this server has run, and what the model said raw."""
        if type(event) is RawItem:
            return True
        if type(event) is ItemStarted and isinstance(event.item, OURS):
            self._ours.add(event.item.id)
            return True
        return getattr(event, "id", None) in self._ours

    def _ended(self, event: TurnEnded) -> list[Event]:
        """An answer that was cut off, filtered or refused, and one that calls, is nothing to be checked."""
        if event.stop == Stop.FAILED:
            return [event]
        wrong = self._wrong(event) if event.stop == Stop.STOP else None
        if wrong is None:
            return [*self._held, event]
        if not self._second_try:
            self.wrong = wrong
            return []
        failure = Failure(
            kind=FaultKind.UPSTREAM_ERROR,
            code="invalid_structured_output",
            message=f"The model's answer did not follow the schema, twice: {wrong}.",
        )
        return [TurnEnded(Stop.FAILED, event.trigger, failure)]

    def _wrong(self, event: TurnEnded) -> str | None:
        """What is the matter with what the client would see: of each choice, its messages as they are joined."""
        said: dict[str, str] = {}
        of_choice: dict[int | None, list[str]] = {}
        # The rules know what is said in the end, with all that is said twice, whole or anew.
        for each in Rules().feed([*self._held, TurnEnded(Stop.STOP)]):
            if type(each) is RefusalDelta:
                return None
            if type(each) is ItemStarted and isinstance(each.item, Message):
                said[each.item.id] = ""
                of_choice.setdefault(each.item.choice, []).append(each.item.id)
            elif type(each) is TextDelta:
                said[each.id] += each.text
            elif type(each) is TurnEnded and each.stop != Stop.STOP:
                return None  # a repetition that said something else: the rules end the turn for it
        from codex_proxy.tools.schemas import violation  # brings jsonschema, which most turns do without

        for_all = of_choice.pop(None, [])
        for choice, own in (of_choice or {0: []}).items():
            ended_otherwise = (event.choice_stops or {}).get(choice or 0, Stop.STOP) != Stop.STOP
            text = "\n\n".join(said[id] for id in (*for_all, *own) if said[id])
            wrong = None if ended_otherwise else violation(self._schema, text.strip())
            if wrong is not None:
                return wrong
        return None
