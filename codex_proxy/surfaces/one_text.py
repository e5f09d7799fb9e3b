"""The base of renderers whose answer is one text: a turn's messages with blank lines between."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Unpack

from codex_proxy.core.events import ItemEnded, ItemStarted, RefusalDelta, Stop, TurnEnded
from codex_proxy.core.items import Message
from codex_proxy.surfaces.base import RenderOptions, SerialOutput, StreamRenderer, Text, TextRun, failure_at
from codex_proxy.surfaces.usage import json_tokens

_CALLS: Final = frozenset({Stop.TOOL_CALLS, Stop.FUNCTION_CALL})
"""Reasons of an answer's end for which these APIs have no word."""


class OneTextRenderer(StreamRenderer):
    """A renderer of one text. A subclass sets `_content`."""

    _content: Text

    def __init__(self, **options: Unpack[RenderOptions]) -> None:
        super().__init__(**options)
        self._arguments: list[bytes] = []
        """The arguments of calls, as JSON strings."""
        self._messages = SerialOutput()

    @abstractmethod
    def _end(self, out: list[bytes]) -> None:
        """Appends what ends the stream of an answer with a `finish_reason`."""

    def _count_tokens(self) -> int:
        return json_tokens([bytes(self._content.whole()), *self._arguments])

    def _begin(self, out: list[bytes]) -> None:
        self.visible = True  # there is no chunk before the first delta

    def _on_item_started(self, event: ItemStarted, out: list[bytes]) -> None:
        if isinstance(event.item, Message) and not event.item.choice:
            self._messages.open(event.item.id)

    def _on_text(self, pieces: TextRun, out: list[bytes]) -> None:
        if pieces.id == self._messages.current_id:
            self._add_content(pieces.id, pieces.texts, out)
        else:
            self._messages.keep(pieces.id, "".join(pieces.texts))

    def _add_content(self, id: str, texts: list[str], out: list[bytes]) -> None:
        self.visible = True
        self._content.add_all([self._content.with_separator(id, texts[0]), *texts[1:]], out)

    def _on_refusal(self, event: RefusalDelta, out: list[bytes]) -> None:
        self._on_text(TextRun(event.id, [event.text]), out)

    def _on_item_ended(self, event: ItemEnded, out: list[bytes]) -> None:
        for id, text in self._messages.close(event.id):
            if text:
                self._add_content(id, [text], out)

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.ended = True
        self.failure = failure_at(event)
        if self.failure is not None:
            out.append(self._error(self.failure))
            return
        self.visible = True
        stop = (event.choice_stops or {}).get(0, event.stop)
        self.finish_reason = "stop" if stop in _CALLS else str(stop)
        self.spent.end(event)
        self._end(out)
