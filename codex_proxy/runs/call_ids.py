"""Finds the ids of calls that a client sends back without them, so that the thread that waits for their outputs and the
remembered items of their step are found. Ollama's packages and `function_call` of Chat Completions have no ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import msgspec

from codex_proxy.agents.beside_the_loop import beside_the_loop
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput
from codex_proxy.core.step_memory import StepMemory
from codex_proxy.core.turn import Turn
from codex_proxy.runs.idle_sessions import item_digests


async def with_call_ids(turn: Turn, memory: StepMemory) -> Turn:
    """Returns the turn with the remembered ids of its calls; others stay. May raise `StoreUnavailable`."""
    steps = await beside_the_loop(turn.history, partial(_steps_of, turn.history))
    found = await memory.recall(turn.owner, list(steps))
    ids: dict[int, str] = {}
    for key, remembered in found.items():
        ids |= zip(steps[key], msgspec.json.decode(remembered, type=list[str]), strict=True)
    if not ids:
        return turn
    renamed: dict[str, str] = {}
    history: list[HistoryItem] = []
    for index, item in enumerate(turn.history):
        if isinstance(item, HistoryCall):
            renamed[item.call_id] = ids.get(index, item.call_id)
        if isinstance(item, HistoryCall | HistoryOutput):
            call_id = renamed.get(item.call_id, item.call_id)
            history.append(msgspec.structs.replace(item, call_id=call_id))
        else:
            history.append(item)
    return msgspec.structs.replace(turn, history=tuple(history))


def call_id_entry(
    turn: Turn, said: Sequence[HistoryMessage], calls: Sequence[HistoryCall]
) -> dict[bytes, bytes]:
    """Returns the step memory's entry for the ids of the calls that follow the turn and `said` in its answer."""
    *_, key = _steps_of((*turn.history, *said, *calls))
    return {key: msgspec.json.encode([call.call_id for call in calls])}


def _steps_of(history: Sequence[HistoryItem]) -> dict[bytes, list[int]]:
    """Returns the indexes of each step's calls, by the SHA-256 of the conversation up to them, without ids of calls."""
    without_ids = [
        msgspec.structs.replace(item, call_id="") if isinstance(item, HistoryCall | HistoryOutput) else item
        for item in history
    ]
    so_far = hashlib.sha256(b"ids of calls\0")
    steps: dict[bytes, list[int]] = {}
    start, calls = 0, list[int]()
    for digest, end in zip(*item_digests(without_ids), strict=True):
        called = [index for index in range(start, end) if isinstance(history[index], HistoryCall)]
        if calls and not called:
            steps[so_far.digest()] = calls
            calls = []
        calls += called
        so_far.update(digest)
        start = end
    if calls:
        steps[so_far.digest()] = calls
    return steps
