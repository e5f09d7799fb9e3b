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
from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.processes.session import LineFramer
from codex_proxy.core.events import RawItem, Stop, TurnEnded
from codex_proxy.tools.replay import assistant_messages
from tests.agents.acp_replayer import (
    NAMES,
    TOOLS,
    Played,
    begun,
    give_outputs,
    messages_of,
    opened,
    sessions_of,
)
from tests.agents.damage import broken, changed_line, in_pieces, moved
from tests.core.well_formed import violations

GONE = Ended(code=1)
SEEDS = st.integers(0, 2**32)
TURNS = [
    (name, nth, prompt)
    for name in NAMES
    for nth, session in enumerate(sessions_of(name))
    for prompt in range(len(session.prompts))
]
"""Every prompt of every session that was recorded."""
RECORDINGS = st.sampled_from(TURNS)
PROMPT_ID = b'"@prompt"'
"""The id of an answer to the prompt in a line of bytes, before the id of our request is known."""


def survives(turn: tuple[str, int, int], messages: Sequence[Any], *, resumes: bool = False) -> Played:
    """Plays damaged messages, then the process dies: what a run would see. `resumes`: the client brings outputs."""
    name, nth, _ = turn
    played = opened(name, nth, tools=TOOLS if "client_tool" in name else (), unconfined=True)
    prompt = played.last_request("session/prompt")
    for message in messages:
        if prompt is not None and isinstance(message, dict) and "method" not in message:
            message = {**message, "id": prompt["id"]}
        elif prompt is not None and isinstance(message, bytes):
            message = message.replace(PROMPT_ID, str(prompt["id"]).encode())
        played.receive([message])
        if resumes and "client_tool" in name:
            played.receive([ToolsSettled(last=True)])
            if played.turn.can_resume and played.asked:
                give_outputs(played)
    return ended(played)


def ended(played: Played) -> Played:
    """Lets the process die, and looks at what came of the turn."""
    over = played.repair.ended
    played.take(played.turn.eof(GONE))
    assistant_messages([event.json for event in played.log if isinstance(event, RawItem)])
    assert violations(played.log) == []
    ends = [event for event in played.events if isinstance(event, TurnEnded)]
    assert len(ends) == 1, "the dialect itself ends exactly once"
    assert played.turn.finished
    assert not played.turn.can_resume
    if not over:
        assert played.end.stop == Stop.FAILED
        assert played.end.failure is not None
    return played


def in_lines(turn: tuple[str, int, int]) -> list[Any]:
    """What the agent sent as lines of bytes; and calls at the tool server."""
    return [
        json.dumps(message if "method" in message else {**message, "id": "@prompt"}).encode()
        if isinstance(message, dict)
        else message
        for message in messages_of(*turn)
    ]


def test_every_recording_of_a_prompt_is_played() -> None:
    assert {name for name, _, _ in TURNS} == {
        name for name in NAMES if any(session.prompts for session in sessions_of(name))
    }
    assert {name.partition("-")[0] for name, _, _ in TURNS} >= {
        *("claude", "codex", "copilot", "gemini", "hermes", "opencode", "qwen", "vibe")
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_every_recorded_turn_ends_once_cut_and_shuffled(turn: tuple[str, int, int]) -> None:
    lines = in_lines(turn)
    chance = random.Random(str(turn))
    for n in range(0, len(lines) + 1, max(1, len(lines) // 20)):
        survives(turn, lines[:n], resumes=True)
        survives(turn, moved(lines, chance), resumes=chance.random() < 0.5)
        survives(turn, [broken(line, chance) if isinstance(line, bytes) else line for line in lines])


@given(RECORDINGS, st.floats(0, 1), SEEDS)
def test_a_recording_may_be_cut_at_any_byte_and_come_in_any_pieces(
    turn: tuple[str, int, int], share: float, seed: int
) -> None:
    data = b"".join(line + b"\n" for line in in_lines(turn) if isinstance(line, bytes))
    framer = LineFramer()
    lines = [
        line
        for piece in in_pieces(data[: int(len(data) * share)], random.Random(seed))
        for line in framer.feed(piece)
    ]
    rest = framer.close()
    survives(turn, [*lines, rest] if rest else lines)


@given(
    st.sampled_from([name for name in NAMES if sessions_of(name)]), SEEDS, st.sampled_from([0.02, 0.1, 0.5])
)
def test_what_a_new_session_offers_may_be_anything(name: str, seed: int, rate: float) -> None:
    opening = {**sessions_of(name)[0].opened, "id": "@"}
    line = changed_line(json.dumps(opening).encode(), random.Random(seed), rate)
    played = begun(name, unconfined=bool(seed % 2))
    request = played.requests[0]
    played.receive([line.replace(b'"@"', str(request["id"]).encode())])
    played.answer_setup()
    ended(played)


@pytest.mark.parametrize(
    "name", ["gemini-client_tool_parallel", "claude-acp-tool_allow", "codex-acp-text", "copilot-err_drop"]
)
def test_an_agent_that_dies_after_any_message_ends_the_turn_once(name: str) -> None:
    messages = messages_of(name)
    for n in range(len(messages)):
        for resumes in (False, True):
            survives((name, 0, 0), messages[:n], resumes=resumes)


@given(RECORDINGS, SEEDS, st.booleans())
def test_messages_moved_doubled_and_lost_leave_a_well_formed_turn(
    turn: tuple[str, int, int], seed: int, resumes: bool
) -> None:
    survives(turn, moved(messages_of(*turn), random.Random(seed)), resumes=resumes)


@given(RECORDINGS, SEEDS, st.sampled_from([0.02, 0.1, 0.5]))
def test_values_of_any_kind_leave_a_well_formed_turn(
    turn: tuple[str, int, int], seed: int, rate: float
) -> None:
    chance = random.Random(seed)
    lines = [changed_line(line, chance, rate) if isinstance(line, bytes) else line for line in in_lines(turn)]
    survives(turn, lines)


@given(RECORDINGS, SEEDS)
def test_broken_bytes_leave_a_well_formed_turn(turn: tuple[str, int, int], seed: int) -> None:
    chance = random.Random(seed)
    survives(turn, [broken(line, chance) if isinstance(line, bytes) else line for line in in_lines(turn)])


@given(RECORDINGS, SEEDS, st.sampled_from([0.05, 0.3]))
def test_answers_of_any_kind_leave_a_well_formed_turn(
    turn: tuple[str, int, int], seed: int, rate: float
) -> None:
    chance = random.Random(seed)
    damaged = [
        json.loads(changed_line(json.dumps(message).encode(), chance, rate))
        if isinstance(message, dict) and "method" not in message
        else message
        for message in messages_of(*turn)
    ]
    survives(turn, [message for message in damaged if not isinstance(message, dict) or message])
