"""The agent's own activities in a turn of `codex app-server`. Each function sends the items of one action of the
script, and yields the seconds to wait, as the tasks of `loop.Loop` do.
"""

from __future__ import annotations

import json

from fake_proto import app_shapes as shapes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fake_proto.app_turn import AppTurn

    Action = dict[str, Any]
    Waits = Iterator[float | None]

PLAN_STATUS = {"in_progress": "inProgress"}
UNKNOWN_METHOD = "item/clock/read"
"""The method of a request that no client supports."""


def _command(turn: AppTurn, action: Action) -> Waits:
    identifier = turn.next_id("call")
    text, output, exit_code = action["command"], "".join(action["output"]), action["exit_code"]
    call = {"id": identifier}
    turn.raw(shapes.raw_call("fc_" + identifier, identifier, "exec_command", json.dumps({"cmd": text})))
    turn.item("started", shapes.command(identifier, text, "inProgress", None, None))
    for delta in action["output"]:
        turn.notify_turn("item/commandExecution/outputDelta", itemId=identifier, delta=delta)
        yield from turn.script.pause()
    status = "failed" if exit_code else "completed"
    turn.item("completed", shapes.command(identifier, text, status, output, exit_code))
    turn.output(call, output)


def _big_line(turn: AppTurn, action: Action) -> Waits:
    identifier = turn.next_id("call")
    turn.item("started", shapes.command(identifier, "yes", "inProgress", None, None))
    turn.item("completed", shapes.command(identifier, "yes", "completed", "y" * action["bytes"], 0))
    yield turn.script.delay


def _approval(turn: AppTurn, action: Action) -> Waits:
    """Asks for permission to run a command, and those in `also` at the same time; or to write a file, the `patch`."""
    if "patch" in action:
        yield from _ask_for_patch(turn, action)
        return
    commands = {turn.next_id("call"): text for text in (action["command"], *action.get("also", ()))}
    requests = []
    for identifier, text in commands.items():
        asked = shapes.command(identifier, text, "inProgress", None, None)
        turn.item("started", asked)
        requests.append(
            {
                "kind": "command",
                "itemId": identifier,
                "startedAtMs": 0,
                "environmentId": "local",
                "reason": action["reason"],
                "command": asked["command"],
                "cwd": asked["cwd"],
                "commandActions": asked["commandActions"],
                "availableDecisions": ["accept", "acceptForSession", "decline", "cancel"],
            }
        )
    yield from turn.ask_and_wait("item/commandExecution/requestApproval", *requests)
    for (identifier, text), reply in zip(commands.items(), turn.replies, strict=True):
        if _is_accepted(reply):
            turn.item("completed", shapes.command(identifier, text, "completed", "ok\n", 0))
        else:
            turn.item("completed", shapes.command(identifier, text, "declined", None, None))


def _ask_for_patch(turn: AppTurn, action: Action) -> Waits:
    item = _patch(turn.next_id("call"), action["patch"])
    turn.item("started", {**item, "status": "inProgress"})
    params = {"itemId": item["id"], "startedAtMs": 0, "reason": action["reason"], "grantRoot": None}
    yield from turn.ask_and_wait("item/fileChange/requestApproval", params)
    status = "completed" if _is_accepted(turn.replies[0]) else "declined"
    turn.item("completed", {**item, "status": status})


def _is_accepted(reply: Action) -> bool:
    return (reply.get("result") or {}).get("decision") in ("accept", "acceptForSession")


def _patch(identifier: str, action: Action) -> Action:
    path = f"/fake/workspace/{action['path']}"
    change = {"path": path, "kind": {"type": "add"}, "diff": action["content"]}
    return {"type": "fileChange", "id": identifier, "changes": [change]}


def _file_change(turn: AppTurn, action: Action) -> Waits:
    item = _patch(turn.next_id("call"), action)
    turn.item("started", {**item, "status": "inProgress"})
    yield turn.script.delay
    turn.item("completed", {**item, "status": "completed"})


def _web_search(turn: AppTurn, action: Action) -> Waits:
    identifier = turn.next_id("ws")
    query = action["query"]
    item = {"type": "webSearch", "id": identifier, "query": "", "action": {"type": "other"}, "results": None}
    turn.item("started", item)
    yield turn.script.delay
    search = {"type": "search", "query": query, "queries": None}
    turn.item("completed", {**item, "query": query, "action": search})


def _plan(turn: AppTurn, action: Action) -> Waits:
    steps = [{**step, "status": PLAN_STATUS.get(step["status"], step["status"])} for step in action["plan"]]
    turn.notify_turn("turn/plan/updated", explanation=action["explanation"], plan=steps)
    yield turn.script.delay


def _unknown_request(turn: AppTurn, action: Action) -> Waits:
    """Sends a request that no client knows, and takes any answer."""
    yield from turn.ask_and_wait(UNKNOWN_METHOD, {})


ACTIVITIES: dict[str, Callable[[AppTurn, Action], Waits]] = {
    "command": _command,
    "big_line": _big_line,
    "approval": _approval,
    "file_change": _file_change,
    "web_search": _web_search,
    "plan": _plan,
    "unknown_request": _unknown_request,
}


def change_files_of(turn: AppTurn) -> Waits:
    """Changes the files of the marker's option `files=`."""
    from fake_proto.workspace import change_files  # few turns need it

    thread = turn.thread
    try:
        change_files(thread.folder, thread.sandbox, turn.script.options["files"])
        status, said, exit_code = "completed", "The files were changed.\n", 0
    except (OSError, ValueError) as error:
        status, said, exit_code = "failed", f"The files were not changed: {error}\n", 1
    identifier = f"files_{turn.identifier}"
    turn.item("started", shapes.command(identifier, "change files", "inProgress", None, None))
    yield turn.script.delay
    turn.item("completed", shapes.command(identifier, "change files", status, said, exit_code))
