"""The items that the model is writing: messages, reasoning, and calls of the client's tools. The child gives no ids
to messages and reasoning.
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    FullArguments,
    FullReasoning,
    FullText,
    ItemEnded,
    ItemStarted,
    Notice,
    ReasoningDelta,
    ReasoningKind,
    RefusalDelta,
    Stop,
    TextDelta,
)
from codex_proxy.core.items import CallKind, Message, Reasoning, ToolCall
from codex_proxy.core.json_values import is_json


class Messages:
    """The open messages: at most one for each `choice` (None if the child names none)."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._ids: dict[int | None, str] = {}
        self.count = 0
        self.by_choice = False

    def __bool__(self) -> bool:
        return bool(self._ids)

    @property
    def id_without_choice(self) -> str | None:
        return self._ids.get(None)

    def add_delta(self, choice: int | None, text: str) -> None:
        self._events.append(TextDelta(self._ids.get(choice) or self._start(choice), text))

    def finish(self, choice: int | None, event: type[FullText | RefusalDelta], text: str) -> None:
        """Ends the message, and opens it if needed. `text`: the full text, from which `core.repair` later removes
        what was sent as deltas.
        """
        item = self._ids.get(choice) or self._start(choice)
        del self._ids[choice]
        self._events += (event(item, text), ItemEnded(item))

    def end_all(self) -> None:
        self._events.extend(map(ItemEnded, self._ids.values()))
        self._ids.clear()

    def drop_open(self) -> None:
        """Forgets the open messages: after a retry the child sends new ones."""
        self._ids.clear()

    def _start(self, choice: int | None) -> str:
        item = self._ids[choice] = f"m{self.count}"
        self.count += 1
        self.by_choice = self.by_choice or choice is not None
        self._events.append(ItemStarted(Message(item, choice)))
        return item


class ReasoningItems:
    """The open reasoning. The child writes the deltas of all summary parts, then each part's full text, with a section
    break before each.
    """

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._count = 0
        self._item = ""
        self._part = 0
        self._parts_with_deltas: set[int] = set()
        self._raw_deltas = False
        self._full_texts = {"summary": 0, "raw": 0}

    def __bool__(self) -> bool:
        return bool(self._item)

    def section_break(self) -> None:
        """Moves to the next summary part; after a full text, ends the item."""
        if self._has_full_text():
            self.end()
        elif self._part in self._parts_with_deltas:
            self._part += 1

    def add_delta(self, text: str, kind: ReasoningKind) -> None:
        """Adds a delta of raw reasoning, or of the current summary part."""
        if self._has_full_text():
            self.end()
        self._start()
        if kind == "raw":
            self._raw_deltas = True
            self._events.append(ReasoningDelta(self._item, text, 0, "raw"))
        else:
            self._parts_with_deltas.add(self._part)
            self._events.append(ReasoningDelta(self._item, text, self._part))

    def add_full_text(self, text: str, kind: ReasoningKind) -> None:
        """Adds a full text. Ignores raw text after deltas, and a summary part without deltas if another part had
        some: that part's deltas contain its text.
        """
        self._start()
        part = self._full_texts[kind]
        self._full_texts[kind] = part + 1
        if kind == "raw":
            if not self._raw_deltas:
                self._events.append(FullReasoning(self._item, text, part, "raw"))
        elif not self._parts_with_deltas or part in self._parts_with_deltas:
            self._events.append(FullReasoning(self._item, text, part))

    def end(self) -> None:
        if self._item:
            self._events.append(ItemEnded(self._item))
        self.drop_open()

    def drop_open(self) -> None:
        """Forgets the open item: after a retry the child begins another."""
        self._item = ""
        self._part = 0
        self._parts_with_deltas = set()
        self._raw_deltas = False
        self._full_texts = {"summary": 0, "raw": 0}

    def _has_full_text(self) -> bool:
        return any(self._full_texts.values())

    def _start(self) -> None:
        if not self._item:
            self._item = f"r{self._count}"
            self._count += 1
            self._events.append(ItemStarted(Reasoning(self._item)))


_Key = tuple[int | None, int | str]
_STOPS: dict[CallKind | None, Stop] = {
    None: Stop.STOP,
    "function": Stop.TOOL_CALLS,
    "custom": Stop.TOOL_CALLS,
    "legacy": Stop.FUNCTION_CALL,
}
LEGACY_INDEX = "function_call"
"""Stands for the index of a call that came as Chat's old `function_call`, which has none."""


class _OpenCall(msgspec.Struct):
    """A call whose arguments may still come. `id`: the child's."""

    item: str
    id: str | None
    name: str
    pieces: list[str] = []

    def ends_before(self, id: str, name: str, text: str) -> bool:
        """Whether a named piece with this id begins another call."""
        if id == self.id:
            return False
        said = "".join(self.pieces)
        return name != self.name or (is_json(said.encode(errors="replace")) and bool(text) and text != said)


class Calls:
    """The open calls, by choice (or None) and index. Only the fake agent makes calls; it names each in the first piece.
    A call without an id gets one with a number, counted on from `earlier_calls`; one with the id of another a new id.
    A named piece with another id than the open call's begins another call if that is complete, or has another name.
    """

    def __init__(self, events: list[Event], earlier_calls: int = 0) -> None:
        self._events = events
        self._items: dict[_Key, _OpenCall] = {}
        self._given: set[tuple[int | None, str]] = set()
        self._count = 0
        self._earlier_calls = earlier_calls
        self.last_kind: CallKind | None = None

    @property
    def stop(self) -> Stop:
        return _STOPS[self.last_kind]

    def add(
        self,
        key: _Key,
        call_id: str | None,
        name: str | None,
        kind: CallKind,
        event: type[ArgumentsDelta | FullArguments],
        text: str,
    ) -> None:
        """Adds an event with a text, and opens the call if needed. A call may come in pieces, whole, or both."""
        call = self._items.get(key)
        if call is not None and name and call_id and call.ends_before(call_id, name, text):
            self._events.append(ItemEnded(self._items.pop(key).item))
            call = None
        if call is None:
            if not name:
                self._events.append(Notice("nameless_call"))
                return
            call = self._open(key, call_id, name, kind)
        if text:
            if event is ArgumentsDelta:
                call.pieces.append(text)
            self._events.append(event(call.item, text))

    def end_all(self) -> None:
        self._events.extend(ItemEnded(call.item) for call in self._items.values())
        self._items.clear()

    def drop_open(self) -> None:
        """Forgets the open calls: after a retry the child sends them again."""
        self._items.clear()

    def _open(self, key: _Key, call_id: str | None, name: str, kind: CallKind) -> _OpenCall:
        given = call_id or f"call_{self._earlier_calls + self._count}"
        own = f"{given}_{self._count}" if (key[0], given) in self._given else given
        self._given.add((key[0], own))
        call = self._items[key] = _OpenCall(f"c{self._count}", call_id, name)
        self._count += 1
        self.last_kind = kind
        self._events.append(ItemStarted(ToolCall(call.item, own, name, kind, key[0])))
        return call
