"""The dialect of `codex proto` with the fake agent: its extensions, and its scenarios."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_proto.dialect import CodexProto
from codex_proxy.agents.codex_proto.setup import proto_argv
from codex_proxy.agents.dialect import Decision, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.faults import FaultKind as K
from codex_proxy.core.items import (
    HistoryMessage,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.turn import Turn
from tests.agents.proto_child import (
    FAKE,
    HISTORY,
    ROOT,
    assert_well_formed,
    begun,
    end_of,
    event_line,
    events_of,
    messages,
)

# --- the fake agent's extensions ------------------------------------------------------------------


def call_piece(index: int, arguments: str = "", **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return {"index": index, "type": "function", "function": {**name, "arguments": arguments}, **fields}


def calls_of(events: list[ev.Event]) -> list[tuple[str, str, str, int | None]]:
    """Call id, name, arguments and choice of each call."""
    calls = {
        e.item.id: e.item for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, ToolCall)
    }
    texts = dict.fromkeys(calls, "")
    for event in events:
        if isinstance(event, ev.ArgumentsDelta):
            texts[event.id] += event.text
    full_texts = {e.id: e.text for e in events if isinstance(e, ev.FullArguments)}
    texts |= full_texts
    return [(call.call_id, call.name, texts[key], call.choice) for key, call in calls.items()]


def test_pieces_of_parallel_calls_find_their_call_by_choice_and_index() -> None:
    def pieces(*calls: dict[str, Any]) -> bytes:
        return event_line("tool_calls_delta", choice_index=0, tool_calls=list(calls))

    events = events_of(
        [
            pieces(call_piece(0, id="a", name="f"), call_piece(1, "[", name="g")),
            pieces(call_piece(1, "1"), call_piece(0, "{}", id="a")),
            pieces(call_piece(1, "]", id="late")),
            event_line("task_complete"),
        ]
    )
    assert_well_formed(events)
    assert calls_of(events) == [("a", "f", "{}", None), ("call_1", "g", "[1]", None)]
    assert end_of(events).stop == "tool_calls"


def test_a_call_without_a_name_yet_is_held_back() -> None:
    first = event_line("tool_calls_delta", tool_calls=[call_piece(0, "{", id="a")])
    second = event_line("tool_calls_delta", tool_calls=[call_piece(0, "}", name="f")])
    assert calls_of(events_of([first, second])) == [("a", "f", "{}", None)]


def test_made_up_call_ids_do_not_repeat_those_of_earlier_steps() -> None:
    dialect = begun(Turn(model="m", history=HISTORY))
    step = dialect.receive([event_line("tool_calls_delta", tool_calls=[call_piece(0, name="f")])])
    assert calls_of(step.events) == [("call_1", "f", "", None)]


def test_complete_calls_after_their_pieces_are_not_repeated() -> None:
    delta = event_line(
        "tool_calls_delta", choice_index=0, tool_calls=[call_piece(0, '{"a":1}', id="a", name="f")]
    )
    whole = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    other = {**whole, "id": "b"}
    message = event_line("agent_message", message=None, choice_index=0, tool_calls=[whole, other])
    events = events_of([delta, message, message, event_line("task_complete")])
    assert_well_formed(events)
    assert calls_of(events) == [("a", "f", '{"a":1}', None), ("b", "f", '{"a":1}', None)]
    assert messages(events) == []


def test_the_legacy_function_call_comes_in_pieces_or_complete() -> None:
    pieces = [
        event_line("function_call_delta", function_call={"name": "f", "arguments": ""}),
        event_line("function_call_delta", function_call={"arguments": "{}"}),
    ]
    whole = event_line("agent_message", message=None, function_call={"name": "f", "arguments": "{}"})
    for lines in ([*pieces, whole, whole], [whole]):
        events = events_of([*lines, event_line("task_complete")])
        assert calls_of(events) == [("call_0", "f", "{}", None)]
        assert end_of(events).stop == "function_call"


def test_calls_belong_to_every_choice_unless_the_child_names_the_choice() -> None:
    def calls(choice: int) -> bytes:
        return event_line(
            "tool_calls_delta", choice_index=choice, tool_calls=[call_piece(0, id="a", name="f")]
        )

    said = event_line("agent_message", message="x", choice_index=0)
    assert calls_of(events_of([calls(0)])) == [("a", "f", "", None)]
    assert calls_of(events_of([said, calls(0), calls(1)])) == [("a", "f", "", 0), ("a", "f", "", 1)]


def test_texts_of_several_choices_are_messages_of_their_own() -> None:
    lines = [
        event_line("agent_message_delta", delta=text, choice_index=i)
        for i, text in ((0, "a"), (1, "b"), (0, "c"))
    ]
    full_texts = [
        event_line("agent_message", message=text, choice_index=i) for i, text in ((0, "ac"), (1, "b!"))
    ]
    end = event_line("task_complete", choice_finish_reasons={"0": "stop", "1": "length"})
    events = events_of([*lines, *full_texts, end])
    assert_well_formed(events)
    assert messages(events) == ["ac", "b!"]
    assert (end_of(events).stop, end_of(events).choice_stops) == ("stop", {1: "length"})


@pytest.mark.parametrize(
    ("count", "complete", "stop", "trigger"),
    [
        ({}, {"finish_reason": "length"}, "length", "task_complete"),
        ({"finish_reason": "length"}, {}, "length", "token_count"),
        ({"finish_reason": "length"}, {"finish_reason": "quantum_pause"}, "quantum_pause", "task_complete"),
        ({}, {}, "stop", "task_complete"),
    ],
)
def test_a_finish_reason_passes_through_with_the_event_that_reported_it(
    count: dict[str, str], complete: dict[str, str], stop: str, trigger: str
) -> None:
    end = end_of(events_of([event_line("token_count", **count), event_line("task_complete", **complete)]))
    assert (end.stop, end.trigger) == (stop, trigger)


# --- the fake agent -------------------------------------------------------------------------------

SCENARIOS = sorted(path.stem for path in (ROOT / "fake_proto/scenarios").glob("*.json"))
# What a scenario's name and `about` promise where it is not simply a `stop`.
FAKE_ENDS: dict[str, tuple[str, K | None]] = {
    "auth_401": ("failed", K.UPSTREAM_UNAUTHORIZED),
    "content_filter": ("content_filter", None),
    "context_length": ("failed", K.CONTEXT_LENGTH_EXCEEDED),
    "error_500": ("failed", K.UPSTREAM_ERROR),
    "error_mid_text": ("failed", K.UPSTREAM_DISCONNECTED),
    "error_rate_limit": ("failed", K.AGENT_RATE_LIMITED),
    "error_rate_limit_wait": ("failed", K.AGENT_RATE_LIMITED),
    "function_call": ("function_call", None),
    "function_call_whole": ("function_call", None),
    "future_finish_reason": ("quantum_pause", None),
    "invalid_prompt": ("failed", K.REJECTED_BY_PROVIDER),
    "length": ("length", None),
    "model_not_found": ("failed", K.MODEL_NOT_FOUND),
    "overloaded": ("failed", K.UNAVAILABLE),
    "quota": ("failed", K.INSUFFICIENT_QUOTA),
    "truncation": ("length", None),
    "usage_limit": ("failed", K.USAGE_LIMIT_REACHED),
}


@contextlib.contextmanager
def fake_child() -> Iterator[subprocess.Popen[bytes]]:
    """A fake agent that is killed after the test, or after ten seconds."""
    child = subprocess.Popen(
        proto_argv(FAKE), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    limit = threading.Timer(10, child.kill)
    limit.start()
    try:
        yield child
    finally:
        limit.cancel()
        child.kill()
        child.communicate()


def played(scenario: str) -> list[ev.Event]:
    """One scenario through the dialect; every approval is refused."""
    dialect = CodexProto(extended=True)
    prompt = HistoryMessage("user", (TextPart(f"[[fake:{scenario}]] go"),))
    tool = Tool("get_weather", parameters=msgspec.Raw(b"{}"))
    events: list[ev.Event] = []
    with fake_child() as child:
        assert child.stdin
        assert child.stdout
        writes = dialect.begin(Turn(model="", history=(prompt,), tools=(tool,))).writes
        while not dialect.finished:
            if writes:
                child.stdin.write(writes)
                child.stdin.flush()
            line = child.stdout.readline()
            step = dialect.receive([line]) if line else dialect.eof(Ended())
            events += step.events
            asked = [event for event in step.events if isinstance(event, ev.ApprovalRequested)]
            answers = [dialect.answer(event.request_id, Decision()).writes for event in asked]
            writes = step.writes + b"".join(answers)
    return events


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_of_the_fake_agent_ends_as_it_promises(scenario: str) -> None:
    events = played(scenario)
    assert_well_formed(events)
    end = end_of(events)
    default = ("tool_calls", None) if scenario.startswith("tool_call") else ("stop", None)
    assert (end.stop, end.failure and end.failure.kind) == FAKE_ENDS.get(scenario, default)
    assert not any(isinstance(event, ev.Notice) for event in events)
