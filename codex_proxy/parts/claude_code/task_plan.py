"""The plan that Claude Code keeps with its tools `TaskCreate` and `TaskUpdate`, in place of `TodoWrite`: each call
changes one step. The tool itself gives a step its number, which only the call's output tells. Source: npm
@anthropic-ai/claude-code 2.1.332 `sdk-tools.d.ts`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part
from codex_proxy.core.items import MAX_PLAN_STEPS, MAX_STEP_CHARS, PlanStep, plan_of

CREATE, UPDATE = "TaskCreate", "TaskUpdate"
DELETED: Final = "deleted"
MAX_CALLS: Final = 1000
"""Maximum calls without an output that are kept."""
_FIRST: Final = "1"
"""The number of a plan's first step."""
_CREATED: Final = re.compile(r"Task #(\w{1,64}) created")


class _Given(msgspec.Struct):
    """The arguments of either tool."""

    subject: str = ""
    taskId: str = ""
    status: str = ""


class TaskPlan:
    """The steps of one session, by the numbers that the tools give them."""

    def __init__(self, *, is_whole: bool = True) -> None:
        """`is_whole`: whether the program has no steps yet. Where it has, as in a session that is opened again, they
        are not known, and no plan is told until it begins another one.
        """
        self._is_whole = is_whole
        self._steps: dict[str, tuple[str, str]] = {}
        """The text and the status of each step."""
        self._calls: dict[str, tuple[str, _Given]] = {}
        """The calls without an output, each with its tool."""

    def begin(self, id: str, tool: str, input: msgspec.Raw | None) -> None:
        """Takes a call, if it is one of these tools. `id`: the program's."""
        if tool not in (CREATE, UPDATE) or len(self._calls) >= MAX_CALLS:
            return
        try:
            given = decode_part(input or msgspec.Raw(b"{}"), _Given, loosely=True)
        except UnreadableError:
            return
        given.subject = given.subject[:MAX_STEP_CHARS]
        self._calls[id] = tool, given

    def end(self, id: str, output: str, *, failed: bool) -> tuple[PlanStep, ...]:
        """Takes a call's output. Returns the plan, if the call has changed it; else nothing."""
        found = self._calls.pop(id, None)
        if found is None or failed:
            return ()
        tool, given = found
        changed = self._create(given, output) if tool == CREATE else self._update(given)
        return plan_of(self._steps.values()) if changed and self._is_whole else ()

    def _create(self, given: _Given, output: str) -> bool:
        created = _CREATED.match(output)
        if created is None:
            return False
        if not self._is_whole and created[1] == _FIRST:
            self._steps, self._is_whole = {}, True
        if len(self._steps) >= MAX_PLAN_STEPS:
            done = next(
                (number for number, (_, status) in self._steps.items() if status == "completed"), None
            )
            if done is None:
                return False
            del self._steps[done]
        self._steps[created[1]] = given.subject, "pending"
        return True

    def _update(self, given: _Given) -> bool:
        """Changes a step; False for one that another process has made, whose text is not known."""
        step = self._steps.get(given.taskId)
        if step is None:
            return False
        self._steps[given.taskId] = given.subject or step[0], given.status or step[1]
        if given.status == DELETED:
            del self._steps[given.taskId]
        return True
