"""Subagents in a turn of `codex app-server`: each is a thread of its own, whose turns go on beside its parent's. The
marker in its task chooses what one does.
"""

from __future__ import annotations

import json

from fake_proto import app_shapes as shapes
from fake_proto.faults import POLL_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fake_proto.app_thread import AppThread
    from fake_proto.app_turn import AppTurn

    Action = dict[str, Any]
    Waits = Iterator[float | None]

NAME = "Ada"
TOOLS = {
    "make": ("spawnAgent", "spawn_agent"),
    "send": ("sendInput", "send_input"),
    "wait": ("wait", "wait_agent"),
    "close": ("closeAgent", "close_agent"),
    "resume": ("resumeAgent", "resume_agent"),
}
"""The name of what is done in items, and the tool that the model calls for it."""


def subagent(turn: AppTurn, action: Action) -> Waits:
    """Does with the turn's last subagent what the action's `does` says. `args` of the marker are its task."""
    tool, name = TOOLS[action["does"]]
    task = turn.script.options.get("args") or action.get("task", "")
    identifier = turn.next_id("call")
    turn.raw(shapes.raw_call("fc_" + identifier, identifier, name, json.dumps({"message": task})))
    subagents = turn.agent.subagents_of(turn.thread)
    child = None if action["does"] == "make" else subagents[-1]
    item = _item(turn, identifier, tool, task, child)
    turn.item("started", {**item, "status": "inProgress"})
    output, child = yield from _done(turn, action["does"], child)
    item = _item(turn, identifier, tool, task, child)
    turn.item("completed", {**item, "status": "completed"})
    if action["does"] in ("make", "send"):
        turn.agent.begin_turn_of(child, task)
    turn.output({"id": identifier}, json.dumps(output))


def _done(turn: AppTurn, does: str, child: Any) -> Any:
    if does == "make":
        child = turn.agent.make_subagent(turn.thread)
        return {"agent_id": child.identifier, "nickname": NAME}, child
    while does == "wait" and child.turn is not None:
        yield POLL_S
    if does == "close":
        turn.agent.close_subagent(child)
    elif does == "resume":
        turn.agent.open_again(child)
    yield turn.script.delay
    return {}, child


def _item(turn: AppTurn, identifier: str, tool: str, task: str, child: AppThread | None) -> dict[str, Any]:
    return {
        "type": "collabAgentToolCall",
        "id": identifier,
        "tool": tool,
        "senderThreadId": turn.thread.identifier,
        "receiverThreadIds": [] if child is None else [child.identifier],
        "prompt": task if tool in ("spawnAgent", "sendInput") else None,
        "model": None,
        "reasoningEffort": None,
        "agentsStates": {},
    }


SUBAGENTS: dict[str, Callable[[AppTurn, Action], Waits]] = {"subagent": subagent}
