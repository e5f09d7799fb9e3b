"""Reads one answer of a Responses server: a stream's events, or a whole response. Of an item's texts the last and
fullest word counts: the last event, the complete item, the events `.done`, the deltas. No event raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import CustomInput, FunctionArguments, custom_input, object_text
from codex_proxy.core.events import (
    AnnotationAdded,
    AnswerDetails,
    ArgumentsDelta,
    Event,
    FullArguments,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    RawItem,
    ReasoningDelta,
    ReasoningKind,
    RefusalDelta,
    TextDelta,
    Usage,
)
from codex_proxy.core.items import Activity, Item, Message, Reasoning, ToolCall, ToolKind
from codex_proxy.core.json_values import encode_json, object_at, objects_in, text_at, without_surrogates
from codex_proxy.parts.upstream.openai_responses.item_types import (
    is_event,
    known_form,
    well_typed,
    well_typed_annotation,
)
from codex_proxy.parts.upstream.openai_responses.output_items import (
    CALL,
    CALL_KEY,
    CALL_KINDS,
    CALL_TEXTS,
    OutputItem,
    OutputItems,
    TextKey,
    texts_in,
)
from codex_proxy.parts.upstream.stream import usage_of

TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)
MAX_TIER: Final = 64
"""Maximum characters of a service tier's name."""
_REASONING: Final[Mapping[str, ReasoningKind]] = {"summary": "summary", "content": "raw"}
"""The kind of reasoning by the field with its parts."""


_REASONING_PARTS: Final[Mapping[ReasoningKind, str]] = {"summary": "summary_text", "raw": "reasoning_text"}
_PARTS: Final[Mapping[str, dict[str, str]]] = {
    "text": {"type": "output_text"},
    "refusal": {"type": "refusal"},
}


class _TextEvent(msgspec.Struct, frozen=True):
    """An event with a text: of which family of items, of which field, where its part's number is, where the text."""

    family: str
    field: str
    part: str = ""
    text: str = "delta"


_TEXT_EVENTS: Final = {
    "response.output_text.delta": _TextEvent("message", "text", "content_index"),
    "response.output_text.done": _TextEvent("message", "text", "content_index", "text"),
    "response.refusal.delta": _TextEvent("message", "refusal", "content_index"),
    "response.refusal.done": _TextEvent("message", "refusal", "content_index", "refusal"),
    "response.reasoning_summary_text.delta": _TextEvent("reasoning", "summary", "summary_index"),
    "response.reasoning_summary_text.done": _TextEvent("reasoning", "summary", "summary_index", "text"),
    "response.reasoning_text.delta": _TextEvent("reasoning", "content", "content_index"),
    "response.reasoning_text.done": _TextEvent("reasoning", "content", "content_index", "text"),
    "response.function_call_arguments.delta": _TextEvent(CALL, CALL),
    "response.function_call_arguments.done": _TextEvent(CALL, CALL, text="arguments"),
    "response.custom_tool_call_input.delta": _TextEvent(CALL, CALL),
    "response.custom_tool_call_input.done": _TextEvent(CALL, CALL, text="input"),
}


_PART_TEXTS: Final = {
    "output_text": _TextEvent("message", "text", "content_index", "text"),
    "refusal": _TextEvent("message", "refusal", "content_index", "refusal"),
    "reasoning_text": _TextEvent("reasoning", "content", "content_index", "text"),
    "summary_text": _TextEvent("reasoning", "summary", "summary_index", "text"),
}
"""Where the text of a complete part is, by the part's type."""
_PART_EVENTS: Final = frozenset({"response.content_part.done", "response.reasoning_summary_part.done"})
HOSTED_EVENTS: Final = {
    f"response.{event}": f"{event.partition('_call')[0]}_call"
    for event in (
        *("code_interpreter_call.in_progress", "code_interpreter_call.interpreting"),
        *("code_interpreter_call.completed", "code_interpreter_call_code.delta"),
        *("code_interpreter_call_code.done", "file_search_call.in_progress", "file_search_call.searching"),
        *("file_search_call.completed", "image_generation_call.in_progress"),
        *("image_generation_call.generating", "image_generation_call.partial_image"),
        "image_generation_call.completed",
    )
}
"""The types of items by the events of tools that the server runs."""
_PLACES: Final = frozenset({"type", "item_id", "output_index", "sequence_number"})


class Call(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    text: str
    kind: ToolKind
    item_id: str = ""
    """The item that was opened while its text arrived, if any."""


class ResponsesAnswer:
    """Converts an answer to events. Private methods append to `out`."""

    def __init__(
        self, new_id: Callable[[str], str], *, streamed: Mapping[str, ToolKind], hosted: Collection[str] = ()
    ) -> None:
        """`streamed`: kinds of tools whose calls are events while they arrive, by name; others are only in `calls`.
        `hosted`: the types of items of tools that the client lets the server run.
        """
        self.usage: Usage | None = None
        self.status = ""
        """The answer's status (see `_final_status`); empty before the end."""
        self.reason = ""
        """Why the answer is incomplete."""
        self.error: Any = None
        self.contradicts = False
        """Whether the server has said something else than what was sent, or it cannot be known which call it meant."""
        self._new_id = new_id
        self._streamed = streamed
        self._hosted = hosted
        self._items = OutputItems()
        self._ended: list[OutputItem] = []
        """The items that are complete, as they ended."""
        self._raw = 0
        """The number of ended items that are `RawItem`s."""
        self._found: dict[tuple[str, Hashable, str], OutputItem] = {}
        """The items of the last deltas, by id, index and family."""
        self._unplaced: set[str] = set()
        """The families of items of which a piece came, and nobody can tell of which item."""

    @property
    def calls(self) -> list[Call]:
        """The complete calls."""
        return [
            Call(
                item.call_id,
                item.name,
                item.text(CALL_KEY),
                CALL_KINDS[item.kind],
                item.id if item.told else "",
            )
            for item in self._ended
            if item.family == CALL and item.name and item.finished
        ]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The complete output items."""
        return [item.form for item in self._ended if item.finished and _is_item(item)]

    def feed(self, event: Mapping[str, Any]) -> list[Event]:
        """Reads an event, or a whole response. An unexpected form is ignored."""
        out: list[Event] = []
        kind = _type_of(event)
        of_text = _TEXT_EVENTS.get(kind)
        if of_text is not None:
            if text := text_at(event, of_text.text):
                self._on_text(of_text, event, text, out)
        elif kind in _PART_EVENTS:
            self._on_part(event, out)
        elif event.get("object") == "response":
            self._end(event, _final_status(event, ""), out)
        elif kind in TERMINAL:
            response = object_at(event, "response")
            self._end(response, _final_status(response, kind.removeprefix("response.")), out)
        elif kind == "response.output_item.added":
            self._on_item_added(event, out)
        elif kind == "response.output_item.done":
            self._on_item_done(event, out)
        elif kind == "response.output_text.annotation.added":
            self._on_annotation_added(event, out)
        elif HOSTED_EVENTS.get(kind) in self._hosted:
            self._on_hosted(kind, event, out)
        return out

    # --- texts ------------------------------------------------------------------------------------

    def _on_text(self, kind: _TextEvent, event: Mapping[str, Any], text: str, out: list[Event]) -> None:
        item = self._item_of(event, kind.family)
        if item is None:
            return
        key = CALL_KEY if kind.family == CALL else (kind.field, _part_number(event, kind, item, text))
        if kind.text != "delta":
            self._add_whole(item, key, text, out)
        elif key in item.vouched:
            self._add_late_piece(item, key, text, out)
        elif kind.field == "text":
            item.pieces.setdefault(key, []).append(text)
            out.append(TextDelta(item.id, text))
        else:
            self._add_piece(item, key, text, out)

    def _on_part(self, event: Mapping[str, Any], out: list[Event]) -> None:
        """Adds what a complete part has beyond the pieces that came. All other events say it too, if any does."""
        part = object_at(event, "part")
        kind = _PART_TEXTS.get(_type_of(part))
        text = "" if kind is None else text_at(part, kind.text)
        item = self._item_of(event, kind.family) if kind is not None and text else None
        if kind is not None and item is not None:
            key = kind.field, _part_number(event, kind, item, text)
            if item.rest_of(key, text):
                self._add_whole(item, key, text, out)

    def _add_late_piece(self, item: OutputItem, key: TextKey, text: str, out: list[Event]) -> None:
        """Adds a delta that comes after the whole text: a piece of that, or of another part with the same number."""
        field = key[0]
        if key in item.echo and item.text(key).startswith(text, item.echo[key]):
            item.echo[key] += len(text)
        elif field == CALL:
            self.contradicts = True
        else:
            self._add_piece(item, (field, _next_part(item, field)), text, out)

    def _item_of(self, event: Mapping[str, Any], family: str) -> OutputItem | None:
        """Returns the item of an event, perhaps a new one; None if nobody can tell."""
        item_id, index = event.get("item_id"), event.get("output_index")
        if type(item_id) is not str:
            item_id = ""
        if type(index) is not int and type(index) is not str:
            index = None  # True and False are no numbers
        place = (item_id, index, family)
        known = self._found.get(place)
        if known is not None:
            return known
        found = self._items.of_event(item_id, index, family)
        if found is None or len(found) > 1 or (not found and family == CALL):
            self._unplaced.add(family)
            return None
        item = found[0] if found else self._begin({"type": family}, item_id, index, implied=True)
        self._found[place] = item
        return item

    def _add_piece(self, item: OutputItem, key: TextKey, text: str, out: list[Event]) -> None:
        item.pieces.setdefault(key, []).append(text)
        field, part = key
        if field == CALL:
            said = text if item.reader is None else item.reader.feed(text)
            if item.told and said:
                out.append(ArgumentsDelta(item.id, said))
        elif field == "text":
            out.append(TextDelta(item.id, text))
        elif field == "refusal":
            out.append(RefusalDelta(item.id, text))
        else:
            out.append(ReasoningDelta(item.id, text, part, _REASONING[field]))

    def _add_whole(self, item: OutputItem, key: TextKey, whole: str, out: list[Event]) -> None:
        """Adds what a whole text has beyond the pieces that came."""
        if key in item.vouched and item.text(key) == whole:
            return
        item.vouched.add(key)
        rest = item.rest_of(key, whole)
        if rest is None and item.family == CALL and not item.told:
            item.pieces[key] = [whole]  # nobody has heard of the other
        elif rest is None or (rest and key[0] in ("text", "refusal") and _is_before_others(item, key)):
            self.contradicts = True
        elif rest:
            item.echo.setdefault(key, len(item.text(key)))
            self._add_piece(item, key, rest, out)

    def _on_annotation_added(self, event: Mapping[str, Any], out: list[Event]) -> None:
        """Adds an annotation. Annotations of later text parts come with the complete message, since their positions
        depend on the parts before.
        """
        annotation = well_typed_annotation(object_at(event, "annotation"))
        if annotation and not event.get("content_index"):
            item = self._item_of(event, "message")
            if item is not None:
                item.cited += 1
                out.append(AnnotationAdded(item.id, encode_json(annotation)))

    def _on_hosted(self, kind: str, event: Mapping[str, Any], out: list[Event]) -> None:
        """Passes on an event of a tool that the server runs. What the server says of no item that it has announced is
        left out: the complete item has it all.
        """
        index = _index_of(event)
        found = self._items.of_event(text_at(event, "item_id"), index, HOSTED_EVENTS[kind])
        if found is not None and len(found) == 1 and is_event(event):
            fields = {name: value for name, value in event.items() if name not in _PLACES}
            out.append(HostedEvent(found[0].id, kind, encode_json(fields)))

    # --- items ------------------------------------------------------------------------------------

    def _on_item_added(self, event: Mapping[str, Any], out: list[Event]) -> None:
        form = known_form(object_at(event, "item"))
        if not form:
            return
        item_id, index = _id_of(event, form), _index_of(event)
        item = self._items.begun_before(form, item_id, index)
        if item is None:
            item = self._begin(form, item_id, index)
        item.implied = False
        if item.family == CALL:
            self._tell(item, out)
        elif item.family in self._hosted:
            self._begin_hosted(item, out)
        elif (opened := _new_item(form, item.id)) is not None:
            out.append(ItemStarted(opened))

    def _begin(
        self, form: dict[str, Any], item_id: str, index: Hashable, *, implied: bool = False
    ) -> OutputItem:
        usable = item_id and not self._items.has_id(item_id)
        item = OutputItem(item_id if usable else self._new_id("item_"), _type_of(form))
        item.form, item.item_id, item.index, item.implied = well_typed(form), item_id, index, implied
        if item.family == CALL:
            call_id = _call_id_in(form)
            item.name = text_at(form, "name")
            item.call_id = self._new_id("call_") if self._items.has_call_id(call_id) else call_id
        self._items.add(item)
        self._found.clear()
        return item

    def _tell(self, item: OutputItem, out: list[Event]) -> None:
        """Reports a call from now on, if the client may hear of it."""
        kind, offered = CALL_KINDS[item.kind], self._streamed.get(item.name)
        if item.told or not item.call_id or offered is None or offered not in (kind, "custom"):
            return
        item.told = True
        out.append(ItemStarted(ToolCall(item.id, item.call_id, item.name, offered)))
        said = item.text(CALL_KEY)
        if kind == "function":  # a custom tool's call may travel as one
            item.reader = FunctionArguments() if offered == kind else CustomInput()
            said = item.reader.feed(said)
        if said:
            out.append(ArgumentsDelta(item.id, said))

    def _on_item_done(self, event: Mapping[str, Any], out: list[Event]) -> None:
        form = known_form(object_at(event, "item"))
        item_id, index = _id_of(event, form), _index_of(event)
        if not form or self._items.is_repeated(form, item_id, index):
            return
        item = self._items.of_complete(form, item_id, index)
        if item is None:
            item = self._begin(form, item_id, index, implied=True)
        self._complete(item, form, out)
        self._give_back(out)

    def _complete(
        self, item: OutputItem, form: dict[str, Any], out: list[Event], *, last: bool = False
    ) -> None:
        """Adds what the complete item `form` says, and ends the item; but before the `last` event none without any
        text, since that event may have it.
        """
        if item.begun:
            self._items.end(item)
            self._found.clear()
            self._ended.append(item)
        form = well_typed(form)
        before, item.form = item.form, form
        if item.family == CALL:
            item.kind = text_at(form, "type") or item.kind
            item.name = item.name or text_at(form, "name")
            item.call_id = item.call_id or _call_id_in(form) or self._new_id("call_")
        self._add_texts(item, form, out)
        if last or item.pieces or not _may_come_later(form):
            if not item.pieces:
                self._add_texts(item, before, out)
            self._finish(item, out)

    def _add_texts(self, item: OutputItem, form: Mapping[str, Any], out: list[Event]) -> None:
        """Adds what the texts of a complete item have beyond the pieces that came."""
        for field, parts in texts_in(form).items():
            whole = "".join(parts)
            if not whole:
                continue
            if field == CALL:
                self._add_whole(item, CALL_KEY, whole, out)
                continue
            rest = item.rest_of_field(field, whole)
            rests = [item.rest_of((field, number), part) or "" for number, part in enumerate(parts)]
            if rest is None:
                self.contradicts = True
            elif "".join(rests) == rest:
                for number, each in enumerate(rests):
                    if each:
                        self._add_piece(item, (field, number), each, out)
            elif rest:
                self._add_piece(item, (field, _next_part(item, field)), rest, out)
            item.vouched.add((field, 0))

    def _finish(self, item: OutputItem, out: list[Event]) -> None:
        item.finished = True
        form = item.form
        if item.family == CALL:
            self._finish_call(item, form, out)
        elif item.family == "message":
            if item.pieces and not any(map("".join, texts_in(form).values())):
                parts = [(name, item.field(name)) for name in ("text", "refusal")]
                form |= {
                    "role": "assistant",
                    "content": [_PARTS[name] | {name: said} for name, said in parts if said],
                }
            out += _annotations(item, form)
            out.append(ItemEnded(item.id))
        elif item.family == "reasoning":
            for field, kind in _REASONING.items():
                if item.field(field) and not "".join(texts_in(form)[field]):
                    texts = [item.text(key) for key in sorted(item.pieces) if key[0] == field]
                    form[field] = [{"type": _REASONING_PARTS[kind], "text": text} for text in texts]
            out.append(ItemEnded(item.id))
        elif item.family in self._hosted:
            self._begin_hosted(item, out)
            out.append(ItemEnded(item.id))
        elif (activity := _new_item(form, item.id)) is not None:
            out += (ItemStarted(activity), ItemEnded(item.id))

    def _begin_hosted(self, item: OutputItem, out: list[Event]) -> None:
        started = Activity(item.id, "other", item.family.removesuffix("_call"), hosted=item.family)
        out += (ItemStarted(started), HostedEvent(item.id, "", encode_json(item.form)))

    def _finish_call(self, item: OutputItem, form: dict[str, Any], out: list[Event]) -> None:
        """Ends a call. Its item gets what it lacks from the events before. A call without a name is ignored."""
        if not item.name:
            return
        kind = CALL_KINDS[item.kind]
        text = item.text(CALL_KEY)
        text = text if kind == "custom" else object_text(text)
        item.pieces[CALL_KEY] = [text]
        form |= {"name": item.name, "call_id": item.call_id, CALL_TEXTS[kind]: text}
        self._tell(item, out)
        if item.told:
            cut = form.get("status") == "incomplete"
            said = custom_input(text) if isinstance(item.reader, CustomInput) else text
            out += (FullArguments(item.id, said), ItemEnded(item.id, "incomplete" if cut else "completed"))

    def _give_back(self, out: list[Event]) -> None:
        """Adds a `RawItem`, for later requests, for each complete item, in their order."""
        while self._raw < len(self._ended) and self._ended[self._raw].finished:
            item = self._ended[self._raw]
            self._raw += 1
            if _is_item(item):
                out.append(RawItem(_type_of(item.form), encode_json(item.form)))

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, response: Mapping[str, Any], status: str, out: list[Event]) -> None:
        self.status = status
        output = list(map(known_form, objects_in(response.get("output"))))
        for form, found in zip(output, self._items.match(output), strict=True):
            item = found or self._begin(form, text_at(form, "id"), None, implied=True)
            if item.finished:
                self._compare(item, form)
            else:
                self._complete(item, form, out, last=True)
        for item in self._items.all:
            if not (item.finished or (item.begun and status != "completed")):
                # The server has not said that this item is complete.
                self._complete(item, dict(item.form), out, last=True)
        self._give_back(out)
        if any(not item.vouched for item in self._items.all if item.family in self._unplaced):
            self.contradicts = True
        self.reason = text_at(response, "incomplete_details", "reason")
        self.error = response.get("error")
        self.usage = usage_of(response.get("usage"))
        tier = text_at(response, "service_tier")
        if 0 < len(tier) <= MAX_TIER:
            out.append(AnswerDetails({"service_tier": msgspec.Raw(encode_json(tier))}))

    def _compare(self, item: OutputItem, form: Mapping[str, Any]) -> None:
        """Compares an item that has ended with the last event's: nothing can be added to it."""
        for field, parts in texts_in(form).items():
            rest = item.rest_of_field(field, "".join(parts))
            if rest is None or (rest.strip() and item.family != "reasoning"):
                self.contradicts = True


def _final_status(response: Mapping[str, Any], of_event: str) -> str:
    """Returns the worse of the response's status and the status in the last event's name (`of_event`). A status
    that is not final means failed.
    """
    own = response.get("status")
    if own in ("failed", "cancelled") or of_event in ("failed", "cancelled"):
        return "cancelled" if "failed" not in (own, of_event) else "failed"
    if response.get("error") or not response:
        return "failed"
    if own == "incomplete" or of_event == "incomplete":
        return "incomplete"
    return "completed" if "completed" in (own, of_event) else "failed"


def _type_of(value: Mapping[str, Any]) -> str:
    return text_at(value, "type")


def _new_item(item: Mapping[str, Any], id: str) -> Item | None:
    kind = _type_of(item)
    if kind == "message":
        return Message(id, phase=text_at(item, "phase") or None)
    if kind == "reasoning":
        return Reasoning(id)
    if kind == "web_search_call":
        return Activity(id, "web_search", text_at(item, "action", "query"))
    return None


def _shift_annotation(annotation: dict[str, Any], offset: int) -> dict[str, Any]:
    places = {name: annotation.get(name) for name in ("start_index", "end_index")}
    return annotation | {name: place + offset for name, place in places.items() if isinstance(place, int)}


def _annotations(item: OutputItem, form: Mapping[str, Any]) -> list[Event]:
    """Returns the annotations of a complete message that did not come in events."""
    out: list[Event] = []
    offset, known = 0, item.cited
    for part in objects_in(form.get("content")):
        if not isinstance(part.get("type"), str):
            continue
        typed = map(well_typed_annotation, objects_in(part.get("annotations")))
        new = [each for each in typed if each is not None][known:]
        out += [AnnotationAdded(item.id, encode_json(_shift_annotation(each, offset))) for each in new]
        known = 0
        offset += len(text_at(part, "text"))
    return out


def _call_id_in(form: Mapping[str, Any]) -> str:
    """Returns the id of a call's item; empty for one with half a surrogate pair, which clients cannot send back."""
    call_id = text_at(form, "call_id")
    return call_id if call_id == without_surrogates(call_id) else ""


def _is_item(item: OutputItem) -> bool:
    """Whether the model can get it back: it has a type, a call also a name."""
    return bool(_type_of(item.form)) and (item.family != CALL or item.name != "")


def _may_come_later(form: Mapping[str, Any]) -> bool:
    """Whether an item without any text is of a type that has one."""
    kind = _type_of(form)
    return (
        kind in CALL_KINDS or kind == "message" or (kind == "reasoning" and not form.get("encrypted_content"))
    )


def _is_before_others(item: OutputItem, key: TextKey) -> bool:
    """Whether a later part of a message has text, behind which nothing of this one can be sent."""
    return any(each[0] == key[0] and each[1] > key[1] for each in item.pieces)


def _next_part(item: OutputItem, field: str) -> int:
    return 1 + max((number for name, number in item.pieces if name == field), default=-1)


def _part_number(event: Mapping[str, Any], kind: _TextEvent, item: OutputItem, text: str) -> int:
    """Returns the number of an event's part; without one, it is the last part, or the next if that is complete."""
    number = event.get(kind.part)
    if type(number) is int and number >= 0:
        return number
    last = max(0, _next_part(item, kind.field) - 1)
    key = kind.field, last
    repeats = key in item.echo if kind.text == "delta" else item.rest_of(key, text) is not None
    return last if key not in item.vouched or repeats else last + 1


def _id_of(event: Mapping[str, Any], form: Mapping[str, Any]) -> str:
    return text_at(form, "id") or text_at(event, "item_id")


def _index_of(event: Mapping[str, Any]) -> Hashable:
    """Returns what tells an item's place in the output: a number or a text; None if there is none."""
    index = event.get("output_index")
    return index if type(index) is int or type(index) is str else None  # True and False are no numbers
