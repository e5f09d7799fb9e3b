"""The items that the model is writing at the moment: messages, reasoning, and calls of the client's tools.

`codex proto` (the child) gives messages and reasoning no ids, so they get ids here (`m0`, `r0`; calls are `c0`).
The methods append the events of an item (start, deltas, end) to the list `out`.
"""

from __future__ import annotations

from typing import Literal

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
    """The messages that are open, at most one for each choice. The parameter `choice` is the index of the choice
    that a text belongs to; None if the child does not report one. The methods append events to `out`. `count` is
    the number of messages so far in the turn; `by_choice` is whether any of them belonged to a choice.
    """

    __slots__ = ("_ids", "by_choice", "count")

    def __init__(self) -> None:
        self._ids: dict[int | None, str] = {}
        self.count = 0
        self.by_choice = False
        """Whether any message so far belonged to a particular choice."""

    def __bool__(self) -> bool:
        """Returns whether any message is open."""
        return bool(self._ids)

    @property
    def without_choice(self) -> str | None:
        """The item id of the open message that belongs to no particular choice; None if there is none."""
        return self._ids.get(None)

    def add_delta(self, choice: int | None, text: str, out: list[Event]) -> None:
        """Adds a piece of text to the open message of this choice; opens one if there is none."""
        out.append(TextDelta(self._ids.get(choice) or self._start(choice, out), text))

    def finish_with(self, choice: int | None, text: str, out: list[Event]) -> None:
        """Ends the message of this choice: appends its full text, then the end. (`core.repair` later removes the
        part of the text that was already sent as deltas.) Opens a message first if none is open.
        """
        item = self._ids.get(choice) or self._start(choice, out)
        del self._ids[choice]
        out.append(FullText(item, text))
        out.append(ItemEnded(item))

    def refuse(self, choice: int | None, text: str, out: list[Event]) -> None:
        """Ends the message of this choice with the model's refusal: appends its `text` and the end. Opens a message
        first if none is open.
        """
        item = self._ids.get(choice) or self._start(choice, out)
        del self._ids[choice]
        out += (RefusalDelta(item, text), ItemEnded(item))

    def end_all(self, out: list[Event]) -> None:
        """Closes all open messages. Appends only their ends, because the deltas contained the whole texts."""
        out.extend(map(ItemEnded, self._ids.values()))
        self._ids.clear()

    def drop_open(self) -> None:
        """Forgets the open messages without closing them, because after a retry the child sends their text again,
        in new messages.
        """
        self._ids.clear()

    def _start(self, choice: int | None, out: list[Event]) -> str:
        """Opens a message for this choice, and returns its item id."""
        item = self._ids[choice] = f"m{self.count}"
        self.count += 1
        self.by_choice = self.by_choice or choice is not None
        out.append(ItemStarted(Message(item, choice)))
        return item


class ReasoningItems:
    """The reasoning item that is open, if any. Its methods append events to `out`.

    The child writes the deltas of all summary parts first, then the full text of each part. A section break comes
    before each part, the first included. After a full text, anything but another full text opens a new item.
    """

    __slots__ = ("_count", "_full_texts", "_item", "_part", "_parts_with_deltas", "_raw_deltas")

    def __init__(self) -> None:
        self._count = 0
        self._item = ""
        self._part = 0
        self._parts_with_deltas: set[int] = set()
        self._raw_deltas = False
        self._full_texts = {"summary": 0, "raw": 0}

    def __bool__(self) -> bool:
        """Returns whether a reasoning item is open."""
        return bool(self._item)

    def section_break(self, out: list[Event]) -> None:
        """Handles the section break that the child writes before each summary part: further deltas belong to the
        next part. After a full text, ends the item instead. The break before the first delta of an item changes
        nothing.
        """
        if self._has_full_text():
            self.end(out)
        elif self._part in self._parts_with_deltas:
            self._part += 1

    def add_delta(self, text: str, kind: ReasoningKind, out: list[Event]) -> None:
        """Appends a delta of the reasoning text. With the kind `raw` it belongs to the raw reasoning, otherwise to
        the current summary part. Opens a reasoning item first if none is open.
        """
        if self._has_full_text():
            self.end(out)
        self._start(out)
        if kind == "raw":
            self._raw_deltas = True
            out.append(ReasoningDelta(self._item, text, 0, "raw"))
        else:
            self._parts_with_deltas.add(self._part)
            out.append(ReasoningDelta(self._item, text, self._part))

    def add_full_text(self, text: str, kind: ReasoningKind, out: list[Event]) -> None:
        """Appends the full text of the next part of this kind (`summary` or `raw`). (`core.repair` later removes
        the part of the text that was already sent as deltas.)

        If any summary part has had deltas, a summary text whose own part has had none is left out: without a
        section break its deltas were added to an earlier part, and would be repeated. A raw text is left out if the
        raw reasoning has had deltas, which then contain it.
        """
        self._start(out)
        part = self._full_texts[kind]
        self._full_texts[kind] = part + 1
        if kind == "raw":
            if not self._raw_deltas:
                out.append(FullReasoning(self._item, text, part, "raw"))
        elif not self._parts_with_deltas or part in self._parts_with_deltas:
            out.append(FullReasoning(self._item, text, part))

    def end(self, out: list[Event]) -> None:
        """Closes the open item, if there is one."""
        if self._item:
            out.append(ItemEnded(self._item))
        self.drop_open()

    def drop_open(self) -> None:
        """Forgets the open item without closing it, because after a retry the child begins another one."""
        self._item = ""
        self._part = 0
        self._parts_with_deltas = set()
        self._raw_deltas = False
        self._full_texts = {"summary": 0, "raw": 0}

    def _has_full_text(self) -> bool:
        """Returns whether the open item has received the full text of any part."""
        return any(self._full_texts.values())

    def _start(self, out: list[Event]) -> None:
        """Opens a reasoning item, if none is open."""
        if not self._item:
            self._item = f"r{self._count}"
            self._count += 1
            out.append(ItemStarted(Reasoning(self._item)))


class _Call:
    """A call whose arguments are still arriving."""

    __slots__ = ("call_id", "early_arguments", "item_id", "kind")

    def __init__(self, kind: CallKind) -> None:
        self.call_id: str | None = None
        """The child's id of the call; None until it has given one."""
        self.kind: CallKind = kind
        self.item_id = ""
        """The id of the item; empty until the tool's name is known, since an item needs it."""
        self.early_arguments: list[str] = []
        """The pieces of the arguments that came before the name."""


_Key = tuple[int | None, int | str]
_STOPS: dict[CallKind | None, Stop] = {
    None: Stop.STOP,
    "function": Stop.TOOL_CALLS,
    "custom": Stop.TOOL_CALLS,
    "legacy": Stop.FUNCTION_CALL,
}
LEGACY = "function_call"
"""The index of the call in Chat's old `function_call`, which has no id and occurs once per choice."""


class Calls:
    """The open calls of the client's tools. The parameter `key` is a pair: the choice (None if there is none), and
    the index of the call. The methods append events to `out`. `last_kind` is the kind of the newest call, None if
    there was none.

    The child may give the id of a call with its first piece, later or never. A call without an id gets an id with a
    number that continues from `earlier_calls`, the number of calls in the conversation before, so that no id occurs
    twice.
    """

    __slots__ = ("_count", "_done", "_earlier_calls", "_held", "_keys", "_open", "last_kind")

    def __init__(self, earlier_calls: int = 0) -> None:
        self._open: dict[_Key, _Call] = {}
        self._keys: dict[tuple[int | None, str], _Key] = {}
        """The key of each open call that has an id, by its choice and id."""
        self._held = HeldSize("arguments of calls before their names")
        self._done: set[_Key] = set()
        self._count = 0
        self._earlier_calls = earlier_calls
        self.last_kind: CallKind | None = None
        """The kind of the last call; None if there was none."""

    @property
    def stop(self) -> Stop:
        """The stop reason for a turn whose end does not name one: `STOP` if the turn had no call, otherwise
        `TOOL_CALLS`, or `FUNCTION_CALL` if the last call was in the old form `function_call`.
        """
        return _STOPS[self.last_kind]

    def add_piece(
        self,
        key: _Key,
        call_id: str | None,
        name: str | None,
        arguments: str,
        kind: CallKind,
        out: list[Event],
    ) -> None:
        """Handles a piece of a call. `call_id` and `name` are None in a piece that does not have them. Once the
        tool's name is known, appends the start of the call's item and the arguments as deltas; arguments that came
        before the name are stored until then. Pieces of a complete call are ignored.
        """
        call = self._open.get(key)
        if call and call_id and call.call_id not in (None, call_id):
            self._end(key, out)
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
                out.append(ArgumentsDelta(call.item_id, arguments))
            return
        if arguments:
            self._held.add(len(arguments) + DELTA_SIZE)
            call.early_arguments.append(arguments)
        if name:
            self._start(key, call, name, out)

    def finish_with(
        self,
        key: _Key,
        call_id: str | None,
        name: str | None,
        arguments: str,
        kind: CallKind,
        out: list[Event],
    ) -> None:
        """Ends a call: appends its full arguments, then the end. (`core.repair` later removes the part of the
        arguments that was already sent as deltas.) `call_id` and `name` are None if the child does not repeat them.
        Does nothing for a call that is already complete.
        """
        if self._is_done(key, call_id):
            return
        key = self._key_of(key, call_id)
        self.add_piece(key, call_id, name, "", kind, out)
        call = self._open[key]
        if call.item_id:
            out.append(FullArguments(call.item_id, arguments))
        self._end(key, out)

    def end_all(self, out: list[Event]) -> None:
        """Closes all open calls, because the model's answer is complete."""
        for key in list(self._open):
            self._end(key, out)
        self._held.clear()

    def drop_open(self) -> None:
        """Forgets the open calls without closing them, because after a retry the child sends them again."""
        self._open.clear()
        self._keys.clear()

    def _key_of(self, key: _Key, call_id: str | None) -> _Key:
        """Returns the key under which the call with this id is open, else `key`. The pieces of a call and its full
        form may have different indexes.
        """
        return self._keys.get((key[0], call_id), key) if call_id else key

    def _is_done(self, key: _Key, call_id: str | None) -> bool:
        """Returns whether this call is complete. A call without an id is never recognized as complete, except the
        old form `function_call`.
        """
        name = LEGACY if key[1] == LEGACY else call_id
        return name is not None and (key[0], name) in self._done

    def _start(self, key: _Key, call: _Call, name: str, out: list[Event]) -> None:
        """Opens the item of a call: appends its start with the tool's `name`, and the arguments that came before
        the name.
        """
        call_id = call.call_id or f"call_{self._earlier_calls + self._count}"
        call.item_id = f"c{self._count}"
        self._count += 1
        self.last_kind = call.kind
        out.append(ItemStarted(ToolCall(call.item_id, call_id, name, call.kind, key[0])))
        if call.early_arguments:
            out.append(ArgumentsDelta(call.item_id, "".join(call.early_arguments)))
            call.early_arguments.clear()

    def _end(self, key: _Key, out: list[Event]) -> None:
        """Closes the open call `key`. A call that never had a name becomes a `Notice` instead."""
        call = self._open.pop(key)
        if call.call_id and self._keys.get((key[0], call.call_id)) == key:
            del self._keys[key[0], call.call_id]
        if not call.item_id:
            out.append(Notice("nameless_call"))
            return
        out.append(ItemEnded(call.item_id))
        name = LEGACY if key[1] == LEGACY else call.call_id
        if name:
            self._done.add((key[0], name))
