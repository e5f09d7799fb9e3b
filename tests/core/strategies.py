"""Arbitrary events with few ids and few words, so that they meet each other often."""

from __future__ import annotations

from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall

IDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "x", "y", "xy", "xyx", "x\ud83d", "\ude00"])
PARTS = st.integers(0, 1)
KINDS = st.sampled_from(["summary", "raw"])
FAILURES = st.none() | st.just(Failure(kind=FaultKind.UPSTREAM_ERROR, message="it failed"))
STOPS = st.sampled_from([*ev.Stop, "a_stop_of_tomorrow"])

ITEMS = (
    st.builds(Message, IDS)
    | st.builds(Reasoning, IDS)
    | st.builds(ToolCall, IDS, st.just("call"), st.just("tool"))
    | st.builds(Activity, IDS, st.just("command"), st.just("ls"))
)

NOTES = st.just(ev.Notice("note")) | st.just(ev.AccountLimitsReported(b"{}"))
TURN = st.builds(ev.TurnStarted, st.just("thread")) | st.builds(ev.TurnEnded, STOPS, failure=FAILURES)
TALK = (
    st.builds(ev.ItemStarted, ITEMS)
    | st.builds(ev.ItemEnded, IDS)
    | st.builds(ev.TextDelta, IDS, TEXTS)
    | st.builds(ev.FullText, IDS, TEXTS)
    | st.builds(ev.RefusalDelta, IDS, TEXTS)
    | st.builds(ev.AnnotationAdded, IDS, st.just(b"{}"))
    | st.builds(
        ev.HostedEvent, IDS, st.sampled_from(["", "response.file_search_call.searching"]), st.just(b"{}")
    )
    | st.builds(ev.ReasoningDelta, IDS, TEXTS, PARTS, KINDS)
    | st.builds(ev.FullReasoning, IDS, TEXTS, PARTS, KINDS)
    | st.builds(ev.ArgumentsDelta, IDS, TEXTS)
    | st.builds(ev.FullArguments, IDS, TEXTS)
    | st.builds(ev.OutputDelta, IDS, TEXTS)
)
STEPS = st.just(ev.StepCompleted()) | st.just(ev.Retrying("again", 500))
OTHERS = (
    st.builds(ev.UsageReported, st.just(ev.Usage(1, 0, 1, 0)))
    | st.just(ev.ToolCallRequested("ask", "call", "tool", "{}"))
    | st.just(ev.ApprovalRequested("ask", "command", "ls"))
    | st.just(ev.InputRequested("ask", "well?"))
    | st.just(ev.RequestClosed("ask"))
    | st.just(ev.InputTaken("more"))
    | st.just(ev.HistoryCompacted())
    | st.just(ev.ContextReported(10, 100, 0.5, "USD"))
    | st.just(ev.RawItem("message", b"{}"))
)

SUBAGENTS = (
    st.builds(ev.SubagentOpened, IDS)
    | st.builds(ev.SubagentClosed, IDS)
    | st.builds(ev.OfSubagent, IDS, TALK | STEPS | TURN | st.builds(ev.TaskGiven, TEXTS))
)

EVENTS = TALK | TALK | TALK | STEPS | NOTES | OTHERS | TURN | SUBAGENTS
EVENT_LISTS = st.lists(EVENTS, max_size=25)
UNENDED_LISTS = st.lists(TALK | TALK | TALK | STEPS | NOTES | OTHERS | SUBAGENTS, max_size=25)
