"""What the lines of a task of Claude Code say of a subagent."""

from __future__ import annotations

import json
from typing import Any

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
from codex_proxy.core.items import Message
from codex_proxy.parts.claude_code.launch import LaunchKey, claude_argv
from codex_proxy.parts.claude_code.messages import WholeBlock, WholeMessage
from codex_proxy.parts.claude_code.tasks import ENDED, STARTED, Tasks


def line(**fields: Any) -> bytes:
    return json.dumps({"task_id": "t", "tool_use_id": "call", "task_type": "local_agent"} | fields).encode()


def started() -> Tasks:
    tasks = Tasks()
    begun = list(tasks.on_line(STARTED, line(description="look", prompt="Look around.")))
    assert begun == [
        SubagentOpened("t", "", "look", "Look around."),
        OfSubagent("t", TurnStarted()),
        OfSubagent("t", TaskGiven("Look around.")),
    ]
    return tasks


def own(events: list[Event]) -> list[Event]:
    assert all(isinstance(event, OfSubagent) and event.id == "t" for event in events)
    return [event.event for event in events if isinstance(event, OfSubagent)]


def test_a_message_and_a_tool_of_a_task_are_items_of_the_subagent() -> None:
    tasks = started()
    blocks = [WholeBlock("text", text="I look."), WholeBlock("tool_use", id="bash", name="Bash")]
    said = own(list(tasks.on_message("call", WholeMessage("m", content=blocks))))
    assert said[:3] == [ItemStarted(Message("m_0")), FullText("m_0", "I look."), ItemEnded("m_0")]
    assert isinstance(said[3], ItemStarted)
    assert said[3].item.id == "bash"
    output = WholeBlock("tool_result", tool_use_id="bash", content=b'"a.txt"', is_error=True)  # type: ignore[arg-type]
    told = own(list(tasks.on_message("call", WholeMessage(content=[output]))))
    assert told == [OutputDelta("bash", "a.txt"), ItemEnded("bash", "failed")]


def test_the_prompt_of_a_task_is_told_once_and_lines_of_no_task_are_not() -> None:
    tasks = started()
    prompt = WholeMessage(content=[WholeBlock("text", text="Look around.")])
    assert list(tasks.on_message("call", prompt)) == []
    assert list(tasks.on_message("another", WholeMessage("m", content=[WholeBlock("text", text="Hi")]))) == []


def test_the_last_text_of_a_task_comes_with_its_end() -> None:
    *answer, ended, closed = started().on_line(ENDED, line(status="completed", summary="No file."))
    assert FullText("t_answer", "No file.") in own(answer)
    assert (ended, closed) == (OfSubagent("t", TurnEnded(Stop.STOP)), SubagentClosed("t"))


def test_a_last_text_that_came_as_a_message_is_not_told_again() -> None:
    tasks = started()
    list(tasks.on_message("call", WholeMessage("m", content=[WholeBlock("text", text="No file.")])))
    assert len(list(tasks.on_line(ENDED, line(status="completed", summary="No file.")))) == 2


def test_a_task_that_fails_or_is_stopped_ends_its_turn_so() -> None:
    for status, stop in (("failed", Stop.FAILED), ("stopped", Stop.INTERRUPTED)):
        ended, _ = started().on_line(ENDED, line(status=status))
        assert isinstance(ended, OfSubagent)
        assert isinstance(ended.event, TurnEnded)
        assert ended.event.stop == stop


def test_a_command_in_the_background_is_no_subagent() -> None:
    assert list(Tasks().on_line(STARTED, line(task_type="local_bash"))) == []


def test_a_task_that_another_one_makes_names_it_as_its_parent() -> None:
    tasks = started()
    list(tasks.on_message("call", WholeMessage("m", content=[WholeBlock("tool_use", id="c2", name="Agent")])))
    opened, *_ = tasks.on_line(STARTED, line(task_id="u", tool_use_id="c2"))
    assert opened == SubagentOpened("u", "t")


def test_only_turns_with_subagents_get_their_tool_where_nothing_may_be_written() -> None:
    def tools(**key: Any) -> list[str]:
        argv = claude_argv("claude", LaunchKey("agent", "/w", **key))
        return argv[argv.index("--tools") + 1].split(",")

    assert "Agent" not in tools()
    assert "Agent" in tools(subagents=True)
    assert "Bash" not in tools(subagents=True)
    assert tools(sandbox="workspace-write", subagents=True).count("Agent") == 1
