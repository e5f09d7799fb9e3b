"""Remembers the model's items of a turn that ended with calls, and puts them back into the history of the next
request.

A step is one call of the model; its raw items are the items exactly as the model generated them (JSON of Responses
items). A client sends its calls back without the reasoning, the hidden calls (those that it did not get) and the
agent's own commands that belonged to them. These are kept in the step memory (`core/step_memory.py`) under the first
call that the client got, and put back where the client repeats these calls. So the model gets the same input as
before, with only new items after it. If nothing is remembered, or the client's items differ, the client's items are
used. The same applies to calls that are in a history twice, which is possible with a provider that begins to count
call ids again in each answer: it is not known which of the two was remembered.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

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
)
from codex_proxy.core.step_memory import StepMemory
from codex_proxy.core.turn import Turn
from codex_proxy.tools.policy import ToolPolicy

CUT_OFF = (
    "No output: the call was cut off before it was answered. "
    "It may have had its effect: look before you make it again."
)
"""The output of a call to one of the agent's own tools that the model made beside a call to a client's tool. The
turn ended with the client's call, and it is not known whether the agent had begun its own.
"""

UNSUPPORTED = "unsupported call: "
UNREADABLE = "failed to parse function arguments: they are not JSON"
"""The output of a call whose arguments are not JSON, where the agent has no tools of its own. It has the wording of
the agent's own error."""

MAX_EXACT = 2**53
"""Floats whose value is an integer below this are written without a decimal point, as JavaScript does."""

CODEX_OWN = "internal_chat_message_metadata_passthrough"
"""A field that Codex adds to raw items for its own use. The model's items do not have it."""


class Remembered(msgspec.Struct, frozen=True):
    """What is kept of a turn that ended with calls, to be put back into the history when the client sends their
    outputs.
    """

    items: list[msgspec.Raw]
    """The raw items of the turn (JSON of Responses items), in order."""
    hidden: dict[str, str | list[dict[str, Any]]]
    """The outputs of those calls of the last step that the client never saw or that this server ran, by call id.
    Each is the `output` of a Responses item."""
    calls: list[str]
    """The ids of the last step's calls, in the model's order, including those that the client does not see."""
    visible: list[str]
    """The ids of the calls that the client got, in the model's order."""
    said: str
    """The text of the assistant before the calls, as the client saw it (see `assistant_text`)."""
    model: str = ""
    """The model and its provider. Another one cannot read the encrypted reasoning in `items`."""
    calls_key: bytes = b""
    """The SHA-256 of the keys of the calls that the client got; empty in entries of earlier versions, which saved one
    for each call."""


class _Head(msgspec.Struct, frozen=True):
    type: str = ""
    role: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[dict[str, Any]] | None = None


class _Identity(msgspec.Struct, frozen=True):
    """The fields by which raw items are compared. Clients send items back, but leave out other fields."""

    type: str = ""
    id: str | None = None
    encrypted_content: str | None = None


# --- making entries -------------------------------------------------------------------------------


def entries_of(
    raw: Sequence[bytes], policy: ToolPolicy, identity: str, *, plain: bool = False
) -> dict[bytes, bytes]:
    """Returns the entry of the step memory for a turn that ended with calls: the `call_key` of the first call that the
    client got, and the turn's `Remembered` as JSON. The parameters are those of `remembered_turn`. Empty if the client
    got no calls.
    """
    keys = [call_key(call) for call in visible_calls(policy)]
    if not keys:
        return {}
    turn = remembered_turn(raw, policy, identity, plain=plain)
    return {keys[0]: msgspec.json.encode(msgspec.structs.replace(turn, calls_key=key_of_all(keys)))}


def remembered_turn(
    raw: Sequence[bytes], policy: ToolPolicy, identity: str, *, plain: bool = False
) -> Remembered:
    """Returns what is to be remembered of a turn that ended with calls. `raw` are the model's items as JSON;
    `policy` has the turn's calls and the outputs that this server gave; `identity` names the model and provider;
    `plain`: the agent has no tools of its own. Calls of the last step that have no output and that the client did
    not get are given one: that the call was cut off or, if `plain`, an error (see `_not_answered`).
    """
    items = [msgspec.Raw(clean_item(each)) for each in raw]
    hidden = {answered.output.call_id: wire_output(answered.output.parts) for answered in policy.hidden}
    visible = [call.call_id for call in visible_calls(policy)]
    unanswered = _unanswered(items)
    of_client = set(visible)
    cut_off: dict[str, str | list[dict[str, Any]]] = {
        id: _not_answered(call) if plain else CUT_OFF
        for id, call in unanswered.items()
        if id not in of_client
    }
    return Remembered(
        items=items,
        hidden=cut_off | hidden,
        calls=list(unanswered),
        visible=visible,
        said=assistant_text(assistant_messages(raw)),
        model=identity,
    )


def call_key(call: HistoryCall) -> bytes:
    """Returns the key of a call in the step memory: the SHA-256 of its kind, id, name and canonical arguments."""
    digest = hashlib.sha256()
    for part in (call.kind, call.call_id, call.name, canonical_arguments(call)):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest()


def key_of_all(keys: Iterable[bytes]) -> bytes:
    """Returns one key for all calls of a step: the SHA-256 of their keys."""
    return hashlib.sha256(b"".join(keys)).digest()


def canonical_arguments(call: HistoryCall) -> str:
    """Returns the arguments of a call in one canonical JSON form, so that equal values have equal texts. The
    arguments of a custom tool, and those that are not JSON, are returned unchanged.

    Clients of some APIs parse the arguments and encode them again before they send them back: white space, escapes,
    numbers (`1` for `1.0`) and the order of members may then differ from what the model wrote.
    """
    if call.kind == "custom":
        return call.arguments
    try:
        value = json.loads(call.arguments.strip() or "{}", parse_float=_number)
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return call.arguments


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < MAX_EXACT else number


def clean_item(raw: bytes) -> bytes:
    """Returns a raw item (JSON) without the field that Codex adds for its own use (`CODEX_OWN`)."""
    item = msgspec.json.decode(raw, type=dict[str, Any])
    item.pop(CODEX_OWN, None)
    return msgspec.json.encode(item)


def output_id(raw: bytes) -> str | None:
    """Returns the call id of a raw item that is the output of a call; None for other items."""
    head = msgspec.json.decode(raw, type=_Head)
    return head.call_id if head.type in ("function_call_output", "custom_tool_call_output") else None


def visible_calls(policy: ToolPolicy) -> tuple[HistoryCall, ...]:
    """Returns the calls for the client that a turn ended with, as the client will send them back."""
    return tuple(
        HistoryCall(request.call_id, request.name, request.arguments, request.kind)
        for request in policy.visible
    )


def assistant_messages(raw: Iterable[bytes]) -> tuple[HistoryMessage, ...]:
    """Returns the messages of the assistant among raw items (JSON of Responses items)."""
    messages = []
    for each in raw:
        head = msgspec.json.decode(each, type=_Head)
        if head.type == "message" and head.role == "assistant":
            text = "".join(str(part.get("text") or "") for part in head.content or ())
            messages.append(HistoryMessage("assistant", (TextPart(text),)))
    return tuple(messages)


def _unanswered(items: Iterable[msgspec.Raw]) -> dict[str, _Head]:
    """Returns the calls in `items` whose output is not in `items`, by call id, in the order of `items`."""
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
    """Returns the error that the model gets as the output of a call that the client did not get: that the arguments
    are not JSON, or else that there is no such tool. For agents without tools of their own.
    """
    try:
        msgspec.json.decode(call.arguments or "{}")
    except msgspec.ValidationError:
        pass  # a number that is larger than any here: the agent reads it
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNREADABLE
    return UNSUPPORTED + (call.name or "")


# --- putting them back ----------------------------------------------------------------------------


async def recalled_history(
    turn: Turn, owner: str, memory: StepMemory, identity: str
) -> tuple[HistoryItem, ...]:
    """Returns the turn's history with the remembered items of earlier turns put back. `memory` has what was
    remembered for each `owner` (a client's API key). `identity` names the model and provider that will read the
    history. Raises `StoreUnavailable` if the memory is on disk and cannot be read.
    """
    keys = keys_of(turn.history)
    if not keys:
        return turn.history
    found = await memory.recall(owner, keys)
    entries = {key: msgspec.json.decode(value, type=Remembered) for key, value in found.items()}
    return restored(turn.history, entries, identity) if entries else turn.history


def keys_of(history: Sequence[HistoryItem]) -> list[bytes]:
    """Returns the keys in the step memory of those calls of a history that the client answers."""
    return [call_key(item) for item in history if isinstance(item, HistoryCall) and not item.by_server]


def assistant_text(items: Sequence[HistoryItem]) -> str:
    """Returns the texts of the assistant's messages among the items, joined with blank lines."""
    texts = (
        "".join(part.text for part in item.parts if isinstance(part, TextPart))
        for item in items
        if isinstance(item, HistoryMessage) and item.role == "assistant"
    )
    return "\n\n".join(text for text in texts if text)


def restored(
    history: Sequence[HistoryItem], recalled: Mapping[bytes, Remembered], model: str
) -> tuple[HistoryItem, ...]:
    """Returns the history with the items of each remembered turn in the place of what the client sent back of that
    turn. `recalled` has the remembered turns by the keys of their calls; a turn that is not in it, or that the
    client has changed, stays as the client sent it. `model` is the identity of the model that will read the
    history. A turn of another model is put back without its reasoning, which only that model can read.
    """
    repeated = {key for key, times in Counter(keys_of(history)).items() if times > 1}
    out: list[HistoryItem] = []
    index = 0
    while index < len(history):
        start, end = _echo(history, index)
        out += history[index:start]
        memory = _memory_of(history[start:end], recalled, repeated)
        index = end
        if memory is None:
            out += history[start:end]
            continue
        while index < len(history) and isinstance(history[index], HistoryOutput):
            index += 1
        out += _items_of(memory, model)
        out += _outputs_of(memory, history[end:index])
    return tuple(out)


def _echo(history: Sequence[HistoryItem], start: int) -> tuple[int, int]:
    """Returns the start and end indexes of the next part of the history, from `start` on, that repeats an answer of
    the model: its text, then its calls, with raw items among them.
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


def _is_for_client(item: HistoryItem) -> bool:
    """Whether the item is a call that the client answers and sends back."""
    return isinstance(item, HistoryCall) and not item.by_server


def _is_the_models(item: HistoryItem) -> bool:
    """Whether the item came from the model (a message, a call or a raw item), or is the output of a call that this
    server ran.
    """
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return item.by_server if isinstance(item, HistoryOutput) else True


def _memory_of(
    echo: Sequence[HistoryItem], recalled: Mapping[bytes, Remembered], repeated: Container[bytes]
) -> Remembered | None:
    """Returns the turn in `recalled` whose answer a part of the history (`echo`) repeats; None if there is none.
    The part repeats the answer if it has the same calls, no raw items that the answer does not have, and the same
    text or none. `repeated` are the keys of the calls that are in the history twice.
    """
    calls = [item for item in echo if isinstance(item, HistoryCall) and not item.by_server]
    keys = [call_key(call) for call in calls]
    memory = recalled.get(keys[0]) if keys else None
    if memory is None or [call.call_id for call in calls] != memory.visible:
        return None
    if (memory.calls_key and memory.calls_key != key_of_all(keys)) or any(key in repeated for key in keys):
        return None
    raw = [_identity(item.json) for item in echo if isinstance(item, RawHistoryItem)]
    if raw and not _all_among(raw, [_identity(item) for item in memory.items]):
        return None
    return memory if assistant_text(echo) in ("", memory.said) else None


def _identity(raw: bytes | msgspec.Raw) -> _Identity:
    return msgspec.json.decode(raw, type=_Identity)


def _all_among(items: Iterable[_Identity], others: Sequence[_Identity]) -> bool:
    """Whether each of the items is one of `others`: of the same type and id or, if one of the two has no id, of the
    same encrypted content.
    """
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


def _items_of(memory: Remembered, model: str) -> list[HistoryItem]:
    out: list[HistoryItem] = []
    for raw in memory.items:
        if memory.model != model and _identity(raw).type == "reasoning":
            continue
        out.append(RawHistoryItem(bytes(raw)))
    return out


def _outputs_of(memory: Remembered, given: Sequence[HistoryItem]) -> list[HistoryItem]:
    """Returns the outputs of the calls of the turn's last step, in the order of the calls: those that the client
    has given (`given`), and those that were remembered. Other outputs in `given` follow.
    """
    outputs = [item for item in given if isinstance(item, HistoryOutput)]
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


def wire_output(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Returns the parts of an output as the `output` of a Responses item: a text, or a list of content parts."""
    if all(isinstance(part, TextPart) for part in parts) and len(parts) <= 1:
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [_wire_part(part) for part in parts]


def parts_of(output: str | list[dict[str, Any]]) -> tuple[Part, ...]:
    """Returns the parts of a Responses item's output; the reverse of `wire_output`."""
    if isinstance(output, str):
        return (TextPart(output),)
    return tuple(
        ImagePart(part["image_url"], part.get("detail"))
        if part["type"] == "input_image"
        else TextPart(part["text"])
        for part in output
    )


def _wire_part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    detail = {} if part.detail is None else {"detail": part.detail}
    return {"type": "input_image", "image_url": part.url, **detail}
