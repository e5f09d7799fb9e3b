"""Events as they are kept: rows of JSON, from which any API's answer can be rendered again. Consecutive deltas of one
item are joined; their borders stay. Forwarded bytes have no events, and are never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from codex_proxy.core.damaged_json import without_halves
from codex_proxy.core.events import (
    DELTAS,
    AccountLimitsReported,
    AnnotationAdded,
    AnswerDetails,
    ApprovalRequested,
    ArgumentsDelta,
    ContextReported,
    Event,
    ForwardedBytes,
    FullArguments,
    FullReasoning,
    FullText,
    HistoryCompacted,
    HostedEvent,
    InputRequested,
    InputTaken,
    ItemEnded,
    ItemStarted,
    Notice,
    OfSubagent,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    RequestClosed,
    Retrying,
    ServedBy,
    StepCompleted,
    SubagentClosed,
    SubagentOpened,
    TaskGiven,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.items import McpTools
from codex_proxy.core.json_values import encode_json

VERSION: Final = 1
"""The version of a row. A release that adds an event reads it at least one release before another writes it."""

_Delta: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | ArgumentsDelta | OutputDelta


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """The stored form of an event that would not be readable JSON."""


class Deltas(_Stored, tag="deltas", frozen=True):
    """Consecutive deltas that differ in their texts only. `more`: the texts of those behind the first."""

    first: _Delta
    more: list[str]


class _Json(_Stored, frozen=True):
    json: msgspec.Raw


class _StoredRawItem(_Json, tag="raw_item", frozen=True):
    type: str


class _StoredAnnotation(_Json, tag="annotation_added", frozen=True):
    id: str


class _StoredHosted(_Json, tag="hosted_event", frozen=True):
    id: str
    type: str


class _StoredLimits(_Json, tag="account_limits_reported", frozen=True):
    pass


class _StoredMcpTools(_Stored, tag="mcp_tools", frozen=True):
    """The start of an `McpTools` item."""

    id: str
    server_label: str
    tools: msgspec.Raw
    error: str | None = None
    choice: int | None = None


class _StoredDetails(_Stored, tag="answer_details", frozen=True):
    fields: Mapping[str, msgspec.Raw] = {}
    annotations: str = ""
    tokens: Mapping[str, Mapping[str, int]] = {}


class _StoredOfSubagent(_Stored, tag="of_subagent", frozen=True):
    id: str
    row: msgspec.Raw
    """A row of the one event."""


StoredEvent: TypeAlias = (
    Deltas
    | _StoredRawItem
    | _StoredAnnotation
    | _StoredHosted
    | _StoredLimits
    | _StoredMcpTools
    | _StoredDetails
    | _StoredOfSubagent
    | TurnStarted
    | TurnEnded
    | ItemStarted
    | ItemEnded
    | TextDelta
    | RefusalDelta
    | ReasoningDelta
    | ArgumentsDelta
    | OutputDelta
    | FullText
    | FullReasoning
    | FullArguments
    | StepCompleted
    | UsageReported
    | Retrying
    | ToolCallRequested
    | ApprovalRequested
    | InputRequested
    | RequestClosed
    | InputTaken
    | HistoryCompacted
    | ContextReported
    | SubagentOpened
    | SubagentClosed
    | TaskGiven
    | ServedBy
    | Notice
)
"""What a row holds. Each kind has the field `event`."""


def stored_events(events: Iterable[Event]) -> list[StoredEvent]:
    """Returns events in their stored form, without forwarded bytes. Half a surrogate pair becomes U+FFFD when they are
    encoded by `encode_json`.
    """
    out: list[StoredEvent] = []
    for event in events:
        kind = type(event)
        if kind in DELTAS and out and _continues(out[-1], event):  # type: ignore[arg-type]
            if not isinstance(out[-1], Deltas):
                out[-1] = Deltas(out[-1], [])  # type: ignore[arg-type]
            out[-1].more.append(event.text)  # type: ignore[union-attr]
        elif kind is not ForwardedBytes:
            to_stored = _TO_STORED.get(kind)
            out.append(event if to_stored is None else to_stored(event))  # type: ignore[arg-type]
    return out


def events_of(stored: Iterable[StoredEvent]) -> list[Event]:
    """Returns the events of stored forms."""
    out: list[Event] = []
    for each in stored:
        if isinstance(each, Deltas):
            first = each.first
            out.append(first)
            out += [replace(first, text=text) for text in each.more]
        elif isinstance(each, _Stored):
            out.append(_event_of(each))
        else:
            out.append(each)
    return out


def encode_row(events: Iterable[Event]) -> bytes:
    """Returns a row of these events: JSON `[VERSION, [event, ...]]`."""
    return encode_json((VERSION, stored_events(events)))


def decode_row(row: bytes) -> list[Event]:
    """Returns the events of a row. Raises `ValueError` for what is no row, or one that a later release has written."""
    version, stored = _decode(row)
    if version != VERSION:
        raise ValueError(f"the row has version {version}, and this release reads {VERSION}")
    return events_of(stored)


_decode: Final = msgspec.json.Decoder(tuple[int, list[StoredEvent]]).decode


def _continues(last: StoredEvent, event: _Delta) -> bool:
    first = last.first if isinstance(last, Deltas) else last
    if type(first) is not type(event) or first.id != event.id:
        return False
    if isinstance(first, ReasoningDelta) and isinstance(event, ReasoningDelta):
        return first.part == event.part and first.kind == event.kind
    return True


def _raw(json: bytes) -> msgspec.Raw:
    return msgspec.Raw(without_halves(json))  # a decoder refuses half a surrogate pair


def _stored_start(event: ItemStarted) -> StoredEvent:
    item = event.item
    if not isinstance(item, McpTools):
        return event
    return _StoredMcpTools(item.id, item.server_label, _raw(item.tools), item.error, item.choice)


def _stored_details(event: AnswerDetails) -> StoredEvent:
    fields = {name: _raw(bytes(value)) for name, value in event.fields.items()}
    return _StoredDetails(fields, without_halves(event.annotations).decode(), event.tokens)


_TO_STORED: Final[Mapping[type, Callable[[Any], StoredEvent]]] = {
    ItemStarted: _stored_start,
    AnswerDetails: _stored_details,
    RawItem: lambda event: _StoredRawItem(_raw(event.json), event.type),
    AnnotationAdded: lambda event: _StoredAnnotation(_raw(event.json), event.id),
    HostedEvent: lambda event: _StoredHosted(_raw(event.json), event.id, event.type),
    AccountLimitsReported: lambda event: _StoredLimits(_raw(event.json)),
    OfSubagent: lambda event: _StoredOfSubagent(event.id, msgspec.Raw(encode_row([event.event]))),
}


def _event_of(stored: _Stored) -> Event:
    match stored:
        case _StoredRawItem(json, kind):
            return RawItem(kind, bytes(json))
        case _StoredAnnotation(json, id):
            return AnnotationAdded(id, bytes(json))
        case _StoredHosted(json, id, kind):
            return HostedEvent(id, kind, bytes(json))
        case _StoredLimits(json):
            return AccountLimitsReported(bytes(json))
        case _StoredOfSubagent(id, row):
            return OfSubagent(id, *decode_row(bytes(row)))
        case _StoredMcpTools(id, server_label, tools, error, choice):
            return ItemStarted(McpTools(id, server_label, bytes(tools), error, choice))
        case _StoredDetails(fields, annotations, tokens):
            # Copies: a `Raw` of a decoder holds the whole row.
            kept = {name: msgspec.Raw(bytes(value)) for name, value in fields.items()}
            return AnswerDetails(kept, annotations.encode(), tokens)
    raise TypeError(f"{type(stored).__name__} has no event")
