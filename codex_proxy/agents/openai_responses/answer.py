"""Reads one answer of a server of the Responses API, event by event.

Input: the decoded events of a stream, or a whole response. Output: `Event`s, and the contents of the whole answer:
its items, calls and usage, and how it ended. Servers leave fields out (llama.cpp has neither indexes nor sequence
numbers), so items are identified by their id, or by their index if they have none. No form of an event raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.agents.dialects.conversions import CustomInput, custom_input
from codex_proxy.agents.dialects.loose_values import encoded, objects_in
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
    RefusalDelta,
    TextDelta,
    Usage,
)
from codex_proxy.core.items import Activity, Item, Message, Reasoning, ToolCall

TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)
MAX_TIER: Final = 64
"""The most characters of the name of a service tier."""
Kind: TypeAlias = Literal["function", "custom"]
_KINDS: Final[Mapping[str, Kind]] = {"function_call": "function", "custom_tool_call": "custom"}
"""The kind of tool that is called, by the type of the item."""
_TEXTS: Final[Mapping[Kind, str]] = {"function": "arguments", "custom": "input"}
"""The field of a call's item that contains the model's text, by the kind of tool."""
_CALL_DELTAS: Final = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)


class Call(msgspec.Struct, frozen=True):
    """A complete tool call of the model."""

    call_id: str
    """The id that the call's output must name."""
    name: str
    """The name of the tool."""
    text: str
    """The arguments of a function call, or the input of a custom one."""
    kind: Kind
    item_id: str = ""
    """The id of the output item (`ToolCall`) that events have opened for this call while its text arrived; empty if
    there were no such events.
    """


class ResponsesAnswer:
    """Collects the answer to one request, and converts it to events. `feed` returns the events; the attributes hold
    what the events do not have, such as the output items, the calls, the usage and the final status. The private
    methods append events to `out`.
    """

    def __init__(
        self, new_id: Callable[[str], str], *, streamed: Collection[tuple[Kind, str]] = frozenset()
    ) -> None:
        """`new_id` returns a new id with the given prefix, for items and calls that the server gave none.
        `streamed`: the kind and name of each tool whose calls are to be sent as events while their text (arguments
        or input) arrives. Calls of other tools are only stored in `calls`.
        """
        self.usage: Usage | None = None
        self.calls: list[Call] = []
        self.items: list[dict[str, Any]] = []
        """The complete output items of the model, in order."""
        self.status = ""
        """The final status (see `_final_status`); empty before the end."""
        self.reason = ""
        """The reason of an incomplete answer."""
        self.error: Any = None
        """The error of a failed answer."""
        self._new_id = new_id
        self._streamed = streamed
        self._begun: dict[str, tuple[dict[str, Any], list[str]]] = {}
        """The calls that are not complete, by the item's id: the item as it began, and the pieces of its text."""
        self._reported: set[str] = set()
        """The ids of calls whose item was opened."""
        self._inputs: dict[str, CustomInput] = {}
        """The readers of open calls of custom tools that the upstream knows as functions, by the item's id."""
        self._places: dict[int, str] = {}
        """The ids of items, by their `output_index`."""
        self._done: set[str] = set()
        self._refused: set[str] = set()
        """The ids of messages whose refusal came in deltas."""
        self._cited: dict[str, int] = {}
        """The number of annotations that came in events of their own, by the message's id."""

    def feed(self, event: Mapping[str, Any]) -> list[Event]:
        """Reads a decoded event of a stream, and returns the events that result. A whole response (`"object":
        "response"`) is read like the last event of a stream. Events and fields of an unexpected form are ignored.
        """
        out: list[Event] = []
        kind = _type_of(event)
        if event.get("object") == "response":
            self._end(event, _final_status(event, ""), out)
        elif kind in TERMINAL:
            response = event.get("response")
            response = response if isinstance(response, dict) else {}
            self._end(response, _final_status(response, kind.removeprefix("response.")), out)
        elif kind == "response.output_item.added":
            self._on_item_added(event, out)
        elif kind == "response.output_item.done":
            item = event.get("item")
            if isinstance(item, dict):
                self._item(item, self._id_of(event, item), out)
        elif kind == "response.output_text.annotation.added":
            self._annotation_added(event, out)
        elif isinstance(event.get("delta"), str) and event["delta"]:
            self._delta(kind, event, out)
        return out

    def _delta(self, kind: str, event: Mapping[str, Any], out: list[Event]) -> None:
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

    def _annotation_added(self, event: Mapping[str, Any], out: list[Event]) -> None:
        """Adds an annotation of a message's first text part. Annotations of further parts are added with the
        complete message, since their positions depend on the length of the parts before.
        """
        annotation = event.get("annotation")
        if isinstance(annotation, dict) and not event.get("content_index"):
            id = self._id_of(event, {})
            self._cited[id] = self._cited.get(id, 0) + 1
            out.append(AnnotationAdded(id, encoded(annotation)))

    def _call_delta(self, event: Mapping[str, Any], out: list[Event]) -> None:
        """Adds a piece of a call's arguments or input. A piece with neither an id nor an index belongs to the call
        that began last.
        """
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
        """Returns the id of the item that an event is about: its own id, that of an earlier event with the same
        `output_index`, its call id, or else a new id.
        """
        id = self._known_id(event, item) or self._new_id("item_")
        place = event.get("output_index")
        if isinstance(place, int):
            self._places.setdefault(place, id)
        return id

    def _known_id(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> str:
        place = event.get("output_index")
        placed = self._places.get(place) if isinstance(place, int) else None
        for id in (event.get("item_id"), item.get("id"), placed, item.get("call_id")):
            if isinstance(id, str) and id:
                return id
        return ""

    def _on_item_added(self, event: Mapping[str, Any], out: list[Event]) -> None:
        item = event.get("item")
        if not isinstance(item, dict):
            return
        id = self._id_of(event, item)
        if _type_of(item) in _KINDS:
            self._begin_call(item, id, out)
        elif (opened := _opened(item, id)) is not None:
            out.append(ItemStarted(opened))

    def _begin_call(self, item: dict[str, Any], id: str, out: list[Event]) -> None:
        if id in self._done or id in self._begun:
            return
        self._begun[id] = (item, [])
        self._open_call(item, id, out)

    def _open_call(self, item: Mapping[str, Any], id: str, out: list[Event]) -> None:
        """Adds the event that opens a call's item, once, if calls of the tool are streamed and the call's name and
        id are known.
        """
        kind, name, call_id = _KINDS[_type_of(item)], item.get("name"), item.get("call_id")
        if id in self._reported or not (isinstance(call_id, str) and call_id and isinstance(name, str)):
            return
        if (kind, name) not in self._streamed and ("custom", name) in self._streamed:
            kind = "custom"
            self._inputs[id] = CustomInput()
        if (kind, name) in self._streamed:
            self._reported.add(id)
            out.append(ItemStarted(ToolCall(id, call_id, name, kind)))

    def _item(self, item: dict[str, Any], id: str, out: list[Event]) -> None:
        """Handles a complete output item: appends the contents that no delta had, and the item itself as a
        `RawItem`, which later requests contain. An item that is already complete, or a call without a name, is
        ignored.
        """
        if id in self._done:
            return
        self._done.add(id)
        kind = _type_of(item)
        if kind in _KINDS and not self._call(item, id, out):
            return
        self.items.append(item)
        if kind == "message":
            self._message(item, id, out)
        elif kind == "reasoning":
            out += _reasoning(item, id)
        elif (activity := _opened(item, id)) is not None:
            out += (ItemStarted(activity), ItemEnded(id))
        if kind:
            out.append(RawItem(kind, encoded(item)))

    def _message(self, item: Mapping[str, Any], id: str, out: list[Event]) -> None:
        parts = [part for part in objects_in(item.get("content")) if isinstance(part.get("type"), str)]
        text = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        refusal = "".join(part["refusal"] for part in parts if isinstance(part.get("refusal"), str))
        if text:
            out.append(FullText(id, text))
        if refusal and id not in self._refused:
            out.append(RefusalDelta(id, refusal))
        offset, known = 0, self._cited.get(id, 0)
        for part in parts:
            new = objects_in(part.get("annotations"))[known:]
            out += [AnnotationAdded(id, encoded(_shifted(annotation, offset))) for annotation in new]
            known = 0
            offset += len(part["text"]) if isinstance(part.get("text"), str) else 0
        out.append(ItemEnded(id))

    def _call(self, item: dict[str, Any], id: str, out: list[Event]) -> bool:
        """Handles a complete call, the API's output item `item`: stores it in `calls`, and adds the events that end
        its `ToolCall` if calls of the tool are streamed. `id` is the item's id (see `_id_of`), by which its earlier
        events are found. Fields that are missing in `item` are taken from the event that began it and from the
        pieces of its text, and are set in `item`. Returns False for a call without a name, which is ignored.
        """
        begun, pieces = self._begun.pop(id, ({}, []))
        name, call_id = (
            next(
                (each[field] for each in (item, begun) if isinstance(each.get(field), str) and each[field]),
                "",
            )
            for field in ("name", "call_id")
        )
        if not name:
            return False
        call_id = call_id or self._new_id("call_")
        item |= {"name": name, "call_id": call_id}
        kind = _KINDS[item["type"]]
        given = item.get(_TEXTS[kind])
        text = encoded(given).decode() if isinstance(given, dict) else given if isinstance(given, str) else ""
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
            id = item.get("id") or self._places.get(place)
            known = isinstance(id, str) and id in self._done
            if not known and comparable:
                self._item(item, id if isinstance(id, str) and id else self._new_id("item_"), out)
        self.status = status
        for id, (begun, _) in list(self._begun.items()) if status == "completed" else ():
            self._item(dict(begun), id, out)  # the server has not said that this call is complete
        details = response.get("incomplete_details")
        self.reason = str(details.get("reason") or "") if isinstance(details, dict) else ""
        self.error = response.get("error")
        self.usage = usage_of(response.get("usage"))
        tier = response.get("service_tier")
        if isinstance(tier, str) and len(tier) <= MAX_TIER:
            out.append(AnswerDetails({"service_tier": msgspec.Raw(encoded(tier))}))


def _final_status(response: Mapping[str, Any], of_event: str) -> str:
    """Returns the final status of a whole response. `of_event` is the status in the name of the last event, empty if
    the response is the whole body of the answer. The worse of the two counts: an event `response.completed` does not
    complete a response that has failed, or none at all. A status that is not final is that of a failed one.
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
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def _opened(item: Mapping[str, Any], id: str) -> Item | None:
    """Returns the item with which events about an output item begin: a message, reasoning, or a web search. None
    for calls, which are opened elsewhere, and for types that clients do not get.
    """
    kind = _type_of(item)
    if kind == "message":
        phase = item.get("phase")
        return Message(id, phase=phase if isinstance(phase, str) else None)
    if kind == "reasoning":
        return Reasoning(id)
    if kind == "web_search_call":
        action = item.get("action")
        query = action.get("query") if isinstance(action, dict) else None
        return Activity(id, "web_search", query if isinstance(query, str) else "")
    return None


def _shifted(annotation: dict[str, Any], offset: int) -> dict[str, Any]:
    """Returns an annotation with its `start_index` and `end_index` moved by `offset` characters, from positions in
    a content part to positions in the text of the whole message.
    """
    places = {name: annotation.get(name) for name in ("start_index", "end_index")}
    return annotation | {name: place + offset for name, place in places.items() if isinstance(place, int)}


def _reasoning(item: Mapping[str, Any], id: str) -> list[Event]:
    out: list[Event] = []
    for index, part in enumerate(objects_in(item.get("summary"))):
        if isinstance(part.get("text"), str):
            out.append(FullReasoning(id, part["text"], index))
    for index, part in enumerate(objects_in(item.get("content"))):
        if isinstance(part.get("text"), str):
            out.append(FullReasoning(id, part["text"], index, "raw"))
    return [*out, ItemEnded(id)]


def _index(event: Mapping[str, Any], name: str) -> int:
    value = event.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
