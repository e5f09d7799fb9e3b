"""The model's items of a turn, stored with a response for later history: also those that a client does not get
(encrypted reasoning, calls answered here). `tools/replay.py` is for turns that are not stored.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from codex_proxy.agents.shared.json_lines import decode_loosely
from codex_proxy.core.items import (
    CODE_CALL,
    HistoryCall,
    HistoryItem,
    HistoryOutput,
    RawHistoryItem,
    without_provider_fields,
)
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.runs.run import Run
from codex_proxy.tools.replay import remembered_turn

Kind = Literal["reasoning", "message", "call", "output", "other"]

_KINDS: dict[str, Kind] = {
    "reasoning": "reasoning",
    "message": "message",
    "function_call": "call",
    "custom_tool_call": "call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
}


class ModelItem(msgspec.Struct, frozen=True):
    """A Responses item as JSON: the model's, or this server's output of a call."""

    model: str
    """The agent and model that can read the item's reasoning."""
    item: msgspec.Raw

    @property
    def head(self) -> ItemHead:
        return _head_of(self.item)


class _TextPart(msgspec.Struct, frozen=True):
    text: str | None = None


class ItemHead(msgspec.Struct, frozen=True):
    type: str
    id: str | None = None
    call_id: str | None = None
    content: list[_TextPart] | None = None

    @property
    def kind(self) -> Kind:
        return _KINDS.get(self.type, "other")

    @property
    def text(self) -> str:
        return "".join(part.text or "" for part in self.content or ())


def _head_of(item: bytes | msgspec.Raw) -> ItemHead:
    """Decodes an item, of which an upstream may give fields any type: such ones count as missing."""
    try:
        return msgspec.json.decode(item, type=ItemHead)
    except msgspec.ValidationError:
        return decode_loosely(item, ItemHead) or ItemHead("")


def model_items(run: Run, identity: str) -> list[ModelItem]:
    """Returns the run's items in order, then the outputs of hidden calls."""
    remembered = remembered_turn(run.raw_items, run.attempt.policy, identity)
    answers = [
        {"type": "function_call_output", "call_id": call_id, "output": remembered.hidden[call_id]}
        for call_id in remembered.calls
        if call_id in remembered.hidden
    ]
    raw = [*remembered.items, *(msgspec.Raw(msgspec.json.encode(answer)) for answer in answers)]
    return [ModelItem(_owner_of(item, run.upstream, identity), item) for item in raw]


def _owner_of(item: msgspec.Raw, upstream: str, identity: str) -> str:
    """Returns the agent and model of an item: a container is at the `upstream` that has answered."""
    agent, _, model = identity.partition(MODEL_SEPARATOR)
    if upstream in ("", agent) or _head_of(item).type != CODE_CALL:
        return identity
    return f"{upstream}{MODEL_SEPARATOR}{model}"


def as_history(item: ModelItem, identity: str) -> RawHistoryItem | None:
    """Returns the item for a history; None for another model's reasoning."""
    if item.model == identity:
        return RawHistoryItem(bytes(item.item))
    return (
        None if item.head.kind == "reasoning" else RawHistoryItem(without_provider_fields(bytes(item.item)))
    )


def with_whole_calls(history: list[HistoryItem]) -> tuple[HistoryItem, ...]:
    """Returns the history with outputs in the order of their calls, without raw calls and outputs that have lost their
    counterpart.
    """
    heads = {id(item): _kind_and_call_id(item) for item in history}
    # Of calls with one id, outputs stand where those of the last one stand.
    called = {call_id: place for place, (kind, call_id) in enumerate(heads.values()) if kind == "call"}
    answered = {call_id for kind, call_id in heads.values() if kind == "output"}
    out: list[HistoryItem] = []
    group: list[HistoryItem] = []
    for item in history:
        kind, call_id = heads[id(item)]
        if isinstance(item, RawHistoryItem) and (
            (kind == "call" and call_id not in answered) or (kind == "output" and call_id not in called)
        ):
            continue
        if kind == "output":
            group.append(item)
            continue
        out += _in_order(group, called, heads)
        group = []
        out.append(item)
    return tuple(out + _in_order(group, called, heads))


def _in_order(
    group: list[HistoryItem], called: dict[str, int], heads: dict[int, tuple[str, str]]
) -> list[HistoryItem]:
    return sorted(group, key=lambda item: called.get(heads[id(item)][1], len(heads)))


def _kind_and_call_id(item: HistoryItem) -> tuple[str, str]:
    if isinstance(item, RawHistoryItem):
        head = _head_of(item.json)
        return (head.kind, head.call_id or "")
    if isinstance(item, HistoryOutput):
        return ("output", item.call_id)
    return ("call", item.call_id) if isinstance(item, HistoryCall) else ("other", "")
