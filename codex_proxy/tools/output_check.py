"""Answers that must follow a schema the agent cannot be given: told in words, checked here, tried twice.

The agent's own structured output takes OpenAI's strict schemas only. For the others, and for `json_object`, the
model is told, its text is held until it is complete, and a text that does not fit is thrown away and asked for
once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    Stop,
    TextDelta,
    TextWhole,
    TurnEnded,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Message, SaidMessage, TextPart
from codex_proxy.core.turn import Turn
from codex_proxy.tools.schemas import violation

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
    """Holds the messages of one turn until its end and checks them. `second_try`: it was told once already."""

    def __init__(self, schema: bytes, *, second_try: bool = False) -> None:
        self._schema = schema
        self._second_try = second_try
        self._messages: set[str] = set()
        self._text: list[str] = []
        self._heard: set[str] = set()
        self._held: list[Event] = []
        self.wrong: str | None = None
        """What was the matter with the text, where it has to be asked for again."""

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """What may pass. Once `wrong` is set the turn is to be tried again, and nothing of it was let through."""
        out: list[Event] = []
        for event in events:
            if type(event) is TurnEnded:
                out += self._ended(event)
            elif self._is_said(event):
                self._held.append(event)
            else:
                out.append(event)
        return out

    def _is_said(self, event: Event) -> bool:
        if type(event) is ItemStarted and isinstance(event.item, Message):
            self._messages.add(event.item.id)
            return True
        if type(event) is TextDelta:
            self._heard.add(event.id)
            self._text.append(event.text)
            return True
        if type(event) is TextWhole:
            if event.id not in self._heard:
                self._text.append(event.text)
            return True
        return type(event) is ItemEnded and event.id in self._messages

    def _ended(self, event: TurnEnded) -> list[Event]:
        wrong = violation(self._schema, "".join(self._text).strip()) if event.stop == Stop.STOP else None
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
