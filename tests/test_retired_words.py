"""One name for one thing: names that were given up for the field's own do not come back.

`RETIRED` has each with what is said now. Where a name had several meanings there may be several.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

RETIRED = {
    # sessions with an agent
    "Hub": "AppServerProcess",
    "HubLane": "ThreadTransport",
    "ChildLane": "ChildTransport",
    "OpenedLane": "Transport",
    "LaneReader": "TransportReader",
    "Seat": "AgentSession, ProcessInfo",
    "KeptThreads": "IdleSessions",
    "Parked": "PendingOutputs",
    "ParkedCalls": "PendingCalls",
    "Door": "ToolEndpoint",
    "alone_the_first_time": "first_start_lock",
    "look_once": "request_models_once",
    "last_words": "last_useful_line",
    "tells_usage": "wants_usage",
    "Upkeep": "PoolMaintenance",
    "strays": "orphans, descendants",
    "ProtoChildren": "ChildSpec",
    "ToldLimits": "NewestLimits",
    "RefusedHereError": "UpstreamNotAskedError",
    "bounds_silence": "has_own_timeouts",
    "Reopens": "ReopeningDialect",
    # runs and tools
    "RunManager": "RunScheduler",
    "RunOwner": "RunHost",
    "Broker": "ToolPolicy",
    "Brokered": "PolicyResult",
    "Rules": "TurnRepair",
    "OwnCalls": "ServerCalls",
    "OwnCall": "ServerCall",
    "own_tools": "server_tools",
    "told_of_schema": "with_schema_words",
    "told_faults": "failure_details",
    "told_by": "history_entries",
    # events and history
    "TextWhole": "FullText",
    "ReasoningWhole": "FullReasoning",
    "ArgumentsWhole": "FullArguments",
    "ToolAsked": "ToolCallRequested",
    "ApprovalAsked": "ApprovalRequested",
    "InputAsked": "InputRequested",
    "AskClosed": "RequestClosed",
    "Noticed": "Notice",
    "UsageSeen": "UsageReported",
    "SaidMessage": "HistoryMessage",
    "PastCall": "HistoryCall",
    "PastOutput": "HistoryOutput",
    "PastRaw": "RawHistoryItem",
    "McpPast": "McpHistory",
    "DEEDS": "ACTIVITY_EVENTS",
    "Thoughts": "ReasoningItems",
    # HTTP and responses
    "SseGuard": "StreamSlots",
    "UsageBook": "UsageRecorder",
    "Silence": "IdleTimer",
    "Observed": "TurnTimings",
    "UnheardPart": "AudioPart",
    "Speech": "TextItem",
    "StoreHold": "StoreLock",
    "most_elements": "check_length",
    "search_words": "search_result_text",
    "grammar_words": "with_grammar",
    "said_by": "assistant_messages",
    "tellers": "content_log",
    "LiveRun": "BackgroundResponse",
    "BackgroundRuns": "BackgroundResponses",
    "SaveOnce": "ForegroundResponse",
    "before_end": "ForegroundResponse",
    "told_as_faults": "store_errors_as_faults",
    "Keeping": "StoreLifecycle",
    "spare_the_collector": "tune_gc",
    "MOST_SIZE": "MAX_TURN_CHARS",
    "Spent": "TurnTokens",
    "may_go_as_it_is": "may_forward_whole",
    "TOLD_BY_TURN": "TURN_FIELDS",
    "prints_of": "item_digests",
    "fresh_after": "unseen_items",
    "late_failure": "deadline_failure",
    "LOOK_SECONDS": "CHECK_SECONDS, POLL_SECONDS",
    "AGAIN_SECONDS": "RETRY_SECONDS",
    "CLOSED_COUNT": "MAX_CLOSED",
    "is_worn": "is_due_for_renewal",
    "ask_greeting": "request_initialize",
    "Thought": "ThinkingBlock",
    "ask_id": "request_id",
    "CodexPlaces": "CodexPaths",
    "ExecPlaces": "ExecPaths",
    "places_of": "paths_to",
    "most_tokens": "max_tokens_in",
    "most_choices": "max_choices",
    "most_sandbox": "max_sandbox",
    "background_responses": "responses.live",
    "spelled_alike": "canonical_arguments",
    "said_text": "assistant_text",
}

WORD = re.compile(r"(?<!\w)(" + "|".join(sorted(RETIRED, key=len, reverse=True)) + r")(?!\w)")
NUMBERS = re.compile(r"\b_?(MOST|LONGEST)(_[A-Z]|\b)")


def texts() -> list[Path]:
    folders = ("codex_proxy", "fake_proto", "scripts", "tests", "examples", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return sorted(
        path for path in files if path.suffix in (".py", ".md") and path != Path(__file__) and path.is_file()
    )


def test_no_retired_name_is_used() -> None:
    found = set()
    for path in texts():
        text = path.read_text()
        place = path.relative_to(ROOT)
        found |= {f"{place}: {name}: say {RETIRED[name]}" for name in WORD.findall(text)}
        found |= {f"{place}: {match[0]}: say MAX" for match in NUMBERS.finditer(text)}
    assert found == set()


def test_a_retired_name_is_found() -> None:
    assert WORD.findall("the Hub of Seats") == ["Hub"]
    assert NUMBERS.search("MOST_ITEMS = 3")
