"""The spans of one turn, from its events."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ForwardedBytes,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    Retrying,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Activity, HistoryMessage, McpCall, Message, TextPart, ToolCall
from codex_proxy.core.turn import Turn
from tests.parts.traces.traced import facts, is_below, one, recorded_traces, spans_named

TURN = Turn(
    model="m-1", history=(HistoryMessage("user", (TextPart("a question"),)),), owner="ann", max_tokens=9
)
MESSAGE_EVENTS: list[Event] = [ItemStarted(Message("i")), TextDelta("i", "an answer"), ItemEnded("i")]


def spans_of(*batches: Sequence[Event], content: bool = False) -> list[ReadableSpan]:
    """The spans of a turn with these events, in the order in which they began."""
    traces, exporter = recorded_traces(content=content)
    watched = traces.begin(TURN, "fake")
    for events in batches:
        watched.add(events)
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def test_a_turn_has_a_span_with_a_span_of_each_model_call_and_tool_in_their_order() -> None:
    call = McpCall("call", "c1", "files", "read")
    spans = spans_of(
        [TurnStarted(thread_id="t-1"), ItemStarted(Message("a")), ItemEnded("a")],
        [StepCompleted(Usage(10, 4, 2, 1)), ItemStarted(call)],
        [ItemEnded("call")],
        MESSAGE_EVENTS,
        [StepCompleted(Usage(20, 8, 4, 2)), UsageReported(Usage(30, 12, 6, 3)), TurnEnded(Stop.STOP)],
    )
    assert [span.name for span in spans] == [
        "invoke_agent fake",
        "chat m-1",
        "execute_tool files.read",
        "chat m-1",
    ]
    turn, first, tool, second = spans
    assert all(is_below(span, turn) for span in (first, tool, second))
    assert (first.end_time or 0) <= (tool.start_time or 0)
    assert (tool.end_time or 0) <= (second.start_time or 0)
    assert facts(first)["gen_ai.usage.input_tokens"] == 10
    assert facts(tool)["gen_ai.tool.call.id"] == "c1"
    found = facts(turn)
    del found["gen_ai.response.time_to_first_chunk"]
    assert found == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "fake",
        "gen_ai.agent.name": "fake",
        "gen_ai.request.model": "m-1",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.conversation.id": "t-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 12,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "codex_proxy.mode": "agent",
        "codex_proxy.key": "ann",
    }


def test_a_model_call_that_is_reported_late_ends_where_its_tool_begins() -> None:
    """As with ACP programs, which report the end of a model call when the next one begins to speak."""
    spans = spans_of(
        [ItemStarted(Message("a")), ItemEnded("a"), ItemStarted(Activity("x", "command", "ls"))],
        [ItemEnded("x")],
        MESSAGE_EVENTS,
        [TurnEnded(Stop.STOP)],
    )
    assert [span.name for span in spans] == [
        "invoke_agent fake",
        "chat m-1",
        "execute_tool command",
        "chat m-1",
    ]
    assert (spans[1].end_time or 0) <= (spans[2].start_time or 0)
    assert (spans[2].end_time or 0) <= (spans[3].start_time or 0)


def test_an_answer_that_is_passed_on_unread_is_a_model_call() -> None:
    spans = spans_of(
        [ForwardedBytes(b"data: {}\n\n", 1)], [ForwardedBytes(b"data: {}\n\n", 1)], [TurnEnded("stop")]
    )
    assert [span.name for span in spans] == ["invoke_agent fake", "chat m-1"]


def test_a_turn_that_fails_before_its_model_spoke_has_no_model_call_and_says_why() -> None:
    failure = Failure(kind=FaultKind.AGENT_CRASHED, message="It said: a secret.")
    (turn,) = spans_of([Retrying("busy", 529)], [TurnEnded(Stop.FAILED, failure=failure)])
    assert (turn.status.status_code, turn.status.description) == (StatusCode.ERROR, None)
    assert facts(turn)["error.type"] == "agent_crashed"
    assert [dict(event.attributes or {}) for event in turn.events] == [{"http.response.status_code": 529}]


def test_what_is_open_at_the_end_of_a_turn_is_ended_as_interrupted() -> None:
    spans = spans_of([ItemStarted(Activity("x", "command", "sleep")), TurnEnded(Stop.INTERRUPTED)])
    assert [facts(span).get("error.type") for span in spans] == ["interrupted", "interrupted"]


CALL_EVENTS: list[Event] = [
    *MESSAGE_EVENTS,
    ItemStarted(ToolCall("i2", "c2", "get_weather")),
    ArgumentsDelta("i2", '{"city": "Rome"}'),
    ItemEnded("i2"),
    ItemStarted(McpCall("i3", "c3", "files", "read")),
    OutputDelta("i3", "an output"),
    ItemEnded("i3", "failed"),
    TurnEnded(Stop.TOOL_CALLS),
]


def test_spans_have_no_word_that_was_said() -> None:
    told = repr([(span.name, facts(span), span.events) for span in spans_of(CALL_EVENTS)])
    for word in ("a question", "an answer", "Rome", "an output"):
        assert word not in told


def test_with_content_they_have_what_was_said_in_the_conventions_form() -> None:
    traces, exporter = recorded_traces(content=True)
    traces.begin(TURN, "fake").add(CALL_EVENTS)
    turn = facts(one(exporter, "invoke_agent"))
    assert turn["gen_ai.input.messages"] == (
        '[{"role":"user","parts":[{"type":"text","content":"a question"}]}]'
    )
    assert '{"type":"text","content":"an answer"}' in turn["gen_ai.output.messages"]
    assert turn["gen_ai.output.messages"].endswith('"finish_reason":"tool_calls"}]')
    weather, read = spans_named(exporter, "execute_tool")
    assert facts(weather)["gen_ai.tool.call.arguments"] == '{"city": "Rome"}'
    assert facts(read)["gen_ai.tool.call.result"] == "an output"
    assert facts(read)["error.type"] == "tool_failed"
