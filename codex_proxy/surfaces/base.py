"""What all wire formats share: JSON encoding that never fails, and the order of text in a stream.

An agent's text can contain lone surrogates, halves of an escaped pair that were cut apart between two deltas. UTF-8
cannot encode them, so they become U+FFFD. Where both halves are in one text they become their character.

Most events are deltas of one message. The bytes around them are the same for all deltas in a row, so a renderer
computes them once for the row. Two open calls (or messages) may get their deltas alternately. A stream shows them one
after the other: the first that was opened is sent at once, the others' deltas wait until it is closed. Source:
docs/contract.md#streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from codex_proxy.core.events import Event, TextDelta

_encoder = msgspec.json.Encoder()
_encode: Callable[[object], bytes] = _encoder.encode


def without_surrogates(text: str) -> str:
    """Returns `text` with each lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_text(text: str) -> bytes:
    """Returns `text` as a JSON string with its quotes. Never raises."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(without_surrogates(text))


def json_lines(texts: Sequence[str]) -> bytes:
    """Returns each text as a JSON string, separated by newlines. An encoded string contains no newline. Never
    raises."""
    try:
        return _encoder.encode_lines(texts)[:-1]
    except UnicodeEncodeError:
        return b"\n".join(map(json_text, texts))


def json_bytes(value: Any) -> bytes:
    """Returns `value` as JSON. Texts from elsewhere must go through `json_text` or `raw_text` first."""
    return _encode(value)


def raw_text(text: str) -> msgspec.Raw:
    """Returns `text` as encoded JSON, to be put into a value for `json_bytes`."""
    return msgspec.Raw(json_text(text))


def schema_json(schema: Any) -> msgspec.Raw:
    """Encodes JSON that a client sent, as it was parsed. Uses the standard library, because it may contain integers
    of any size.
    """
    return msgspec.Raw(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode())


class TextRun(msgspec.Struct, frozen=True):
    """Consecutive `TextDelta`s of the message `id`, as a list of their texts."""

    id: str
    texts: list[str]


def pieces_together(events: Iterable[Event]) -> Iterator[Event | TextRun]:
    """Yields the same events in order, with one `TextRun` in place of consecutive `TextDelta`s of one message."""
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
    """Puts the texts of several open items (calls or messages), each with an id, one after the other. The item that
    was opened first sends its text at once; that of the others is kept until it is closed.

    With `whole` an item sends nothing until it is closed, and then all of its text.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.speaker: str | None = None
        self._whole = whole
        self._waiting: dict[str, list[str]] = {}
        self._ended: set[str] = set()

    def open(self, id: str) -> bool:
        """Opens the item `id`. Returns whether its text may be sent at once."""
        if self.speaker is None and not self._whole:
            self.speaker = id
            return True
        self._waiting[id] = []
        return False

    def keep(self, id: str, text: str) -> None:
        """Keeps a text of the open item `id` until it may be sent. Does nothing for an item that was never opened."""
        if id in self._waiting:
            self._waiting[id].append(text)

    def close(self, id: str) -> list[tuple[str, str]]:
        """Closes `id`. Returns the ids whose text may be sent now, in order, each with its kept text.

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
