"""Parts that all wire formats share: JSON encoding that never fails, texts that grow, the order of text in a stream,
and the base of three renderers.

An agent's text can contain lone surrogates: halves of an escaped character that was divided between two deltas.
UTF-8 cannot encode them, so each becomes U+FFFD. If both halves are in one text they become their character.

Most events are deltas of one message. The bytes around the text are the same for consecutive deltas, so a renderer
computes them once. Two items (calls or messages) that are open at the same time may get their deltas alternately. A
stream contains them one after the other: the deltas of the first item are sent at once, and those of the others
wait until it is closed. Source: docs/contract.md#streams.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from codex_proxy.core.events import Event, Spending, TextDelta
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.usage import TurnTokens

_encoder = msgspec.json.Encoder()
_encode: Callable[[object], bytes] = _encoder.encode


def without_surrogates(text: str) -> str:
    """Returns `text` with each lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_text(text: str) -> bytes:
    """Returns `text` as a JSON string with its quotes; lone surrogates become U+FFFD. Never raises."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(without_surrogates(text))


def json_lines(texts: Sequence[str]) -> bytes:
    """Returns each text as a JSON string (as `json_text` does), separated by newlines. Encoded strings contain no
    newlines. Never raises.
    """
    try:
        return _encoder.encode_lines(texts)[:-1]
    except UnicodeEncodeError:
        return b"\n".join(map(json_text, texts))


def json_bytes(value: Any) -> bytes:
    """Returns `value` as JSON. Texts that do not come from this server must be encoded with `raw_text` before,
    because lone surrogates raise `UnicodeEncodeError`.
    """
    return _encode(value)


def raw_text(text: str) -> msgspec.Raw:
    """Returns `text` as encoded JSON (see `json_text`), to be put into a value for `json_bytes`."""
    return msgspec.Raw(json_text(text))


def schema_json(schema: Any) -> msgspec.Raw:
    """Returns a JSON schema that a client has sent, or another JSON value of a client, as encoded JSON. Uses the
    standard library, because the value may contain integers of any size.
    """
    return msgspec.Raw(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode())


BLANK_LINE: Final = "\n\n"
"""Separates the messages of one answer, and the parts of its reasoning."""

INTERRUPTED: Final = Failure(
    kind=FaultKind.INTERNAL, message="The answer was interrupted before its end. Send the request again."
)
"""The failure of a turn that was interrupted, for APIs that have no word for it."""


class Text:
    """A text of an answer that grows by deltas, each of which is sent in a chunk. It keeps the constant bytes
    around each delta, and every encoded fragment that was sent.
    """

    def __init__(self, before: bytes, after: bytes, *said: bytes) -> None:
        """`before` and `after` are the bytes of a chunk around the text. `said` are fragments of the text, as JSON
        strings, that were already sent in other chunks.
        """
        self._before = before
        self._after = after
        self._fragments = list(said)
        self._lengths = [0]
        """The number of characters in the first fragments, by their number, as far as it was asked for."""

    def add(self, text: str, out: list[bytes]) -> None:
        fragment = json_text(text)
        self._fragments.append(fragment)
        out += (self._before, fragment, self._after)

    def add_all(self, texts: list[str], out: list[bytes]) -> None:
        """Appends a chunk to `out` for each text. All are made by one `bytes.replace`, which is faster than one
        after the other.
        """
        if not texts:
            return
        lines = json_lines(texts)
        self._fragments.append(lines.replace(b'"\n"', b""))
        out += (self._before, lines.replace(b"\n", self._after + self._before), self._after)

    def __bool__(self) -> bool:
        return bool(self._fragments)

    @property
    def count(self) -> int:
        """The number of fragments of the text. The texts of one call of `add_all` are one fragment."""
        return len(self._fragments)

    def length(self, fragments: int) -> int:
        """Returns the number of characters in the first `fragments` fragments."""
        for fragment in self._fragments[len(self._lengths) - 1 : fragments]:
            self._lengths.append(self._lengths[-1] + len(msgspec.json.decode(fragment)))
        return self._lengths[fragments]

    def whole(self) -> msgspec.Raw:
        """Returns the whole text as one JSON string, joined from the fragments."""
        return msgspec.Raw(b'"' + b"".join([fragment[1:-1] for fragment in self._fragments]) + b'"')


class TextRun(msgspec.Struct, frozen=True):
    """Consecutive `TextDelta`s of the message `id`, as a list of their texts."""

    id: str
    texts: list[str]


def pieces_together(events: Iterable[Event]) -> Iterator[Event | TextRun]:
    """Yields the same events in order, except that consecutive `TextDelta`s of one message become one `TextRun`."""
    current_id: str | None = None
    texts: list[str] = []
    for event in events:
        if isinstance(event, TextDelta):
            if event.id != current_id:
                if current_id is not None:
                    yield TextRun(current_id, texts)
                current_id, texts = event.id, []
            texts.append(event.text)
            continue
        if current_id is not None:
            yield TextRun(current_id, texts)
            current_id = None
        yield event
    if current_id is not None:
        yield TextRun(current_id, texts)


class StreamRenderer(ABC):
    """The common part of the renderers of Chat Completions, Messages and Ollama's API. `feed` takes every
    event of the turn, in order, in batches of any size.
    """

    handlers: ClassVar[Mapping[type, Callable[[Any, Any, list[bytes]], None]]]
    """The method that renders each type of event, by appending SSE frames to its last argument. Other events are not
    rendered."""

    def __init__(self, *, stream: bool, prompt_tokens: Callable[[], int]) -> None:
        """`stream`: the answer is streamed. `prompt_tokens` estimates the input tokens."""
        self.spent = TurnTokens()
        self.visible = False
        self.ended = False
        self.failure: Failure | None = None
        self._stream = stream
        self._prompt_tokens = prompt_tokens

    def feed(self, events: Iterable[Event]) -> bytes:
        """Returns the SSE bytes of a batch of events; empty if the answer is not streamed or has ended."""
        out: list[bytes] = []
        handlers = self.handlers
        for event in pieces_together(events):
            if self.ended:
                break
            handler = handlers.get(type(event))
            if handler is not None:
                handler(self, event, out)
        return b"".join(out) if self._stream else b""

    def open(self) -> bytes:
        """Returns the SSE bytes that begin the answer if they were not sent yet; empty if it is not streamed. Called
        before the first keepalive.
        """
        out: list[bytes] = []
        if self._stream and not self.visible:
            self._begin(out)
        return b"".join(out)

    def spending(self) -> Spending:
        """Returns the tokens of the turn so far."""
        return self.spent.spending(
            prompt=self._prompt_tokens, answer=self._answer_tokens, failed=self.failure is not None
        )

    @abstractmethod
    def _begin(self, out: list[bytes]) -> None:
        """Appends the frames that begin the answer to `out`, and sets `visible`."""

    @abstractmethod
    def _answer_tokens(self) -> int:
        """Returns an estimate of the answer's tokens."""


class SerialOutput:
    """Puts the texts of several items (calls or messages) that are open at the same time one after the other. The
    text of the item that was opened first is to be sent at once (`current_id` is its id); the texts of the others are
    kept until that item is closed.

    If `whole` is True, no text is to be sent at once: each item gets all of its text when it is closed.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.current_id: str | None = None
        self._whole = whole
        self._waiting: dict[str, list[str]] = {}
        self._ended: set[str] = set()

    def open(self, id: str) -> bool:
        """Opens the item `id`. Returns whether its text is to be sent at once; if not, the caller passes the text
        to `keep`.
        """
        if self.current_id is None and not self._whole:
            self.current_id = id
            return True
        self._waiting[id] = []
        return False

    def keep(self, id: str, text: str) -> None:
        """Keeps a piece of text of the item `id` until it may be sent. Does nothing if the item is not open."""
        if id in self._waiting:
            self._waiting[id].append(text)

    def close(self, id: str) -> list[tuple[str, str]]:
        """Closes the item `id`. Returns the items whose texts are to be sent now, in order, each with its id and
        its kept text.

        All of these items are closed except possibly the last one, which is then the new `current_id`.
        """
        if id == self.current_id:
            self.current_id = None
        elif id in self._waiting:
            self._ended.add(id)
        ready: list[tuple[str, str]] = []
        while self._waiting and self.current_id is None:
            next_id = next(iter(self._waiting))
            if next_id not in self._ended:
                if self._whole:
                    break
                self.current_id = next_id
            ready.append((next_id, "".join(self._waiting.pop(next_id))))
        return ready
