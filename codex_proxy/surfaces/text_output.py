"""How pieces of text come to the wire: those that follow each other are taken together, items go out one by one.

Most events are pieces of one message. What stands around them on the wire is the same for all of a run, so a renderer
finds it out once per run and not once per piece. Two open calls (or two open messages) may get their deltas in turns.
On the wire they are serialised: the first that was opened goes out at once, the pieces of the others wait until it is
closed. Source: docs/contract.md#streams. It knows no wire.
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
    """The same events, in order, with a `TextRun` in the place of every run of a message's deltas."""
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
    """Lets several ids send one after the other: the oldest open one sends, the text of the others is kept.

    In a `whole` lane nobody speaks before the end: each is heard once, all of it, when it is closed.
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
        """Keeps a text of an id that waits; does nothing for one that was never opened."""
        if id in self._waiting:
            self._waiting[id].append(text)

    def close(self, id: str) -> list[tuple[str, str]]:
        """Ends `id`. Gives those that have the word now, in order, each with the text it kept.

        All of them but the last have ended already; the last may go on.
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
