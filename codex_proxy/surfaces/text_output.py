"""Groups deltas of text and puts them in order for a stream.

Most events are deltas of one message. The bytes around them are the same for all deltas in a row, so a renderer
computes them once for the row. Two open calls (or messages) may get their deltas alternately. A stream shows them one
after the other: the first that was opened is sent at once, the others' deltas wait until it is closed. Source:
docs/contract.md#streams. For every wire format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from codex_proxy.core.events import Event, TextDelta


class TextRun(msgspec.Struct, frozen=True):
    """One or more `TextDelta`s of one message in a row."""

    id: str
    texts: list[str]


def pieces_together(events: Iterable[Event]) -> Iterator[Event | TextRun]:
    """Yields the same events in order, with one `TextRun` instead of each row of deltas of a message."""
    speaker: str | None = None
    texts: list[str] = []
    for event in events:
        if isinstance(event, TextDelta):
            if event.id != speaker:
                if speaker is not None:
                    yield TextRun(speaker, texts)
                speaker, texts = event.id, []
            texts.append(event.text)
            continue
        if speaker is not None:
            yield TextRun(speaker, texts)
            speaker = None
        yield event
    if speaker is not None:
        yield TextRun(speaker, texts)


class SerialOutput:
    """Makes several ids send one after the other: the oldest open one sends, and the text of the others is kept.

    With `whole` an id sends nothing before it is closed, and then everything at once.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.speaker: str | None = None
        self._whole = whole
        self._waiting: dict[str, list[str]] = {}
        self._ended: set[str] = set()

    def open(self, id: str) -> bool:
        """Opens an id. Returns whether it may send at once."""
        if self.speaker is None and not self._whole:
            self.speaker = id
            return True
        self._waiting[id] = []
        return False

    def keep(self, id: str, text: str) -> None:
        """Keeps a text of an id that waits. Does nothing for an id that was never opened."""
        if id in self._waiting:
            self._waiting[id].append(text)

    def close(self, id: str) -> list[tuple[str, str]]:
        """Closes `id`. Returns the ids that may send now, in order, each with its kept text.

        All of them but the last are closed already; the last may still be open.
        """
        if id == self.speaker:
            self.speaker = None
        elif id in self._waiting:
            self._ended.add(id)
        heard: list[tuple[str, str]] = []
        while self._waiting and self.speaker is None:
            next_id = next(iter(self._waiting))
            if next_id not in self._ended:
                if self._whole:
                    break
                self.speaker = next_id
            heard.append((next_id, "".join(self._waiting.pop(next_id))))
        return heard
