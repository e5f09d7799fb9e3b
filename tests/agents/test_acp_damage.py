"""Recordings that are cut, doubled, shuffled or changed: the turn still ends once, and nothing raises."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.acp.messages import ToolsSettled
from codex_proxy.agents.base import Ended
from codex_proxy.core.events import RawItem, Stop, TurnEnded
from codex_proxy.tools.replay import said_by
from tests.agents.acp_replayer import NAMES, TOOLS, Played, give_outputs, messages_of, opened, sessions_of
from tests.agents.damage import broken, changed_line, moved
from tests.core.well_formed import violations

GONE = Ended(code=1)
SEEDS = st.integers(0, 2**32)
PROMPTED = [name for name in NAMES if sessions_of(name) and sessions_of(name)[0].prompts]
RECORDINGS = st.sampled_from(PROMPTED)


def survives(name: str, messages: Sequence[Any], *, resumes: bool = False) -> Played:
    """Plays damaged messages, then the process dies: what a run would see. `resumes`: the client brings outputs."""
    played = opened(name, tools=TOOLS if "client_tool" in name else (), unconfined=True)
    prompt = played.last_request("session/prompt")
    for message in messages:
        if prompt is not None and isinstance(message, dict) and "method" not in message:
            message = {**message, "id": prompt["id"]}
        played.receive([message])
        if resumes and "client_tool" in name:
            played.receive([ToolsSettled(last=True)])
            if played.turn.can_resume and played.asked:
                give_outputs(played)
    over = played.repair.ended
    played.take(played.turn.eof(GONE))
    said_by([event.json for event in played.log if isinstance(event, RawItem)])
    assert violations(played.log) == []
    ends = [event for event in played.events if isinstance(event, TurnEnded)]
    assert len(ends) == 1, "the dialect itself ends exactly once"
    assert played.turn.finished
    assert not played.turn.can_resume
    if not over:
        assert played.end.stop == Stop.FAILED
        assert played.end.failure is not None
    return played


def in_lines(name: str) -> list[Any]:
    """What the agent sent as lines of bytes, but for the answers, whose ids are ours; and calls at the tool server."""
    return [
        json.dumps(message).encode() if isinstance(message, dict) and "method" in message else message
        for message in messages_of(name)
    ]


@pytest.mark.parametrize(
    "name", ["gemini-client_tool_parallel", "claude-acp-tool_allow", "codex-acp-text", "copilot-err_drop"]
)
def test_an_agent_that_dies_after_any_message_ends_the_turn_once(name: str) -> None:
    messages = messages_of(name)
    for n in range(len(messages)):
        for resumes in (False, True):
            survives(name, messages[:n], resumes=resumes)


@given(RECORDINGS, SEEDS, st.booleans())
def test_messages_may_be_moved_doubled_and_lost(name: str, seed: int, resumes: bool) -> None:
    survives(name, moved(messages_of(name), random.Random(seed)), resumes=resumes)


@given(RECORDINGS, SEEDS, st.sampled_from([0.02, 0.1, 0.5]))
def test_values_may_be_anything(name: str, seed: int, rate: float) -> None:
    chance = random.Random(seed)
    lines = [changed_line(line, chance, rate) if isinstance(line, bytes) else line for line in in_lines(name)]
    survives(name, lines)


@given(RECORDINGS, SEEDS)
def test_bytes_may_be_broken(name: str, seed: int) -> None:
    chance = random.Random(seed)
    survives(name, [broken(line, chance) if isinstance(line, bytes) else line for line in in_lines(name)])


@given(RECORDINGS, SEEDS, st.sampled_from([0.05, 0.3]))
def test_answers_may_be_anything(name: str, seed: int, rate: float) -> None:
    chance = random.Random(seed)
    damaged = [
        json.loads(changed_line(json.dumps(message).encode(), chance, rate))
        if isinstance(message, dict) and "method" not in message
        else message
        for message in messages_of(name)
    ]
    survives(name, [message for message in damaged if not isinstance(message, dict) or message])
