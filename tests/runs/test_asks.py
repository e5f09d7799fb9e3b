"""What clients are asked about, and what a run does while it waits for them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Decision
from codex_proxy.core.events import ApprovalKind, ApprovalRequested, InputRequested, RequestClosed, TurnEnded
from codex_proxy.core.items import ActionDetails, FileDiff, Permission, ToolName, ToolUse
from codex_proxy.core.turn import Sandbox, Toolset
from codex_proxy.runs.asks import (
    ALLOWED,
    DECLINED,
    MAX_CHANGES,
    MAX_SHOWN,
    OUTSIDE,
    OUTSIDE_READ,
    OWN_FOLDER,
    READ_ONLY,
    TOO_LONG,
    beyond_sandbox,
)
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from tests.runs.actors import DONE, TURN, WordAgent, all_events, deltas, end_of
from tests.runs.virtual import settle, virtual

COMMAND = ActionDetails(command="make", cwd="/work")
ASKING = msgspec.structs.replace(TURN, approvals="ask", sandbox="danger-full-access")


def question(id: str = "q1", kind: ApprovalKind = "command", **more: Any) -> ApprovalRequested:
    return ApprovalRequested(id, kind, "make", **{"details": COMMAND} | more)


def patch(*paths: str, moved_to: str = "") -> ActionDetails:
    return ActionDetails(changes=tuple(FileDiff(path, "add", "x", moved_to) for path in paths))


@pytest.mark.parametrize(
    ("sandbox", "kind", "details", "why"),
    [
        ("read-only", "command", COMMAND, ""),
        ("read-only", "command", None, "The agent does not tell what it is."),
        ("danger-full-access", "permission", None, "The agent does not tell what it is."),
        ("danger-full-access", "command", ActionDetails(command="x" * MAX_SHOWN), TOO_LONG),
        ("danger-full-access", "file_change", patch(*["a"] * (MAX_CHANGES + 1)), TOO_LONG),
        ("danger-full-access", "file_change", patch("/etc/passwd"), ""),
        ("read-only", "file_change", patch("WORK/new"), READ_ONLY),
        ("workspace-write", "file_change", patch("WORK/new", "WORK/deep/er/new", "relative"), ""),
        ("workspace-write", "file_change", patch("WORK/new", "WORK/../other/new"), OUTSIDE),
        ("workspace-write", "file_change", patch("WORK/new", moved_to="/etc/passwd"), OUTSIDE),
        ("workspace-write", "file_change", patch(), OUTSIDE),
        ("workspace-write", "file_change", patch("WORK"), OUTSIDE),
        ("workspace-write", "file_change", patch("~/x"), OUTSIDE),
        ("workspace-write", "file_change", patch("WORKmate/x"), OUTSIDE),
        ("workspace-write", "file_change", patch("WORK/link/new"), OUTSIDE),
        ("workspace-write", "file_change", patch("WORK/inner/new"), OUTSIDE),
        ("workspace-write", "file_change", patch("WORK/file"), OUTSIDE),
        ("workspace-write", "file_change", patch("WORK/.git/hooks/x"), OWN_FOLDER),
        ("workspace-write", "file_change", patch("WORK/sub/.Codex/config.toml"), OWN_FOLDER),
        ("workspace-write", "file_change", patch("WORK/.gitignore"), ""),
    ],
)
def test_what_the_sandbox_would_not_confine_is_declined(
    tmp_path: Path, sandbox: Sandbox, kind: ApprovalKind, details: ActionDetails | None, why: str
) -> None:
    work = tmp_path / "work"
    (work / "real").mkdir(parents=True)
    (work / "link").symlink_to("/var")
    (work / "inner").symlink_to(work / "real")
    (work / "file").symlink_to("/etc/passwd")
    if details is not None:
        changes = [
            FileDiff(each.path.replace("WORK", str(work)), each.kind, each.diff, each.moved_to)
            for each in details.changes
        ]
        details = msgspec.structs.replace(details, changes=tuple(changes))
    turn = msgspec.structs.replace(TURN, sandbox=sandbox, workdir=str(work))
    assert beyond_sandbox(question(kind=kind, details=details), turn) == why


def test_what_the_dialect_knows_to_leave_the_sandbox_is_declined() -> None:
    assert beyond_sandbox(question(beyond="It would."), ASKING) == "It would."


async def begin(limits: RunLimits | None = None, **more: Any) -> tuple[RunScheduler, Run, Any, Any]:
    agent = WordAgent()
    scheduler = RunScheduler(
        agent, limits or RunLimits(max_running=1), Deadlines(first=10, idle=20, total=100)
    )
    run = await scheduler.start(msgspec.structs.replace(ASKING, **more))
    return scheduler, run, agent.transports[-1], agent.dialects[-1]


@virtual
async def test_a_question_is_asked_and_answered_once() -> None:
    _, run, lane, dialect = await begin()
    lane.say(question())
    assert [event.asked for event in all_events(run) if isinstance(event, ApprovalRequested)] == [True]
    assert "answer q1" not in dialect.calls
    run.decide("q2", Decision(approve=True))
    run.decide("q1", Decision(approve=True))
    run.decide("q1", Decision(approve=True))
    await settle()
    assert dialect.calls.count("answer q1") == 1
    assert "answer q2" not in dialect.calls


@virtual
async def test_a_turn_that_asks_nobody_declines_at_once() -> None:
    _, run, lane, dialect = await begin(approvals="decline")
    lane.say(question(), InputRequested("q2", "?"))
    assert [event.asked for event in all_events(run) if isinstance(event, ApprovalRequested)] == [False]
    assert dialect.calls[-2:] == ["answer q1", "answer q2"]


@virtual
async def test_a_question_of_another_kind_is_declined_also_where_the_client_is_asked() -> None:
    _, _, lane, dialect = await begin()
    lane.say(InputRequested("q1", "?"), question("q2", details=None))
    assert dialect.calls[-2:] == ["answer q1", "answer q2"]


@virtual
async def test_an_open_question_lends_the_slot_and_the_answer_waits_for_one() -> None:
    scheduler, run, lane, dialect = await begin()
    lane.say(question())
    assert scheduler.running == 0
    other = await scheduler.start(TURN)
    run.decide("q1", Decision(approve=True))
    await settle()
    assert "answer q1" not in dialect.calls
    other.interrupt()
    await settle()
    assert "answer q1" in dialect.calls
    assert scheduler.running == 1
    lane.say(*deltas("Done."), DONE)
    assert scheduler.running == 0


@virtual
async def test_of_two_questions_the_first_answer_is_given_at_once() -> None:
    scheduler, run, lane, dialect = await begin()
    lane.say(question(), question("q2"))
    await scheduler.start(TURN)
    run.decide("q1", Decision(approve=True))
    assert dialect.calls[-1] == "answer q1"
    assert scheduler.running == 1


@virtual
async def test_a_run_that_ends_with_its_question_open_leaves_no_slot_taken() -> None:
    scheduler, run, lane, dialect = await begin()
    lane.say(question())
    run.decide("q1", Decision(approve=True))
    run.interrupt()  # before it has its slot again
    await settle()
    assert isinstance(end_of(run), TurnEnded)
    assert scheduler.running == 0
    assert "answer q1" not in dialect.calls


@virtual
async def test_a_run_that_waits_for_its_slot_when_the_server_stops_is_ended() -> None:
    scheduler, run, lane, dialect = await begin()
    lane.say(question())
    other = await scheduler.start(TURN)
    run.decide("q1", Decision(approve=True))
    await settle()
    scheduler.begin_drain()
    await settle()
    other.interrupt()
    await scheduler.drain(within=1)
    assert end_of(run).failure is not None
    assert "answer q1" not in dialect.calls


@virtual
async def test_the_time_of_an_open_question_counts_for_no_deadline() -> None:
    _, run, lane, _ = await begin()
    await asyncio.sleep(9)
    lane.say(question())
    await asyncio.sleep(80_000)
    assert not run.ended
    run.decide("q1", Decision(approve=True))
    await asyncio.sleep(1.5)  # behind the tenth second without a word
    assert end_of(run).failure is not None


def used(permission: Permission | None) -> ActionDetails:
    return msgspec.structs.replace(COMMAND, use=ToolUse("bash", '{"command":"make"}', permission))


@virtual
@pytest.mark.parametrize(
    ("permission", "more", "asked", "answer"),
    [
        ("always_ask", {}, True, None),
        ("always_ask", {"approvals": "decline"}, False, DECLINED),
        ("always_allow", {}, False, ALLOWED),
        ("always_allow", {"approvals": "decline"}, False, ALLOWED),
        (None, {}, False, DECLINED),
    ],
)
async def test_the_turns_toolset_says_what_is_asked_for_and_what_runs_at_once(
    permission: Permission | None, more: Any, asked: bool, answer: Decision | None
) -> None:
    _, run, lane, dialect = await begin(toolset=Toolset(), **more)
    lane.say(question(details=used(permission)))
    (event,) = [event for event in all_events(run) if isinstance(event, ApprovalRequested)]
    assert (event.asked, event.allowed) == (asked, answer == ALLOWED)
    assert dialect.answers.get("q1") == answer


@virtual
async def test_what_a_toolset_allows_reaches_no_further_than_the_sandbox() -> None:
    _, _, lane, dialect = await begin(toolset=Toolset())
    lane.say(question(details=used("always_allow"), beyond="It would leave the sandbox."))
    lane.say(question("q2", details=COMMAND), InputRequested("q3", "?"))
    assert dialect.answers == dict.fromkeys(("q1", "q2", "q3"), DECLINED)


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("read", {"file_path": "WORK/file"}, ""),
        ("read", {"file_path": "file"}, ""),
        ("read", {"file_path": "WORK/inner/file"}, ""),
        ("read", {"file_path": "WORK/link"}, OUTSIDE_READ),
        ("read", {"file_path": "WORK/../other"}, OUTSIDE_READ),
        ("read", {"file_path": "/etc/passwd"}, OUTSIDE_READ),
        ("grep", {"pattern": "x"}, ""),
        ("grep", {"pattern": "x", "path": "/etc"}, OUTSIDE_READ),
        ("glob", {"pattern": "**/*.py"}, ""),
        ("glob", {"pattern": "/etc/*"}, OUTSIDE_READ),
        ("glob", {"pattern": "*/../../x"}, OUTSIDE_READ),
        ("glob", {"pattern": "*", "path": "WORK/link"}, OUTSIDE_READ),
        ("read", {"file_path": "~/.netrc"}, OUTSIDE_READ),
        ("glob", {"pattern": "~/*"}, OUTSIDE_READ),
        ("grep", {"pattern": "~", "path": "~"}, OUTSIDE_READ),
        ("grep", {"pattern": "~/x"}, ""),
    ],
)
def test_a_tool_that_reads_stays_in_the_folder_but_in_danger_full_access(
    tmp_path: Path, name: ToolName, given: dict[str, str], why: str
) -> None:
    work = tmp_path / "work"
    (work / "real").mkdir(parents=True)
    (work / "inner").symlink_to(work / "real")
    (work / "link").symlink_to("/etc")
    input = json.dumps({key: value.replace("WORK", str(work)) for key, value in given.items()})
    asked = question(
        kind="permission", details=ActionDetails(tool="x", use=ToolUse(name, input, "always_ask"))
    )
    turn = msgspec.structs.replace(TURN, sandbox="read-only", workdir=str(work))
    assert beyond_sandbox(asked, turn) == why
    assert not beyond_sandbox(asked, msgspec.structs.replace(turn, sandbox="danger-full-access"))


@virtual
async def test_a_question_that_the_agent_withdraws_is_answered_no_more_and_the_run_has_its_slot_again() -> (
    None
):
    scheduler, run, lane, dialect = await begin()
    lane.say(question(), question("q2"))
    lane.say(RequestClosed("q1"))
    await settle()
    assert scheduler.running == 0
    lane.say(RequestClosed("q2"), RequestClosed("q2"))
    await settle()
    assert scheduler.running == 1
    run.decide("q1", ALLOWED)
    assert not dialect.answers
