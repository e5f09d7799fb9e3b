"""Reads one answer of a Responses server: a stream's events, or a whole response. Servers leave fields out (llama.cpp
all indexes), so items are identified by their id, or else their index. No event raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import CustomInput, custom_input
from codex_proxy.agents.upstream.usage import usage_of
from codex_proxy.core.events import (
    AnnotationAdded,
    AnswerDetails,
    ArgumentsDelta,
    Event,
    FullArguments,
    FullReasoning,
    FullText,
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
from codex_proxy.core.json_values import encode_json, object_at, objects_in, text_at

TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)
MAX_TIER: Final = 64
"""Maximum characters of a service tier's name."""
_KINDS: Final[Mapping[str, ToolKind]] = {"function_call": "function", "custom_tool_call": "custom"}
"""The kind of a call by its item's type."""
_TEXTS: Final[Mapping[ToolKind, str]] = {"function": "arguments", "custom": "input"}
"""The field with the model's text, by the kind of call."""
_REASONING: Final[Mapping[str, ReasoningKind]] = {"summary": "summary", "content": "raw"}
"""The kind of reasoning by the field with its parts."""
_CALL_DELTAS: Final = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)


class Call(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    text: str
    kind: ToolKind
    item_id: str = ""
    """The item that was opened while its text arrived, if any."""


class ResponsesAnswer:
    """Converts an answer to events. Private methods append to `out`."""

    def __init__(self, new_id: Callable[[str], str], *, streamed: Mapping[str, ToolKind]) -> None:
        """`streamed`: kinds of tools whose calls are events while they arrive, by name; others are only in `calls`."""
        self.usage: Usage | None = None
        self.calls: list[Call] = []
        self.items: list[dict[str, Any]] = []
        """Complete output items."""
        self.status = ""
        """The answer's status (see `_final_status`); empty before the end."""
        self.reason = ""
        """Why the answer is incomplete."""
        self.error: Any = None
        self._new_id = new_id
        self._streamed = streamed
        self._begun: dict[str, tuple[dict[str, Any], list[str]]] = {}
        """Incomplete calls by item id: the item as it began, and pieces of its text."""
        self._reported: set[str] = set()
        """Calls whose item was opened."""
        self._inputs: dict[str, CustomInput] = {}
        """Readers for custom tools' calls that travel as functions."""
        self._places: dict[int, str] = {}
        """The ids of items by `output_index`."""
        self._done: set[str] = set()
        self._refused: set[str] = set()
        """Messages whose refusal came in deltas."""
        self._cited: dict[str, int] = {}
        """Number of annotations that came in events, by message."""

    def feed(self, event: Mapping[str, Any]) -> list[Event]:
        """Reads an event, or a whole response. An unexpected form is ignored."""
        out: list[Event] = []
        kind = _type_of(event)
        if event.get("object") == "response":
            self._end(event, _final_status(event, ""), out)
        elif kind in TERMINAL:
            response = object_at(event, "response")
            self._end(response, _final_status(response, kind.removeprefix("response.")), out)
        elif kind == "response.output_item.added":
            self._on_item_added(event, out)
        elif kind == "response.output_item.done":
            if item := object_at(event, "item"):
                self._add_item(item, self._id_of(event, item), out)
        elif kind == "response.output_text.annotation.added":
            self._on_annotation_added(event, out)
        elif text_at(event, "delta"):
            self._on_delta(kind, event, out)
        return out

    def _on_delta(self, kind: str, event: Mapping[str, Any], out: list[Event]) -> None:
        if kind in _CALL_DELTAS:
            self._call_delta(event, out)
            return
        id, text = self._id_of(event, {}), event["delta"]
        if kind == "response.output_text.delta":
            out.append(TextDelta(id, text))
        elif kind == "response.refusal.delta":
            self._refused.add(id)
            out.append(RefusalDelta(id, text))
        elif kind == "response.reasoning_summary_text.delta":
            out.append(ReasoningDelta(id, text, _index(event, "summary_index")))
        elif kind == "response.reasoning_text.delta":
            out.append(ReasoningDelta(id, text, _index(event, "content_index"), "raw"))

    def _on_annotation_added(self, event: Mapping[str, Any], out: list[Event]) -> None:
        """Adds an annotation. Annotations of later text parts come with the complete message, since their positions
        depend on the parts before.
        """
        annotation = object_at(event, "annotation")
        if annotation and not event.get("content_index"):
            id = self._id_of(event, {})
            self._cited[id] = self._cited.get(id, 0) + 1
            out.append(AnnotationAdded(id, encode_json(annotation)))

    def _call_delta(self, event: Mapping[str, Any], out: list[Event]) -> None:
        id = self._known_id(event, {}) or next(reversed(self._begun), "")
        if id not in self._begun:
            return
        self._begun[id][1].append(event["delta"])
        if id in self._reported:
            reader = self._inputs.get(id)
            said = event["delta"] if reader is None else reader.feed(event["delta"])
            if said:
                out.append(ArgumentsDelta(id, said))

    def _id_of(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> str:
        id = self._known_id(event, item) or self._new_id("item_")
        place = event.get("output_index")
        if isinstance(place, int):
            self._places.setdefault(place, id)
        return id

    def _known_id(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> str:
        place = event.get("output_index")
        placed = self._places.get(place) if isinstance(place, int) else None
        return text_at(event, "item_id") or text_at(item, "id") or placed or text_at(item, "call_id")

    def _on_item_added(self, event: Mapping[str, Any], out: list[Event]) -> None:
        item = object_at(event, "item")
        if not item:
            return
        id = self._id_of(event, item)
        if _type_of(item) in _KINDS:
            self._begin_call(item, id, out)
        elif (opened := _new_item(item, id)) is not None:
            out.append(ItemStarted(opened))

    def _begin_call(self, item: dict[str, Any], id: str, out: list[Event]) -> None:
        if id in self._done or id in self._begun:
            return
        self._begun[id] = (item, [])
        self._open_call(item, id, out)

    def _open_call(self, item: Mapping[str, Any], id: str, out: list[Event]) -> None:
        kind, name, call_id = _KINDS[_type_of(item)], text_at(item, "name"), text_at(item, "call_id")
        offered = self._streamed.get(name)
        if id in self._reported or not call_id or offered is None or offered not in (kind, "custom"):
            return
        if offered != kind:  # it travels as a function
            self._inputs[id] = CustomInput()
        self._reported.add(id)
        out.append(ItemStarted(ToolCall(id, call_id, name, offered)))

    def _add_item(self, item: dict[str, Any], id: str, out: list[Event]) -> None:
        """Adds a complete item: what no delta had, and a `RawItem` for later requests. Ignores an item that was
        complete already, or a call without a name.
        """
        if id in self._done:
            return
        self._done.add(id)
        kind = _type_of(item)
        if kind in _KINDS and not self._add_call(item, id, out):
            return
        self.items.append(item)
        if kind == "message":
            self._add_message(item, id, out)
        elif kind == "reasoning":
            out += _reasoning(item, id)
        elif (activity := _new_item(item, id)) is not None:
            out += (ItemStarted(activity), ItemEnded(id))
        if kind:
            out.append(RawItem(kind, encode_json(item)))

    def _add_message(self, item: Mapping[str, Any], id: str, out: list[Event]) -> None:
        parts = [part for part in objects_in(item.get("content")) if isinstance(part.get("type"), str)]
        text = "".join(text_at(part, "text") for part in parts)
        refusal = "".join(text_at(part, "refusal") for part in parts)
        if text:
            out.append(FullText(id, text))
        if refusal and id not in self._refused:
            out.append(RefusalDelta(id, refusal))
        offset, known = 0, self._cited.get(id, 0)
        for part in parts:
            new = objects_in(part.get("annotations"))[known:]
            out += [
                AnnotationAdded(id, encode_json(_shift_annotation(annotation, offset))) for annotation in new
            ]
            known = 0
            offset += len(text_at(part, "text"))
        out.append(ItemEnded(id))

    def _add_call(self, item: dict[str, Any], id: str, out: list[Event]) -> bool:
        """Stores a complete call, and ends its item if it was opened. What `item` lacks is set from the event that
        began it and the pieces of its text. Returns False for a call without a name.
        """
        begun, pieces = self._begun.pop(id, ({}, []))
        name = text_at(item, "name") or text_at(begun, "name")
        if not name:
            return False
        call_id = text_at(item, "call_id") or text_at(begun, "call_id") or self._new_id("call_")
        item |= {"name": name, "call_id": call_id}
        kind = _KINDS[item["type"]]
        given = item.get(_TEXTS[kind])
        text = encode_json(given).decode() if isinstance(given, dict) else text_at(given)
        text = text or "".join(pieces) or ("" if kind == "custom" else "{}")
        item[_TEXTS[kind]] = text
        self._open_call(item, id, out)
        told = id in self._reported
        if told:
            cut = item.get("status") == "incomplete"
            said = custom_input(text) if id in self._inputs else text
            out += (FullArguments(id, said), ItemEnded(id, "incomplete" if cut else "completed"))
        self.calls.append(Call(call_id, name, text, kind, id if told else ""))
        return True

    def _end(self, response: Mapping[str, Any], status: str, out: list[Event]) -> None:
        comparable = bool(self._places) or not self.items  # without ids and places nobody can tell
        for place, item in enumerate(objects_in(response.get("output"))):
            id = text_at(item, "id") or self._places.get(place, "")
            if comparable and id not in self._done:
                self._add_item(item, id or self._new_id("item_"), out)
        self.status = status
        for id, (begun, _) in list(self._begun.items()) if status == "completed" else ():
            self._add_item(dict(begun), id, out)  # the server has not said that this call is complete
        self.reason = text_at(response, "incomplete_details", "reason")
        self.error = response.get("error")
        self.usage = usage_of(response.get("usage"))
        tier = text_at(response, "service_tier")
        if 0 < len(tier) <= MAX_TIER:
            out.append(AnswerDetails({"service_tier": msgspec.Raw(encode_json(tier))}))


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


def _reasoning(item: Mapping[str, Any], id: str) -> list[Event]:
    full = [
        FullReasoning(id, part["text"], index, kind)
        for field, kind in _REASONING.items()
        for index, part in enumerate(objects_in(item.get(field)))
        if isinstance(part.get("text"), str)
    ]
    return [*full, ItemEnded(id)]


def _index(event: Mapping[str, Any], name: str) -> int:
    value = event.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
