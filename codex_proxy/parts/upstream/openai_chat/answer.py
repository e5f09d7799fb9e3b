"""Reads one answer of a Chat Completions server: chunks (`choices[0].delta`), or a whole one (`choices[0].message`), in
any form; reasoning in a text that begins with `<think>...</think>` is separated from the answer, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any, Final

from codex_proxy.agents.shared.conversions import CustomInput
from codex_proxy.core.events import (
    AnnotationAdded,
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from codex_proxy.core.items import Message, Reasoning, ToolCall, ToolKind
from codex_proxy.core.json_values import count_at, encode_json, objects_in, text_at, value_at
from codex_proxy.parts.upstream.openai_chat.calls import Call, Piece, ToolCalls
from codex_proxy.parts.upstream.stream import usage_of

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class ThinkTags:
    """Separates one text into reasoning and answer. `plain`: all further text is the answer."""

    def __init__(self) -> None:
        self.plain = False
        self._inside = False
        self._after = False
        """Whether the closing tag was read, but no answer yet."""
        self._spaces: list[str] = []
        """White space before the text, which is part of the answer only if no tag follows."""
        self._held = ""
        """Text that may be part of a tag."""

    def feed(self, piece: str) -> tuple[str, str]:
        """Returns the reasoning and the answer in the next piece."""
        if self.plain:
            return "", piece
        if not (self._held or self._inside or self._after):
            start = piece.lstrip()
            self._spaces.append(piece[: len(piece) - len(start)])
            piece = start
        self._held += piece
        if not self._inside and not self._after:
            if self._held.startswith(OPEN):
                self._inside, self._held = True, self._held[len(OPEN) :]
                self._spaces.clear()
            elif OPEN.startswith(self._held):
                return "", ""
            else:
                return "", self._all_plain()
        reasoning = self._reasoning() if self._inside else ""
        if self._inside:
            return reasoning, ""
        self._held = self._held.lstrip()
        return reasoning, self._all_plain() if self._held else ""

    def close(self) -> tuple[str, str]:
        """Returns the reasoning and the answer that were held back."""
        if self._inside:
            held, self._held = self._held, ""
            return held, ""
        return "", "" if self._after else self._all_plain()

    def _reasoning(self) -> str:
        said, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._inside, self._after, self._held = False, True, rest
            return said
        keep = next((n for n in range(len(CLOSE) - 1, 0, -1) if said.endswith(CLOSE[:n])), 0)
        self._held = said[len(said) - keep :]
        return said[: len(said) - keep]

    def _all_plain(self) -> str:
        self.plain = True
        text = "".join((*self._spaces, self._held))
        self._spaces.clear()
        self._held = ""
        return text


class SaidText:
    """A text that comes in pieces. To compare it takes time proportional to what it is compared with, for a server may
    send something to compare with each piece.
    """

    def __init__(self, *pieces: str) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._first = 0
        """The number of pieces of white space at the beginning."""
        self._indent = 0
        """The white space at the beginning of the piece behind them."""
        for piece in pieces:
            self.add(piece)

    def __bool__(self) -> bool:
        return self._size > 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        if not piece:
            return
        if self._first == len(self._pieces):
            self._indent = len(piece) - len(piece.lstrip())
            self._first += self._indent == len(piece)
        self._pieces.append(piece)
        self._size += len(piece)

    def begins(self, whole: str) -> bool:
        """Whether `whole` begins with this text."""
        return self._size <= len(whole) and whole.startswith(str(self))

    def rest_of(self, whole: str) -> str | None:
        """Returns what `whole` has beyond this text: nothing if it is only its beginning, white space around them
        aside; None if it says something else.
        """
        if self.begins(whole):
            return whole[self._size :]
        return "" if self._begins_with(whole.strip()) else None

    def _begins_with(self, start: str) -> bool:
        place, indent, at = self._first, self._indent, 0
        while at < len(start):
            piece = (
                self._pieces[place][indent : indent + len(start) - at] if place < len(self._pieces) else ""
            )
            if not piece or not start.startswith(piece, at):
                return False
            place, indent, at = place + 1, 0, at + len(piece)
        return True


DETAILS: Final = ("service_tier", "system_fingerprint")
"""Fields that are passed on to the client."""
TOKEN_DETAILS: Final = {
    "prompt_tokens_details": ("audio_tokens", "cache_write_tokens"),
    "completion_tokens_details": ("audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"),
}
"""Counts without a field in `Usage`, which are passed on."""
MAX_ANNOTATIONS: Final = 1000


class ChatAnswer:
    """Converts an answer to events. Private methods append to `out`."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        *,
        streamed_kind: Callable[[str], ToolKind | None],
        taken_ids: Container[str],
    ) -> None:
        """`streamed_kind` returns a tool's kind if its calls are sent while they arrive. A call with one of `taken_ids`
        gets a new id.
        """
        self.finish: str | None = None
        """The first finish reason, if any."""
        self.usage: Usage | None = None
        """The last reported usage: servers that report it in each chunk send running totals."""
        self.calls = ToolCalls(new_id, taken_ids)
        self.text = SaidText()
        """Texts and refusals so far."""
        self._refusal = SaidText()
        self.reasoning: list[str] = []
        self.reasoning_id = ""
        self.message_id = ""
        self.fields: dict[str, str] = {}
        """The `DETAILS` so far."""
        self.has_new_fields = False
        """Whether `fields` has changed since the reader set this to False."""
        self.annotations: list[Any] = []
        """The annotations so far, at most `MAX_ANNOTATIONS`."""
        self._sent_annotations = 0
        """How many annotations were returned."""
        self.tokens: dict[str, dict[str, int]] = {}
        """The last `TOKEN_DETAILS`."""
        self._new_id = new_id
        self._streamed_kind = streamed_kind
        self._think = ThinkTags()
        self._has_deltas = False
        self.contradicts = False
        """Whether the server has said something else than what was sent."""
        self._open: dict[str, str] = {}
        """Ids of open items: by `message`, `reasoning`, or, of calls, whose ids a server chooses, by themselves."""

    @property
    def begun(self) -> bool:
        """Whether content, a call or a finish reason has come."""
        return bool(self.finish or self._open or self.message_id or self.reasoning_id or self.calls.all)

    def feed(self, chunk: dict[str, Any]) -> list[Event]:
        """Returns the chunk's events. Parts of an unexpected form are ignored."""
        usage = usage_in(chunk)
        if usage is not None:
            self.usage = usage
            self.tokens = _further_tokens(chunk)
        for name in DETAILS:
            value = chunk.get(name)
            if isinstance(value, str) and value != self.fields.get(name):
                self.fields[name] = value
                self.has_new_fields = True
        choices = objects_in(chunk.get("choices"))
        choice = next((each for each in choices if not each.get("index")), None)
        if choice is None:
            return []
        delta, message = choice.get("delta"), choice.get("message")
        out: list[Event] = []
        if isinstance(delta, dict) and delta:
            self._has_deltas = True
            self._add_delta(delta, out)
        if isinstance(message, dict):
            self._add_message(message, is_last=bool(choice.get("finish_reason")), out=out)
        self.finish = self.finish or text_at(choice, "finish_reason") or None
        return out

    def close(self, *, cut_off: bool = False) -> list[Event]:
        """Returns held text, complete calls, and the ends of items: of calls whose arguments were `cut_off` as
        incomplete.
        """
        out: list[Event] = []
        self._add_split(*self._think.close(), out)
        for call in self.calls.named_calls():
            kind = self._streamed_kind(call.name)
            if kind is None:
                continue
            if not call.item_id:
                self._begin_call(call, kind, out)
            is_cut = cut_off and not call.is_complete
            if not is_cut or kind == "custom":
                self._add_call_text(call, call.reader.close(), out)
            if is_cut:
                out.append(ItemEnded(self._open.pop(call.item_id), "incomplete"))
        out += [ItemEnded(id) for id in self._open.values()]
        self._open.clear()
        return out

    def _add_delta(self, delta: dict[str, Any], out: list[Event]) -> None:
        reasoning = _reasoning_in(delta)
        if reasoning:
            self._add_reasoning(reasoning, out)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._add_split(*self._think.feed(content), out)
        elif isinstance(content, list):
            for reasoning, text in texts_in(content):
                self._add_split(reasoning, text, out)
        if refusal := text_at(delta, "refusal"):
            self.text.add(refusal)
            self._refusal.add(refusal)
            out.append(RefusalDelta(self._message(out), refusal))
        annotations = delta.get("annotations")
        if isinstance(annotations, list) and annotations:
            self.annotations += annotations[: MAX_ANNOTATIONS - len(self.annotations)]
        if len(self.annotations) > self._sent_annotations and "message" in self._open:
            new = self.annotations[self._sent_annotations :]
            self._sent_annotations = len(self.annotations)
            out += [
                AnnotationAdded(self.message_id, encode_json(form))
                for form in map(_flat_annotation, new)
                if form
            ]
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            self._add_calls(calls, out)
        legacy = delta.get("function_call")
        # Servers that send both (llama-cpp-python) mean the same call.
        if isinstance(legacy, dict) and (not self.calls.all or self.calls.all[0].old_form):
            piece = self.calls.feed({"index": 0, "function": legacy}, old_form=True)
            assert piece is not None
            self._add_call(piece, out)

    def _add_message(self, message: dict[str, Any], *, is_last: bool, out: list[Event]) -> None:
        """Adds a `message`: the whole answer, of which deltas may have said a part, or a piece of it in place of a
        delta.
        """
        whole, refusal = message.get("content"), text_at(message, "refusal")
        came = self.begun and (self._has_deltas or is_last)
        if came and isinstance(whole, str) and not (self._has_deltas and self.reasoning):
            if (rest := self._rest_of(self.text, whole)) is not None:
                message = message | {"content": rest}
            elif self._has_deltas:
                self.contradicts = True
                return
        elif came and self._has_deltas and self.text:
            message = message | {"content": ""}  # how much of it was reasoning is not known
        if came and self.reasoning:
            message = {name: value for name, value in message.items() if not name.startswith("reasoning")}
        if came and (rest := self._rest_of(self._refusal, refusal)) is not None:
            message = message | {"refusal": rest}
        if came and self._has_deltas and self.calls.all:
            message = message | {"function_call": None}  # it has come
        calls = message.get("tool_calls")
        if came and isinstance(calls, list) and self.calls.all:
            rests = [self.calls.rest_of(position, each) for position, each in enumerate(objects_in(calls))]
            self.contradicts = self.contradicts or None in rests
            message = message | {"tool_calls": [rest for rest in rests if rest is not None]}
        self._add_delta(message, out)

    def _rest_of(self, said: SaidText, whole: str) -> str | None:
        """Returns what a message has beyond what was said; None if it does not repeat that. Without deltas it may be
        a piece that is the same as the beginning.
        """
        return said.rest_of(whole) if self._has_deltas or said.begins(whole) else None

    def _add_split(self, reasoning: str, text: str, out: list[Event]) -> None:
        self._add_reasoning(reasoning, out)
        if text:
            self.text.add(text)
            out.append(TextDelta(self._message(out), text))

    def _add_reasoning(self, text: str, out: list[Event]) -> None:
        if not text:
            return
        if "reasoning" not in self._open:
            id = self._open["reasoning"] = self._new_id("rs_")
            self.reasoning_id = self.reasoning_id or id
            out.append(ItemStarted(Reasoning(id)))
        self.reasoning.append(text)
        out.append(ReasoningDelta(self._open["reasoning"], text))

    def _message(self, out: list[Event]) -> str:
        if "message" not in self._open:
            self._end("reasoning", out)
            self.message_id = self._open["message"] = self._new_id("msg_")
            out.append(ItemStarted(Message(self.message_id)))
        return self._open["message"]

    def _add_calls(self, entries: list[Any], out: list[Event]) -> None:
        fed: set[Call] = set()
        for each in entries:
            piece = self.calls.feed(each, beside=fed)
            if piece is not None:
                fed.add(piece.call)
                self._add_call(piece, out)

    def _add_call(self, piece: Piece, out: list[Event]) -> None:
        call = piece.call
        if call.item_id:
            self._add_arguments(call, piece.arguments, out)
            return
        if call.old_form and call.name:
            call.id = call.id or self._new_id("call_")  # that form has no ids
        kind = self._streamed_kind(call.name) if call.id and call.name else None
        if kind is not None:
            self._begin_call(call, kind, out)

    def _begin_call(self, call: Call, kind: ToolKind, out: list[Event]) -> None:
        self._end("reasoning", out)
        self._end("message", out)
        call.item_id = self._new_id("fc_")
        self._open[call.item_id] = call.item_id
        item = ToolCall(call.item_id, call.id, call.name, kind, None, call.old_form, call.provider_fields)
        out.append(ItemStarted(item))
        if kind == "custom":
            call.reader = CustomInput()
        self._add_arguments(call, "".join(call.arguments), out)

    def _add_arguments(self, call: Call, text: str, out: list[Event]) -> None:
        self._add_call_text(call, call.reader.feed(text), out)

    def _add_call_text(self, call: Call, text: str, out: list[Event]) -> None:
        if text:
            out.append(ArgumentsDelta(call.item_id, text))

    def _end(self, what: str, out: list[Event]) -> None:
        id = self._open.pop(what, None)
        if id is not None:
            out.append(ItemEnded(id))


def texts_in(content: list[Any]) -> Iterator[tuple[str, str]]:
    """Yields reasoning and text of each part of a `content`, which Mistral's servers send as a list."""
    for part in objects_in(content):
        thinking = part.get("thinking")
        texts = thinking if isinstance(thinking, list) else [thinking]
        said = [each.get("text") if isinstance(each, dict) else each for each in texts]
        yield "".join(each for each in said if isinstance(each, str)), text_at(part, "text")


def _flat_annotation(annotation: Any) -> dict[str, Any] | None:
    """Puts an annotation's fields beside `type`, as the Responses API does; None if it is no object."""
    if not isinstance(annotation, dict):
        return None
    kind = annotation.get("type")
    inner = annotation.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **inner} if isinstance(inner, dict) else annotation


def _reasoning_in(delta: dict[str, Any]) -> str:
    """Returns the reasoning in a delta, from the first field that has any: servers with two repeat the text."""
    for name in ("reasoning_content", "reasoning"):
        if said := text_at(delta, name):
            return said
    texts = (each.get("text") or each.get("summary") for each in objects_in(delta.get("reasoning_details")))
    return "".join(text for text in texts if isinstance(text, str))


def usage_in(chunk: dict[str, Any]) -> Usage | None:
    """Returns the counts in `usage`, or Groq's `x_groq.usage`; None without any."""
    return usage_of(chunk.get("usage") or value_at(chunk, "x_groq", "usage"))


def _further_tokens(chunk: dict[str, Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for field, names in TOKEN_DETAILS.items():
        details = value_at(chunk, "usage", field)
        counts = {name: count for name in names if (count := count_at(details, name)) is not None}
        if counts:
            found[field] = counts
    return found
