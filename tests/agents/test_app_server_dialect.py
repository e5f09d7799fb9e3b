"""Every recording of the real agent, through the connection, the dialect and the repair."""

from __future__ import annotations

import json

import pytest

from codex_proxy.core import events as ev
from codex_proxy.core.items import ActionDetails, Activity, ToolCall
from tests.agents.app_server_outcomes import COMES_BACK, NO_TURN, OUTCOMES, TOOLS, TWO, Outcome, Tokens
from tests.agents.app_server_replayer import (
    NAMES,
    PlayedTurn,
    finish,
    lines_of_recording,
    play,
    recorded_turn,
)
from tests.core.well_formed import arguments, texts, violations


def replay(name: str, nth: int = 0) -> PlayedTurn:
    lines = lines_of_recording(name)
    return play(lines, recorded_turn(lines, nth), nth)


def spent_in(log: list[ev.Event]) -> Tokens | None:
    usages = [event.usage for event in log if isinstance(event, ev.UsageReported)]
    return (usages[-1].input, usages[-1].cached, usages[-1].output, usages[-1].reasoning) if usages else None


def outcome(played: PlayedTurn) -> Outcome:
    return Outcome(
        played.end.stop,
        tuple(texts(played.log).values()),
        spent_in(played.log),
        tuple(arguments(played.log).values()),
        played.end.failure.kind if played.end.failure else None,
    )


def test_every_recording_has_an_outcome_and_every_outcome_a_recording() -> None:
    assert {name for name, _ in OUTCOMES} | NO_TURN == set(NAMES)


@pytest.mark.parametrize(("name", "nth"), OUTCOMES)
def test_a_recording_comes_out_as_what_happened_in_it(name: str, nth: int) -> None:
    played = replay(name, nth)
    assert violations(played.log) == []
    assert outcome(played) == OUTCOMES[name, nth]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "nth"), OUTCOMES)
def test_after_a_recording_the_agent_has_dropped_the_turn(name: str, nth: int) -> None:
    played = replay(name, nth)
    finish(played)
    assert played.turn.finished
    if name != "bad_config":  # there no thread ever was
        assert played.methods[-1] == "thread/unsubscribe"


@pytest.mark.parametrize(("name", "nth"), OUTCOMES)
def test_a_recording_has_nothing_that_the_dialect_cannot_read(name: str, nth: int) -> None:
    noted = {event.code for event in replay(name, nth).log if isinstance(event, ev.Notice)}
    assert noted <= {"agent_retry"}


def test_a_thread_that_codex_has_shortened_is_told() -> None:
    turns = [nth for name, nth in OUTCOMES if name == "auto_compact"]
    events = [event for nth in turns for event in replay("auto_compact", nth).log]
    assert ev.HistoryCompacted() in events


@pytest.mark.parametrize("name", ["interrupt_mid_text", "interrupt_shell_running"])
def test_an_interrupted_agent_turn_ends_its_commands_before_it_is_unsubscribed(name: str) -> None:
    played = replay(name)
    finish(played)
    assert played.methods == [
        *("thread/start", "turn/start", "turn/interrupt"),
        *("thread/backgroundTerminals/clean", "thread/unsubscribe"),
    ]


@pytest.mark.parametrize("name", COMES_BACK)
def test_a_client_that_brings_the_outputs_of_its_calls_gets_the_rest_of_the_same_agent_turn(
    name: str,
) -> None:
    lines = lines_of_recording(name)
    played = play(lines, recorded_turn(lines, 0), resumes=True)
    assert tuple(tuple(arguments(log).values()) for log in played.earlier) == COMES_BACK[name]
    assert [violations(log) for log in (*played.earlier, played.log)] == [[]] * (len(played.earlier) + 1)
    assert (played.end.stop, list(texts(played.log).values())) == ("stop", [TOOLS])
    assert played.methods.count("turn/start") == 1
    spent = [spent_in(log) for log in (*played.earlier, played.log)]
    assert sum(usage[0] for usage in spent if usage) == TWO[0], "each token is told in one turn only"


def test_calls_are_named_and_numbered_as_the_model_did() -> None:
    calls = [e.item for e in replay("raw_events_tool_parallel").log if isinstance(e, ev.ItemStarted)]
    assert [call for call in calls if isinstance(call, ToolCall)] == [
        ToolCall("fc_83_1", "call_83_1", "get_weather"),
        ToolCall("fc_83_2", "call_83_2", "get_weather"),
    ]


def test_reasoning_comes_in_its_parts() -> None:
    said: dict[tuple[str, int], str] = {}
    for event in replay("reasoning").log:
        if isinstance(event, ev.ReasoningDelta):
            said[event.kind, event.part] = said.get((event.kind, event.part), "") + event.text
    assert said == {
        ("summary", 0): "**Head0**\n\nthink0.0 think0.1 ",
        ("summary", 1): "**Head1**\n\nthink1.0 think1.1 ",
        ("raw", 0): "raw0 raw1 ",
    }


def test_a_refusal_that_the_agent_swallows_gets_the_proxys_words() -> None:
    refusals = [event.text for event in replay("refusal").log if isinstance(event, ev.RefusalDelta)]
    assert refusals == ["The model refused to answer. The agent does not report the text of the refusal."]


def test_an_empty_answer_is_no_refusal() -> None:
    assert not [event for event in replay("empty").log if isinstance(event, ev.RefusalDelta)]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("shell_readonly_denied", "command", "/bin/bash -lc 'echo x > f.txt; ls'"),
        ("patch", "file_change", "<CWD>/new.txt"),
        ("mcp_http_add", "mcp_call", "labh.add"),
        ("search", "web_search", "mock query"),
        ("plan", "plan", "[x] one; [>] two; [ ] three"),
    ],
)
def test_an_activity_is_described_in_one_line(name: str, kind: str, text: str) -> None:
    items = [event.item for event in replay(name).log if isinstance(event, ev.ItemStarted)]
    acts = [item for item in items if isinstance(item, Activity)]
    assert (acts[0].kind, acts[0].text) == (kind, text)


@pytest.mark.parametrize(
    ("name", "status"), [("shell", "failed"), ("approval_decline", "failed"), ("patch", "completed")]
)
def test_activity_ends_as_the_agent_says_it_did(name: str, status: str) -> None:
    log = replay(name).log
    ids = {e.item.id for e in log if isinstance(e, ev.ItemStarted) and isinstance(e.item, Activity)}
    assert {event.status for event in log if isinstance(event, ev.ItemEnded) and event.id in ids} == {status}


def test_a_command_tells_its_folder_and_at_its_end_its_exit_code_and_duration() -> None:
    log = replay("usage_multistep").log
    started, *_ = [e.item for e in log if isinstance(e, ev.ItemStarted) and isinstance(e.item, Activity)]
    [ended] = [e.details for e in log if isinstance(e, ev.ItemEnded) and e.id == started.id]
    assert started.details == ActionDetails(command="/bin/bash -lc 'echo hi'", cwd="<CWD>")
    assert ended is not None
    assert (ended.command, ended.cwd, ended.exit_code) == ("/bin/bash -lc 'echo hi'", "<CWD>", 0)
    assert ended.duration_ms is not None


def test_a_file_change_tells_the_diff_of_each_file() -> None:
    log = replay("patch").log
    [ended] = [e.details for e in log if isinstance(e, ev.ItemEnded) and e.details is not None]
    assert [(change.path, change.kind) for change in ended.changes] == [("<CWD>/new.txt", "add")]
    assert all(change.diff for change in ended.changes)


def test_a_call_of_an_mcp_server_tells_its_arguments_and_result() -> None:
    log = replay("mcp_http_add").log
    [ended] = [e.details for e in log if isinstance(e, ev.ItemEnded) and e.details is not None]
    assert (ended.server, ended.tool, json.loads(ended.arguments)) == ("labh", "add", {"a": 2, "b": 3})
    assert "5" in ended.result


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("shell", "one\ntwo\ncafé"),  # of which only the last two lines came as deltas
        ("usage_multistep", "hi\n"),  # which came as none
        ("shell_yield", "t2\nt3\n"),  # it outlives its turn: what was heard of it
    ],
)
def test_what_a_command_prints_is_passed_on_completely(name: str, output: str) -> None:
    printed = [event for event in replay(name).log if isinstance(event, ev.OutputDelta)]
    assert printed[0].text == output
    assert len({event.id for event in printed}) == len(printed)


def test_phases_are_kept() -> None:
    started = [event.item for event in replay("two_messages_phase").log if isinstance(event, ev.ItemStarted)]
    assert [getattr(item, "phase", None) for item in started] == ["commentary", None]


def raw_items(name: str, nth: int = 0) -> list[str]:
    return [event.type for event in replay(name, nth).log if isinstance(event, ev.RawItem)]


def test_the_models_own_items_are_kept_for_the_next_step_and_no_others() -> None:
    assert raw_items("raw_events_text") == ["reasoning", "message"]
    assert raw_items("stateless_flow_0.169.0") == [
        "message",
        "function_call",
        "function_call",
        "function_call",
    ]
    assert raw_items("stateless_flow_0.169.0", 1) == ["message"]
    lines = lines_of_recording("code_mode_dynamic_tool")
    played = play(lines, recorded_turn(lines, 0), resumes=True)
    logs = [[event.type for event in log if isinstance(event, ev.RawItem)] for log in played.earlier]
    assert logs == [["custom_tool_call"], []]
    last = [event.type for event in played.log if isinstance(event, ev.RawItem)]
    assert last == ["custom_tool_call_output", "message"]


def test_an_item_that_a_retry_repeated_is_kept_once() -> None:
    kept = [event.json for event in replay("err_drop_at_end_once").log if isinstance(event, ev.RawItem)]
    assert [json.loads(each)["id"] for each in kept] == ["msg_389_0"]


def test_a_message_of_the_agents_failure_names_no_address() -> None:
    for name in ("err_http_401", "err_http_429_usage_limit", "no_auth"):
        failure = replay(name).end.failure
        assert failure is not None
        assert "://" not in failure.message


def test_who_is_signed_in_is_known_from_the_start() -> None:
    assert not replay("no_auth").connection.signed_in
    assert replay("env_key_missing").connection.signed_in
    assert replay("no_auth").connection.user_agent.startswith("lab/0.169.0 ")


def test_the_newest_rate_limits_are_kept() -> None:
    assert json.loads(replay("rate_limits").limits)["primary"]["usedPercent"] == 43
