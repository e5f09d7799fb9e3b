"""Assembles tool calls from deltas, which have an index, an id (in one delta or all), both, or neither; several calls
may have the index 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import CustomInput
from codex_proxy.agents.upstream.stream import is_json
from codex_proxy.core.json_values import object_at, text_at

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
        self.arguments: list[str] = []
        self.item_id = ""
        """The id of the call's item; empty until the item is begun."""
        self.input: CustomInput | None = None
        """Reads a custom tool's input."""
        self.old_form = False
        """Whether the server gave the call as `function_call`."""
        self._seen = 0
        """How many pieces `is_complete` has read. The fields below are what it knows of them."""
        self._depth = 0
        self._in_string = self._escaped = self._has_brackets = False

    @property
    def text(self) -> str:
        return "".join(self.arguments) or "{}"

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are an object or list that has ended, or another JSON value. Reads each piece once."""
        for piece in self.arguments[self._seen :]:
            self._scan(piece)
        self._seen = len(self.arguments)
        if self._has_brackets:
            return self._depth <= 0 and not self._in_string
        # A server sends such a value whole.
        return len(self.arguments) == 1 and len(self.arguments[0]) <= _MAX_SCALAR_CHARS and is_json(self.text)

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
        self._by_index: dict[int, Call] = {}

    def feed(self, delta: Any, *, old_form: bool = False) -> Piece | None:
        """Adds an entry of `tool_calls`, or a `function_call` (`old_form`); None if it is no object."""
        if not isinstance(delta, dict):
            return None
        function = object_at(delta, "function")
        index = delta.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        call = self._call_of(text_at(delta, "id"), index, text_at(function, "name"))
        call.old_form = call.old_form or old_form
        said = _arguments(function.get("arguments"))
        if said:
            call.arguments.append(said)
        return Piece(call, said)

    def named_calls(self) -> list[Call]:
        """Returns calls with a name, each with an id."""
        made = [call for call in self.all if call.name]
        for call in made:
            call.id = call.id or self._new_id("call_")
        return made

    def _call_of(self, id: str, index: int | None, name: str) -> Call:
        call = self._find(id, index, name)
        if call is None:
            call = Call()
            self.all.append(call)
        if id and not call.id:
            usable = id not in self._taken and len(id) <= MAX_ID_CHARS
            call.id = id if usable else self._new_id("call_")
            self._by_id[id] = call
        if index is not None:
            self._by_index[index] = call
        call.name = call.name or name
        return call

    def _find(self, id: str, index: int | None, name: str) -> Call | None:
        """Returns the open call that a delta continues: by id, else by index, else the last. A name without an id
        begins a new call if the earlier one is complete.
        """
        if id:
            if id in self._by_id:
                return self._by_id[id]
            begun = None if index is None else self._by_index.get(index)
            # Ollama gives every call the index 0: another id is another call, whatever its index.
            return begun if begun is not None and not begun.id else None
        begun = next(reversed(self.all), None) if index is None else self._by_index.get(index)
        if begun is not None and name and begun.name and begun.is_complete:
            return None  # without an id only the name tells of another call
        return begun


def _arguments(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text_at(value)
