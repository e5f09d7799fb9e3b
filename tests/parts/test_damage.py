"""Recordings of agents that are cut, doubled, moved, broken or changed: the turn ends once, and nothing raises."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import Event, RawItem, Stop, ToolCallRequested, TurnEnded
from codex_proxy.core.items import HistoryOutput, TextPart
from codex_proxy.core.repair import TurnRepair
from codex_proxy.parts.acp.messages import ToolsSettled
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.runs.model_items import ModelItem
from codex_proxy.tools.policy import ToolPolicy
from codex_proxy.tools.replay import assistant_messages, entries_of
from tests.agents import app_server_replayer, proto_child
from tests.agents.app_server_outcomes import COMES_BACK
from tests.agents.app_server_replayer import Line
from tests.agents.damage import break_line, change_line, move_lines
from tests.agents.proto_child import assert_well_formed
from tests.core.well_formed import violations
from tests.parts.acp import replayer as acp_replayer
from tests.parts.claude_code import replayer as claude_code_replayer

KILLED = Ended(signal=9, stderr_tail="Killed")
SEEDS = st.integers(0, 2**32)
NUMBERS = st.integers(0, 10**6)

INTERRUPT: Final = object()
"""Among the lines of a recording: here the client leaves."""


def assert_one_end(events: Sequence[Event]) -> None:
    assert len([event for event in events if isinstance(event, TurnEnded)]) == 1, (
        "the dialect itself ends exactly once"
    )


# --- what a run would see of damaged lines, behind which the process dies ---------------------------


def codex(dialect: CodexProto, lines: Sequence[Any]) -> None:
    """Plays lines of `codex proto`."""
    events: list[Event] = []
    for line in lines:
        step = dialect.interrupt() if line is INTERRUPT else dialect.receive([line])
        events += step.events
    events += dialect.eof(KILLED).events
    assert_one_end(events)
    assert_well_formed(events)
    assert violations(TurnRepair().feed(events)) == []
    assert dialect.finished
    assert not dialect.can_resume


def claude_code(name: str, lines: Sequence[Any]) -> None:
    """Plays lines of Claude Code. A client whose calls wait brings their outputs in another turn."""
    dialect: ClaudeCodeTurn = claude_code_replayer.begin_turn(name)
    events: list[Event] = []
    log: list[Event] = []
    repair = TurnRepair()
    for line in lines:
        new = (dialect.interrupt() if line is INTERRUPT else dialect.receive([line])).events
        events += new
        log += repair.feed(new)
        if repair.ended or not dialect.can_resume:
            continue
        asked = {event.call_id for event in log if isinstance(event, ToolCallRequested)}
        waits = [HistoryOutput(id, (TextPart("3"),)) for id in sorted(asked)]
        log += repair.feed([TurnEnded(Stop.TOOL_CALLS)])
        assert violations(log) == []
        log, repair = [], TurnRepair()
        new = dialect.resume(claude_code_replayer.recorded_turn(name), waits).events
        events += new
        log += repair.feed(new)
    last = dialect.eof(KILLED).events
    log += repair.feed(last)
    assert_one_end([*events, *last])
    if not log or not isinstance(log[-1], TurnEnded):
        log += repair.feed([TurnEnded(Stop.INTERRUPTED)])
    assert violations(log) == []
    assert dialect.finished
    assert not dialect.can_resume


ACP_TURNS = [
    (name, nth, prompt)
    for name in acp_replayer.NAMES
    for nth, session in enumerate(acp_replayer.sessions_of(name))
    for prompt in range(len(session.prompts))
]
"""Every prompt of every session that was recorded of ACP: its recording, session and prompt."""
PROMPT_ID = b'"@prompt"'
"""The id of an answer to the prompt in a line of bytes, before the id of our request is known."""


def acp(turn: tuple[str, int, int], messages: Sequence[Any], *, resumes: bool = False) -> None:
    """Plays messages of ACP. `resumes`: the client brings outputs."""
    name, nth, _ = turn
    played = acp_replayer.begin_and_open(
        name, nth, tools=acp_replayer.TOOLS if "client_tool" in name else (), unconfined=True
    )
    prompt = played.last_request("session/prompt")["id"] if played.has_asked("session/prompt") else None
    for message in messages:
        if message is INTERRUPT:
            played.take(played.turn.interrupt())
            continue
        if prompt is not None and isinstance(message, dict) and "method" not in message:
            message = {**message, "id": prompt}
        elif prompt is not None and isinstance(message, bytes):
            message = message.replace(PROMPT_ID, str(prompt).encode())
        played.receive([message])
        if resumes and "client_tool" in name:
            played.receive([ToolsSettled(last=True)])
            if played.turn.can_resume and played.waits_for_outputs:
                acp_replayer.give_outputs(played)
    end_acp(played)


def end_acp(played: acp_replayer.PlayedTurn) -> None:
    """Lets the process die, and looks at what came of the turn."""
    over = played.repair.ended
    played.take(played.turn.eof(KILLED))
    assistant_messages([event.json for event in played.log if isinstance(event, RawItem)])
    assert violations(played.log) == []
    assert_one_end(played.events)
    assert played.turn.finished
    assert not played.turn.can_resume
    if not over:
        assert played.end.stop == Stop.FAILED
        assert played.end.failure is not None


def acp_lines(turn: tuple[str, int, int]) -> list[Any]:
    """What the agent sent as lines of bytes; and calls at the tool server."""
    return [
        json.dumps(message if "method" in message else {**message, "id": "@prompt"}).encode()
        if isinstance(message, dict)
        else message
        for message in acp_replayer.messages_of(*turn)
    ]


def app_server(name: str, lines: Sequence[Any], *, resumes: bool = False) -> None:
    """Plays lines of `codex app-server`, and those of its client. `resumes`: as `PlayedTurn` has it."""
    given = [
        LEAVES if line is INTERRUPT else Line("out", line) if isinstance(line, bytes) else line
        for line in lines
    ]
    turn = app_server_replayer.recorded_turn(app_server_replayer.lines_of_recording(name), 0)
    played = app_server_replayer.play(given, turn, resumes=resumes)
    over = played.repair.ended
    played.take_step(played.turn.eof(KILLED))
    for log in (*played.earlier, played.log):
        assert violations(log) == []
        can_be_remembered([event.json for event in log if isinstance(event, RawItem)], played.policy)
    assert_one_end(played.events)
    assert isinstance(played.events[-1], TurnEnded)
    assert played.turn.finished
    assert not played.turn.can_resume
    if not over:
        assert played.end.stop == Stop.FAILED
        assert played.end.failure is not None
        assert played.end.failure.kind in ("agent_crashed", "upstream_disconnected")


LEAVES = Line("in", b'{"id": 999, "method": "turn/interrupt", "params": {}}')


def app_server_lines(name: str) -> list[bytes | Line]:
    """What the agent sent as bytes, between the lines of its client."""
    return [line.data if line.dir == "out" else line for line in app_server_replayer.lines_of_recording(name)]


def can_be_remembered(raw: list[bytes], policy: ToolPolicy) -> None:
    """What is read of raw items once the turn is over: for the tool loop, for kept threads, for the store."""
    entries_of(raw, policy, "agent/model")
    assistant_messages(raw)
    for item in raw:
        head = ModelItem("agent/model", msgspec.Raw(item)).head
        assert isinstance(head.text, str)
        assert head.kind


class Agent(NamedTuple):
    """The recorded turns of an agent, the lines of one (bytes, if the agent wrote them), and what plays them."""

    turns: Sequence[Any]
    lines_of: Callable[[Any], Sequence[Any]]
    play: Callable[[Any, Sequence[Any]], None]


def and_resumed(turns: Sequence[Any], resumed: Sequence[Any]) -> list[tuple[Any, bool]]:
    """Each turn, and whether the client brings the outputs of its calls."""
    return [(turn, False) for turn in turns] + [(turn, True) for turn in resumed]


RECORDED: Final = {
    "claude-code": Agent(claude_code_replayer.NAMES, claude_code_replayer.output_lines, claude_code),
    "codex-proto": Agent(
        list(proto_child.ALL),
        lambda name: proto_child.ALL[name][0],
        lambda _, lines: codex(proto_child.begin_turn(extended=True), lines),
    ),
    "acp": Agent(
        and_resumed(ACP_TURNS, ACP_TURNS),
        lambda turn: acp_lines(turn[0]),
        lambda turn, lines: acp(turn[0], lines, resumes=turn[1]),
    ),
    "app-server": Agent(
        and_resumed(app_server_replayer.NAMES, list(COMES_BACK)),
        lambda turn: app_server_lines(turn[0]),
        lambda turn, lines: app_server(turn[0], lines, resumes=turn[1]),
    ),
}
AGENTS = pytest.mark.parametrize("agent", RECORDED)


def lines_and_player(agent: str, number: int) -> tuple[Sequence[Any], Callable[[Sequence[Any]], None]]:
    """The lines of one of the agent's turns, and what plays them."""
    turns, lines_of, play = RECORDED[agent]
    turn = turns[number % len(turns)]
    return lines_of(turn), partial(play, turn)


def each_line(lines: Sequence[Any], damage: Callable[[bytes], bytes]) -> list[Any]:
    """The lines, those that the agent wrote damaged."""
    return [damage(line) if isinstance(line, bytes) else line for line in lines]


def cut(lines: Sequence[Any], place: int, share: float) -> list[Any]:
    """The lines before a place, and the beginning of the one there."""
    place %= len(lines) + 1
    return [
        *lines[:place],
        *(line[: int(len(line) * share)] for line in lines[place : place + 1] if isinstance(line, bytes)),
    ]


@AGENTS
@given(NUMBERS, NUMBERS, st.floats(0, 1))
def test_a_recording_may_be_cut_at_any_byte(agent: str, number: int, place: int, share: float) -> None:
    lines, survives = lines_and_player(agent, number)
    survives(cut(lines, place, share))


@AGENTS
@given(NUMBERS, SEEDS)
def test_lines_may_come_again_be_missing_and_change_places(agent: str, number: int, seed: int) -> None:
    lines, survives = lines_and_player(agent, number)
    survives(move_lines(lines, random.Random(seed)))


@AGENTS
@given(NUMBERS, SEEDS)
def test_the_lines_may_come_in_any_order(agent: str, number: int, seed: int) -> None:
    lines, survives = lines_and_player(agent, number)
    survives(random.Random(seed).sample(lines, len(lines)))


@AGENTS
@given(NUMBERS, SEEDS, st.sampled_from([0.002, 0.01, 0.05, 0.3]))
def test_any_value_in_any_line_of_a_recording_may_be_another(
    agent: str, number: int, seed: int, rate: float
) -> None:
    chance = random.Random(seed)
    lines, survives = lines_and_player(agent, number)
    survives(each_line(lines, lambda line: change_line(line, chance, rate)))


@AGENTS
@given(NUMBERS, SEEDS)
def test_any_bytes_of_a_recording_may_be_broken(agent: str, number: int, seed: int) -> None:
    chance = random.Random(seed)
    lines, survives = lines_and_player(agent, number)
    survives(each_line(lines, lambda line: break_line(line, chance)))


@AGENTS
@given(NUMBERS, NUMBERS, SEEDS)
def test_the_client_may_leave_after_any_line_of_a_child_that_talks_nonsense(
    agent: str, number: int, place: int, seed: int
) -> None:
    chance = random.Random(seed)
    lines, survives = lines_and_player(agent, number)
    lines = each_line(move_lines(lines, chance), lambda line: break_line(line, chance))
    place %= len(lines) + 1
    survives([*lines[:place], INTERRUPT, *lines[place:]])


def test_a_raw_item_may_have_a_broken_character() -> None:
    """Where nobody looked."""
    chance = random.Random(17859)
    lines = each_line(app_server_lines("code_mode_dynamic_tool"), lambda line: break_line(line, chance))
    app_server("code_mode_dynamic_tool", lines)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "name",
    [
        *("stateless_flow_0.169.0", "err_drop_once", "interrupt_shell_running", "reasoning"),
        *("raw_events_tool_parallel", "code_mode_dynamic_tool"),
    ],
)
def test_an_app_server_that_dies_after_any_line_or_in_it_ends_the_turn_once(name: str) -> None:
    lines = app_server_lines(name)
    for place in range(len(lines)):
        for resumes in (False, True):
            app_server(name, lines[:place], resumes=resumes)
            app_server(name, cut(lines, place, 0.5), resumes=resumes)


@AGENTS
@pytest.mark.parametrize("event", ["TurnStarted", "ItemStarted"])
def test_an_error_of_this_program_is_not_taken_for_one_of_the_agent(
    agent: str, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> NoReturn:
        raise ValueError("an error of this program")

    for name, module in list(sys.modules.items()):
        if name.startswith(("codex_proxy.agents.", "codex_proxy.parts.")) and event in vars(module):
            monkeypatch.setattr(module, event, wrong)
    with pytest.raises(ValueError, match="an error of this program"):
        play_all(agent)


def play_all(agent: str) -> None:
    """Plays every recording of an agent: not each has every event."""
    for number in range(len(RECORDED[agent].turns)):
        lines, plays = lines_and_player(agent, number)
        plays(lines)


# --- ACP alone -------------------------------------------------------------------------------------


def test_every_recording_of_a_prompt_is_played() -> None:
    assert {name for name, _, _ in ACP_TURNS} == {
        name
        for name in acp_replayer.NAMES
        if any(session.prompts for session in acp_replayer.sessions_of(name))
    }
    assert {name.partition("-")[0] for name, _, _ in ACP_TURNS} >= {
        *("claude", "codex", "copilot", "gemini", "hermes", "opencode", "qwen", "vibe")
    }


@given(
    st.sampled_from([name for name in acp_replayer.NAMES if acp_replayer.sessions_of(name)]),
    SEEDS,
    st.sampled_from([0.02, 0.1, 0.5]),
)
def test_what_a_new_session_offers_may_be_anything(name: str, seed: int, rate: float) -> None:
    opening = {**acp_replayer.sessions_of(name)[0].opened, "id": "@"}
    line = change_line(json.dumps(opening).encode(), random.Random(seed), rate)
    played = acp_replayer.begin_turn(name, unconfined=bool(seed % 2))
    request = played.requests[0]
    played.receive([line.replace(b'"@"', str(request["id"]).encode())])
    played.answer_setup()
    end_acp(played)


@pytest.mark.parametrize(
    "name", ["gemini-client_tool_parallel", "claude-acp-tool_allow", "codex-acp-text", "copilot-err_drop"]
)
def test_an_agent_of_acp_that_dies_after_any_message_ends_the_turn_once(name: str) -> None:
    messages = acp_replayer.messages_of(name)
    for n in range(len(messages)):
        for resumes in (False, True):
            acp((name, 0, 0), messages[:n], resumes=resumes)


@given(st.sampled_from(ACP_TURNS), SEEDS, st.sampled_from([0.05, 0.3]))
def test_answers_of_any_kind_leave_a_well_formed_turn(
    turn: tuple[str, int, int], seed: int, rate: float
) -> None:
    chance = random.Random(seed)
    damaged = [
        json.loads(change_line(json.dumps(message).encode(), chance, rate))
        if isinstance(message, dict) and "method" not in message
        else message
        for message in acp_replayer.messages_of(*turn)
    ]
    acp(turn, [message for message in damaged if not isinstance(message, dict) or message])
