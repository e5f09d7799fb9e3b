"""Pieces of one message that follow each other in a batch, taken together.

Most events are such pieces. What stands around them on the wire is the same for all of a run, so a renderer
finds it out once per run and not once per piece. It knows no wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from codex_proxy.core.events import Event, TextDelta


class TextRun(msgspec.Struct, frozen=True):
    """Several `TextDelta`s of one message, in order; never none."""

    id: str
    texts: list[str]


def pieces_together(events: Iterable[Event]) -> Iterator[Event | TextRun]:
    """The same events, in order, but `Pieces` in the place of every run of a message's deltas."""
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
