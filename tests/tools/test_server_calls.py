"""Calls that the server runs itself: when they are run, who hears of them, and when a model has had enough."""

from __future__ import annotations

from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    StepCompleted,
    Stop,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
)
from codex_proxy.core.items import McpApproval, McpCall, McpOrigin, TextPart, Tool, ToolCall
from codex_proxy.core.turn import Turn
from codex_proxy.tools.policy import (
    CALLS_AFTER_LIMIT,
    DEFERRED_CALL,
    LIMIT_REACHED,
    PolicyResult,
    ToolOutput,
    ToolPolicy,
)

OURS = Tool("desk__find", mcp=McpOrigin("desk", "find"))
ASKS = Tool("desk__send", mcp=McpOrigin("desk", "send", needs_approval=True))
THEIRS = Tool("get_weather")
TOOL_OUTPUT = ToolOutput((TextPart("found"),), "found")


def turn(**more: object) -> Turn:
    return Turn(model="m", history=(), tools=(OURS, ASKS, THEIRS), **more)  # type: ignore[arg-type]


def ask(number: int, name: str = "desk__find") -> ToolCallRequested:
    return ToolCallRequested(f"ask{number}", f"call{number}", name, "{}")


def step(policy: ToolPolicy, *asks: ToolCallRequested) -> PolicyResult:
    return policy.feed([*asks, StepCompleted()])


def items(events: list[Event]) -> list[type]:
    return [type(event.item) for event in events if isinstance(event, ItemStarted)]


def test_a_call_that_runs_here_is_reported_and_run_and_its_output_is_given_when_it_is_there() -> None:
    policy = ToolPolicy(turn())
    done = step(policy, ask(1))
    assert items(done.events) == [McpCall]
    assert [call.request.request_id for call in done.calls] == ["ask1"]
    assert done.answers == []
    ended = policy.on_tool_output("ask1", TOOL_OUTPUT)
    assert ended.events == [OutputDelta("call1", "found"), ItemEnded("call1")]
    assert [(each.request_id, each.output.parts) for each in ended.answers] == [("ask1", TOOL_OUTPUT.parts)]


def test_a_call_that_failed_ends_as_failed_with_what_went_wrong() -> None:
    policy = ToolPolicy(turn())
    step(policy, ask(1))
    events = policy.on_tool_output("ask1", ToolOutput((TextPart("no"),), "no", failed=True)).events
    assert events == [OutputDelta("call1", "no"), ItemEnded("call1", "failed")]


def test_the_client_gets_its_calls_when_ours_of_the_step_have_run() -> None:
    policy = ToolPolicy(turn())
    done = step(policy, ask(1), ask(2, "get_weather"), ask(3))
    assert items(done.events) == [McpCall, McpCall]
    assert items(policy.on_tool_output("ask3", TOOL_OUTPUT).events) == []
    last = policy.on_tool_output("ask1", TOOL_OUTPUT)
    assert items(last.events) == [ToolCall]
    assert last.events[-1] == TurnEnded(Stop.TOOL_CALLS, "token_count")
    assert [each.request_id for each in policy.visible] == ["ask2"]
    assert {each.request_id for each in policy.hidden} == {"ask1", "ask3"}


def test_a_call_that_needs_approval_ends_the_turn_and_is_not_run() -> None:
    policy = ToolPolicy(turn())
    done = step(policy, ask(1, "desk__send"))
    assert done.calls == []
    assert items(done.events) == [McpApproval]
    assert done.events[-1] == TurnEnded(Stop.TOOL_CALLS, "token_count")
    assert [each.call_id for each in policy.visible] == ["call1"]


def test_one_call_at_a_time_counts_ours_too() -> None:
    policy = ToolPolicy(turn(parallel_tool_calls=False))
    done = step(policy, ask(1), ask(2, "get_weather"))
    assert [call.request.request_id for call in done.calls] == ["ask1"]
    assert [(each.request_id, each.output.parts) for each in done.answers] == [
        ("ask2", (TextPart(DEFERRED_CALL),))
    ]


def test_calls_beyond_the_limit_are_not_made_and_the_model_gets_an_error() -> None:
    policy = ToolPolicy(turn(max_server_calls=1))
    done = step(policy, ask(1), ask(2))
    assert [call.request.request_id for call in done.calls] == ["ask1"]
    assert [(each.request_id, each.output.parts) for each in done.answers] == [
        ("ask2", (TextPart(LIMIT_REACHED),))
    ]


def test_a_model_that_goes_on_calling_beyond_the_limit_fails_the_turn() -> None:
    policy = ToolPolicy(turn(max_server_steps=0))
    assert step(policy, ask(1)).events == [StepCompleted()]
    assert step(policy, ask(2)).events == [StepCompleted()]
    assert step(policy, ask(3)).events[-1] == TurnEnded(Stop.FAILED, "provider", CALLS_AFTER_LIMIT)


def test_a_call_that_runs_here_is_the_call_that_is_required() -> None:
    policy = ToolPolicy(turn(tool_choice="required"))
    step(policy, ask(1))
    policy.on_tool_output("ask1", TOOL_OUTPUT)
    said = policy.feed([TextDelta("m", "Found it."), TurnEnded(Stop.STOP)])
    assert said.events == [TextDelta("m", "Found it."), TurnEnded(Stop.STOP)]
    assert not said.again


def test_an_output_that_comes_after_the_end_is_ignored() -> None:
    policy = ToolPolicy(turn())
    step(policy, ask(1))
    policy.feed([TurnEnded(Stop.INTERRUPTED)])
    assert policy.on_tool_output("ask1", TOOL_OUTPUT) == PolicyResult([], [])
