"""Passes an answer's body on, and reads usage, finish reasons, errors and the end from it. The client gets the same
bytes, in whole server-sent events, without errors or usage that it has not asked for, and with its own name of the
model. JSON in place of a stream, or the reverse, is converted. For speed, plain deltas are not decoded: each begins and
ends like the previous one, or its field names are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from codex_proxy.core.damaged_json import has_halves, without_halves
from codex_proxy.core.events import Usage
from codex_proxy.core.json_values import encode_json, object_at, objects_in
from codex_proxy.parts.upstream.openai_chat.answer import usage_in
from codex_proxy.parts.upstream.openai_chat.answer_forms import (
    SaidSoFar,
    SplitPairs,
    WholeAnswer,
    chunks_of,
    sound_answer,
    sound_chunk,
)
from codex_proxy.parts.upstream.openai_chat.calls import NewId
from codex_proxy.parts.upstream.stream import (
    BOM,
    MAX_LINE_BYTES,
    StreamEvent,
    decode_event,
    error_in_line,
    is_error,
    is_no_chunk,
    is_of_stream,
    unreadable_body,
)

DONE: Final = b"data: [DONE]\n\n"


class _Spelling(NamedTuple):
    """What a delta is recognized by, as a server writes its JSON."""

    choices: bytes
    delta: bytes
    unfinished: bytes
    no_usage: bytes


_SPELLINGS: Final = (
    _Spelling(
        b'"choices":[{',
        b'"choices":[{"index":0,"delta":{',
        b'"finish_reason":null',
        b'"usage":null',
    ),
    _Spelling(  # Python's
        b'"choices": [{',
        b'"choices": [{"index": 0, "delta": {',
        b'"finish_reason": null',
        b'"usage": null',
    ),
)
_OUTPUT: Final = re.compile(rb'"(?:content|text|refusal|name|arguments)"\s*:\s*"[^"]|"audio"\s*:\s*\{')
"""Matches what begins output in a chunk (text, refusal, call or audio): in a model's text quotes have a backslash."""
_CALLS: Final = re.compile(rb'"tool_calls"\s*:\s*\[\s*[^\s\]]')
_CHOICE_INDEX: Final = re.compile(rb'"choices": ?\[\{"index": ?(\d{1,9}),')
_MODEL: Final = re.compile(rb'"model"\s*:\s*"[^"\\]*"')
_BLANK_LINES: Final = re.compile(rb"\n\r?\n[\r\n]*")
_SPACE: Final = b" \t\r\n\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r?\n")
_RETURN, _BACKSLASH = b"\r\\"
"""Numbers, which are found in bytes eight times faster than bytes are."""


class PassThrough:
    """Passes one answer on. Call `feed` with each chunk, then `close`; without `is_over`, but with a finish reason,
    also `finish`. All return bytes for the client.
    """

    def __init__(
        self,
        *,
        stream: bool,
        wants_usage: bool,
        model_shown: str | None = None,
        new_id: NewId,
        several: bool = False,
        max_event: int = MAX_LINE_BYTES,
    ) -> None:
        """`stream`, `wants_usage`: what the client asked for. `model_shown` replaces the upstream's name of the model.
        `new_id` makes ids of calls that have none. `several`: whether the client wants several choices, each of which
        has to end.
        `max_event`: maximum bytes of an event, of a JSON object, and of what comes without content.
        """
        self.done = False
        """Whether `[DONE]`, or a whole JSON object, was read."""
        self.fault: StreamEvent | None = None
        """Why nothing more is passed on."""
        self.usage: Usage | None = None
        self.finishes: dict[int, str] = {}
        """The first finish reason of each choice."""
        self._several = several
        self._choices: set[int] = set()
        """The choices so far, if there are several."""
        self.failed = False
        """Whether a finish reason is `error`."""
        self.deltas = 0
        """Number of events with content since the owner set this to 0."""
        self.begun = False
        """Whether any content was read, reasoning included."""
        self.has_output = False
        """Whether a text, refusal or call was read."""
        self._held: list[bytes] = []
        """Events before the first content, which are held back so that a failure can still get an HTTP status, and
        an empty answer a header.
        """
        self._stream = stream
        self._wants_usage = wants_usage
        self._model_shown = model_shown
        self._max_event = max_event
        self._return = b""
        """A carriage return at the end of the last chunk, whose newline may be in the next."""
        self._is_json: bool | None = None
        """Whether the body is JSON, by its first character."""
        self._parts: list[bytes] = []
        """The parts of an incomplete event or object."""
        self._size = 0
        """Bytes since the last event with a chunk, or before the first content."""
        self._head = self._tail = b""
        """The bytes before the text in the last delta's event."""
        self._shown_head = b""
        """The same with the name of the model that is shown, if that is another."""
        self._is_odd = self._is_strange = False
        """Whether chunks came that had to be changed so that SDKs can read them; whether a line is no event's."""
        self._said = SaidSoFar(new_id)
        self._pairs = SplitPairs()
        self._whole, self._kept = WholeAnswer(new_id), 0
        """A stream that is converted to one object, and the bytes kept of it."""

    @property
    def is_over(self) -> bool:
        return self.done or self.fault is not None or self.failed

    @property
    def has_ended(self) -> bool:
        """Whether each choice so far has a finish reason."""
        return bool(self.finishes) and self._choices <= self.finishes.keys()

    def feed(self, chunk: bytes) -> bytes:
        """Reads a chunk, and returns the bytes for the client so far."""
        if self.is_over or not chunk:
            return b""
        if _RETURN in chunk or self._return:
            chunk = self._without_bare_returns(chunk)
        self._size += len(chunk)
        block = passed = b""
        if self._is_json is not None or self._detect_format(chunk):
            whole = self._is_json is False and not self._parts and chunk.endswith(b"\n\n")
            block = chunk if whole else self._block(chunk)
        if block:
            block = _as_utf_8(block)
            self.has_output = self.has_output or _OUTPUT.search(block) is not None
            if undecoded := self._pass_undecoded(block):
                self._size = 0
                return undecoded
            passed = b"".join(self._observe(block))
        if self._size > self._max_event and not self.is_over:
            self._parts.clear()
            self._held.clear()
            self.fault = StreamEvent("too_long")
        return passed

    def _without_bare_returns(self, chunk: bytes) -> bytes:
        """Returns the chunk with newlines, if it has lines that end with a carriage return alone."""
        chunk = self._return + chunk
        self._return = b"\r" if chunk.endswith(b"\r") else b""
        if self._return:
            chunk = chunk[:-1]
        if chunk.count(b"\r") != chunk.count(b"\r\n"):
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def close(self) -> bytes:
        """Returns the last bytes: an event without its blank line, or the converted object."""
        rest = _as_utf_8(b"".join(self._parts))
        self._parts.clear()
        if self.is_over or not rest.strip(_SPACE):
            return b""
        self.has_output = self.has_output or _OUTPUT.search(rest) is not None
        if self._is_json:
            return self._object(rest)
        passed = b"".join(self._event(rest, b""))  # the last event may lack its blank line
        if self.fault is not None and self.fault.kind == "no_json":
            self.fault = None  # the connection has ended in the middle of an event
        if self._is_strange and not (self.is_over or self.begun or self._held or self.finishes):
            self.fault = StreamEvent("no_answer")
        return passed

    def finish(self) -> bytes:
        """Ends an answer whose body lacks its end. Returns the held events and `[DONE]` or, without a stream, the
        whole object.
        """
        self.done = True
        return b"".join((*self._unsent(), DONE)) if self._stream else self._whole_answer()

    def _detect_format(self, chunk: bytes) -> bool:
        first = chunk.lstrip(_SPACE)[:1]
        if not first:
            self._parts.append(chunk)
            return False
        self._is_json = first in (b"{", b"[")
        if first == b"<":
            self.fault = StreamEvent("no_answer")
            return False
        return True

    def _pass_undecoded(self, block: bytes) -> bytes:
        """Returns what to send of a block that is only deltas, and counts them; nothing if it has to be decoded."""
        if not (self._stream and self.begun) or self._held or self._is_odd:
            return b""
        if b'"tool_calls"' in block and _CALLS.search(block):
            return b""
        count = self._count_similar_deltas(block) or self._count_plain_deltas(block)
        if not count or self._pairs.halves or (_BACKSLASH in block and has_halves(block)):
            return b""
        if b"NaN" in block or b"Infinity" in block:  # no JSON, if it is not in a text
            return b""
        if self._model_shown is not None:
            if not self._shown_head or self._count_similar_deltas(block) != count:
                return b""
            block = block.replace(self._head, self._shown_head)
        self.deltas += count
        return block

    def _count_similar_deltas(self, block: bytes) -> int:
        """Returns the number of events in a block if each begins and ends like the delta that `_count_plain_deltas` has
        examined; else 0.
        """
        if not self._head or not (block.startswith(self._head) and block.endswith(self._tail)):
            return 0
        newlines = block.count(b"\n")
        if newlines == 2:
            return 1
        count = block.count(self._head)
        return count if 2 * count == newlines == 2 * block.count(self._tail) else 0

    def _count_plain_deltas(self, block: bytes) -> int:
        """Returns the number of events in a block if each is a delta without finish reason, usage or error; else 0."""
        # Text of the model has no such names: quotes in JSON strings have a backslash.
        spelling = next((each for each in _SPELLINGS if each.choices in block), None)
        if spelling is None or b"error" in block or _RETURN in block:
            return 0
        count = block.count(spelling.choices)
        if self._several:
            indexes = _CHOICE_INDEX.findall(block)
            if len(indexes) != count:
                return 0
            self._choices.update(map(int, indexes))
        if (
            count != block.count(b"\n\n")
            or 2 * count != block.count(b"\n")
            or block.count(spelling.unfinished) != block.count(b'"finish_reason"')
            or block.count(spelling.no_usage) != block.count(b'"usage"')
        ):
            return 0
        if block.startswith(BOM):  # of a server that writes one before each event
            return 0
        last = block[block.rfind(b"\n\n", 0, -2) + 2 if count > 1 else 0 :]
        begin, end = last.find(spelling.delta), last.rfind(spelling.unfinished)
        if 0 < begin < end:
            self._head, self._tail = last[: begin + len(spelling.delta)], last[end:]
            self._shown_head = self._head_with_shown_model(last)
        return count

    def _head_with_shown_model(self, event: bytes) -> bytes:
        """Returns the head of a delta's event with the name that the client asked for; nothing if it has no name."""
        named = _MODEL.search(self._head)
        if self._model_shown is None or named is None or event.count(b'"model"') != 1:
            return b""
        decoded = decode_event(event.strip()[5:], "chunk")
        if decoded.kind != "chunk" or "model" not in decoded.value:
            return b""
        shown = b'"model":' + encode_json(self._model_shown)
        return self._head[: named.start()] + shown + self._head[named.end() :]

    def _block(self, chunk: bytes) -> bytes:
        """Returns the complete events with this chunk, and keeps the rest."""
        end = 0 if self._is_json else _end_of_events(b"".join(self._parts[-2:])[-2:], chunk)
        if end > 0:
            block = b"".join((*self._parts, memoryview(chunk)[:end]))
            self._parts = [chunk[end:]] if end < len(chunk) else []
            return block
        self._parts.append(chunk)
        return b""

    # --- events that are looked at ----------------------------------------------------------------------

    def _observe(self, block: bytes) -> Iterator[bytes]:
        start = 0
        for blank in _BLANK_LINES.finditer(block):
            if self.is_over:
                return
            event = block[start : blank.end()]
            # The first block and the last one may have many plain deltas beside the events that matter.
            if undecoded := self._pass_undecoded(event):
                yield undecoded
            else:
                split = blank.start() + 1 - start
                yield from self._event(event[:split], event[split:])
            start = blank.end()

    def _event(self, lines: bytes, blank: bytes) -> Iterator[bytes]:
        """Decodes an event (its lines, and the blank line). Yields bytes to pass on; sets `fault` for an error."""
        fields = [line for line in _LINE_END.split(lines.removeprefix(BOM)) if line]
        data = [line[5:].strip() for line in fields if line.startswith(b"data:")]
        if not any(data):
            self.fault = next(filter(None, map(error_in_line, fields)), None)
            self._is_strange = self._is_strange or not all(map(is_of_stream, fields))
            if blank and self._stream and all(line.startswith(b":") for line in fields):
                yield from self._release_with(lines + blank)
            return
        if len(data) > 1:  # perhaps of a server that leaves the blank lines out
            alone = [
                each for each in data if each == b"[DONE]" or decode_event(each, "chunk").kind == "chunk"
            ]
            for each in alone:
                yield from self._event(b"data: " + each + b"\n", b"\n")
            if alone:
                return
        name = next((line[6:].strip() for line in fields if line.startswith(b"event:")), b"")
        whole = b"\n".join(data)
        if whole == b"[DONE]":
            if not (self.begun or self.finishes):
                self.fault = StreamEvent("done")
                return
            self.done = True
            if self._stream:
                yield from self._unsent()
                yield lines + blank if blank else DONE
            else:
                yield self._whole_answer()
            return
        event = _decode(whole, "error" if name == b"error" else "chunk")
        if event.kind == "no_json" and is_no_chunk(data):
            return
        if event.kind != "chunk":
            self.fault = event
            return
        chunk = event.value
        if not ("choices" in chunk or chunk.get("usage")):
            return  # a ping, or something else that clients do not know
        if self._pairs.halves or has_halves(whole):
            chunk = self._pairs.mend(chunk, has_deltas=self._has_deltas)
        if self._stream and (sound := self._sound(chunk)) is not chunk:
            # The following ones of such a server have to be looked at, too.
            chunk, self._is_odd = sound, True
        changed = self._replacement_of(chunk)
        if changed is None and (chunk is not event.value or event.is_lenient):
            changed = chunk
        if self.failed:
            return
        self.begun = self.begun or _has_content(event.value)
        if self.begun:
            self._size = 0
        if not self._stream:
            self._keep(chunk, len(whole))
        elif changed is None:
            yield from self._release_with(_as_one_event(lines, blank, fields, data))
        elif changed:
            yield from self._release_with(b"data: " + encode_json(changed) + b"\n\n")

    @property
    def _has_deltas(self) -> bool:
        """Whether deltas have come, which a message then only repeats."""
        return self.begun and not self._said.messages if self._stream else self._whole.has_deltas

    def _sound(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return sound_chunk(chunk, self._said, has_deltas=self._has_deltas)

    def _unsent(self) -> Iterator[bytes]:
        """Yields what is held back at the end."""
        yield from self._held
        if (rest := self._pairs.rest()) is not None:
            yield b"data: " + encode_json(self._sound(rest)) + b"\n\n"

    def _release_with(self, data: bytes) -> Iterator[bytes]:
        """Yields the held-back bytes, then `data`. Before the first content, holds `data` back, too."""
        if not self.begun:
            self._held.append(data)
            return
        yield from self._held
        self._held.clear()
        yield data

    def _replacement_of(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Returns what to send in the chunk's place: None for the chunk itself, empty for nothing."""
        self._note(chunk)
        choices = chunk.get("choices")
        if choices:
            self.deltas += 1
        new = dict(chunk)
        if isinstance(chunk.get("usage"), dict) and not self._wants_usage:
            if not choices:
                return {}
            del new["usage"]
        if self._model_shown is not None and "model" in chunk:
            new["model"] = self._model_shown
        return None if new == chunk else new

    def _keep(self, chunk: dict[str, Any], size: int) -> None:
        self._kept += size
        if self._kept > self._max_event:
            self._whole = WholeAnswer(self._said.new_id)
            self.fault = StreamEvent("too_long")
        else:
            self._whole.add(chunk)

    def _whole_answer(self) -> bytes:
        if (rest := self._pairs.rest()) is not None:
            self._whole.add(rest)
        answer = self._whole.whole()
        if self._model_shown is not None:
            answer["model"] = self._model_shown
        return encode_json(answer)

    def _note(self, chunk: dict[str, Any]) -> None:
        self.usage = usage_in(chunk) or self.usage
        for choice in objects_in(chunk.get("choices")):
            finish, index = choice.get("finish_reason"), choice.get("index")
            index = index if isinstance(index, int) else 0
            if self._several:
                self._choices.add(index)
            if finish and isinstance(finish, str):
                self.finishes.setdefault(index, finish)
                self.failed = self.failed or finish == "error"

    # --- one JSON object --------------------------------------------------------------------------------

    def _object(self, body: bytes) -> bytes:
        """Converts a JSON body to what the client asked for, or sets `fault`."""
        if has_halves(body):
            body = without_halves(body)
        event = decode_event(body.strip(_SPACE), "chunk")
        if event.kind == "no_json":
            if (unreadable := unreadable_body(event, body.strip(_SPACE))) is None:
                return b""
            event = unreadable
        elif event.kind == "chunk" and is_error(event.value):
            event = StreamEvent("error", event.value)
        choices = event.value.get("choices") if event.kind == "chunk" else None
        if event.kind == "chunk" and not (isinstance(choices, list) and choices):
            event = StreamEvent("no_answer")
        if event.kind != "chunk":
            self.fault = event
            return b""
        self.deltas += 1
        self._note(event.value)
        self.done = True
        if self.failed:
            return b""
        if self._stream:
            named = {} if self._model_shown is None else {"model": self._model_shown}
            answer = {**event.value, **named}
            chunks = chunks_of(answer, wants_usage=self._wants_usage, new_id=self._said.new_id)
            return b"".join(b"data: " + encode_json(chunk) + b"\n\n" for chunk in chunks) + DONE
        name = self._model_shown if "model" in event.value else None
        sound = sound_answer(event.value, self._said.new_id)
        if event.is_lenient or sound is not event.value:
            return encode_json(sound if name is None else sound | {"model": name})
        return body if name is None else _with_model(body, name)


def _decode(data: bytes, kind: Literal["chunk", "error"]) -> StreamEvent:
    event = decode_event(data, kind)
    if event.kind == "no_json" and kind == "error":
        return StreamEvent("error", data.decode("utf-8", "replace"))
    return StreamEvent("error", event.value) if event.kind == "chunk" and is_error(event.value) else event


def _as_one_event(lines: bytes, blank: bytes, fields: list[bytes], data: list[bytes]) -> bytes:
    """Returns an event as it came, or with its data in one line if it has other fields than clients know."""
    plain = len(fields) == 1 or (
        len(data) == 1 and all(line.startswith((b"data:", b"event:", b":")) for line in fields)
    )
    if plain and lines.startswith(fields[0]):
        return lines + blank if blank else lines.rstrip(b"\r\n") + b"\n\n"
    return b"data: " + b" ".join(data) + b"\n\n"


def _as_utf_8(data: bytes) -> bytes:
    """Returns the bytes with U+FFFD for what is not UTF-8, at which SDKs fail."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _has_content(chunk: dict[str, Any]) -> bool:
    deltas = (each.get("delta") or each.get("message") for each in objects_in(chunk.get("choices")))
    return any(value for delta in deltas for name, value in object_at(delta).items() if name != "role")


def _end_of_events(before: bytes, chunk: bytes) -> int:
    """Returns the index in `chunk` behind the last complete event, or 0. `before`: the two bytes before, since a blank
    line may be cut.
    """
    end = chunk.rfind(b"\n\n")
    if end >= 0:
        return end + 2
    end = chunk.rfind(b"\n\r\n")
    if end >= 0:
        return end + 3
    found = _BLANK_LINES.search(before + chunk[:2])
    return 0 if found is None else found.end() - len(before)


def _with_model(body: bytes, name: str) -> bytes:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return encode_json(fields | {"model": msgspec.Raw(encode_json(name))})
