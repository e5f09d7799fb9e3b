"""The dialect of ACP against recordings of real agents: text, thoughts, activity, calls, usage, failures, the end."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.shared.history_items import PREAMBLE
from codex_proxy.core.events import (
    ApprovalRequested,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    Retrying,
    Stop,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import Activity, HistoryMessage, ImagePart, TextPart, Tool
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.acp_dialect import AcpTurn
from codex_proxy.parts.acp.calls import REFUSED as REFUSAL
from codex_proxy.parts.acp.failures import failure_of_session
from codex_proxy.parts.acp.messages import (
    Message,
    ModelCallFailed,
    ToolCalled,
    ToolDropped,
    ToolsListed,
    ToolsSettled,
    decode,
    request_id,
)
from codex_proxy.parts.acp.own_tools import UNCONFINED
from codex_proxy.parts.acp.presets import PRESETS, Program
from codex_proxy.parts.acp.process import AcpConnection
from codex_proxy.parts.acp.sessions import NOT_LISTED
from codex_proxy.parts.acp.turn_end import UsageCounter
from tests.growth import assert_linear
from tests.parts.acp.replayer import (
    NAMES,
    TOOLS,
    PlayedTurn,
    begin_and_open,
    begin_turn,
    declared_by,
    give_outputs,
    messages_of,
    play,
    sessions_of,
)

K = FaultKind
SAID = "Hello from the mock model, word by word."


def usages(played: PlayedTurn) -> list[Usage]:
    return [event.usage for event in played.events if isinstance(event, UsageReported)]


def activities(played: PlayedTurn) -> list[tuple[str, str]]:
    started = [event.item for event in played.log if isinstance(event, ItemStarted)]
    return [(item.kind, item.text) for item in started if isinstance(item, Activity)]


# --- text and usage -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "usage"),
    [
        ("gemini", Usage(1200, 0, 34, 0)),
        ("qwen", Usage(1200, 1000, 34, 7)),
        ("opencode", Usage(1200, 1000, 34, 7)),
        ("copilot", Usage(1200, 1000, 34, 7)),
        ("claude-acp", Usage(1200, 1000, 34, 0)),
        ("codex-acp", Usage(1200, 1000, 34, 7)),
    ],
)
def test_text_and_reasoning_come_in_pieces_and_usage_is_what_the_model_server_counted(
    agent: str, usage: Usage
) -> None:
    played = play(f"{agent}-text")
    assert played.end.stop == Stop.STOP
    assert played.text.endswith(SAID)
    thoughts = "".join(event.text for event in played.log if isinstance(event, ReasoningDelta))
    assert "let me think it over" in thoughts
    assert usages(played)[-1] == usage


def test_usage_of_two_model_calls_is_reported_only_where_the_agent_reports_that_of_the_turn() -> None:
    assert usages(play("claude-acp-tool_allow"))[-1] == Usage(2400, 2000, 68, 0)
    assert usages(play("copilot-tool_allow"))[-1] == Usage(2400, 2000, 68, 14)
    assert usages(play("qwen-tool_allow"))[-1] == Usage(2400, 2000, 68, 14)
    assert usages(play("opencode-tool_allow")) == [], "it tells the last call's alone"


CALL = Usage(1200, 1000, 34, 7)
"""What one model call of the recordings was counted as."""


@pytest.mark.parametrize("name", ["client_tool_parked", "client_tool_parallel"])
@pytest.mark.parametrize("agent", ["gemini", "qwen", "opencode", "copilot", "claude-acp", "codex-acp"])
def test_a_request_that_is_a_part_of_a_turn_reports_its_own_model_calls_or_nothing(
    agent: str, name: str
) -> None:
    if f"{agent}-{name}" not in NAMES:
        pytest.skip("there is no such recording")
    played = play(f"{agent}-{name}", tools=TOOLS)
    requests: list[list[Usage]] = [[]]
    for event in played.events:
        if isinstance(event, TurnStarted) and played.calls:
            requests.append([])
        elif isinstance(event, UsageReported):
            requests[-1].append(event.usage)
    told = [request[-1] for request in requests if request]
    # Of two calls that Qwen makes one after the other, the second costs no model call.
    assert told == {"qwen": [CALL, CALL], "opencode": [CALL]}.get(agent, [])
    if agent == "opencode":
        assert requests[-1], "its last request had one model call, which is the one it tells"


def test_a_session_total_is_the_turns_where_the_total_before_it_is_known() -> None:
    def usage_of(total: int) -> dict[str, object]:
        return {"usage": {"inputTokens": total, "outputTokens": total, "totalTokens": 2 * total}}

    counter = UsageCounter("session")
    counter.start_turn()
    assert counter.read_result(usage_of(10)) == Usage(10, 0, 10, 0)
    counter.start_turn()
    counter.start_request()
    assert counter.read_result(usage_of(30)) is None, "it covers several requests"
    counter.start_turn()
    assert counter.read_result(usage_of(35)) == Usage(5, 0, 5, 0)
    counter.start_turn()
    assert counter.read_result({}) is None
    counter.start_turn()
    assert counter.read_result(usage_of(90)) is None, "what the turn without a count spent is in it"
    counter.start_turn()
    assert counter.read_result(usage_of(91)) == Usage(1, 0, 1, 0)


def test_the_count_of_the_last_model_call_is_not_that_of_a_request_with_two_messages() -> None:
    played = begin_and_open("opencode-text")
    messages = messages_of("opencode-text")
    played.receive(messages[:-1])
    session = played.last_request("session/prompt")
    update = {
        "sessionUpdate": "agent_message_chunk",
        "messageId": "another",
        "content": {"type": "text", "text": "Anew."},
    }
    params = {"sessionId": session["params"]["sessionId"], "update": update}
    played.receive([{"jsonrpc": "2.0", "method": "session/update", "params": params}])
    played.receive([{**messages[-1], "id": session["id"]}])
    assert played.end.stop == Stop.STOP
    assert usages(played) == []


# --- what the agent does by itself ----------------------------------------------------------------


@pytest.mark.parametrize("agent", ["gemini", "qwen", "opencode", "copilot", "claude-acp", "codex-acp"])
def test_a_command_is_an_activity_from_its_first_sight_with_the_command_as_its_line(agent: str) -> None:
    played = play(f"{agent}-tool_allow", allows=True)
    assert [kind for kind, _ in activities(played)] == ["command"]
    assert "touch made.txt" in activities(played)[0][1]
    assert played.end.stop == Stop.STOP


def test_output_that_is_reported_anew_each_time_is_sent_once() -> None:
    played = play("copilot-tool_allow", allows=True)
    outputs = [event.text for event in played.log if isinstance(event, OutputDelta)]
    assert "".join(outputs).startswith("marker\n")
    assert "".join(outputs).count("marker\n") == 1


# --- permissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["gemini", "qwen", "copilot", "claude-acp"])
def test_what_the_agent_asks_to_do_is_rejected_by_the_kind_of_an_option(agent: str) -> None:
    played = play(f"{agent}-tool_reject")
    asked = next(
        m for m in messages_of(f"{agent}-tool_reject") if m.get("method") == "session/request_permission"
    )
    kinds = {option["optionId"]: option["kind"] for option in asked["params"]["options"]}
    outcomes = [answer["result"]["outcome"] for answer in played.answers if "result" in answer]
    assert outcomes
    assert all(kinds[outcome["optionId"]] == "reject_once" for outcome in outcomes)


@pytest.mark.parametrize("agent", ["gemini", "qwen", "claude-acp"])
def test_a_call_of_the_clients_tools_is_allowed_without_asking_anybody(agent: str) -> None:
    played = play(f"{agent}-client_tool_parked", tools=TOOLS)
    outcomes = [answer["result"]["outcome"] for answer in played.answers if "result" in answer]
    assert [outcome["outcome"] for outcome in outcomes] == ["selected"]
    assert activities(played) == [], "its item is the call"


@pytest.mark.parametrize(
    "call",
    [
        {"toolCallId": "run_shell_command__1", "title": "get_weather (client MCP Server)", "kind": "other"},
        {
            "toolCallId": "mcp_client_get_weather__1",
            "title": "get_weather (client MCP Server)",
            "kind": "execute",
        },
        {"toolCallId": "1", "title": "mcp__client__get_weather", "kind": "other"},
        {"toolCallId": "1", "name": "Bash", "title": "mcp__client__get_weather", "kind": "other"},
        {"toolCallId": "1", "name": "mcp__client__rm", "title": "x", "kind": "other"},
        {"toolCallId": "1", "name": "mcp__clients__get_weather", "title": "x", "kind": "other"},
        {"toolCallId": "1", "_meta": {"toolName": "run_shell_command"}, "title": "client_get_weather"},
        {"toolCallId": "1", "name": "mcp__client__get_weather", "kind": "execute"},
    ],
)
def test_a_call_that_only_looks_like_one_of_the_clients_tools_is_not_allowed(call: dict[str, object]) -> None:
    played = begin_and_open("claude-acp-client_tool_parked", tools=TOOLS)
    options = [
        {"optionId": "y", "name": "Yes", "kind": "allow_once"},
        {"optionId": "n", "name": "No", "kind": "reject_once"},
    ]
    session = played.last_request("session/prompt")
    params = {"sessionId": session["params"]["sessionId"], "toolCall": call, "options": options}
    played.receive([{"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": params}])
    assert played.answers == [
        {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "n"}}}
    ]


@pytest.mark.parametrize(
    ("sandbox", "unconfined", "allowed"),
    [
        ("read-only", False, False),
        ("workspace-write", False, False),
        ("danger-full-access", False, False),
        ("workspace-write", True, False),
        ("danger-full-access", True, True),
    ],
)
def test_a_command_is_allowed_only_where_the_operator_has_said_so_twice(
    sandbox: str, unconfined: bool, allowed: bool
) -> None:
    played = begin_and_open("gemini-tool_allow", sandbox=sandbox, unconfined=unconfined)
    played.receive(messages_of("gemini-tool_allow")[:-1])
    outcome = played.answers[0]["result"]["outcome"]
    assert outcome["optionId"] == ("proceed_once" if allowed else "cancel")


def test_a_sixth_form_is_declined_while_five_are_open() -> None:
    played = begin_and_open("codex-acp-text", approvals="ask")
    session = played.last_request("session/prompt")["params"]["sessionId"]
    form = {"type": "object", "properties": {"city": {"type": "string"}}}
    params = {"sessionId": session, "mode": "form", "message": "Where to?", "requestedSchema": form}
    asked = [
        {"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params} for id in range(7)
    ]
    received = played.connection.receive([json.dumps(each).encode() for each in asked])
    played.take(played.turn.receive([m for _, messages in received.messages_by_channel for m in messages]))
    assert len([event for event in played.log if isinstance(event, ApprovalRequested)]) == 5
    # The others are answered when they are decided.
    assert [(each["id"], each["result"]["action"]) for each in played.answers[:2]] == [
        (5, "decline"),
        (6, "decline"),
    ]


def test_what_codex_asks_for_by_its_adapter_is_beyond_its_own_sandbox() -> None:
    played = begin_and_open("codex-acp-text", sandbox="workspace-write", approvals="ask")
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
    call = {"toolCallId": "1", "title": "curl a", "kind": "execute", "rawInput": {"command": ["curl", "a"]}}
    session = played.last_request("session/prompt")["params"]["sessionId"]
    params = {"sessionId": session, "toolCall": call, "options": options}
    played.receive([{"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": params}])
    (asked,) = [event for event in played.log if isinstance(event, ApprovalRequested)]
    assert (asked.kind, asked.beyond) == ("command", UNCONFINED)


@pytest.mark.parametrize(
    ("sandbox", "mode"),
    [
        ("read-only", "read-only"),
        ("workspace-write", "workspace-write"),
        ("danger-full-access", "agent-full-access"),
    ],
)
def test_an_agent_with_a_sandbox_of_its_own_is_put_into_the_mode_of_the_turns_sandbox(
    sandbox: str, mode: str
) -> None:
    request = begin_and_open("codex-acp-text", sandbox=sandbox).last_request("session/set_mode")
    assert request["params"]["modeId"] == mode


@pytest.mark.parametrize(
    ("agent", "method", "mode"),
    [
        ("gemini", "session/set_mode", "plan"),
        ("qwen", "session/set_mode", "plan"),
        ("opencode", "session/set_config_option", "plan"),
        ("copilot", "session/set_mode", "https://agentclientprotocol.com/protocol/session-modes#plan"),
        ("codex-acp", "session/set_mode", "read-only"),
    ],
)
def test_a_session_is_put_into_its_read_only_mode_before_its_first_prompt(
    agent: str, method: str, mode: str
) -> None:
    played = begin_and_open(
        f"{agent}-text", sandbox="workspace-write" if agent != "codex-acp" else "read-only"
    )
    methods = [request["method"] for request in played.requests]
    assert methods.index(method) < methods.index("session/prompt")
    params = next(request["params"] for request in played.requests if request["method"] == method)
    assert mode in params.values()


def test_a_session_that_is_in_its_mode_already_is_left_there() -> None:
    played = begin_and_open("claude-acp-text")
    assert "session/set_mode" not in [request["method"] for request in played.requests]


@pytest.mark.parametrize("agent", ["claude-acp", "codex-acp"])
def test_a_session_gets_a_title_before_its_prompt_where_the_agent_would_call_its_model_for_one(
    agent: str,
) -> None:
    methods = [request["method"] for request in begin_and_open(f"{agent}-text").requests]
    assert methods.index("session/new") < methods.index("_session/rename") < methods.index("session/prompt")


def test_a_session_is_opened_with_the_options_that_keep_the_agent_from_acting_on_text() -> None:
    [claude, gemini] = [
        begin_and_open(f"{name}-text").requests[0]["params"] for name in ("claude-acp", "gemini")
    ]
    assert claude["_meta"]["claudeCode"]["options"]["verbatimPrompts"] is True
    assert "_meta" not in gemini


def test_a_turn_with_tools_gets_the_mode_in_which_they_are_called() -> None:
    played = begin_and_open("qwen-client_tool_parked", tools=TOOLS)
    request = played.last_request("session/set_mode")
    assert request["params"]["modeId"] == "default"


def test_an_agent_that_asks_nobody_is_not_prompted() -> None:
    played = begin_and_open("hermes-text")
    assert played.end.failure is not None
    assert "--agent-unconfined" in played.end.failure.message
    assert not played.has_asked("session/prompt")


def test_other_requests_of_the_agent_are_refused_at_once() -> None:
    played = begin_and_open("qwen-text")
    session = played.last_request("session/prompt")
    params = {"sessionId": session["params"]["sessionId"]}
    played.receive([{"jsonrpc": "2.0", "id": 3, "method": "craft/drainMidTurnQueue", "params": params}])
    assert played.answers[-1]["error"]["code"] == -32601


def report(id: str, tool: str = "get_weather", **fields: Any) -> dict[str, Any]:
    """Copilot's update about a call of a client's tool, as one of the session of its recording."""
    session = sessions_of("copilot-client_tool_parked")[0].opened["result"]["sessionId"]
    update = {
        "sessionUpdate": "tool_call",
        "toolCallId": id,
        "title": f"client-{tool}",
        "kind": "read",
        **fields,
    }
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}


TOOL_CALL = ToolCalled("call-1", "", "get_weather", '{"city": "Oslo"}')
REFUSAL_RESULT = {"content": [{"type": "text", "text": REFUSAL}], "isError": True}


@pytest.mark.parametrize(
    "reported",
    [
        pytest.param([], id="nothing"),
        pytest.param([report("a", "add")], id="another tool"),
        pytest.param([report("a", rawInput={"city": "Rome"})], id="other arguments"),
        pytest.param([report("a"), report("a", status="completed")], id="a call that has ended"),
        pytest.param(
            [report("a", kind="execute", title="client-get_weather now")], id="a title of the model's"
        ),
    ],
)
def test_a_call_that_the_sessions_own_model_did_not_make_is_refused(reported: list[Any]) -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([*reported, TOOL_CALL, ToolsSettled()])
    assert (played.calls, played.outputs) == ([], []), "the agent may report it yet"
    played.receive([ToolsSettled(last=True)])
    assert (played.calls, played.outputs) == ([], [("call-1", REFUSAL_RESULT)])


@pytest.mark.parametrize("ends", ["by itself", "interrupted"])
def test_a_foreign_call_is_refused_at_the_latest_when_the_turn_ends(ends: str) -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([TOOL_CALL, ToolsSettled()])
    if ends == "by itself":
        prompt = played.last_request("session/prompt")
        result = {"stopReason": "end_turn", "usage": {}}
        played.receive([{"jsonrpc": "2.0", "id": prompt["id"], "result": result}])
    else:
        played.take(played.turn.interrupt())
    assert (played.calls, played.outputs) == ([], [("call-1", REFUSAL_RESULT)])


def test_a_call_that_the_agent_reports_after_it_was_made_is_passed_on_then() -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([TOOL_CALL, ToolsSettled()])
    assert played.calls == []
    played.receive([report("b", "add"), report("a", rawInput={})])
    assert played.calls == [], "another call of the step is to come"
    played.receive([ToolCalled("call-2", "", "add", "{}"), ToolsSettled()])
    assert [call.name for call in played.calls] == ["get_weather", "add"]


@pytest.mark.parametrize(
    ("made", "reported"),
    [
        ('{"a": 1, "b": [2.0, {"c": 3}]}', {"b": [2, {"c": 3.0}], "a": 1.0}),
        ('{"a": "1.0"}', {"a": "1.0"}),
        ("{}", {}),
    ],
)
def test_equal_arguments_are_those_of_one_call_however_they_are_written(made: str, reported: Any) -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([report("a", rawInput=reported), ToolCalled("call-1", "", "get_weather", made)])
    played.receive([ToolsSettled(last=True)])
    assert [call.name for call in played.calls] == ["get_weather"]


def test_updates_of_a_call_take_time_proportional_to_their_size_whatever_its_arguments() -> None:
    def make(count: int) -> list[Any]:
        arguments = {"text": "word " * 40 * count}
        made = ToolCalled("call-1", "", "get_weather", json.dumps(arguments))
        begun = [report("a", rawInput=arguments), report("b", "add"), made, ToolsSettled()]
        output = [{"type": "content", "content": {"type": "text", "text": "word " * 40}}]
        more = report("a", sessionUpdate="tool_call_update", status="in_progress", content=output)
        return [*begun, *[more] * count]

    def read(messages: list[Any]) -> None:
        begin_and_open("copilot-client_tool_parked", tools=TOOLS).receive(messages)

    assert_linear(make, read, 400, memory=False)


def test_one_report_counts_for_one_call() -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    twice = ToolCalled("call-2", "", "get_weather", '{"city": "Oslo"}')
    played.receive([report("a"), TOOL_CALL, twice, ToolsSettled(last=True)])
    assert len(played.calls) == 1
    assert played.outputs == [("call-2", REFUSAL_RESULT)]


def test_a_foreign_call_is_refused_while_the_client_is_asked_and_when_its_output_comes() -> None:
    foreign = ToolCalled("call-2", "", "get_weather", '{"city": "Rome"}')
    for settled in ([ToolsSettled(), ToolsSettled(last=True)], []):
        played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
        played.receive([report("a"), TOOL_CALL, ToolsSettled(), foreign, *settled])
        assert len(played.calls) == 1
        give_outputs(played)
        played.receive([ToolsSettled(last=True)])
        assert len(played.calls) == 1
        assert ("call-2", REFUSAL_RESULT) in played.outputs


def test_a_session_with_a_process_of_its_own_passes_on_calls_that_the_agent_does_not_report() -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS, alone=True)
    played.receive([TOOL_CALL, ToolsSettled()])
    assert played.calls == []
    played.receive([ToolsSettled(last=True)])
    assert len(played.calls) == 1


# --- the client's tools ---------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["gemini", "qwen", "opencode", "copilot", "claude-acp", "codex-acp"])
def test_a_call_of_a_clients_tool_ends_the_step_and_its_output_goes_to_the_tool_server(agent: str) -> None:
    played = play(f"{agent}-client_tool_parked", tools=TOOLS)
    assert [(call.name, call.arguments) for call in played.calls] == [("get_weather", '{"city": "Oslo"}')]
    assert [key for key, _ in played.outputs] == ["call-1"]
    assert played.outputs[0][1]["content"] == [{"type": "text", "text": "minus 5 degrees"}]
    assert played.end.stop == Stop.STOP
    assert played.text.endswith("It is cold in Oslo.")


def with_schema(schema: Any) -> Tool:
    return Tool("get_weather", "", msgspec.Raw(json.dumps(schema).encode()))


WAITS = '{"wait_for_previous":true}'
PREVIOUS = {"type": "object", "properties": {"wait_for_previous": {"type": "string"}}}


@pytest.mark.parametrize(
    ("agent", "tool", "given", "told"),
    [
        ("gemini", TOOLS[0], '{"city":"Oslo","wait_for_previous":true}', '{"city":"Oslo"}'),
        ("gemini", TOOLS[0], '{"wait_for_previous":false}', "{}"),
        ("gemini", TOOLS[0], '{"city":"wait_for_previous"}', '{"city":"wait_for_previous"}'),
        ("gemini", Tool("get_weather", kind="custom"), '{"wait_for_previous":false,"input":"+x"}', "+x"),
        *(
            ("gemini", with_schema(schema), WAITS, WAITS)
            for schema in (PREVIOUS, {"anyOf": [PREVIOUS]}, {"$ref": "#/$defs/P", "$defs": {"P": PREVIOUS}})
        ),
        ("qwen", TOOLS[0], WAITS, WAITS),
    ],
)  # fmt: skip
def test_an_argument_that_the_program_adds_for_itself_does_not_reach_the_client(
    agent: str, tool: Tool, given: str, told: str
) -> None:
    played = begin_and_open(f"{agent}-client_tool_parked", tools=(tool,), alone=True)
    played.receive([ToolCalled("call-1", "", "get_weather", given), ToolsSettled(last=True)])
    assert [call.arguments for call in played.calls] == [told]


@pytest.mark.parametrize(("agent", "id"), [("claude-acp", "toolu_129_0"), ("codex-acp", "call_1_0")])
def test_the_models_own_id_of_a_call_is_kept_where_it_is_reported(agent: str, id: str) -> None:
    assert play(f"{agent}-client_tool_parked", tools=TOOLS).calls[0].call_id == id


def test_calls_of_one_step_are_asked_together() -> None:
    played = play("codex-acp-client_tool_parallel", tools=TOOLS)
    assert [call.name for call in played.calls] == ["get_weather", "add"]
    names = [type(event).__name__ for event in played.events]
    first = names.index("ToolCallRequested")
    assert names[first : first + 4] == ["ToolCallRequested", "RawItem", "ToolCallRequested", "StepCompleted"]


def test_a_call_that_comes_while_the_client_is_asked_is_asked_with_the_outputs_of_the_others() -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([report("a"), ToolCalled("call-1", "a", "get_weather", "{}"), ToolsSettled(last=True)])
    played.receive([report("b", "add"), ToolCalled("call-2", "b", "add", "{}"), ToolsSettled(last=True)])
    assert [call.call_id for call in played.calls] == ["a"]
    give_outputs(played)
    assert [call.call_id for call in played.calls] == ["a", "b"]
    assert played.turn.can_resume


@pytest.mark.parametrize("in_time", [True, False])
def test_the_first_prompt_waits_for_the_list_of_tools_and_is_not_sent_without_it(in_time: bool) -> None:
    played = begin_turn("gemini-client_tool_parked", tools=TOOLS)
    answer = {**sessions_of("gemini-client_tool_parked")[0].opened, "id": 1_000_001}
    played.receive([answer])
    played.answer_setup()
    assert not played.has_asked("session/prompt")
    played.receive([ToolsListed(in_time=in_time)])
    assert played.has_asked("session/prompt") == in_time
    assert in_time or played.end.failure == NOT_LISTED


def test_a_turn_whose_call_the_agent_has_given_up_is_not_resumed() -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([report("a"), ToolCalled("call-1", "", "get_weather", "{}"), ToolsSettled(last=True)])
    assert played.turn.can_resume
    played.receive([ToolDropped("call-1")])
    assert not played.turn.can_resume


def test_the_turn_after_one_whose_call_was_given_up_waits_for_its_own_outputs() -> None:
    played = begin_and_open("copilot-client_tool_parked", tools=TOOLS)
    played.receive([report("a"), ToolCalled("call-1", "", "get_weather", "{}"), ToolsSettled(last=True)])
    played.receive([ToolDropped("call-1")])
    prompt = played.last_request("session/prompt")
    played.receive(
        [{"jsonrpc": "2.0", "id": prompt["id"], "result": {"stopReason": "end_turn", "usage": {}}}]
    )
    assert played.end.stop == Stop.STOP
    more = (HistoryMessage("user", (TextPart("more"),)),)
    played.take(played.turn.resume(Turn(model="", history=()), more))
    played.receive([report("b"), ToolCalled("call-2", "", "get_weather", "{}"), ToolsSettled(last=True)])
    assert played.turn.can_resume


def test_a_call_of_a_tool_that_was_not_offered_fails_at_the_tool_server() -> None:
    played = begin_and_open("gemini-client_tool_parked", tools=TOOLS)
    played.receive([ToolCalled("call-1", "", "rm", "{}"), ToolsSettled(last=True)])
    assert played.calls == []
    assert played.outputs[0][1]["isError"] is True


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nth", "kind"),
    [
        ("claude-acp-air_errors", 0, K.AGENT_RATE_LIMITED),
        ("claude-acp-air_errors", 1, K.UPSTREAM_ERROR),
        ("claude-acp-air_errors", 2, K.CONTEXT_LENGTH_EXCEEDED),
        ("claude-acp-air_errors", 3, K.AGENT_NOT_AUTHENTICATED),
        ("codex-acp-air_errors", 0, K.AGENT_RATE_LIMITED),
        ("codex-acp-air_errors", 1, K.UPSTREAM_ERROR),
        ("codex-acp-air_errors", 2, K.CONTEXT_LENGTH_EXCEEDED),
        ("codex-acp-air_errors", 3, K.AGENT_NOT_AUTHENTICATED),
        ("claude-acp-err_429", 0, K.AGENT_RATE_LIMITED),
        ("codex-acp-err_429", 0, K.UPSTREAM_ERROR),
        ("copilot-err_401", 0, K.AGENT_NOT_AUTHENTICATED),
        ("copilot-err_429", 0, K.AGENT_RATE_LIMITED),
        ("copilot-err_500", 0, K.UPSTREAM_ERROR),
        ("copilot-err_400_context", 0, K.CONTEXT_LENGTH_EXCEEDED),
        ("copilot-bad_model", 0, K.MODEL_NOT_FOUND),
        ("copilot-err_drop", 0, K.UPSTREAM_DISCONNECTED),
        ("gemini-err_401", 0, K.AGENT_NOT_AUTHENTICATED),
        ("gemini-err_400_context", 0, K.CONTEXT_LENGTH_EXCEEDED),
        ("gemini-bad_model", 0, K.MODEL_NOT_FOUND),
        ("gemini-err_drop", 0, K.UPSTREAM_DISCONNECTED),
        ("qwen-err_401", 0, K.AGENT_NOT_AUTHENTICATED),
        ("qwen-err_400_context", 0, K.CONTEXT_LENGTH_EXCEEDED),
        ("opencode-err_401", 0, K.AGENT_NOT_AUTHENTICATED),
        ("opencode-err_429", 0, K.AGENT_RATE_LIMITED),
        *(
            (f"{agent}-no_auth", 0, K.AGENT_NOT_AUTHENTICATED)
            for agent in ("gemini", "copilot", "codex-acp", "qwen")
        ),
    ],
)
def test_an_error_is_never_an_answer(name: str, nth: int, kind: FaultKind) -> None:
    played = play(name, nth)
    assert played.end.stop == Stop.FAILED
    assert played.end.failure is not None
    assert played.end.failure.kind is kind
    assert "http://" not in played.end.failure.message
    assert not played.turn.can_resume


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "There's an issue with the selected model (opus). It may not exist.",
            K.MODEL_NOT_FOUND,
        ),
        ('{"error": {"message": "model: nonsense", "type": "not_found_error"}}', K.MODEL_NOT_FOUND),
        ("404 model: nonsense", K.MODEL_NOT_FOUND),
        ("Connection lost mid-response. The response above may be incomplete.", K.UPSTREAM_DISCONNECTED),
        ("Transport error: network error: error decoding response body", K.UPSTREAM_DISCONNECTED),
        ("Cannot connect to API: The socket connection was closed unexpectedly.", K.UPSTREAM_DISCONNECTED),
        ("Something went wrong.", K.REJECTED_BY_PROVIDER),
    ],
)
def test_the_words_of_an_error_count_more_than_the_agents_category(text: str, kind: FaultKind) -> None:
    told = {"category": "request", "severity": "error", "title": text}
    assert failure_of_session(told, PRESETS["codex-acp"]).kind is kind


def test_a_call_that_its_log_shows_as_failed_is_a_retry_with_its_reason() -> None:
    line = (
        'timestamp=2026-11-22T17:06:57.076Z level=ERROR run=f9dd4e9c message="stream error" providerID=mock '
        "modelID=mock-model session.id=ses_dfbc65 small=false agent=build mode=primary "
        'error.error="AI_APICallError: too many requests here"'
    )
    found = re.search(PRESETS["opencode"].error_log, line)
    assert found is not None
    assert found["session"] == "ses_dfbc65"
    played = begin_and_open("opencode-text")
    played.receive([ModelCallFailed(found["error"])])
    [event] = [event for event in played.events if isinstance(event, Retrying)]
    assert event.message == "too many requests here"
    assert event.failure is not None
    assert event.failure.kind is K.AGENT_RATE_LIMITED
    title = line.replace("small=false", "small=true")
    assert re.search(PRESETS["opencode"].error_log, title) is None


def test_words_about_an_error_are_not_the_answers_text() -> None:
    assert play("copilot-err_429").text == ""
    assert play("copilot-bad_model").text == ""
    assert play("copilot-err_drop").text == "one two three four five six"
    assert play("claude-acp-air_errors", 0).text == ""


def test_an_answer_that_codex_takes_for_a_failure_since_it_was_cut_is_a_cut_answer() -> None:
    played = play("codex-acp-air_errors", 4)
    assert (played.end.stop, played.text) == (Stop.LENGTH, "cut here")


def test_the_error_says_how_to_sign_in() -> None:
    failure = play("gemini-no_auth").end.failure
    assert failure is not None
    assert "GEMINI_API_KEY" in failure.message


def test_a_text_that_begins_like_an_error_is_sent_where_the_result_shows_a_success() -> None:
    played = begin_and_open("copilot-text")
    prompt = played.last_request("session/prompt")
    session = prompt["params"]["sessionId"]
    for text in ("Error: ", "is what you asked me to say."):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        params = {"sessionId": session, "update": update}
        played.receive([{"jsonrpc": "2.0", "method": "session/update", "params": params}])
    assert played.text == ""
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    played.receive(
        [{"jsonrpc": "2.0", "id": prompt["id"], "result": {"stopReason": "end_turn", "usage": usage}}]
    )
    assert played.end.stop == Stop.STOP
    assert played.text == "Error: is what you asked me to say."


def test_a_later_turn_of_a_session_has_failed_where_its_total_is_the_one_before() -> None:
    """The program tells its errors as text; its total is then that of the turns before, which counts nothing new."""
    played = begin_and_open("copilot-text")
    dialect = played.turn
    total = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    ends: list[TurnEnded] = []
    for text in ("Hello.", "Error: 400 bad thing"):
        if ends:
            question = HistoryMessage("user", (TextPart("Again."),))
            played.take(dialect.resume(Turn(model="", history=(question,)), [question]))
        prompt = played.last_request("session/prompt")
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        params = {"sessionId": prompt["params"]["sessionId"], "update": update}
        played.receive([{"jsonrpc": "2.0", "method": "session/update", "params": params}])
        result = {"stopReason": "end_turn", "usage": total}
        played.receive([{"jsonrpc": "2.0", "id": prompt["id"], "result": result}])
        ends.append([event for event in played.events if isinstance(event, TurnEnded)][-1])
    assert ends[0].failure is None
    assert ends[1].failure is not None
    assert "bad thing" in ends[1].failure.message
    assert played.text == "Hello."


def test_a_model_that_is_not_offered_fails_before_anything_is_asked() -> None:
    played = begin_and_open("gemini-text", model="nonexist-9")
    assert played.end.failure is not None
    assert played.end.failure.kind is K.MODEL_NOT_FOUND
    assert not played.has_asked("session/prompt")


@pytest.mark.parametrize(
    ("agent", "model", "method"),
    [("gemini", "gemini-2.5-pro", "session/set_model"), ("claude-acp", "opus", "session/set_config_option")],
)
def test_a_model_is_chosen_by_an_option_or_by_set_model(agent: str, model: str, method: str) -> None:
    played = begin_and_open(f"{agent}-text", model=model)
    request = played.last_request(method)
    assert model in request["params"].values()
    assert played.has_asked("session/prompt")


@pytest.mark.parametrize(
    ("agent", "able", "unable"),
    [
        ("claude-acp", {"images", "system_prompt", "parallel_calls"}, {"sandbox", "history"}),
        ("codex-acp", {"images", "system_prompt", "parallel_calls", "sandbox"}, {"plain_model"}),
        ("gemini", {"images", "client_tools"}, {"system_prompt", "parallel_calls", "sandbox", "exact_usage"}),
        ("qwen", {"exact_usage"}, {"stop_reasons", "parallel_calls"}),
    ],
)
def test_an_agent_can_do_what_its_program_declares(agent: str, able: set[str], unable: set[str]) -> None:
    program = Program(PRESETS[agent], declared_by(f"{agent}-text"))
    assert able <= program.capabilities
    assert not unable & program.capabilities


# --- the end, and what comes after it -------------------------------------------------------------


@pytest.mark.parametrize("agent", ["gemini", "copilot", "codex-acp"])
def test_an_interrupted_turn_is_cancelled_and_finished_once_the_agent_says_so(agent: str) -> None:
    played = begin_and_open(f"{agent}-cancel")
    messages = messages_of(f"{agent}-cancel")
    played.receive(messages[: len(messages) // 2])
    played.take(played.turn.interrupt())
    assert played.end.stop == Stop.INTERRUPTED
    assert played.has_asked("session/cancel")
    assert not played.turn.finished
    prompt = played.last_request("session/prompt")
    played.receive([{**messages[-1], "id": prompt["id"]}])
    assert played.turn.finished
    assert not played.turn.can_resume
    assert [event for event in played.events if isinstance(event, TurnEnded)] == [played.end]


def test_a_session_whose_turn_ended_well_takes_another_prompt() -> None:
    played = play("gemini-text")
    assert played.turn.can_resume
    played.take(
        played.turn.resume(Turn(model="", history=()), (HistoryMessage("user", (TextPart("more"),)),))
    )
    prompt = played.last_request("session/prompt")
    assert prompt["params"]["prompt"] == [{"type": "text", "text": "more"}]
    assert sum(1 for request in played.requests if request["method"] == "session/new") == 1


@pytest.mark.parametrize("is_prompting", [False, True])
def test_a_session_is_closed_where_the_agent_can_close_it(is_prompting: bool) -> None:
    played = begin_and_open("codex-acp-cancel") if is_prompting else play("codex-acp-text")
    played.take(played.turn.interrupt())
    if is_prompting:
        assert not played.has_asked("session/close")
        prompt = played.last_request("session/prompt")
        played.receive([{**messages_of("codex-acp-cancel")[-1], "id": prompt["id"]}])
    assert played.has_asked("session/close")
    assert played.turn.finished


def test_a_process_that_dies_fails_the_turn_once() -> None:
    played = begin_and_open("gemini-text")
    played.take(played.turn.eof(Ended(code=3)))
    assert played.end.failure is not None
    assert played.end.failure.kind is K.AGENT_CRASHED
    assert played.turn.finished


# --- what it is prompted with ---------------------------------------------------------------------


def test_one_user_message_goes_in_as_it_is_with_its_images() -> None:
    parts = (TextPart("look"), ImagePart("data:image/png;base64,aGk="))
    played = begin_and_open("gemini-text", history=(HistoryMessage("user", parts),))
    prompt = played.last_request("session/prompt")
    assert prompt["params"]["prompt"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "mimeType": "image/png", "data": "aGk="},
    ]


def test_instructions_are_a_system_prompt_where_the_agent_declares_one() -> None:
    history = (
        HistoryMessage("developer", (TextPart("Be terse."),)),
        HistoryMessage("user", (TextPart("Hi"),)),
    )
    played = begin_and_open("claude-acp-text", history=history)
    new = played.last_request("session/new")
    assert new["params"]["systemPrompt"] == {
        "mode": "append",
        "content": [{"type": "text", "text": "Be terse."}],
    }


def test_instructions_behind_a_message_are_blocks_of_their_own() -> None:
    history = (
        HistoryMessage("user", (TextPart("look"), ImagePart("data:image/png;base64,aGk="))),
        HistoryMessage("developer", (TextPart("Answer with JSON."),)),
    )
    played = begin_and_open("gemini-text", history=history)
    prompt = played.last_request("session/prompt")
    assert prompt["params"]["prompt"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "mimeType": "image/png", "data": "aGk="},
        {"type": "text", "text": "[system]\nAnswer with JSON."},
    ]


def test_any_other_history_goes_in_as_one_labelled_text() -> None:
    history = (
        HistoryMessage("developer", (TextPart("Be terse."),)),
        HistoryMessage("user", (TextPart("Hi"),)),
        HistoryMessage("assistant", (TextPart("Hello."),)),
        HistoryMessage("user", (TextPart("More"),)),
    )
    played = begin_and_open("gemini-text", history=history)
    prompt = played.last_request("session/prompt")
    text = prompt["params"]["prompt"][0]["text"]
    assert text.startswith(PREAMBLE)
    assert "[system]\nBe terse.\n\n[user]\nHi\n\n[assistant]\nHello.\n\n[user]\nMore" in text


# --- a session that was opened ahead --------------------------------------------------------------


def ahead_of_turn() -> tuple[AcpTurn, Turn, Message]:
    """A turn whose session was asked for before, the turn's content, and the answer about that session."""
    name = "claude-acp-text"
    turn = AcpTurn(
        1, Program(PRESETS["claude-acp"], declared_by(name)), lambda prefix: f"{prefix}1", ahead=True
    )
    history = (HistoryMessage("user", (TextPart("go"),)),)
    opened_by = {**sessions_of(name)[0].opened, "id": request_id(1, 1)}
    message = decode(json.dumps(opened_by).encode())
    assert message is not None
    return turn, Turn(model="", history=history, workdir="/home/user/project"), message


def methods_of(writes: bytes) -> list[str]:
    return [json.loads(line)["method"] for line in writes.splitlines()]


def test_a_turn_takes_the_session_that_was_opened_ahead_whenever_the_answer_comes() -> None:
    turn, asked, answer = ahead_of_turn()
    assert turn.begin(asked).writes == b""
    assert methods_of(turn.receive([answer]).writes) == ["_session/rename", "session/prompt"]


def test_a_session_that_is_opened_ahead_has_the_fields_of_every_session() -> None:
    connection = AcpConnection({"preset": 1})
    for line in (connection.open_probe("/home"), connection.open_ahead("/home")):
        assert json.loads(line)["params"]["_meta"] == {"preset": 1}


@pytest.mark.parametrize("closes", [True, False])
def test_a_session_is_closed_unless_that_disturbs_the_opening_of_another(closes: bool) -> None:
    connection = AcpConnection({}, closes=closes)
    declared = {"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"close": {}}}}
    connection.receive([json.dumps({"id": request_id(0, 1), "result": declared}).encode()])
    assert bool(connection.close_line(Message(result={"sessionId": "s"}))) == closes


def test_a_session_that_was_opened_ahead_is_closed_where_an_earlier_one_is_opened_again() -> None:
    turn, asked, answer = ahead_of_turn()
    assert methods_of(turn.reopen(asked, "earlier", asked.history).writes) == ["session/resume"]
    closed = turn.receive([answer]).writes
    assert methods_of(closed) == ["session/close"]
    assert json.loads(closed)["params"]["sessionId"] == answer.result["sessionId"]


def test_a_session_is_lost_when_the_agent_does_not_open_it_again_in_a_safe_mode() -> None:
    turn, asked, _ = ahead_of_turn()
    written = json.loads(turn.reopen(asked, "earlier", asked.history).writes)
    step = turn.receive([Message(id=written["id"], result={})])
    assert turn.lost
    assert step.writes == b""
    assert [type(event) for event in step.events] == [TurnEnded]
