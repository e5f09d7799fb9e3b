"""Arbitrary well-formed turns, richer in text and items than those of the repair's tests: the repair makes them so."""

from __future__ import annotations

from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event
from codex_proxy.core.items import Activity, McpApproval, McpCall, McpTools, Message, Reasoning, ToolCall
from codex_proxy.core.repair import TurnRepair

IDS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.text(
    st.characters(exclude_categories=()) | st.sampled_from('"\\\n\r\u2028\ud83d\ude00é'),
    min_size=1,
    max_size=6,
)
CHOICES = st.sampled_from([None, None, None, 0, 1, 7])
NAMES = st.sampled_from(["get_weather", "look up", 'qu"ote'])
LABELS = st.sampled_from(["files", 'ma"il'])
CALL_IDS = st.sampled_from(["call_4", "call_5"])

ITEMS = (
    st.builds(Message, IDS, CHOICES)
    | st.builds(Reasoning, IDS, CHOICES)
    | st.builds(ToolCall, IDS, st.sampled_from(["call_1", "call_2"]), NAMES, choice=CHOICES)
    | st.builds(ToolCall, IDS, st.just("call_3"), NAMES, st.sampled_from(["custom", "legacy"]), CHOICES)
    | st.builds(Activity, IDS, st.sampled_from(["command", "web_search"]), TEXTS, CHOICES)
    | st.builds(McpCall, IDS, CALL_IDS, LABELS, NAMES, st.none() | st.just("mcpr_1"), CHOICES)
    | st.builds(McpApproval, IDS, CALL_IDS, LABELS, NAMES, CHOICES)
    | st.builds(McpTools, IDS, LABELS, st.just(b'[{"name":"look","input_schema":{}}]'), choice=CHOICES)
    | st.builds(McpTools, IDS, LABELS, error=TEXTS, choice=CHOICES)
)
USAGES = st.builds(ev.Usage, *[st.integers(0, 99)] * 4)
EVENTS = (
    st.builds(ev.ItemStarted, ITEMS)
    | st.builds(ev.ItemStarted, ITEMS)
    | st.builds(ev.ItemEnded, IDS)
    | st.builds(ev.ItemEnded, IDS, st.sampled_from(["failed", "incomplete"]))
    | st.builds(ev.TextDelta, IDS, TEXTS)
    | st.builds(ev.RefusalDelta, IDS, TEXTS)
    | st.builds(ev.ReasoningDelta, IDS, TEXTS, st.integers(0, 1), st.sampled_from(["summary", "raw"]))
    | st.builds(ev.ArgumentsDelta, IDS, TEXTS)
    | st.builds(ev.OutputDelta, IDS, TEXTS)
    | st.builds(ev.UsageReported, USAGES, st.sampled_from(["token_count", "task_complete", "provider"]))
    | st.builds(ev.StepCompleted, st.none() | USAGES)
)
STOPS = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "interrupted", "of_tomorrow"])
ENDS = st.builds(ev.TurnEnded, STOPS, choice_stops=st.none() | st.dictionaries(st.integers(0, 2), STOPS))


def _repair(events: list[Event], end: ev.TurnEnded) -> list[Event]:
    return TurnRepair().feed([*events, end])


TURNS = st.builds(_repair, st.lists(EVENTS, max_size=25), ENDS)
"""Turns that end well."""
