"""The plan that Claude Code makes with calls of `TaskCreate` and `TaskUpdate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from codex_proxy.core.items import MAX_PLAN_STEPS, MAX_STEP_CHARS, HistoryMessage, PlanStep, TextPart
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.parts.claude_code.task_plan import TaskPlan
from tests.http.claude import claude_proxy
from tests.parts.sessions.driving import AgentsClient, message
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_summaries import summary


def call(
    plan: TaskPlan, tool: str, output: str, *, failed: bool = False, **given: Any
) -> tuple[PlanStep, ...]:
    plan.begin("call", tool, msgspec.Raw(json.dumps(given).encode()))
    return plan.end("call", output, failed=failed)


def created(plan: TaskPlan, number: int | str, subject: str) -> tuple[PlanStep, ...]:
    return call(plan, "TaskCreate", f"Task #{number} created successfully: {subject}", subject=subject)


async def test_tasks_are_the_plan_of_the_session(tmp_path: Path) -> None:
    async with claude_proxy(tmp_path) as proxy:
        client, folder = AgentsClient(proxy), Path(proxy.server.settings.workdir)
        id = await client.idle_session("[[fake:activity tasks=1]]", **hosted(folder))
        plan = [
            {"step": "look", "status": "completed"},
            {"step": "change", "status": "in_progress"},
            {"step": "check", "status": "pending"},
        ]
        assert (await summary(client, id))["plan"] == plan
        await client.turn(id, message("Hello."))
        assert (await summary(client, id))["plan"] == plan


def test_a_task_is_renamed_and_deleted_by_its_number() -> None:
    plan = TaskPlan()
    assert created(plan, 7, "look") == (PlanStep("look"),)
    assert created(plan, 8, "check") == (PlanStep("look"), PlanStep("check"))
    assert call(plan, "TaskUpdate", "", taskId="7", subject="see", status="in_progress") == (
        PlanStep("see", "in_progress"),
        PlanStep("check"),
    )
    assert call(plan, "TaskUpdate", "", taskId="7", status="deleted") == (PlanStep("check"),)


def test_what_fails_or_is_not_known_changes_nothing() -> None:
    plan = TaskPlan()
    assert call(plan, "TaskCreate", "Task #1 created", failed=True, subject="look") == ()
    assert call(plan, "TaskCreate", "No room.", subject="look") == ()
    assert call(plan, "TaskUpdate", "", taskId="1", status="completed") == ()
    assert created(plan, 1, "look") == (PlanStep("look"),)
    assert call(plan, "TaskUpdate", "", taskId=1, status=["completed"]) == ()
    assert call(plan, "TodoWrite", "", todos=[]) == ()
    assert plan.end("another", "Task #1 created", failed=False) == ()


def test_a_plan_is_bounded() -> None:
    plan, long = TaskPlan(), "x" * (MAX_STEP_CHARS * 2)
    for number in range(MAX_PLAN_STEPS):
        steps = created(plan, number, long)
    assert [len(each.step) for each in steps] == [MAX_STEP_CHARS] * MAX_PLAN_STEPS
    assert created(plan, "one_more", long) == ()
    assert call(plan, "TaskCreate", "Task #" + "9" * 1000 + " created", subject="look") == ()


def test_a_full_plan_drops_what_is_completed_for_a_new_step() -> None:
    plan = TaskPlan()
    for number in range(1, MAX_PLAN_STEPS + 1):
        created(plan, number, f"{number}")
    call(plan, "TaskUpdate", "", taskId="7", status="completed")
    steps = [each.step for each in created(plan, "more", "one more")]
    assert len(steps) == MAX_PLAN_STEPS
    assert ("7" in steps, steps[-1]) == (False, "one more")


def test_of_a_plan_whose_beginning_is_not_known_nothing_is_told_until_another_begins() -> None:
    plan = TaskPlan(is_whole=False)
    assert created(plan, 4, "look") == ()
    assert call(plan, "TaskUpdate", "", taskId="4", status="completed") == ()
    assert created(plan, 1, "see") == (PlanStep("see"),)
    assert created(plan, 2, "check") == (PlanStep("see"), PlanStep("check"))


def test_a_session_that_is_opened_again_has_a_plan_whose_beginning_is_not_known() -> None:
    dialect = ClaudeCodeTurn()
    said = (HistoryMessage("user", (TextPart("Hello."),)),)
    dialect.reopen(Turn(model="opus", history=said), "one", said)
    assert created(vars(dialect)["_reader"].task_plan, 4, "look") == ()
