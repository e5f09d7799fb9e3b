"""The subagents of Claude Code: each is a task of its tool `Agent` (`Task` in earlier releases). Its lines name that
call as their parent, come whole, and tell no tokens. A task runs while the call waits, has one turn, and is closed
with it. Only turns that may have subagents tell of them so; in others what they do is the turn's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from codex_proxy.agents.shared.json_lines import decode_part
from codex_proxy.core.events import (
    Event,
    FullText,
    ItemEnded,
    ItemStarted,
    OfSubagent,
    OutputDelta,
    Stop,
    SubagentClosed,
    SubagentOpened,
    TaskGiven,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ActionDetails, Activity, Message, SubagentAction
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.claude_code.calls import activity, output_text
from codex_proxy.parts.claude_code.messages import WholeBlock, WholeMessage
from codex_proxy.parts.claude_code.own_tools import with_use

AGENT_TOOLS: Final = frozenset({"Agent", "Task"})
STARTED, ENDED = "task_started", "task_notification"
LINES: Final = frozenset({STARTED, ENDED})
"""The lines of the type `system` about tasks."""
OF_AGENT: Final = "local_agent"
"""The type of a task that is a subagent; others are commands."""
FAILED: Final = Failure(FaultKind.UPSTREAM_ERROR, "Claude Code says that the subagent has failed.")


class _Task(msgspec.Struct, frozen=True):
    task_id: str = ""
    tool_use_id: str = ""
    description: str = ""
    prompt: str = ""
    task_type: str = OF_AGENT
    status: str = ""
    summary: str = ""
    """At its end: its last text, which comes in no message."""


class _Asked(msgspec.Struct, frozen=True):
    """The arguments of the tool."""

    prompt: str = ""
    model: str | None = None


def described(id: str, tool: str, input: msgspec.Raw | None) -> Activity:
    """Returns the item for a call of one of the agent's own tools, in a turn that may have subagents."""
    found = activity(id, tool, input)
    if tool not in AGENT_TOOLS:
        return found
    try:
        asked = msgspec.json.decode(input or b"{}", type=_Asked)
    except UNREADABLE:
        asked = _Asked()
    action = SubagentAction("create", text=asked.prompt, model=asked.model)
    return msgspec.structs.replace(found, kind="subagent", details=ActionDetails(subagent=action))


class Tasks:
    """The tasks of one turn."""

    def __init__(self, toolset: Toolset | None = None) -> None:
        self._toolset = toolset
        self._by_call: dict[str, str] = {}
        """The tasks that have not ended, by the calls that they serve."""
        self._made_by: dict[str, str] = {}
        """The tasks whose own calls make others, by these calls."""
        self._said: dict[str, str] = {}
        """The last text of each task."""

    def on_line(self, subtype: str, line: bytes) -> Iterator[Event]:
        """Yields the events of a line about a task. Raises `UnreadableError`."""
        task = decode_part(line, _Task, loosely=True)
        if not task.task_id or task.task_type != OF_AGENT:
            return
        if subtype == STARTED:
            self._by_call[task.tool_use_id] = task.task_id
            parent = self._made_by.get(task.tool_use_id, "")
            yield SubagentOpened(task.task_id, parent, task.description, task.prompt)
            yield OfSubagent(task.task_id, TurnStarted())
            yield OfSubagent(task.task_id, TaskGiven(task.prompt))
        elif task.task_id in self._by_call.values():
            self._by_call = {call: id for call, id in self._by_call.items() if id != task.task_id}
            if task.summary and task.summary != self._said.pop(task.task_id, ""):
                for event in _message(f"{task.task_id}_answer", task.summary):
                    yield OfSubagent(task.task_id, event)
            yield OfSubagent(task.task_id, _end_of(task.status))
            yield SubagentClosed(task.task_id)

    def on_message(self, call: str, message: WholeMessage) -> Iterator[Event]:
        """Yields the events of a message of the task that serves a call, or of outputs that it gets."""
        task = self._by_call.get(call)
        if task is None:
            return
        for index, block in enumerate(message.blocks):
            for event in self._of_block(task, f"{message.id}_{index}", block):
                yield OfSubagent(task, event)

    def _of_block(self, task: str, id: str, block: WholeBlock) -> Iterator[Event]:
        if block.type == "text" and block.text and not id.startswith("_"):  # without an id it is its prompt
            self._said[task] = block.text
            yield from _message(id, block.text)
        elif block.type == "tool_use":
            self._made_by[block.id or ""] = task
            found = described(block.id or id, block.name or "", block.input)
            details = with_use(found.details, block.name or "", block.input, self._toolset)
            yield ItemStarted(msgspec.structs.replace(found, details=details))
        elif block.type == "tool_result" and block.tool_use_id:
            if text := output_text(block.content):
                yield OutputDelta(block.tool_use_id, text)
            yield ItemEnded(block.tool_use_id, "failed" if block.is_error else "completed")


def _message(id: str, text: str) -> Iterator[Event]:
    yield ItemStarted(Message(id))
    yield FullText(id, text)
    yield ItemEnded(id)


def _end_of(status: str) -> TurnEnded:
    if status == "failed":
        return TurnEnded.with_failure(FAILED)
    return TurnEnded(Stop.STOP if status == "completed" else Stop.INTERRUPTED)
