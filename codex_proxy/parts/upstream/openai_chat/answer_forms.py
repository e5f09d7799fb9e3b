"""Answers of Chat Completions in other forms: a whole one as chunks, and the reverse, with unknown fields, in linear
time, without an exception, `content` and arguments as texts whatever came; and chunks in which no surrogate pair is
divided, because a client that decodes each chunk alone, as SDKs do, would get two halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import object_at, objects_in, value_at, without_surrogates
from codex_proxy.core.retries import FIRST_HALF, SECOND_HALF
from codex_proxy.parts.upstream.openai_chat.answer import SaidText, texts_in
from codex_proxy.parts.upstream.openai_chat.calls import (
    Call,
    NewId,
    Piece,
    ToolCalls,
    arguments_in,
)

_WHOLE_TEXTS: Final = frozenset({"role", "id", "type", "name"})
"""Fields whose texts never come in pieces: the first counts."""


def chunks_of(answer: dict[str, Any], *, wants_usage: bool, new_id: NewId) -> Iterator[dict[str, Any]]:
    """Yields a chunk with all choices and, if `wants_usage`, one with the usage."""
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    said = [
        _as_delta(place, choice, new_id) for place, choice in enumerate(objects_in(answer.get("choices")))
    ]
    yield {**head, "choices": said}
    usage = answer.get("usage")
    if wants_usage and usage is not None:
        yield {**head, "choices": [], "usage": usage}


def sound_answer(answer: dict[str, Any], new_id: NewId) -> dict[str, Any]:
    """Returns a whole answer itself if SDKs can read it; else one whose choices each have an index and a message of
    texts, and calls with ids.
    """
    given = answer["choices"]
    for choice in given:  # without further calls: most answers are sound
        message = choice.get("message") if isinstance(choice, dict) else None
        if (
            not isinstance(message, dict)
            or type(choice.get("index")) is not int
            or not isinstance(message.get("role"), str)
            or not (message.get("content") is None or isinstance(message["content"], str))
            or message.get("tool_calls")
            or message.get("function_call")
        ):
            break
    else:
        return answer
    choices = []
    for place, choice in enumerate(objects_in(given)):
        message = _with_texts(object_at(choice, "message") or object_at(choice, "delta"))
        said = {name: value for name, value in choice.items() if name != "delta"}
        message = _with_ids({"role": "assistant", "content": None, **message}, new_id)
        choices.append({**said, "index": _index_of(choice, place), "message": message})
    return answer if choices == given else {**answer, "choices": choices}


class SaidMessage:
    """What the messages have said that come in place of deltas, as pieces of one choice."""

    def __init__(self) -> None:
        self._text = SaidText()
        self._calls = ToolCalls(lambda _: "", ())
        self._fields: set[str] = set()
        """The names of fields that were not empty."""

    def add(self, message: dict[str, Any], *, is_last: bool) -> dict[str, Any]:
        """Returns the delta in a message that is a piece of the answer; the last one may also be all of it."""
        content, calls = message.get("content"), list(objects_in(message.get("tool_calls")))
        delta = message
        if isinstance(content, str) and is_last and self._text and self._text.begins(content):
            delta = self._new_in(message, calls) | {"content": self._text.rest_of(content)}
        elif is_last and not self._text and self._calls.are_repeated_by(calls):
            delta = self._new_in(message, calls)
        if isinstance(delta.get("content"), str):
            self._text.add(delta["content"])
        fed: set[Call] = set()
        for call in objects_in(delta.get("tool_calls")):
            if (piece := self._calls.feed(call, beside=fed)) is not None:
                fed.add(piece.call)
        self._fields.update(name for name, value in delta.items() if value)
        return delta

    def _new_in(self, message: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the fields that were empty until now, and of the calls what has not come."""
        new = {
            name: value
            for name, value in message.items()
            if name not in self._fields and name != "tool_calls"
        }
        left = []
        for position, call in enumerate(calls):
            rest = self._calls.rest_of(position, call)
            if rest is None or position >= len(self._calls.all):
                left.append(call)
            elif rest["function"].get("arguments") or rest["function"].get("name"):
                left.append(rest)
        return new | ({"tool_calls": left} if left else {})


class PassedCalls:
    """The calls of a choice of a stream, as SDKs join them: by index, with all texts of an id and a name."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._calls = ToolCalls(new_id, ())
        self._places: dict[Call, int] = {}
        self._ids: set[str] = set()
        self._begun: set[Call] = set()
        """The calls whose id was sent."""
        self._named: set[Call] = set()

    def mended(self, entries: list[Any]) -> list[dict[str, Any]]:
        """Returns the next entries of `tool_calls`, each with the index of its call; its first has an id and a type,
        and only one has its name.
        """
        fed: set[Call] = set()
        told: list[dict[str, Any]] = []
        for entry in entries:
            if (piece := self._calls.feed(entry, beside=fed)) is not None:
                fed.add(piece.call)
                told.append(self._entry(entry, piece))
        return told

    def _entry(self, entry: dict[str, Any], piece: Piece) -> dict[str, Any]:
        call = piece.call
        told = {**entry, "index": self._places.setdefault(call, len(self._places))}
        if call not in self._begun and (call.name or entry.get("id")):
            self._begun.add(call)
            told = _with_id(told, self._ids, self._new_id)
        elif told.get("id"):
            del told["id"]
        if isinstance(function := entry.get("function"), dict):
            function = _with_arguments(function)
            if function.get("name") and call in self._named:
                function = {name: value for name, value in function.items() if name != "name"}
            elif call.name:
                self._named.add(call)
            told["function"] = function
        return told


def _with_id(call: dict[str, Any], taken: set[str], new_id: NewId) -> dict[str, Any]:
    """Returns a call with an id that is not among the `taken` ones, which it is added to, and a type."""
    id = call.get("id")
    if not isinstance(id, str) or not id or id in taken:
        call = {**call, "id": (id := new_id("call_"))}
    taken.add(id)
    return call if call.get("type") or "custom" in call else {**call, "type": "function"}


def _with_ids(message: dict[str, Any], new_id: NewId) -> dict[str, Any]:
    """Returns a whole message whose calls each have an id of their own."""
    if not isinstance(message.get("tool_calls"), list):
        return message
    taken: set[str] = set()
    calls = [_with_id(call, taken, new_id) for call in objects_in(message["tool_calls"])]
    return {**message, "tool_calls": calls}


class SaidSoFar(msgspec.Struct):
    """What a stream has said, by choice."""

    new_id: NewId
    messages: dict[int, SaidMessage] = {}
    """Of a stream with messages in place of deltas."""
    calls: dict[int, PassedCalls] = {}


def sound_chunk(chunk: dict[str, Any], said: SaidSoFar, *, has_deltas: bool) -> dict[str, Any]:
    """Returns the chunk itself if SDKs can read it; else one with a list of `choices`, each with an index and a delta
    of texts, and beside these with the texts `id` and `object`. `has_deltas`: whether a delta has come,
    which messages then only repeat.
    """
    messages = None if has_deltas else said.messages
    choices = [
        _sound_choice(place, choice, messages)
        for place, choice in enumerate(objects_in(chunk.get("choices")))
    ]
    for choice in choices:
        entries = choice["delta"].get("tool_calls")
        if isinstance(entries, list) and entries:
            if (calls := said.calls.get(choice["index"])) is None:
                calls = said.calls[choice["index"]] = PassedCalls(said.new_id)
            choice["delta"] = {**choice["delta"], "tool_calls": calls.mended(entries)}
    sound = {**chunk, "choices": choices}
    if choices and not isinstance(chunk.get("id"), str):
        sound["id"] = str(chunk.get("id") or "")
    if choices and not isinstance(chunk.get("object"), str):
        sound["object"] = "chat.completion.chunk"
    return chunk if sound == chunk else sound


def _sound_choice(
    place: int, choice: dict[str, Any], messages: dict[int, SaidMessage] | None
) -> dict[str, Any]:
    sound = {**choice, "index": _index_of(choice, place)}
    if _has_message(choice, has_deltas=messages is None):
        del sound["message"]
        if messages is None:
            return {**sound, "delta": {}}
        said = messages.setdefault(sound["index"], SaidMessage())
        message = _with_texts(object_at(choice, "message"))
        return {**sound, "delta": said.add(message, is_last=bool(choice.get("finish_reason")))}
    delta = object_at(choice, "delta")
    content = delta.get("content")
    is_known = not isinstance(content, list) or all(
        value_at(each, "type") in ("text", "thinking") for each in content
    )
    return {**sound, "delta": _with_texts(delta) if is_known else delta}


def _has_message(choice: dict[str, Any], *, has_deltas: bool) -> bool:
    """Whether a choice's message counts, and not its delta. `has_deltas`: whether such came before."""
    if not isinstance(choice.get("message"), dict):
        return False
    return "delta" not in choice or not (choice["delta"] or has_deltas)


class WholeAnswer:
    """Joins chunks to an answer. `add` may change its chunks."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    @property
    def has_deltas(self) -> bool:
        """Whether a delta has come."""
        return any(choice.has_deltas for choice in self._choices.values())

    def add(self, chunk: dict[str, Any]) -> None:
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in self._fields):
                self._fields[name] = value
        for choice in objects_in(chunk.get("choices")):
            index = _index_of(choice, 0)
            if index not in self._choices:
                self._choices[index] = _Choice(index)
            self._choices[index].add(choice)

    def whole(self) -> dict[str, Any]:
        """Returns the joined answer. May be called once."""
        choices = [choice.whole(self._new_id) for _, choice in sorted(self._choices.items())]
        return {**self._fields, "object": "chat.completion", "choices": choices}


class _Choice:
    def __init__(self, index: int) -> None:
        self._fields: dict[str, Any] = {"index": index}
        self._message: dict[str, Any] = {}
        self.has_deltas = False
        self._texts: list[tuple[dict[str, Any], str]] = []
        """The objects and their keys with a `SaidText` as the value."""
        self._calls = ToolCalls(lambda _: "", ())
        self._entries: dict[Call, dict[str, Any]] = {}

    def add(self, choice: dict[str, Any]) -> None:
        if delta := object_at(choice, "delta"):
            self.has_deltas = True
            self._add(self._message, _with_texts(delta))
        if message := object_at(choice, "message"):
            self._add_message(_with_texts(message), is_last=bool(choice.get("finish_reason")))
        for name, value in choice.items():
            if name == "logprobs" and isinstance(value, dict):
                if not isinstance(self._fields.get(name), dict):
                    self._fields[name] = {}
                self._add(self._fields[name], value)
            elif name not in ("index", "delta", "message") and (value or not self._fields.get(name)):
                self._fields[name] = value

    def whole(self, new_id: NewId) -> dict[str, Any]:
        self._join_texts()
        message = _with_one_form_of_calls({"role": "assistant", "content": None, **self._message})
        message = _with_ids(message, new_id)
        return {**self._fields, "message": message} | _finish_of(self._fields, message)

    def _add_message(self, message: dict[str, Any], *, is_last: bool) -> None:
        """Adds a `message`: the whole answer behind its deltas, or a piece of it in place of a delta."""
        said, whole = self._message.get("content"), message.get("content")
        said = SaidText(said) if isinstance(said, str) else said
        repeats = False
        if is_last and isinstance(said, SaidText) and isinstance(whole, str):
            repeats = bool(said) and said.begins(whole)
        if is_last and not said:
            repeats = self._calls.are_repeated_by(list(objects_in(message.get("tool_calls"))))
        if not self.has_deltas and not repeats:
            self._add(self._message, message)
            return
        for name, value in message.items():
            if value:
                self._message.pop(name, None)
        self._add(self._message, {name: value for name, value in message.items() if value})

    def _add(self, into: dict[str, Any], delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            known = into.get(name)
            if name == "tool_calls" and isinstance(value, list):
                self._add_calls(into, objects_in(value))
            elif isinstance(value, str) and isinstance(known, SaidText):
                known.add(value)
            elif name in _WHOLE_TEXTS and known and isinstance(value, str):
                pass
            elif isinstance(value, str) and isinstance(known, str):
                into[name] = SaidText(known, value)
                self._texts.append((into, name))
            elif isinstance(value, list) and isinstance(known, list):
                known += value
            elif isinstance(value, dict) and isinstance(known, dict):
                self._add(known, value)
            elif value is not None or name not in into:
                into[name] = value

    def _add_calls(self, into: dict[str, Any], deltas: Iterable[dict[str, Any]]) -> None:
        if not isinstance(into.get("tool_calls"), list):
            into["tool_calls"] = []
            self._calls, self._entries = ToolCalls(lambda _: "", ()), {}
        fed: set[Call] = set()
        for delta in deltas:
            piece = self._calls.feed(delta, beside=fed)
            if piece is None:
                continue
            fed.add(piece.call)
            entry = self._entries.get(piece.call)
            if entry is None:
                entry = self._entries[piece.call] = {}
                into["tool_calls"].append(entry)
            self._add(entry, {name: value for name, value in delta.items() if name != "index"})

    def _join_texts(self) -> None:
        for into, name in self._texts:
            text = into.get(name)
            if isinstance(text, SaidText):
                into[name] = str(text)


def _as_delta(place: int, choice: dict[str, Any], new_id: NewId) -> dict[str, Any]:
    delta = _with_ids(_delta_in(choice), new_id)
    said = {name: value for name, value in choice.items() if name != "message"}
    return {**said, "index": _index_of(choice, place), "delta": delta} | _finish_of(choice, delta)


def _delta_in(choice: dict[str, Any]) -> dict[str, Any]:
    """Returns the delta of a choice that has a message, or in place of it a delta."""
    delta = _with_texts(object_at(choice, "message") or object_at(choice, "delta"))
    if isinstance(delta.get("tool_calls"), list):
        delta["tool_calls"] = [
            {**call, "index": index} for index, call in enumerate(objects_in(delta["tool_calls"]))
        ]
    return delta


def _index_of(choice: dict[str, Any], otherwise: int) -> int:
    index = choice.get("index")
    return index if type(index) is int else otherwise


def _finish_of(choice: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """Returns the reason of an answer that has ended without one, for clients need it."""
    finish = choice.get("finish_reason")
    if isinstance(finish, str) and finish:
        return {"finish_reason": finish}
    return {"finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message or delta with texts where some servers have objects and lists."""
    message = dict(message)
    if isinstance(message.get("content"), list):
        said = list(texts_in(message["content"]))
        message["content"] = "".join(text for _, text in said)
        thought = "".join(reasoning for reasoning, _ in said)
        if thought and not message.get("reasoning_content"):
            message["reasoning_content"] = thought
    if isinstance(message.get("function_call"), dict):
        message["function_call"] = _with_arguments(message["function_call"])
    if isinstance(message.get("tool_calls"), list):
        calls = objects_in(message["tool_calls"])
        message["tool_calls"] = [
            {**call, "function": _with_arguments(call["function"])}
            if isinstance(call.get("function"), dict)
            else call
            for call in calls
        ]
    return _with_one_form_of_calls(message)


def _with_one_form_of_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message without its `function_call` if it also has `tool_calls`, which then has the same call."""
    if isinstance(message.get("function_call"), dict) and message.get("tool_calls"):
        return {name: value for name, value in message.items() if name != "function_call"}
    return message


def _with_arguments(function: dict[str, Any]) -> dict[str, Any]:
    given = function.get("arguments")
    if given is None or isinstance(given, str):
        return function
    return {**function, "arguments": arguments_in(given)}


MAX_HALVES: Final = 100
"""Maximum texts of a stream that wait for the other half."""
Path = tuple[str | int, ...]


class SplitPairs:
    """The first halves of a stream. Give `mend` the chunks that have halves, and while `halves` wait all others; `rest`
    at the end.
    """

    def __init__(self) -> None:
        self.halves: dict[Path, str] = {}
        """First halves of surrogate pairs, each until its second half comes, by the choice and the path of the text."""
        self._head: dict[str, Any] = {}
        """The fields of the last chunk beside its choices."""

    def mend(self, chunk: dict[str, Any], *, has_deltas: bool) -> dict[str, Any]:
        """Returns the chunk with whole characters: a half at the end of a text waits for the next chunk. A half without
        another becomes U+FFFD, at a finish reason also one that waits. `has_deltas`: see `_has_message`.
        """
        self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
        choices = []
        for choice in objects_in(chunk.get("choices")):
            index = _place_of(choice, 0)
            field = "message" if _has_message(choice, has_deltas=has_deltas) else "delta"
            delta = self._mended(object_at(choice, field), (index,))
            if choice.get("finish_reason"):
                _merge(delta, self._delta_of(index))
            choices.append({**choice, field: delta})
        return {**chunk, "choices": choices}

    def rest(self) -> dict[str, Any] | None:
        """Returns a chunk with U+FFFD for the halves that wait, if any does."""
        indexes = dict.fromkeys(path[0] for path in self.halves)
        if not indexes:
            return None
        choices = [
            {"index": index, "delta": self._delta_of(index), "finish_reason": None} for index in indexes
        ]
        return {**self._head, "choices": choices}

    def _mended(self, value: Any, path: Path) -> Any:
        if isinstance(value, str):
            return self._with_half(value, path)
        if isinstance(value, dict):
            return {name: self._mended(each, (*path, name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self._mended(each, (*path, _place_of(each, n))) for n, each in enumerate(value)]
        return value

    def _with_half(self, text: str, path: Path) -> str:
        half = self.halves.pop(path, "")
        if not half and text.isascii():
            return text
        text = half + text
        if FIRST_HALF <= text[-1:] < SECOND_HALF and len(self.halves) < MAX_HALVES:
            self.halves[path], text = text[-1], text[:-1]
        return without_surrogates(text)

    def _delta_of(self, index: str | int) -> dict[str, Any]:
        """Returns a delta with U+FFFD for each half of a choice that waits, which it no longer does."""
        delta: dict[str, Any] = {}
        for path in [path for path in self.halves if path[0] == index]:
            value: Any = without_surrogates(self.halves.pop(path))
            for step in reversed(path[1:]):
                if isinstance(step, int):
                    value = [{"index": step, **value}] if isinstance(value, dict) else [value]
                else:
                    value = {step: value}
            _merge(delta, value)
        return delta


def _place_of(entry: Any, place: int) -> int:
    index = entry.get("index") if isinstance(entry, dict) else None
    return index if type(index) is int else place


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds a delta to another, in front of its texts."""
    for name, value in more.items():
        known = into.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
            continue
        both = isinstance(known, str | list) and isinstance(value, type(known))
        into[name] = value + known if both else value
