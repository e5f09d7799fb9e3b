"""Finds the ids of calls that a client sends back without them, so that the thread that waits for their outputs and the
remembered items of their step are found. Ollama's packages and `function_call` of Chat Completions have no ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput
from codex_proxy.core.step_memory import StepMemory
from codex_proxy.core.turn import Turn
from codex_proxy.runs.idle_sessions import item_digests


async def with_call_ids(turn: Turn, owner: str, memory: StepMemory) -> Turn:
    """Returns the turn with the remembered ids of its calls; others stay. May raise `StoreUnavailable`."""
    keys = _keys_of_calls(turn.history)
    found = await memory.recall(owner, list(keys.values()))
    if not found:
        return turn
    renamed: dict[str, str] = {}
    history: list[HistoryItem] = []
    for index, item in enumerate(turn.history):
        if index in keys and isinstance(item, HistoryCall):
            known = found.get(keys[index])
            renamed[item.call_id] = item.call_id if known is None else known.decode()
        if isinstance(item, HistoryCall | HistoryOutput):
            call_id = renamed.get(item.call_id, item.call_id)
            history.append(msgspec.structs.replace(item, call_id=call_id))
        else:
            history.append(item)
    return msgspec.structs.replace(turn, history=tuple(history))


def call_id_entries(
    turn: Turn, said: Sequence[HistoryMessage], calls: Sequence[HistoryCall]
) -> dict[bytes, bytes]:
    """Returns the step memory's entries for the ids of the calls that follow the turn and `said` in its answer."""
    before = (*turn.history, *said)
    keys = _keys_of_calls((*before, *calls))
    return {keys[len(before) + index]: call.call_id.encode() for index, call in enumerate(calls)}


def _keys_of_calls(history: Sequence[HistoryItem]) -> dict[int, bytes]:
    """Returns a key for each call, by its index: the SHA-256 of the conversation up to it, without ids of calls."""
    without_ids = [
        msgspec.structs.replace(item, call_id="") if isinstance(item, HistoryCall | HistoryOutput) else item
        for item in history
    ]
    so_far = hashlib.sha256(b"id of a call\0")
    keys: dict[int, bytes] = {}
    start = 0
    for digest, end in zip(*item_digests(without_ids), strict=True):
        so_far.update(digest)
        keys |= {
            index: so_far.digest() for index in range(start, end) if isinstance(history[index], HistoryCall)
        }
        start = end
    return keys
