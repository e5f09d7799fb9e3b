"""The dialect of Claude Code, against recordings of the real program."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Decision, Ended, ToolReply
from codex_proxy.core.events import (
    AccountLimitsReported,
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    HistoryCompacted,
    ItemStarted,
    RawItem,
    Retrying,
    StepCompleted,
    Stop,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import (
    ActionDetails,
    Activity,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Message,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.parts.claude_code.history import ThinkingBlock, thinking_block_in
from tests.core.well_formed import violations
from tests.parts.claude_code.replayer import (
    NAMES,
    begin_turn,
    events_of,
    output_lines,
    recorded_turn,
    resumable,
)

ONE = Usage(1200, 1000, 34)
"""What the recorded model server counted for every call."""

INITIALIZED = (
    b'{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
)
RESULT = b'{"type":"result","subtype":"success","is_error":false,"num_turns":0,"result":""}'
NOT_SIGNED_IN = b"""{"type": "assistant", "error": "authentication_failed",
    "message": {"id": "x", "model": "<synthetic>", "content": []}}"""


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in TurnRepair().feed(events) if isinstance(event, TextDelta))


def end_of(events: list[Event]) -> TurnEnded:
    [end] = [event for event in events if isinstance(event, TurnEnded)]
    return end


def usage_of(events: list[Event]) -> Usage:
    return [event.usage for event in events if isinstance(event, UsageReported)][-1]


def lines_in(writes: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in writes.splitlines()]


def message(text: str, role: Any = "user") -> HistoryMessage:
    return HistoryMessage(role, (TextPart(text),))


@pytest.mark.parametrize("name", NAMES)
def test_the_events_of_a_recording_are_well_formed(name: str) -> None:
    events = events_of(name)
    if name == "err_401":  # was stopped in its seventh retry
        events.append(TurnEnded(Stop.INTERRUPTED))
    assert violations(TurnRepair().feed(events)) == []


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("text", "Hello from the mock model.", 1),
        ("image", "I see.", 1),
        ("history_ordered", "Rumpel.", 1),
        ("history_tool_tail", "It is minus 5 and 3.", 1),
        ("json_schema", '{"name":"Rumpel"}', 1),
        ("agent_tools", "Running.Done.", 2),
        ("stop_length", "cut herecut herecut hereok", 4),
    ],
)
def test_a_turn_says_its_text_once_and_counts_every_model_call(name: str, text: str, calls: int) -> None:
    events = events_of(name)
    assert text_of(events) == text
    assert end_of(events).stop == Stop.STOP
    assert usage_of(events) == Usage(ONE.input * calls, ONE.cached * calls, ONE.output * calls)
    assert sum(isinstance(event, StepCompleted) for event in events) == calls


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("err_429", FaultKind.AGENT_RATE_LIMITED),
        ("err_529", FaultKind.UNAVAILABLE),
        ("err_400_context", FaultKind.CONTEXT_LENGTH_EXCEEDED),
        ("no_auth", FaultKind.AGENT_NOT_AUTHENTICATED),
        ("bad_model", FaultKind.MODEL_NOT_FOUND),
    ],
)
def test_an_error_is_a_typed_failure_and_never_an_answer(name: str, kind: FaultKind) -> None:
    events = events_of(name)
    end = end_of(events)
    assert end.failure is not None
    assert end.failure.kind is kind
    assert text_of(events) == ""
    assert not any(isinstance(event, ItemStarted) for event in events)
    assert "API Error" not in end.failure.message


def test_a_retry_has_the_number_of_the_attempt_and_the_error_that_the_turn_would_have() -> None:
    [*_, last] = [event for event in events_of("err_401") if isinstance(event, Retrying)]
    assert last.failure is not None
    assert (last.http_status, last.failure.kind) == (401, FaultKind.AGENT_NOT_AUTHENTICATED)
    assert "attempt 7 of 10 (authentication_failed, HTTP 401)" in last.message
    assert "claude auth login" in last.failure.message
    [broken, *_] = [event for event in events_of("err_drop") if isinstance(event, Retrying)]
    assert broken.failure is None


def test_a_refusal_ends_as_content_filter() -> None:
    assert end_of(events_of("stop_refusal")).stop == Stop.CONTENT_FILTER


def test_a_retry_after_a_break_says_the_answer_once() -> None:
    events = events_of("err_drop")
    assert any(isinstance(event, Retrying) for event in events)
    assert text_of(events) == "one two three four"
    assert end_of(events).stop == Stop.STOP
    assert usage_of(events) == Usage(3600, 3000, 36)  # three calls, two of which broke off


def test_calls_of_a_step_come_together_with_the_models_ids_and_wait() -> None:
    dialect, events = begin_turn("client_tool_sdk_mcp"), []
    for line in output_lines("client_tool_sdk_mcp"):
        step = dialect.receive([line])
        events += step.events
        if any(isinstance(event, StepCompleted) for event in step.events):
            break
    asks = [event for event in events if isinstance(event, ToolCallRequested)]
    assert [(ask.call_id, ask.name, ask.arguments) for ask in asks] == [
        ("toolu_3_0", "get_weather", '{"city": "Oslo"}'),
        ("toolu_3_1", "add", '{"a": 1, "b": 2}'),
    ]
    streamed = [event.text for event in events if isinstance(event, ArgumentsDelta)]
    assert streamed == ['{"city": "Os', 'lo"}', '{"a": 1, "b"', ": 2}"]
    assert isinstance(events[-1], StepCompleted)
    assert dialect.can_resume
    turn = recorded_turn("client_tool_sdk_mcp")
    outputs = [HistoryOutput("toolu_3_1", (TextPart("3"),)), HistoryOutput("toolu_3_0", (TextPart("cold"),))]
    step = dialect.resume(turn, outputs)
    answers = [each["response"]["response"]["mcp_response"] for each in lines_in(step.writes)]
    assert [(each["id"], each["result"]["content"][0]["text"]) for each in answers] == [
        (3, "3"),
        (2, "cold"),
    ]
    assert not dialect.can_resume


def test_an_output_that_comes_before_it_is_asked_for_is_given_then() -> None:
    dialect, events = begin_turn("client_tool_sdk_mcp"), []
    request = b""
    for line in output_lines("client_tool_sdk_mcp"):
        if b'"tools/call"' in line and b"toolu_3_1" in line:
            request = line
            continue
        events += dialect.receive([line]).events
        if isinstance(events and events[-1], StepCompleted):
            break
    assert dialect.answer("toolu_3_1", ToolReply((TextPart("3"),))).writes == b""
    [answered] = lines_in(dialect.receive([request]).writes)
    assert answered["response"]["response"]["mcp_response"]["result"]["content"] == [
        {"type": "text", "text": "3"}
    ]


def test_an_image_of_an_output_that_cannot_be_given_is_not_left_out_silently() -> None:
    dialect = resumable("client_tool_sdk_mcp")
    image = ImagePart("https://pictures.example/cat.png")
    [answered] = lines_in(dialect.answer("toolu_3_1", ToolReply((image,))).writes)
    assert answered["response"]["response"]["mcp_response"]["result"]["content"] == [
        {"type": "text", "text": "[an image that is not included]"}
    ]


def test_a_call_that_the_program_answers_itself_cannot_be_resumed() -> None:
    dialect = begin_turn("client_tool_sdk_mcp")
    for line in output_lines("client_tool_sdk_mcp"):
        if b'"type":"user"' in line:
            dialect.receive([line])
            break
        dialect.receive([line])
    assert not dialect.can_resume


def test_history_goes_in_line_by_line_and_each_waits_for_its_result() -> None:
    dialect = ClaudeCodeTurn()
    history = (
        message("Be brief.", "developer"),
        message("I am Rumpel."),
        message("Noted.", "assistant"),
        message("Who am I?"),
    )
    first = lines_in(dialect.begin(Turn(model="opus", history=history, mode="model", effort="high")).writes)
    assert [line["request"]["subtype"] for line in first] == ["initialize", "apply_flag_settings"]
    assert first[0]["request"]["systemPrompt"] == "Be brief."
    assert first[1]["request"]["settings"] == {"model": "opus", "effortLevel": "high"}
    assert dialect.receive([INITIALIZED]).writes == b""
    [line] = lines_in(dialect.receive([INITIALIZED.replace(b'"initialize"', b'"settings"')]).writes)
    assert line["shouldQuery"] is False
    assert line["message"]["content"] == [{"type": "text", "text": "I am Rumpel."}]
    answered, asked = lines_in(dialect.receive([RESULT]).writes)
    assert answered["message"] == {"role": "assistant", "content": [{"type": "text", "text": "Noted."}]}
    assert "shouldQuery" not in asked


def test_the_next_turn_of_a_conversation_in_an_idle_process_gives_only_what_is_new() -> None:
    dialect = resumable("text")
    turn = recorded_turn("text")
    [asked] = lines_in(dialect.resume(turn, [message("And now?")]).writes)
    assert asked["message"]["content"] == [{"type": "text", "text": "And now?"}]


def test_what_a_sub_agent_says_is_not_the_answer() -> None:
    dialect = ClaudeCodeTurn()
    dialect.begin(Turn(model="", history=(message("Hi"),)))
    dialect.receive([INITIALIZED])
    events: list[Event] = []
    for line in output_lines("text"):
        value = json.loads(line)
        if value["type"] == "stream_event":
            sub_agents = json.dumps(value | {"parent_tool_use_id": "toolu_1"}).encode()
            assert dialect.receive([sub_agents]).events == []
        events += dialect.receive([line]).events
    assert text_of(events) == text_of(events_of("text"))


def test_an_error_of_an_earlier_turn_of_the_conversation_is_not_that_of_the_next() -> None:
    dialect = resumable("text")
    dialect.receive([NOT_SIGNED_IN])
    dialect.resume(recorded_turn("text"), [message("And now?")])
    failed = b'{"type":"result","subtype":"success","is_error":true,"num_turns":1,"result":"It broke."}'
    failure = end_of(list(dialect.receive([failed]).events)).failure
    assert failure is not None
    assert failure.kind is FaultKind.UPSTREAM_ERROR


def test_a_warm_process_is_given_prompt_tools_and_schema_with_the_turn() -> None:
    schema = msgspec.Raw(b'{"type":\n"object"}')
    tool = Tool("look", "Looks", msgspec.Raw(b'{"type":"object"}'))
    turn = Turn(model="", history=(message("Hi"),), mode="model", tools=(tool,), output_schema=schema)
    [line] = lines_in(ClaudeCodeTurn().begin(turn).writes)
    assert line["request"]["sdkMcpServers"] == ["client"]
    assert line["request"]["jsonSchema"] == {"type": "object"}


@pytest.mark.parametrize("approve", [False, True])
def test_a_permission_request_is_reported_to_the_client_and_answered_once(approve: bool) -> None:
    dialect = begin_turn("agent_tools")
    events: list[Event] = []
    for line in output_lines("agent_tools"):
        events += dialect.receive([line]).events
        if isinstance(events and events[-1], ApprovalRequested):
            break
    request = events[-1]
    assert isinstance(request, ApprovalRequested)
    assert (request.kind, request.text) == ("command", "echo marker-$((40+2)); touch made.txt")
    [answer] = lines_in(dialect.answer(request.request_id, Decision(approve)).writes)
    decision = answer["response"]["response"]
    assert decision["behavior"] == ("allow" if approve else "deny")
    if approve:
        assert decision["updatedInput"] == json.loads(line)["request"]["input"]
    assert dialect.answer(request.request_id, Decision(approve)).writes == b""


def test_what_the_agent_does_is_an_activity_with_its_output() -> None:
    events = events_of("agent_tools")
    [activity] = [
        event.item
        for event in events
        if isinstance(event, ItemStarted) and not isinstance(event.item, Message)
    ]
    command = "echo marker-$((40+2)); touch made.txt"
    assert activity == Activity("toolu_16_0", "command", command, details=ActionDetails(command=command))


def test_an_unknown_request_of_the_program_is_refused_at_once() -> None:
    dialect = begin_turn("text")
    line = b'{"type":"control_request","request_id":"r1","request":{"subtype":"elicitation"}}'
    [answer] = lines_in(dialect.receive([line]).writes)
    assert answer["response"] == {"subtype": "error", "request_id": "r1", "error": "not supported"}


def test_a_conversation_that_the_program_has_summed_up_is_told() -> None:
    dialect = begin_turn("interrupt")
    dialect.receive(output_lines("interrupt")[:8])
    line = (
        b'{"type":"system","subtype":"compact_boundary","compact_metadata":{"trigger":"auto","pre_tokens":9}}'
    )
    assert dialect.receive([line]).events == [HistoryCompacted()]


def test_an_interrupt_is_sent_to_the_program_and_ends_the_turn_once() -> None:
    dialect = begin_turn("interrupt")
    lines = output_lines("interrupt")
    for line in lines[:8]:
        dialect.receive([line])
    step = dialect.interrupt()
    assert [line["request"]["subtype"] for line in lines_in(step.writes)] == ["interrupt"]
    assert end_of(step.events).stop == Stop.INTERRUPTED
    assert dialect.finished
    assert dialect.receive(lines[8:]).events == []


def test_a_process_that_ends_in_the_middle_fails_the_turn() -> None:
    dialect = begin_turn("text")
    dialect.receive(output_lines("text")[:5])
    end = end_of(dialect.eof(Ended(code=1, stderr_tail="Error: out of memory")).events)
    assert end.failure is not None
    assert end.failure.kind is FaultKind.AGENT_CRASHED


def test_calls_that_this_server_has_to_see_whole_are_not_streamed() -> None:
    turn = recorded_turn("client_tool_sdk_mcp")
    tools = tuple(msgspec.structs.replace(tool, strict=True) for tool in turn.tools)
    dialect = ClaudeCodeTurn()
    dialect.begin(msgspec.structs.replace(turn, tools=tools))
    events: list[Event] = []
    for line in output_lines("client_tool_sdk_mcp"):
        events += dialect.receive([line]).events
        if isinstance(events and events[-1], StepCompleted):
            break
    assert not any(isinstance(event, ArgumentsDelta) for event in events)
    assert not any(isinstance(event, ItemStarted) and isinstance(event.item, ToolCall) for event in events)
    assert sum(isinstance(event, ToolCallRequested) for event in events) == 2


@pytest.mark.parametrize("line", [b'{"duration_ms":1,"result":"Hel', b'{"session_id":"s","uuid":"u","ty'])
def test_a_line_that_breaks_off_before_its_type_ends_the_turn(line: bytes) -> None:
    dialect = begin_turn("text")
    for each in output_lines("text"):
        dialect.receive([each])
        if b'"status":"requesting"' in each:
            break
    [*_, ended] = dialect.receive([line]).events
    assert isinstance(ended, TurnEnded)
    assert ended.failure is not None


def test_a_signed_thinking_block_is_an_item_for_later_requests_and_limits_are_reported() -> None:
    dialect, events = begin_turn("text"), []
    stream = [
        {"type": "message_start", "message": {"id": "m", "model": "opus"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "h\ud83d"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "\ude00m\ud83d"},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "Sig"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "redacted_thinking", "data": "abc"},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "thinking"}},
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "thinking_delta", "thinking": "unsigned"},
        },
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]
    told = [{"type": "stream_event", "event": event} for event in stream]
    told.append({"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}})
    for line in output_lines("text"):
        events += dialect.receive([line]).events
        if b'"status":"requesting"' in line:
            break
    events += dialect.receive([json.dumps(each).encode() for each in told]).events
    raw = [event.json for event in events if isinstance(event, RawItem) and event.type == "reasoning"]
    assert [thinking_block_in(each) for each in raw] == [
        ThinkingBlock("opus", "h\U0001f600m\ufffd", "Sig"),
        ThinkingBlock("opus", data="abc"),
    ]
    assert AccountLimitsReported(b'{"status": "allowed"}') in events
