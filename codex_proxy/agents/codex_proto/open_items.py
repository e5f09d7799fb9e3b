"""The items that the model is writing: messages, reasoning, and calls of the client's tools. The child gives no ids
to messages and reasoning.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from codex_proxy.agents.dialect import HeldSize
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
from codex_proxy.core.items import Message, Reasoning, ToolCall
from codex_proxy.core.limits import DELTA_SIZE, ITEM_SIZE

CallKind = Literal["function", "custom", "legacy"]


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


class _Call(msgspec.Struct):
    kind: CallKind
    call_id: str | None = None
    """The child's id, once given."""
    item_id: str = ""
    """The item's id; empty until the name is known."""
    early_arguments: list[str] = []
    """Pieces that came before the name."""


_Key = tuple[int | None, int | str]
_STOPS: dict[CallKind | None, Stop] = {
    None: Stop.STOP,
    "function": Stop.TOOL_CALLS,
    "custom": Stop.TOOL_CALLS,
    "legacy": Stop.FUNCTION_CALL,
}
LEGACY_INDEX = "function_call"
"""Stands for the index of a call that came as Chat's old `function_call`, which has none."""


class Calls:
    """The open calls, by `key`: choice (or None) and index. A call without an id gets one with a number, counted on
    from `earlier_calls`.
    """

    def __init__(self, events: list[Event], earlier_calls: int = 0) -> None:
        self._events = events
        self._open: dict[_Key, _Call] = {}
        self._keys: dict[tuple[int | None, str], _Key] = {}
        self._held = HeldSize("arguments of calls before their names")
        self._done: set[_Key] = set()
        self._count = 0
        self._earlier_calls = earlier_calls
        self.last_kind: CallKind | None = None

    @property
    def stop(self) -> Stop:
        return _STOPS[self.last_kind]

    def add_piece(
        self, key: _Key, call_id: str | None, name: str | None, arguments: str, kind: CallKind
    ) -> None:
        """Adds a piece; the item starts when the name is known. Ignores a complete call."""
        call = self._open.get(key)
        if call and call_id and call.call_id not in (None, call_id):
            self._end(key)
            call = None
        if call is None:
            if self._is_done(key, call_id):
                return
            self._held.add(ITEM_SIZE)
            call = self._open[key] = _Call(kind)
        if call_id and call.call_id is None:
            call.call_id = call_id
            self._keys.setdefault((key[0], call_id), key)
        if call.item_id:
            if arguments:
                self._events.append(ArgumentsDelta(call.item_id, arguments))
            return
        if arguments:
            self._held.add(len(arguments) + DELTA_SIZE)
            call.early_arguments.append(arguments)
        if name:
            self._start(key, call, name)

    def finish_with(
        self, key: _Key, call_id: str | None, name: str | None, arguments: str, kind: CallKind
    ) -> None:
        """Ends a call with its full arguments, from which `core.repair` later removes what was sent as pieces."""
        if self._is_done(key, call_id):
            return
        key = self._key_of(key, call_id)
        self.add_piece(key, call_id, name, "", kind)
        call = self._open[key]
        if call.item_id:
            self._events.append(FullArguments(call.item_id, arguments))
        self._end(key)

    def end_all(self) -> None:
        for key in list(self._open):
            self._end(key)
        self._held.clear()

    def drop_open(self) -> None:
        """Forgets the open calls: after a retry the child sends them again."""
        self._open.clear()
        self._keys.clear()

    def _key_of(self, key: _Key, call_id: str | None) -> _Key:
        """Returns the key of the open call with this id: pieces and full form may have different indexes."""
        return self._keys.get((key[0], call_id), key) if call_id else key

    def _is_done(self, key: _Key, call_id: str | None) -> bool:
        name = LEGACY_INDEX if key[1] == LEGACY_INDEX else call_id
        return name is not None and (key[0], name) in self._done

    def _start(self, key: _Key, call: _Call, name: str) -> None:
        call_id = call.call_id or f"call_{self._earlier_calls + self._count}"
        call.item_id = f"c{self._count}"
        self._count += 1
        self.last_kind = call.kind
        self._events.append(ItemStarted(ToolCall(call.item_id, call_id, name, call.kind, key[0])))
        if call.early_arguments:
            self._events.append(ArgumentsDelta(call.item_id, "".join(call.early_arguments)))
            call.early_arguments.clear()

    def _end(self, key: _Key) -> None:
        call = self._open.pop(key)
        if call.call_id and self._keys.get((key[0], call.call_id)) == key:
            del self._keys[key[0], call.call_id]
        if not call.item_id:
            self._events.append(Notice("nameless_call"))
            return
        self._events.append(ItemEnded(call.item_id))
        name = LEGACY_INDEX if key[1] == LEGACY_INDEX else call.call_id
        if name:
            self._done.add((key[0], name))
