"""Remembers the model's items of a turn that ended with calls, and puts them back into the next request's history: the
reasoning, the hidden calls and the agent's own commands, which clients do not send. They are in the step memory under
the client's first call. If nothing is remembered, or the client's items differ, the client's are used.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
    as_functions,
    output_content,
    texts_of,
    without_provider_fields,
)
from codex_proxy.core.json_values import is_json
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.tools.policy import ToolPolicy

CUT_OFF = (
    "No output: the call was cut off before it was answered. "
    "It may have had its effect: look before you make it again."
)
"""The output of a call of the agent's own tool in the last step: it may or may not have begun."""

UNSUPPORTED = "unsupported call: "
UNREADABLE_CALL = "failed to parse function arguments: they are not JSON"
"""The output of a call whose arguments cannot be read, in the agent's own words."""

_THOUGHT_START = re.compile("<think(?: redacted)?>")
_THOUGHT_END = re.compile("(</think(?: redacted)?>)")

CODEX_OWN = "internal_chat_message_metadata_passthrough"
"""A field that Codex adds to raw items."""


class RememberedTurn(msgspec.Struct, frozen=True):
    """What is kept of a turn that ended with calls."""

    items: list[msgspec.Raw]
    """The turn's raw items (JSON of Responses), in order."""
    hidden: dict[str, str | list[dict[str, Any]]]
    """The `output` of the last step's calls that the client does not answer, by call id."""
    calls: list[str]
    """The ids of all calls of the last step, in order."""
    visible: list[str]
    """The ids of calls that the client got, in order."""
    said: str = ""
    """The assistant's text before the calls, as the client saw it."""
    model: str = ""
    """The model and its provider; no other model can read the encrypted reasoning."""
    calls_key: bytes = b""
    """The key of the client's calls; empty in entries of earlier versions."""


class _Head(msgspec.Struct, frozen=True):
    type: str = ""
    role: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[dict[str, Any]] | None = None


class _Identity(msgspec.Struct, frozen=True):
    """The fields by which raw items are compared; clients may leave out others."""

    type: str = ""
    id: str | None = None
    encrypted_content: str | None = None


# --- making entries -------------------------------------------------------------------------------


def entries_of(
    raw: Sequence[bytes], policy: ToolPolicy, identity: str, *, plain: bool = False
) -> dict[bytes, bytes]:
    """Returns the step memory's entry: the `call_key` of the client's first call, and `RememberedTurn` as JSON. Empty
    without calls for the client. Parameters: `remembered_turn`.
    """
    keys = [call_key(call) for call in visible_calls(policy)]
    if not keys:
        return {}
    turn = msgspec.structs.replace(
        remembered_turn(raw, policy, identity, plain=plain),
        said=assistant_text(assistant_messages(raw)),
        calls_key=key_of_all(keys),
    )
    return {keys[0]: msgspec.json.encode(turn)}


def remembered_turn(
    raw: Sequence[bytes], policy: ToolPolicy, identity: str, *, plain: bool = False
) -> RememberedTurn:
    """Returns what to remember but for the text and the key. `raw` are the model's items, `identity` names model and
    provider, `plain`: the agent has no tools of its own. Calls without an output get one: cut off, or an error if
    `plain`.
    """
    items = [msgspec.Raw(clean_item(each)) for each in raw]
    hidden = {answered.output.call_id: output_content(answered.output.parts) for answered in policy.hidden}
    visible = [call.call_id for call in visible_calls(policy)]
    unanswered = _unanswered_calls(items)
    of_client = set(visible)
    cut_off: dict[str, str | list[dict[str, Any]]] = {
        id: _missing_output(call) if plain else CUT_OFF
        for id, call in unanswered.items()
        if id not in of_client
    }
    return RememberedTurn(
        items=items,
        hidden=cut_off | hidden,
        calls=list(unanswered),
        visible=visible,
        model=identity,
    )


def call_key(call: HistoryCall) -> bytes:
    """Returns the call's key: the SHA-256 of its kind, id, name and canonical arguments."""
    text = "\0".join((call.kind, call.call_id, call.name, call.canonical_arguments, ""))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def key_of_all(keys: Iterable[bytes]) -> bytes:
    """Returns the SHA-256 of a step's call keys."""
    return hashlib.sha256(b"".join(keys)).digest()


def clean_item(raw: bytes) -> bytes:
    """Returns a raw item without the field `CODEX_OWN`."""
    item = msgspec.json.decode(raw, type=dict[str, Any])
    item.pop(CODEX_OWN, None)
    return msgspec.json.encode(item)


def raw_history(raw: Iterable[bytes]) -> list[HistoryItem]:
    """Returns raw items as they are in a history."""
    return [RawHistoryItem(clean_item(each)) for each in raw]


def output_id(raw: bytes) -> str | None:
    """Returns the call id of an output; None for other items."""
    head = msgspec.json.decode(raw, type=_Head)
    return head.call_id if head.type in ("function_call_output", "custom_tool_call_output") else None


def visible_calls(policy: ToolPolicy) -> tuple[HistoryCall, ...]:
    """Returns a turn's last calls, as the client will send them back."""
    return tuple(
        HistoryCall(request.call_id, request.name, request.arguments, request.kind)
        for request in policy.visible
    )


def assistant_messages(raw: Iterable[bytes]) -> tuple[HistoryMessage, ...]:
    messages = []
    for each in raw:
        head = msgspec.json.decode(each, type=_Head)
        if head.type == "message" and head.role == "assistant":
            text = "".join(str(part.get("text") or "") for part in head.content or ())
            messages.append(HistoryMessage("assistant", (TextPart(text),)))
    return tuple(messages)


def _unanswered_calls(items: Iterable[msgspec.Raw]) -> dict[str, _Head]:
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


def _missing_output(call: _Head) -> str:
    return UNSUPPORTED + (call.name or "") if is_json((call.arguments or "{}").encode()) else UNREADABLE_CALL


# --- putting them back ----------------------------------------------------------------------------


def keys_of(history: Sequence[HistoryItem]) -> list[bytes]:
    """Returns the step memory's keys of the calls in a history."""
    return [call_key(item) for item in history if _is_for_client(item)]


def assistant_text(items: Sequence[HistoryItem]) -> str:
    """Returns the assistant's texts as they are compared: without `<think>` blocks, joined with blank lines."""
    return "\n\n".join(
        text
        for item in items
        if isinstance(item, HistoryMessage) and item.role == "assistant"
        for text in _texts_outside_thoughts("".join(texts_of(item.parts)))
    )


def _texts_outside_thoughts(text: str) -> list[str]:
    """Returns the texts before, between and after `<think>` blocks, in which some clients send reasoning back."""
    *pieces, last = _THOUGHT_END.split(text)
    said: list[list[str]] = [[]]
    for piece, end in zip(pieces[::2], pieces[1::2], strict=True):
        before, *thought = _THOUGHT_START.split(piece, maxsplit=1)
        said[-1].append(before if thought else piece + end)
        if thought:
            said.append([])
    said[-1].append(last)
    stripped = ("".join(each).strip() for each in said)
    return [each for each in stripped if each]


def restore_items(
    history: Sequence[HistoryItem], recalled: Mapping[bytes, RememberedTurn], model: str
) -> tuple[HistoryItem, ...]:
    """Returns the history with the items of each turn in `recalled` in place of the client's. Unknown or changed turns
    stay. Another model's reasoning is left out.
    """
    repeated = {key for key, times in Counter(keys_of(history)).items() if times > 1}
    out: list[HistoryItem] = []
    index = 0
    while index < len(history):
        start, end = _echo(history, index)
        out += history[index:start]
        memories = _memories_of(history[start:end], recalled, repeated)
        index = end
        if not memories:
            out += history[start:end]
            continue
        while index < len(history) and isinstance(history[index], HistoryOutput):
            index += 1
        for memory, outputs in zip(memories, _shares(memories, history[end:index]), strict=True):
            out += _items_of(memory, model)
            out += _outputs_of(memory, outputs)
    return tuple(out)


def _echo(history: Sequence[HistoryItem], start: int) -> tuple[int, int]:
    """Returns start and end of the next part of a history that repeats an answer: its text, then its calls, with raw
    items among them.
    """
    while start < len(history) and not _is_the_models(history[start]):
        start += 1
    end = start
    called = False
    while end < len(history) and _is_the_models(history[end]):
        if called and isinstance(history[end], HistoryMessage):
            break
        called = called or _is_for_client(history[end])
        end += 1
    return start, end


def _is_for_client(item: HistoryItem) -> TypeGuard[HistoryCall]:
    return isinstance(item, HistoryCall) and not item.by_server


def _is_the_models(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return item.by_server if isinstance(item, HistoryOutput) else True


def _memories_of(
    echo: Sequence[HistoryItem], recalled: Mapping[bytes, RememberedTurn], repeated: Container[bytes]
) -> list[RememberedTurn]:
    """Returns the turns whose answers `echo` repeats, in order: the same calls, no other raw items, the same text or
    none. Several if a client joins their calls. None if it differs, or if a call is in `repeated`.
    """
    keys = keys_of(echo)
    ids = [item.call_id for item in echo if _is_for_client(item)]
    memories: list[RememberedTurn] = []
    start = 0
    while start < len(keys):
        memory = recalled.get(keys[start])
        end = start + len(memory.visible) if memory else start
        if memory is None or end == start or ids[start:end] != memory.visible:
            return []
        if memory.calls_key and memory.calls_key != key_of_all(keys[start:end]):
            return []
        memories.append(memory)
        start = end
    if any(key in repeated for key in keys):
        return []
    raw = [_identity(item.json) for item in echo if isinstance(item, RawHistoryItem)]
    if raw and not _all_among(raw, [_identity(item) for memory in memories for item in memory.items]):
        return []
    said = "\n\n".join(memory.said for memory in memories if memory.said)
    return memories if assistant_text(echo) in ("", said) else []


def _identity(raw: bytes | msgspec.Raw) -> _Identity:
    return msgspec.json.decode(raw, type=_Identity)


def _all_among(items: Iterable[_Identity], others: Sequence[_Identity]) -> bool:
    ids = {(other.type, other.id) for other in others if other.id}
    contents = {(other.type, other.encrypted_content, bool(other.id)) for other in others}

    def is_among(item: _Identity) -> bool:
        if item.id and (item.type, item.id) in ids:
            return True
        content = item.encrypted_content
        return content is not None and (
            (item.type, content, False) in contents
            or (not item.id and (item.type, content, True) in contents)
        )

    return all(map(is_among, items))


def _items_of(memory: RememberedTurn, model: str) -> list[HistoryItem]:
    same = memory.model == model
    items: tuple[HistoryItem, ...] = tuple(
        RawHistoryItem(bytes(raw) if same else without_provider_fields(bytes(raw)))
        for raw in memory.items
        if same or _identity(raw).type != "reasoning"
    )
    agent, own = (each.partition(MODEL_SEPARATOR)[0] for each in (memory.model, model))
    return [*(items if agent == own else as_functions(items))]


def _shares(memories: Sequence[RememberedTurn], given: Sequence[HistoryItem]) -> list[list[HistoryOutput]]:
    """Returns the outputs of each turn's calls; the last turn also gets those of no call."""
    owners = {call_id: number for number, memory in enumerate(memories) for call_id in memory.visible}
    shares: list[list[HistoryOutput]] = [[] for _ in memories]
    for item in given:
        if isinstance(item, HistoryOutput):
            shares[owners.get(item.call_id, -1)].append(item)
    return shares


def _outputs_of(memory: RememberedTurn, outputs: Sequence[HistoryOutput]) -> list[HistoryItem]:
    first: dict[str, HistoryOutput] = {}
    for item in outputs:
        first.setdefault(item.call_id, item)
    out: list[HistoryItem] = []
    for call_id in memory.calls:
        answer = first.get(call_id)
        if answer is not None:
            out.append(answer)
        elif call_id in memory.hidden:
            out.append(HistoryOutput(call_id, parts_of(memory.hidden[call_id])))
    called = set(memory.calls)
    return out + [item for item in outputs if item.call_id not in called or first[item.call_id] is not item]


def parts_of(output: str | list[dict[str, Any]]) -> tuple[Part, ...]:
    """Returns the parts of an output: the reverse of `output_content`."""
    if isinstance(output, str):
        return (TextPart(output),)
    return tuple(
        ImagePart(part["image_url"], part.get("detail"))
        if part["type"] == "input_image"
        else TextPart(part["text"])
        for part in output
    )
