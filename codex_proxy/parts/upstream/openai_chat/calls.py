"""Assembles tool calls from deltas, which have an index, an id (in one delta or all), both, or neither. Several calls
may have the index 0, or the same id, and a call another id in each delta.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.agents.shared.conversions import CustomInput, FunctionArguments, object_text
from codex_proxy.core.items import provider_fields
from codex_proxy.core.json_values import canonical_json, object_at, text_at
from codex_proxy.parts.upstream.stream import is_json

NewId: TypeAlias = Callable[[str], str]
"""Returns a new id that begins with the prefix given."""


MAX_ID_CHARS: Final = 64
"""The longest id that OpenAI accepts."""
_MAX_SCALAR_CHARS: Final = 1024
_MARK: Final = re.compile(r'["{}\[\]]|\\.?', re.DOTALL)
"""Matches what decides how deep JSON is nested: brackets, quotes, escapes."""


class Call:
    """A tool call. `id` and `name` are empty until they have come."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.index: Hashable = None
        self.has_nameless = False
        """Whether a delta of it came without its name: then the name again begins another call."""
        self.arguments: list[str] = []
        self.item_id = ""
        """The id of the call's item; empty until the item is begun."""
        self.reader: CustomInput | FunctionArguments = FunctionArguments()
        self.provider_fields = ""
        """See `items.provider_fields`: the first that came."""
        self.old_form = False
        """Whether the server gave the call as `function_call`."""
        self._seen = 0
        """The number of pieces that `is_complete` has read. The fields below are its state behind them."""
        self._depth = 0
        self._in_string = self._escaped = self._has_brackets = False

    @property
    def text(self) -> str:
        return object_text("".join(self.arguments))

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are an object or list that has ended, or another JSON value. Reads each piece once."""
        for piece in self.arguments[self._seen :]:
            self._scan(piece)
        self._seen = len(self.arguments)
        if self._has_brackets:
            return self._depth <= 0 and not self._in_string
        # A server sends such a value whole.
        return (
            len(self.arguments) == 1
            and len(self.arguments[0]) <= _MAX_SCALAR_CHARS
            and is_json(self.arguments[0])
        )

    def _scan(self, piece: str) -> None:
        start = 1 if self._escaped else 0
        self._escaped = False
        for found in _MARK.finditer(piece, start):
            mark = found[0]
            if mark == '"':
                self._in_string = not self._in_string
            elif mark[0] == "\\":
                self._escaped = len(mark) == 1
            elif not self._in_string:
                self._has_brackets = True
                self._depth += 1 if mark in "{[" else -1


class Piece(msgspec.Struct, frozen=True):
    """A call, and the arguments that an entry of `tool_calls` adds."""

    call: Call
    arguments: str


class ToolCalls:
    """The calls of an answer. `all` has them in order."""

    def __init__(self, new_id: Callable[[str], str], taken: Container[str]) -> None:
        """A call with an id in `taken` gets a new one."""
        self.all: list[Call] = []
        self._new_id = new_id
        self._taken = taken
        self._by_id: dict[str, Call] = {}
        self._by_index: dict[Hashable, Call] = {}

    def feed(self, delta: Any, *, beside: Container[Call] = (), old_form: bool = False) -> Piece | None:
        """Adds an entry of `tool_calls`, or a `function_call` (`old_form`). Returns its call and the arguments that it
        adds; None if it is no object. `beside`: the calls of the entries before it in the same list.
        """
        if not isinstance(delta, dict):
            return None
        function = object_at(delta, "function")
        index = delta.get("index")
        index = index if isinstance(index, int | str) and not isinstance(index, bool) else None
        said = arguments_in(function.get("arguments"))
        call = self._call_of(text_at(delta, "id"), index, text_at(function, "name"), said, beside)
        call.old_form = call.old_form or old_form
        call.provider_fields = call.provider_fields or ("" if old_form else provider_fields(delta))
        if said:
            call.arguments.append(said)
        return Piece(call, said)

    def named_calls(self) -> list[Call]:
        """Returns calls with a name, each with an id."""
        made = [call for call in self.all if call.name]
        for call in made:
            call.id = call.id or self._new_id("call_")
        return made

    def rest_of(self, position: int, delta: dict[str, Any]) -> dict[str, Any] | None:
        """Returns what an entry of a whole message's `tool_calls` has beyond the call that came in deltas; None if it
        contradicts that.
        """
        function = object_at(delta, "function")
        call = self._by_id.get(text_at(delta, "id"))
        if call is None:
            call = self.all[position] if position < len(self.all) else None
        if call is None:
            return delta
        said, whole = "".join(call.arguments), arguments_in(function.get("arguments"))
        if text_at(function, "name") not in ("", call.name or text_at(function, "name")):
            return None
        same = said.startswith(whole) or canonical_json(said) == canonical_json(whole)
        if not same and not whole.startswith(said):
            return None
        rest = {"arguments": "" if same else whole[len(said) :]}
        rest |= {} if call.name else {"name": text_at(function, "name")}
        return {"id": call.id or text_at(delta, "id"), "index": call.index, "function": rest}

    def are_repeated_by(self, entries: Sequence[dict[str, Any]]) -> bool:
        """Whether the `tool_calls` of a whole message are all of these calls again, if there are any: none at another
        index, and none that contradicts. Some servers give them other ids then.
        """
        if not self.all or len(entries) < len(self.all):
            return False
        for position, entry in enumerate(entries):
            call, index = self.all[position] if position < len(self.all) else None, entry.get("index")
            is_other = call is not None and None not in (call.index, index) and call.index != index
            if is_other or self.rest_of(position, entry) is None:
                return False
        return True

    def _call_of(self, id: str, index: Hashable, name: str, arguments: str, beside: Container[Call]) -> Call:
        call = self._find(id, index, name, arguments, beside)
        if call is None:
            call = Call()
            self.all.append(call)
            if id:
                usable = id not in self._taken and id not in self._by_id and len(id) <= MAX_ID_CHARS
                call.id = id if usable else self._new_id("call_")
                self._by_id[id] = call
        elif id and not call.id:
            usable = id not in self._taken and id not in self._by_id and len(id) <= MAX_ID_CHARS
            call.id = id if usable else self._new_id("call_")
            self._by_id[id] = call
        if index is not None:
            self._by_index[index] = call
            call.index = index
        call.has_nameless = call.has_nameless or not name
        call.name = call.name or name
        return call

    def _find(
        self, id: str, index: Hashable, name: str, arguments: str, beside: Container[Call]
    ) -> Call | None:
        """Returns the open call that a delta continues: that of its id and index, else of its index, else of its id,
        else the last. Without a name a delta continues it; with one it begins another call if the earlier is complete,
        or has another name. A call of the same name that has no arguments is continued by a delta with arguments, of
        the next chunk; a delta without any that has another id, or stands in the same list, is another call.
        """
        known, placed = self._by_id.get(id) if id else None, self._by_index.get(index)
        if known is not None and (index is None or known.index in (None, index) or not (placed or name)):
            begun: Call | None = known
        elif index is not None:
            begun = placed
        elif id and name and not arguments:
            return None
        else:
            begun = next(reversed(self.all), None)
        if begun is None or not name or not begun.name:
            return begun
        if begun is known and name == begun.name:
            return None if begun.is_complete and (arguments or begun.has_nameless) else begun
        if begun.arguments:
            is_other = begun.is_complete or (name != begun.name and begun is known)
        else:
            is_other = name != begun.name or begun in beside or (id != "" and not arguments)
        return None if is_other else begun


def arguments_in(value: Any) -> str:
    """Returns arguments as a text, which some servers send as an object, or models as another JSON value."""
    if isinstance(value, dict) or (value and not isinstance(value, str)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text_at(value)
