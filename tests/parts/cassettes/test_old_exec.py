"""Cassettes of version 1 whose agent was `codex exec`: its lines still become the events that they were."""

from __future__ import annotations

import pytest

from codex_proxy.agents.dialect import NOTHING, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.faults import FaultKind as K
from codex_proxy.core.items import Activity
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes.old_exec import CodexExec
from tests.agents.proto_child import assert_well_formed, end_of, events_to_end, messages
from tests.captures import child, names_of

HELLO = "Hello from the mock model."
OUTCOMES: dict[str, tuple[str, K | None, list[str]]] = {
    "err_drop_once": ("stop", None, ["word0 word1 word2 word3 word4 word5 "]),
    "err_http_429_usage_limit": ("failed", K.USAGE_LIMIT_REACHED, []),
    "mcp_http_add": ("stop", None, ["Tools are done."]),
    "patch": ("stop", None, ["The patch is done."]),
    "plan": ("stop", None, ["The plan is done."]),
    "reasoning": ("stop", None, ["The answer is 42."]),
    "refusal": ("stop", None, []),
    "search": ("stop", None, ["Found it."]),
    "shell": ("stop", None, ["The command is done."]),
    "text": ("stop", None, [HELLO]),
}


def events_of(name: str) -> list[ev.Event]:
    dialect = CodexExec()
    assert dialect.begin(Turn(model="m", history=())) == NOTHING
    return events_to_end(dialect, *child("exec", name))


def test_every_recording_has_an_outcome() -> None:
    assert set(names_of("exec")) == set(OUTCOMES)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_recording_has_the_recorded_outcome_and_texts(name: str) -> None:
    events = events_of(name)
    assert_well_formed(events)
    end = end_of(events)
    assert (end.stop, end.failure and end.failure.kind, messages(events)) == OUTCOMES[name]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("patch", [("file_change", "add <CWD>/new.txt")]),
        ("mcp_http_add", [("mcp_call", "labh.add")]),
        ("search", [("web_search", "mock query")]),
        (
            "plan",
            [
                ("plan", "one (completed), two (pending), three (pending)"),
                ("plan", "one (completed), two (completed), three (completed)"),
            ],
        ),
    ],
)
def test_an_activity_of_the_agent_is_one_line(name: str, found: list[tuple[str, str]]) -> None:
    started = [event.item for event in events_of(name) if isinstance(event, ev.ItemStarted)]
    assert [(item.kind, item.text) for item in started if isinstance(item, Activity)] == found


def test_a_command_has_its_output_and_its_end() -> None:
    events = events_of("shell")
    [output] = [event for event in events if isinstance(event, ev.OutputDelta)]
    assert output.text.startswith("one\n")
    assert ev.ItemEnded(output.id, "failed") in events


def test_a_turn_without_its_end_fails_as_its_process_ended() -> None:
    dialect = CodexExec()
    dialect.begin(Turn(model="m", history=()))
    stderr = "Reading prompt from stdin...\nError: it broke\n"
    failure = end_of(dialect.eof(Ended(code=1, stderr_tail=stderr)).events).failure
    assert failure is not None
    assert (failure.kind, "(exit code 1): Error: it broke" in failure.message) == (K.AGENT_CRASHED, True)


def test_an_item_that_cannot_be_read_fails_the_turn() -> None:
    dialect = CodexExec()
    dialect.begin(Turn(model="m", history=()))
    assert end_of(dialect.receive([b'{"type":"item.completed","item":7}']).events).stop == "failed"
