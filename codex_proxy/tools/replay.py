"""The steps of earlier turns, put back in place: what the client echoes is less than what the model said.

A client sends its calls back without the reasoning, the hidden calls and the agent's own commands that went
with them. They were remembered under each visible call (its id and a digest of what it said, never the id
alone), and are put where the echo stands, so that the model sees the same input as before and only new items
after it. Where nothing is remembered, or the echo says something else, the echo itself serves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from codex_proxy.core.items import HistoryItem, PastCall, PastOutput, PastRaw, SaidMessage, TextPart


class Remembered(msgspec.Struct, frozen=True):
    """What the model and the agent put into the history in one client turn, up to its visible calls."""

    items: list[msgspec.Raw]
    """Responses items as they came, in order."""
    hidden: dict[str, str]
    """Outputs that we gave, by call id, of calls in the last step that the client never saw."""
    calls: list[str]
    """Call ids of the last step, hidden ones too, in the model's order."""
    visible: list[str]
    said: str
    """The text that the client saw before the calls, as `said_text` joins it."""
    model: str = ""
    """Model and provider: another one cannot read this one's reasoning."""


class _Head(msgspec.Struct, frozen=True):
    type: str = ""


def call_key(call: PastCall) -> bytes:
    """What a visible call is remembered under."""
    digest = hashlib.sha256()
    for part in (call.kind, call.call_id, call.name, call.arguments):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest()


def keys_of(history: Sequence[HistoryItem]) -> list[bytes]:
    """The keys to look up for a history."""
    return [call_key(item) for item in history if isinstance(item, PastCall)]


def said_text(items: Sequence[HistoryItem]) -> str:
    """The text of assistant messages as clients echo it: several of them are one, with a blank line between."""
    texts = (
        "".join(part.text for part in item.parts if isinstance(part, TextPart))
        for item in items
        if isinstance(item, SaidMessage) and item.role == "assistant"
    )
    return "\n\n".join(text for text in texts if text)


def restored(
    history: Sequence[HistoryItem], recalled: Mapping[bytes, Remembered], model: str
) -> tuple[HistoryItem, ...]:
    """The history with each echo of a remembered turn replaced by what was remembered of it."""
    out: list[HistoryItem] = []
    index = 0
    while index < len(history):
        echo_end = _echo_end(history, index)
        memory = _memory_of(history[index:echo_end], recalled)
        if memory is None:
            end = max(echo_end, index + 1)
            out += history[index:end]
            index = end
            continue
        outputs_end = echo_end
        while outputs_end < len(history) and isinstance(history[outputs_end], PastOutput):
            outputs_end += 1
        out += _items_of(memory, model)
        out += _outputs_of(memory, history[echo_end:outputs_end])
        index = outputs_end
    return tuple(out)


def _echo_end(history: Sequence[HistoryItem], start: int) -> int:
    """The end of one echo: assistant messages, then calls. `start` itself where none begins there."""
    index = start
    while index < len(history):
        item = history[index]
        if not (isinstance(item, SaidMessage) and item.role == "assistant"):
            break
        index += 1
    calls = index
    while calls < len(history) and isinstance(history[calls], PastCall):
        calls += 1
    return calls if calls > index else start


def _memory_of(echo: Sequence[HistoryItem], recalled: Mapping[bytes, Remembered]) -> Remembered | None:
    """What is remembered of an echo: all its calls must be of one turn, and its text the same."""
    calls = [item for item in echo if isinstance(item, PastCall)]
    if not calls:
        return None
    memory = recalled.get(call_key(calls[0]))
    if memory is None or [call.call_id for call in calls] != memory.visible:
        return None
    if any(recalled.get(call_key(call)) != memory for call in calls[1:]):
        return None
    return memory if said_text(echo) in ("", memory.said) else None


def _items_of(memory: Remembered, model: str) -> list[HistoryItem]:
    out: list[HistoryItem] = []
    for raw in memory.items:
        if memory.model != model and msgspec.json.decode(raw, type=_Head).type == "reasoning":
            continue
        out.append(PastRaw(bytes(raw)))
    return out


def _outputs_of(memory: Remembered, given: Sequence[HistoryItem]) -> list[HistoryItem]:
    """The outputs of the last step in the model's order, ours and the client's; what is left over at the end."""
    by_call = {item.call_id: item for item in given if isinstance(item, PastOutput)}
    out: list[HistoryItem] = []
    for call_id in memory.calls:
        if call_id in by_call:
            out.append(by_call.pop(call_id))
        elif call_id in memory.hidden:
            out.append(PastOutput(call_id, (TextPart(memory.hidden[call_id]),)))
    return out + list(by_call.values())
