"""Returns the items that the model put out in a turn, to be stored with the answer and used as history later.

A client sees less than the model did: no reasoning, and not the calls that this server answered. They are kept in
order with the answer, so that the model later sees the same input again, with only new items after it.
`tools/replay.py` does the same for turns that are not stored.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryOutput, RawHistoryItem
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
    """An item that belongs to a turn for the model: one that the model put out, or an output that this server gave
    it.
    """

    model: str
    """The name of the agent and model that made the item. Only the same one can read its reasoning."""
    item: msgspec.Raw

    @property
    def head(self) -> ItemHead:
        return msgspec.json.decode(self.item, type=ItemHead)


class _TextPart(msgspec.Struct, frozen=True):
    text: str | None = None


class ItemHead(msgspec.Struct, frozen=True):
    """The fields of an item that identify it: type, id, call id, and the text of a message."""

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


def model_items(run: Run, identity: str) -> list[ModelItem]:
    """Returns all items of this turn that the model must see again, in order. At the end are the outputs that the
    client never saw. `identity` names the model and provider.
    """
    remembered = remembered_turn(run.raw, run.attempt.policy, identity)
    answers = [
        {"type": "function_call_output", "call_id": call_id, "output": remembered.hidden[call_id]}
        for call_id in remembered.calls
        if call_id in remembered.hidden
    ]
    raw = [*remembered.items, *(msgspec.Raw(msgspec.json.encode(answer)) for answer in answers)]
    return [ModelItem(identity, item) for item in raw]


def as_history(item: ModelItem, identity: str) -> RawHistoryItem | None:
    """Returns the item for the history of the model `identity`; None for reasoning of another model, which it
    cannot read.
    """
    if item.model != identity and item.head.kind == "reasoning":
        return None
    return RawHistoryItem(bytes(item.item))


def with_whole_calls(history: list[HistoryItem]) -> tuple[HistoryItem, ...]:
    """Returns the history with each group of outputs in the order of its calls. Raw calls without an output and raw
    outputs without a call are left out: the other item was deleted, or the turn was cut off.
    """
    heads = {id(item): _half_of(item) for item in history}
    called = [call_id for kind, call_id in heads.values() if kind == "call"]
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
    group: list[HistoryItem], called: list[str], heads: dict[int, tuple[str, str]]
) -> list[HistoryItem]:
    places = {call_id: place for place, call_id in enumerate(called)}
    return sorted(group, key=lambda item: places.get(heads[id(item)][1], len(places)))


def _half_of(item: HistoryItem) -> tuple[str, str]:
    """Returns `call`, `output`, or another word for an item that is neither; and the id of the call."""
    if isinstance(item, RawHistoryItem):
        head = msgspec.json.decode(item.json, type=ItemHead)
        return (head.kind, head.call_id or "")
    if isinstance(item, HistoryOutput):
        return ("output", item.call_id)
    return ("call", item.call_id) if isinstance(item, HistoryCall) else ("other", "")
