"""What all APIs share to render an answer: JSON encoding that never fails (a lone surrogate becomes U+FFFD), growing
texts, their order in a stream, the bases of renderers, and parts of the types from which `/openapi.json` is made
(`http/openapi.py`), where the docstring of a type is its description. Source: docs/contract.md#streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Meta

from codex_proxy.core.events import (
    AnnotationAdded,
    AnswerDetails,
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    Spending,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.items import Activity, Item, McpCall, Message
from codex_proxy.core.json_values import without_surrogates
from codex_proxy.surfaces.answers.usage import TurnTokens, json_tokens

T = TypeVar("T")

JsonText: TypeAlias = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "string"})]
"""A text that is JSON already (see `surfaces/answers/renderer.py`: `raw_text`)."""
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Yes: TypeAlias = Annotated[bool, Meta(extra_json_schema={"const": True})]
"""A field that is true where it is present."""
Object: TypeAlias = Annotated[Any, Meta(extra_json_schema={"type": "object"})]
"""A JSON object, decoded or as JSON text."""


def one_of(words: Iterable[str]) -> Meta:
    """Returns the annotation of a text that is one of `words`."""
    return Meta(extra_json_schema={"enum": list(words)})


class ItemList(TypedDict, Generic[T]):
    """One page of a list."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


_encoder = msgspec.json.Encoder()
json_bytes: Final[Callable[[Any], bytes]] = _encoder.encode
"""Returns a value as JSON. Texts of clients and agents must be in `raw_text`."""


def json_text(text: str) -> bytes:
    """Returns `text` as a JSON string. Never raises."""
    try:
        return json_bytes(text)
    except UnicodeEncodeError:
        return json_bytes(without_surrogates(text))


def json_lines(texts: Sequence[str]) -> bytes:
    """Returns each text as a JSON string on a line of its own."""
    try:
        # A list, because msgspec 0.22 never frees the iterator of anything else.
        return _encoder.encode_lines([*texts])[:-1]
    except UnicodeEncodeError:
        return b"\n".join(map(json_text, texts))


def raw_text(text: str) -> msgspec.Raw:
    """Returns `text` as encoded JSON, for `json_bytes`."""
    return msgspec.Raw(json_text(text))


def schema_json(schema: Any) -> msgspec.Raw:
    """Returns a client's schema, or other JSON, encoded."""
    return msgspec.Raw(json_bytes(schema))


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def raw_fields(value: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Returns the fields of an object, each encoded."""
    return _decode_fields(json_bytes(value))


def activity_line(item: Item) -> str | None:
    """Describes an action of the agent or server in a line."""
    if isinstance(item, McpCall):
        return f"[mcp_call] {item.server_label}.{item.name}"
    return f"[{item.kind}] {' '.join(item.text.split())}" if isinstance(item, Activity) else None


BLANK_LINE: Final = "\n\n"
"""Separates the messages of one answer, and the parts of its reasoning."""


def message_with_param(failure: Failure) -> str:
    """Returns the message, with the field in front if it does not name it."""
    param, message = failure.param, failure.message
    return f"{param}: {message}" if param and param not in message else message


class TextParts:
    """A text whose parts have a blank line between them."""

    part: object = None
    """The part of the last text."""

    def with_separator(self, part: object, text: str) -> str:
        """Returns `text`, behind a blank line if the last one was of another part."""
        if self.part not in (None, part):
            text = BLANK_LINE + text
        self.part = part
        return text


_NOTHING_JOINED: Final = (0, msgspec.Raw(b'""'))


class Text(TextParts):
    """A text that grows by deltas, each between constant bytes."""

    def __init__(self, before: bytes, after: bytes, *sent: bytes) -> None:
        """`before`, `after`: the bytes around a chunk's text. `sent`: the text that other chunks have sent, as JSON
        without quotes.
        """
        self._before = before
        self._after = after
        self._between = after + before
        self._fragments = list(sent)
        self._lengths = [0]
        """The characters before each fragment, as far as `length` has counted."""
        self._joined: tuple[int, msgspec.Raw] = _NOTHING_JOINED
        """The first so many fragments as one JSON string: at the end it is asked for several times."""

    def add(self, text: str, out: list[bytes]) -> None:
        fragment = json_text(text)
        self._fragments.append(fragment)
        out += (self._before, fragment, self._after)

    def add_all(self, texts: list[str], out: list[bytes]) -> None:
        """Appends a chunk for each text, all made by one `bytes.replace`."""
        if not texts:
            return
        lines = json_lines(texts)
        self._fragments.append(lines.replace(b'"\n"', b""))
        out += (self._before, lines.replace(b"\n", self._between), self._after)

    def __bool__(self) -> bool:
        return bool(self._fragments)

    @property
    def count(self) -> int:
        """Number of fragments: one for each `add` and `add_all`."""
        return len(self._fragments)

    def length(self, fragments: int) -> int:
        for fragment in self._fragments[len(self._lengths) - 1 : fragments]:
            self._lengths.append(self._lengths[-1] + len(msgspec.json.decode(fragment)))
        return self._lengths[fragments]

    def whole(self) -> msgspec.Raw:
        count, joined = self._joined
        if count != len(self._fragments):
            whole = b"".join([b'"', *[fragment[1:-1] for fragment in self._fragments], b'"'])
            self._joined = len(self._fragments), (joined := msgspec.Raw(whole))
        return joined


class TextRun(msgspec.Struct, frozen=True):
    """Consecutive `TextDelta`s of the message `id`."""

    id: str
    texts: list[str]


def merge_text_deltas(events: Iterable[Event]) -> list[Event | TextRun]:
    """Joins consecutive `TextDelta`s of a message."""
    merged: list[Event | TextRun] = []
    current_id: str | None = None
    texts: list[str] = []
    for event in events:
        if not isinstance(event, TextDelta):
            current_id = None
            merged.append(event)
            continue
        if event.id != current_id:
            current_id, texts = event.id, []
            merged.append(TextRun(event.id, texts))
        texts.append(event.text)
    return merged


HANDLERS: Final[Mapping[type, str]] = {
    TextRun: "_on_text",
    RefusalDelta: "_on_refusal",
    ReasoningDelta: "_on_reasoning",
    ArgumentsDelta: "_on_arguments",
    OutputDelta: "_on_output",
    AnnotationAdded: "_on_annotation",
    HostedEvent: "_on_hosted",
    ItemStarted: "_on_item_started",
    ItemEnded: "_on_item_ended",
    RawItem: "_on_raw_item",
    ApprovalRequested: "_on_approval",
    AnswerDetails: "_on_details",
    UsageReported: "_on_usage",
    StepCompleted: "_on_step_completed",
    TurnEnded: "_on_turn_ended",
}
"""The renderer's method for each type of event; others are not shown."""


class RenderOptions(TypedDict, total=False):
    """The options of all renderers. `prompt_tokens` estimates the input, `max_tokens` limits the estimated answer."""

    stream: bool
    prompt_tokens: Callable[[], int]
    max_tokens: int | None


class Renderer(ABC):
    """Renders a turn's events in an API's form: `feed` for a stream, `result` for a whole answer."""

    _handlers: ClassVar[Mapping[type, Callable[..., None]]]

    def __init_subclass__(cls) -> None:
        cls._handlers = {event: getattr(cls, name) for event, name in HANDLERS.items() if hasattr(cls, name)}

    def __init__(
        self,
        *,
        stream: bool = False,
        prompt_tokens: Callable[[], int] = lambda: 0,
        max_tokens: int | None = None,
    ) -> None:
        self.spent = TurnTokens()
        self.visible = False
        """Whether something was sent, so that a failure has no HTTP status."""
        self.ended = False
        self.failure: Failure | None = None
        self.finish_reason = ""
        """The reason of the answer's end; empty until it has ended without a failure."""
        self._stream = stream
        # Once: the usage in the answer, the usage report and an API's first event ask for it.
        self._prompt_tokens = cache(prompt_tokens)
        self._max_tokens = max_tokens
        self._ended_with: int | None = None
        """The estimated tokens of the answer, if it has ended."""

    def feed(self, events: Iterable[Event]) -> bytes:
        """Returns a batch's bytes, if the answer is streamed and has not ended."""
        return b"".join(self.pieces(events))

    @abstractmethod
    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        """Returns the bytes of `feed` in pieces to be sent one by one."""

    @abstractmethod
    def open(self) -> bytes:
        """Returns the bytes that begin a stream, once."""

    def break_off(self, failure: Failure) -> bytes:
        """Ends the answer with a failure, after an exception in this server's code: what was rendered before may be
        broken, and is not used. Returns the bytes that end a begun stream.
        """
        self.ended, self.failure, self.finish_reason = True, failure, ""
        last = self._error(failure)
        return last if self._stream else b""

    @abstractmethod
    def _error(self, failure: Failure) -> bytes:
        """Returns the bytes that end a stream with a failure."""

    def result(self) -> bytes:
        """Returns the whole answer. Raises the `Fault` of a failed turn."""
        if self.failure is not None:
            raise Fault(self.failure)
        return self._whole()

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """The finish reason of each choice; empty until the turn has ended without a failure."""
        return (self.finish_reason,) if self.finish_reason else ()

    def spending(self) -> Spending:
        """Returns the tokens so far, for the usage report."""
        return self.spent.spending(
            prompt=self._prompt_tokens, answer=self._answer_tokens, failed=self.failure is not None
        )

    def _tokens(self) -> Usage:
        return self.spent.tokens(prompt=self._prompt_tokens, answer=self._answer_tokens)

    def _answer_tokens(self) -> int:
        if self._ended_with is not None:
            return self._ended_with
        tokens = self._count_tokens()
        self._ended_with = tokens if self.ended else None
        return tokens

    def _limit(self, tokens: int) -> int:
        return tokens if self._max_tokens is None else min(tokens, self._max_tokens)

    @abstractmethod
    def _whole(self) -> bytes:
        """Returns the whole answer of a turn that has not failed."""

    @abstractmethod
    def _count_tokens(self) -> int:
        """Estimates the tokens of the answer so far; none has more than `max_tokens`."""


class StreamRenderer(Renderer):
    """A renderer whose handlers append to their last argument, `out`."""

    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        out: list[bytes] = []
        handlers = self._handlers
        for event in merge_text_deltas(events):
            if self.ended:
                break
            handler = handlers.get(type(event))
            if handler is not None:
                handler(self, event, out)
        return out if self._stream else []

    def open(self) -> bytes:
        out: list[bytes] = []
        if self._stream and not self.visible:
            self._begin(out)
        return b"".join(out)

    @abstractmethod
    def _begin(self, out: list[bytes]) -> None:
        """Appends the beginning of the answer to `out`, and sets `visible`."""

    def _on_usage(self, event: UsageReported, out: list[bytes]) -> None:
        self.spent.add_total(event)

    def _on_step_completed(self, event: StepCompleted, out: list[bytes]) -> None:
        self.spent.add_call(event)


class SerialOutput:
    """Puts the texts of open items in order: the first item's (`current_id`) is sent at once, the next one's when the
    first is closed; with `whole`, each when it is closed.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.current_id: str | None = None
        self._whole = whole
        self._waiting: dict[str, list[str]] = {}
        self._ended: set[str] = set()

    def open(self, id: str) -> bool:
        """Whether the item's text is sent at once; else it is to be kept."""
        if self.current_id is None and not self._whole:
            self.current_id = id
            return True
        self._waiting[id] = []
        return False

    def keep(self, id: str, text: str) -> None:
        if id in self._waiting:
            self._waiting[id].append(text)

    def close(self, id: str) -> list[tuple[str, str]]:
        """Returns the ids and kept texts of the items to send now; the last may still be open."""
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


_WITHOUT_WORD: Final = frozenset({Stop.TOOL_CALLS, Stop.FUNCTION_CALL, Stop.INTERRUPTED})
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
        return self._limit(json_tokens([bytes(self._content.whole()), *self._arguments]))

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
        self.failure = event.failure
        if self.failure is not None:
            out.append(self._error(self.failure))
            return
        self.visible = True
        stop = (event.choice_stops or {}).get(0, event.stop)
        self.finish_reason = "stop" if stop in _WITHOUT_WORD else str(stop)
        self.spent.end(event)
        self._end(out)
