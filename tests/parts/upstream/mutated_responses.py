"""Streams of the Responses API around a known answer, with ids, indexes and events that servers get wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.core.items import Tool

TOOLS: Final = (Tool(name="get_weather"), Tool(name="apply_patch", kind="custom"), Tool(name="now"))
Kind = Literal["reasoning", "message", "refusal", "function", "custom", "search"]


class Known(msgspec.Struct, frozen=True):
    """An item of the answer, as the pieces of its text."""

    kind: Kind
    pieces: tuple[str, ...]
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


THOUGHT: Final = Known("reasoning", ("They ", "ask ", "twice."))
HELLO: Final = Known("message", ("Hel", "lo ", "wörld 😀"))
BYE: Final = Known("message", ("Good", "bye."))
NO: Final = Known("refusal", ("I ", "will not."))
OSLO: Final = Known("function", ('{"city"', ':"Os', 'lo"}'), "get_weather")
ROME: Final = Known("function", ('{"city"', ':"Ro', 'me"}'), "get_weather")
NOW: Final = Known("function", ("{", "}"), "now")
PATCH: Final = Known("custom", ("*** Begin", "\n+x\n", "*** End"), "apply_patch")
SEARCH: Final = Known("search", ("Oslo weather",))
ANSWERS: Final = (
    (HELLO,),
    (THOUGHT, HELLO),
    (NO,),
    (SEARCH, HELLO),
    (HELLO, BYE),
    (OSLO,),
    (NOW,),
    (PATCH,),
    (OSLO, ROME),
    (OSLO, OSLO),
    (HELLO, OSLO, ROME),
    (OSLO, PATCH, ROME),
    (THOUGHT, HELLO, OSLO, NOW, PATCH),
)
Words = frozenset[str]
"""Which events of an item have its text: `deltas`, `done`, `item` (`output_item.done`), `final` (the last event)."""
ALL_WORDS: Final[Words] = frozenset({"deltas", "done", "item", "final"})


class Form(msgspec.Struct, frozen=True):
    """How a server tells an answer. Ids and indexes: see `_id` and `_index`."""

    ids: str = "stable"
    call_ids: str = "stable"
    indexes: str = "stable"
    output: Literal["full", "empty", "missing"] = "full"
    words: Words = ALL_WORDS
    begins: bool = True
    """Whether `output_item.added` and `output_item.done` come."""
    interleaved: bool = False
    wrong: str = ""
    """The word that says something else, if any."""


IDS: Final = ("stable", "each event", "at the end", "at done", "shared", "missing", "empty", "number", "null")
INDEXES: Final = (
    *("stable", "zero", "missing", "boolean", "text", "negative", "huge", "reversed", "null", "each event"),
)
TELLS_ITEMS: Final = frozenset({"stable", "text", "negative", "huge", "reversed"})
"""Indexes and ids that tell each item from the others."""


def is_decidable(form: Form) -> bool:
    """Whether a reader can know which item each event belongs to."""
    if form.ids in ("stable", "at the end") or form.indexes in TELLS_ITEMS:
        return True
    known_at_begin = form.begins and form.ids != "each event"
    return known_at_begin and not form.interleaved and form.indexes in ("zero", "missing", "null")


def body_of(items: Sequence[Known], form: Form) -> bytes:
    """A whole stream."""
    numbers = itertools.count(1)
    told = [_Told(place, item, form, numbers) for place, item in enumerate(items)]
    queues = [each.events() for each in told]
    events = list(_mixed(queues) if form.interleaved else itertools.chain(*queues))
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "completed"}
    if form.output != "missing":
        response["output"] = [each.final() for each in told] if form.output == "full" else []
    events.append({"type": "response.completed", "response": response})
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def _mixed(queues: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """All begin in their order, then each says a word in turn."""
    for row in itertools.zip_longest(*queues):
        yield from (each for each in row if each is not None)


class _Told:
    """An item as the server tells it."""

    def __init__(self, place: int, item: Known, form: Form, numbers: Iterator[int]) -> None:
        self.place, self.item, self.form, self.numbers = place, item, form, numbers
        self.field = {"function": "arguments", "custom": "input"}.get(item.kind, "")

    def events(self) -> list[dict[str, Any]]:
        form, item = self.form, self.item
        found: list[dict[str, Any]] = []
        if form.begins:
            found.append(self._event("response.output_item.added", "begin", item=self._wire("begin", "")))
        name, done_field, more = _EVENTS.get(item.kind, ("", "", {}))
        if name and "deltas" in form.words:
            found += (
                self._event(f"{name}.delta", "delta", delta=piece, **more) for piece in self._said("deltas")
            )
        if name and "done" in form.words:
            said = {done_field: "".join(self._said("done"))}
            found.append(self._event(f"{name}.done", "delta", **said, **more))
        if form.begins:
            text = "".join(self._said("item")) if "item" in form.words else ""
            found.append(self._event("response.output_item.done", "done", item=self._wire("done", text)))
        return found

    def final(self) -> dict[str, Any]:
        text = "".join(self._said("final")) if "final" in self.form.words else ""
        return self._wire("final", text)

    def _said(self, word: str) -> tuple[str, ...]:
        return (
            ('{"city":"Paris"}' if self.field else "Quite another.",)
            if self.form.wrong == word
            else self.item.pieces
        )

    def _event(self, kind: str, when: str, **fields: Any) -> dict[str, Any]:
        event = {"type": kind, **fields}
        if when == "delta" and (id := self._id(when)) is not ...:
            event["item_id"] = id
        if (index := self._index()) is not ...:
            event["output_index"] = index
        return event

    def _wire(self, when: str, text: str) -> dict[str, Any]:
        """The item itself at its begin, when it is done, or in the last event."""
        item = self.item
        wire: dict[str, Any] = {"type": _TYPES[item.kind]}
        if (id := self._id(when)) is not ...:
            wire["id"] = id
        if self.field:
            wire |= {"name": item.name, self.field: text}
            if (call_id := self._call_id(when)) is not ...:
                wire["call_id"] = call_id
        elif item.kind == "reasoning":
            wire["summary"] = [{"type": "summary_text", "text": text}] if text else []
        elif item.kind == "search":
            wire["action"] = {"type": "search", "query": item.text}
        else:
            part = {"type": "output_text", "text": text} if item.kind == "message" else {}
            part = part or {"type": "refusal", "refusal": text}
            wire |= {"role": "assistant", "content": [part] if text else []}
        return wire

    def _id(self, when: str) -> Any:
        return self._name(self.form.ids, f"it_{self.place}", when)

    def _call_id(self, when: str) -> Any:
        return self._name(self.form.call_ids, f"call_{self.place}", when)

    def _name(self, how: str, own: str, when: str) -> Any:
        renewed = how == "each event" or (how == "at the end" and when == "final")
        if renewed or (how == "at done" and when in ("done", "final")):
            return f"{own}_{next(self.numbers)}"
        others: dict[str, Any] = {"shared": "one", "missing": ..., "empty": "", "number": 5, "null": None}
        return others.get(how, own)

    def _index(self) -> Any:
        place = self.place
        values: dict[str, Any] = {
            "stable": place,
            "zero": 0,
            "missing": ...,
            "boolean": bool(place),
            "text": str(place),
            "negative": -place - 1,
            "huge": 10**12 + place,
            "reversed": 9 - place,
            "null": None,
        }
        return values[self.form.indexes] if self.form.indexes in values else next(self.numbers)


_TYPES: Final = {
    "reasoning": "reasoning",
    "message": "message",
    "refusal": "message",
    "function": "function_call",
    "custom": "custom_tool_call",
    "search": "web_search_call",
}
_EVENTS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "reasoning": ("response.reasoning_summary_text", "text", {"summary_index": 0}),
    "message": ("response.output_text", "text", {"content_index": 0}),
    "refusal": ("response.refusal", "refusal", {"content_index": 0}),
    "function": ("response.function_call_arguments", "arguments", {}),
    "custom": ("response.custom_tool_call_input", "input", {}),
}
"""The events of a kind, the field of the whole text, and further fields."""
