"""What was said in a turn that ended with calls, remembered for the request that brings their outputs.

Makes the entries and reads them; where they are kept is behind `StepMemory`, which `app` fills. An entry that
is lost costs the model its own reasoning of that step, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from codex_proxy.core.items import HistoryItem, PastCall, SaidMessage, TextPart
from codex_proxy.core.turn import Turn
from codex_proxy.tools.broker import Broker
from codex_proxy.tools.replay import Remembered, call_key, keys_of, restored, said_text, wire_output

MAX_ENTRIES, MAX_BYTES = 1000, 64 << 20
"""What RAM holds at most: a busy day of one person's tool loops."""

CUT_OFF = "No output: the call was cut off before it was answered. Make it again if you still need it."
"""Of a call that the agent would have answered by itself, behind one that it waits for."""

UNSUPPORTED = "unsupported call: "
UNREADABLE = "failed to parse function arguments: they are not JSON"
"""Of such a call where the agent has no tools of its own: it is a mistake of the model's, told in the agent's words."""

CODEX_OWN = "internal_chat_message_metadata_passthrough"
"""A field that the agent adds to raw items for itself; the model never sent it."""


class StepMemory(Protocol):
    """Where entries are kept. `durable`: over a restart."""

    async def remember(self, owner: str, keys: Sequence[bytes], value: bytes, *, durable: bool) -> None: ...

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]: ...


class RamStepMemory:
    """Entries in RAM, the oldest forgotten first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._bytes = 0

    async def remember(self, owner: str, keys: Sequence[bytes], value: bytes, *, durable: bool) -> None:
        for key in keys:
            self._drop((owner, key))
            self._entries[owner, key] = value
            self._bytes += len(value)
        while len(self._entries) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._entries)))

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return {key: self._entries[owner, key] for key in keys if (owner, key) in self._entries}

    def _drop(self, place: tuple[str, bytes]) -> None:
        value = self._entries.pop(place, None)
        if value is not None:
            self._bytes -= len(value)


class _Head(msgspec.Struct, frozen=True):
    type: str = ""
    role: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[dict[str, Any]] | None = None


def clean_item(raw: bytes) -> bytes:
    """A raw item as the model sent it."""
    item = msgspec.json.decode(raw, type=dict[str, Any])
    item.pop(CODEX_OWN, None)
    return msgspec.json.encode(item)


def output_id(raw: bytes) -> str | None:
    """The id of the call that a raw item is the output of."""
    head = msgspec.json.decode(raw, type=_Head)
    return head.call_id if head.type in ("function_call_output", "custom_tool_call_output") else None


def visible_calls(broker: Broker) -> tuple[PastCall, ...]:
    """The calls that a turn ended with, as its client will echo them."""
    return tuple(PastCall(ask.call_id, ask.name, ask.arguments, ask.kind) for ask in broker.visible)


def said_by(raw: Iterable[bytes]) -> tuple[SaidMessage, ...]:
    """The assistant's messages among raw items."""
    messages = []
    for each in raw:
        head = msgspec.json.decode(each, type=_Head)
        if head.type == "message" and head.role == "assistant":
            text = "".join(str(part.get("text") or "") for part in head.content or ())
            messages.append(SaidMessage("assistant", (TextPart(text),)))
    return tuple(messages)


def entry_of(
    raw: Sequence[bytes], broker: Broker, identity: str, *, plain: bool = False
) -> tuple[list[bytes], bytes]:
    """Keys and value to remember a turn that ended with calls. `identity`: of model and provider; `plain`: the
    agent has no tools of its own."""
    items = [msgspec.Raw(clean_item(each)) for each in raw]
    hidden = {answered.output.call_id: wire_output(answered.output.parts) for answered in broker.hidden}
    calls = visible_calls(broker)
    visible = [call.call_id for call in calls]
    unanswered = _unanswered(items)
    not_told: dict[str, str | list[dict[str, Any]]] = {
        id: _not_answered(call) if plain else CUT_OFF for id, call in unanswered.items() if id not in visible
    }
    entry = Remembered(
        items=items,
        hidden=not_told | hidden,
        calls=list(unanswered),
        visible=visible,
        said=said_text(said_by(raw)),
        model=identity,
    )
    return [call_key(call) for call in calls], msgspec.json.encode(entry)


def _unanswered(items: Iterable[msgspec.Raw]) -> dict[str, _Head]:
    """Calls that have no output among the items, by id, in order."""
    open_calls: dict[str, _Head] = {}
    for item in items:
        head = msgspec.json.decode(item, type=_Head)
        if head.call_id is None:
            continue
        if head.type in ("function_call", "custom_tool_call"):
            open_calls[head.call_id] = head
        else:
            open_calls.pop(head.call_id, None)
    return open_calls


def _not_answered(call: _Head) -> str:
    """What the agent would have said of a call that it cannot pass on."""
    try:
        msgspec.json.decode(call.arguments or "{}")
    except msgspec.ValidationError:
        pass  # a number that is larger than any here: the agent reads it
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNREADABLE
    return UNSUPPORTED + (call.name or "")


async def recalled_history(
    turn: Turn, owner: str, memory: StepMemory, identity: str
) -> tuple[HistoryItem, ...]:
    """The turn's history with what is remembered of earlier steps put back in place."""
    keys = keys_of(turn.history)
    if not keys:
        return turn.history
    found = await memory.recall(owner, keys)
    entries = {key: msgspec.json.decode(value, type=Remembered) for key, value in found.items()}
    return restored(turn.history, entries, identity) if entries else turn.history
