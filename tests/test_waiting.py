"""No test sleeps: it waits for an event, by the virtual clock, or with the one bounded wait of `tests/waiting.py`.

And none gives up what has to come after a few seconds: a busy machine would fail it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax import parse
from tests.waiting import eventually

TESTS = Path(__file__).parent
VIRTUAL = "tests.runs.virtual"
PROGRAMS = {
    "waiting.py": "the wait itself",
    "mcp/program.py": "an MCP server, a process of its own, which knows no event of the test's",
    "real/scripted_apis.py": "`delay` of a step: a model that is slow on purpose",
    "real/model_server.py": "`delay=` of a scenario: a provider that is slow on purpose",
}
"""Where a sleep is meant."""

SHORTEST_BOUND = 30.0
MEANT_TO_PASS = {
    "agents/test_children.py": "a start that never ends is given up",
    "commands/chatting.py": "a key that came too early is pressed again",
    "http_responses/test_conversations.py": "a turn that waits for another has not ended",
    "real/driver.py": "what a child says last is only for the report of a failure",
    "store/test_leases.py": "a turn that waits for another has not ended",
    "store/test_lock.py": "nobody waits for a file that is held",
    "test_waiting.py": "the wait itself",
    "parts/machines/two_servers/test_turns.py": "a turn that waits for one on the other server has not ended",
}
"""Where a short time is what is tested, and why."""


def sleeps(path: Path) -> Iterator[int]:
    """The lines that sleep, for longer than giving others their turn (`asyncio.sleep(0)`) takes."""
    text = path.read_text("utf-8")
    if "sleep" not in text:  # to parse every test takes longer than to run it
        return
    for node in ast.walk(parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "sleep" or not isinstance(node.func.value, ast.Name):
            continue
        turn = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if node.func.value.id in ("asyncio", "time") and not turn:
            yield node.lineno


def short_bounds(path: Path) -> Iterator[int]:
    """The lines that wait, for what has to come, for fewer seconds than `SHORTEST_BOUND`: `within=`, `timeout=`,
    `asyncio.timeout(...)`, the mark of pytest-timeout, and what processes and threads are waited for."""
    text = path.read_text("utf-8")
    if not re.search(r"within=|timeout|\.wait\(|\.join\(\d", text):
        return
    for node in ast.walk(parse(text)):
        if not isinstance(node, ast.Call):
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("within", "timeout")]
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("timeout", "wait", "join"):
            given += node.args
        for value in given:
            seconds = value.value if isinstance(value, ast.Constant) else None
            if isinstance(seconds, int | float) and seconds < SHORTEST_BOUND:
                yield node.lineno


def test_nothing_that_has_to_come_is_given_up_soon() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if str(path.relative_to(TESTS)) not in MEANT_TO_PASS
        and f"from {VIRTUAL} import" not in path.read_text("utf-8")
        for line in short_bounds(path)
    ]
    assert wrong == []


def test_a_short_bound_is_found(tmp_path: Path) -> None:
    there = tmp_path / "a.py"
    there.write_text("asyncio.timeout(5)\nprocess.wait(60)\nrun(x, timeout=20)\neventually(x, within=LONG)\n")
    assert list(short_bounds(there)) == [1, 3]


def test_nothing_sleeps_but_the_one_wait_and_the_virtual_clock() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if str(path.relative_to(TESTS)) not in PROGRAMS
        and f"from {VIRTUAL} import" not in path.read_text("utf-8")
        for line in sleeps(path)
    ]
    assert wrong == []


def test_a_sleep_in_a_test_is_found_by_its_line(tmp_path: Path) -> None:
    there = tmp_path / "a.py"
    there.write_text("import asyncio, time\nasyncio.sleep(0)\ntime.sleep(1)\nasyncio.sleep(x)\n")
    assert list(sleeps(there)) == [3, 4]


async def test_a_wait_returns_what_comes_and_fails_if_nothing_comes() -> None:
    looks = iter((0, "", 7))
    assert await eventually(lambda: next(looks)) == 7
    with pytest.raises(AssertionError, match=r"not within 0.01 s"):
        await eventually(lambda: False, within=0.01)
