"""What the model is in the middle of saying: messages, reasoning, and calls of the client's tools.

`codex proto` gives its messages and its reasoning no ids, so they get ours (`m0`, `r0`, `c0`). Each class
appends events to the list it is given; none knows a line.
"""

from __future__ import annotations

from typing import Literal

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

CallKind = Literal["function", "custom", "legacy"]


class Messages:
    """The message that is being said, one per choice; after its whole text the next one begins."""

    __slots__ = ("_ids", "by_choice", "count")

    def __init__(self) -> None:
        self._ids: dict[int | None, str] = {}
        self.count = 0
        self.by_choice = False
        """Whether the child tells choices apart."""

    def __bool__(self) -> bool:
        """Whether one is open."""
        return bool(self._ids)

    @property
    def speaker(self) -> str | None:
        """The open message of an agent that speaks of one answer."""
        return self._ids.get(None)

    def delta(self, choice: int | None, text: str, out: list[Event]) -> None:
        """A piece of text."""
        out.append(TextDelta(self._ids.get(choice) or self._start(choice, out), text))

    def whole(self, choice: int | None, text: str, out: list[Event]) -> None:
        """The whole text, and the end."""
        item = self._ids.get(choice) or self._start(choice, out)
        del self._ids[choice]
        out.append(FullText(item, text))
        out.append(ItemEnded(item))

    def refusal(self, choice: int | None, text: str, out: list[Event]) -> None:
        """A message that says why there is no answer, as a whole."""
        item = self._ids.get(choice) or self._start(choice, out)
        del self._ids[choice]
        out += (RefusalDelta(item, text), ItemEnded(item))

    def end(self, out: list[Event]) -> None:
        """Whatever was not said whole ends as it is."""
        out.extend(map(ItemEnded, self._ids.values()))
        self._ids.clear()

    def forget(self) -> None:
        """A retry: what was begun will not go on, its text comes again as another message."""
        self._ids.clear()

    def _start(self, choice: int | None, out: list[Event]) -> str:
        item = self._ids[choice] = f"m{self.count}"
        self.count += 1
        self.by_choice = self.by_choice or choice is not None
        out.append(ItemStarted(Message(item, choice)))
        return item


class ReasoningItems:
    """The reasoning item that is open. Deltas of all parts come first, then the whole text of each part.

    A break comes before every part, the first one too. What follows a whole text is a new item.
    """

    __slots__ = ("_count", "_item", "_part", "_parts_with_deltas", "_raw_deltas", "_wholes")

    def __init__(self) -> None:
        self._count = 0
        self._item = ""
        self._part = 0
        self._parts_with_deltas: set[int] = set()
        self._raw_deltas = False
        self._wholes = {"summary": 0, "raw": 0}

    def __bool__(self) -> bool:
        """Whether one is open."""
        return bool(self._item)

    def section_break(self, out: list[Event]) -> None:
        """The next part begins; before the first delta of an item this is part 0."""
        if self._told_whole():
            self.end(out)
        elif self._part in self._parts_with_deltas:
            self._part += 1

    def delta(self, text: str, kind: ReasoningKind, out: list[Event]) -> None:
        """A piece of the open part, or of the raw reasoning."""
        if self._told_whole():
            self.end(out)
        self._start(out)
        if kind == "raw":
            self._raw_deltas = True
            out.append(ReasoningDelta(self._item, text, 0, "raw"))
        else:
            self._parts_with_deltas.add(self._part)
            out.append(ReasoningDelta(self._item, text, self._part))

    def whole(self, text: str, kind: ReasoningKind, out: list[Event]) -> None:
        """The whole text of the next part. Where deltas had other parts than the wholes, the deltas stand."""
        self._start(out)
        part = self._wholes[kind]
        self._wholes[kind] = part + 1
        if kind == "raw":
            if not self._raw_deltas:
                out.append(FullReasoning(self._item, text, part, "raw"))
        elif not self._parts_with_deltas or part in self._parts_with_deltas:
            out.append(FullReasoning(self._item, text, part))

    def end(self, out: list[Event]) -> None:
        """The open item ends, if there is one."""
        if self._item:
            out.append(ItemEnded(self._item))
        self.forget()

    def forget(self) -> None:
        """A retry: the item will not go on."""
        self._item = ""
        self._part = 0
        self._parts_with_deltas = set()
        self._raw_deltas = False
        self._wholes = {"summary": 0, "raw": 0}

    def _told_whole(self) -> bool:
        return any(self._wholes.values())

    def _start(self, out: list[Event]) -> None:
        if not self._item:
            self._item = f"r{self._count}"
            self._count += 1
            out.append(ItemStarted(Reasoning(self._item)))


class _Call:
    __slots__ = ("given", "held", "item", "kind")

    def __init__(self, given: str | None, kind: CallKind) -> None:
        self.given = given
        """The child's own id, as soon as it says one."""
        self.kind: CallKind = kind
        self.item = ""
        """Empty until the name is known: a call cannot be told without it."""
        self.held = ""


_Key = tuple[int | None, int | str]
_STOPS: dict[CallKind | None, Stop] = {
    None: Stop.STOP,
    "function": Stop.TOOL_CALLS,
    "custom": Stop.TOOL_CALLS,
    "legacy": Stop.FUNCTION_CALL,
}
LEGACY = "function_call"
"""The index of Chat's old single call; it has no id and comes once per choice."""


class Calls:
    """Calls of the client's tools, by choice and index; an id may come once, late, or never.

    A call that gets no id is named after its place in the conversation (`serial` calls came before it), so
    that ids never repeat within one.
    """

    __slots__ = ("_count", "_done", "_open", "_serial", "seen")

    def __init__(self, serial: int = 0) -> None:
        self._open: dict[_Key, _Call] = {}
        self._done: set[_Key] = set()
        self._count = 0
        self._serial = serial
        self.seen: CallKind | None = None
        """The kind of the last call, where there was one."""

    @property
    def stop(self) -> Stop:
        """Why a turn ended that does not say why."""
        return _STOPS[self.seen]

    def piece(
        self,
        key: _Key,
        call_id: str | None,
        name: str | None,
        arguments: str,
        kind: CallKind,
        out: list[Event],
    ) -> None:
        """An increment of a call; `key` is its choice and index. A call that is over is not said again."""
        call = self._open.get(key)
        if call and call_id and call.given not in (None, call_id):
            self._end(key, out)
            call = None
        if call is None:
            if self._is_done(key, call_id):
                return
            call = self._open[key] = _Call(call_id, kind)
        call.given = call.given or call_id
        if call.item:
            if arguments:
                out.append(ArgumentsDelta(call.item, arguments))
            return
        call.held += arguments
        if name:
            self._start(key, call, name, out)

    def whole(
        self,
        key: _Key,
        call_id: str | None,
        name: str | None,
        arguments: str,
        kind: CallKind,
        out: list[Event],
    ) -> None:
        """A call as a whole, at once or after its increments."""
        if self._is_done(key, call_id):
            return
        key = self._key_of(key, call_id)
        self.piece(key, call_id, name, "", kind, out)
        call = self._open[key]
        if call.item:
            out.append(FullArguments(call.item, arguments))
        self._end(key, out)

    def end(self, out: list[Event]) -> None:
        """The model call is over: so is every call in it."""
        for key in list(self._open):
            self._end(key, out)

    def forget(self) -> None:
        """A retry: what was begun will not go on."""
        self._open.clear()

    def _key_of(self, key: _Key, call_id: str | None) -> _Key:
        """Where the open call with this id is; increments and whole may count differently."""
        if call_id:
            for other, call in self._open.items():
                if other[0] == key[0] and call.given == call_id:
                    return other
        return key

    def _is_done(self, key: _Key, call_id: str | None) -> bool:
        name = LEGACY if key[1] == LEGACY else call_id
        return name is not None and (key[0], name) in self._done

    def _start(self, key: _Key, call: _Call, name: str, out: list[Event]) -> None:
        call_id = call.given or f"call_{self._serial + self._count}"
        call.item = f"c{self._count}"
        self._count += 1
        self.seen = call.kind
        out.append(ItemStarted(ToolCall(call.item, call_id, name, call.kind, key[0])))
        if call.held:
            out.append(ArgumentsDelta(call.item, call.held))

    def _end(self, key: _Key, out: list[Event]) -> None:
        call = self._open.pop(key)
        if not call.item:
            out.append(Notice("nameless_call"))
            return
        out.append(ItemEnded(call.item))
        name = LEGACY if key[1] == LEGACY else call.given
        if name:
            self._done.add((key[0], name))
