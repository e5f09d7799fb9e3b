"""Threads that Codex stores, so that a later turn, or another program, goes on with them."""

from __future__ import annotations

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.stored_threads import (
    ListedTurn,
    TurnPage,
    new_turns,
    turn_elsewhere,
)
from codex_proxy.core.events import (
    ItemEnded,
    ItemTexts,
    Stop,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import HistoryMessage, ImagePart, TextPart, ToolUse
from codex_proxy.core.turn import StoredSession, Toolset
from tests.agents.app_server_dialogue import SUNNY, THREAD, TURN, Dialogue
from tests.agents.test_app_server_questions import ASKED, COMMAND, FREE, asked

STORED = StoredSession("sess_1")


def stored(*, reopens: str = "") -> Dialogue:
    return Dialogue(
        keeps_thread=True,
        reopens=reopens,
        mode="agent",
        workdir="/w",
        sandbox="workspace-write",
        stored_session=STORED,
    )


def reopened() -> Dialogue:
    """A turn that the stored thread has taken."""
    dialogue = stored(reopens=THREAD)
    dialogue.agent_answers("thread/resume", {"thread": {"id": THREAD}, "model": "m-1"})
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN, "status": "inProgress"}})
    return dialogue


def test_a_stored_thread_is_not_ephemeral_and_its_turn_tells_its_id() -> None:
    dialogue = stored()
    assert dialogue.sent[0]["params"]["ephemeral"] is False
    dialogue.start_thread()
    assert dialogue.events == [TurnStarted(THREAD, "m-1", stored=True)]
    other = Dialogue(mode="agent")
    assert other.sent[0]["params"]["ephemeral"] is True
    other.start_thread()
    assert other.events == [TurnStarted(THREAD, "m-1")]


def test_a_stored_thread_is_resumed_with_the_policies_of_this_turn_and_only_its_new_message() -> None:
    dialogue = stored(reopens="T-9")
    assert dialogue.sent == [
        {
            "id": "1.1",
            "method": "thread/resume",
            "params": {
                "threadId": "T-9",
                "excludeTurns": True,
                "cwd": "/w",
                "approvalPolicy": "never",
                "sandbox": "workspace-write",
                "model": "m",
            },
        }
    ]
    dialogue.agent_answers("thread/resume", {"thread": {"id": "T-9"}, "model": "m-1"})
    assert dialogue.events == [TurnStarted("T-9", "m-1", stored=True)]
    [start] = dialogue.sent[1:]
    assert (start["method"], start["params"]["threadId"]) == ("turn/start", "T-9")
    assert start["params"]["clientUserMessageId"] == "sess_1"
    assert [part["text"] for part in start["params"]["input"]] == ["Hi"]


def test_a_resumed_thread_counts_only_the_tokens_of_this_turn() -> None:
    dialogue = stored(reopens=THREAD)
    dialogue.agent_answers("thread/resume", {"thread": {"id": THREAD}})
    before = {"total": {"inputTokens": 100, "outputTokens": 20}}
    dialogue.agent_notifies("thread/tokenUsage/updated", turnId="before", tokenUsage=before)
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    total = {"total": {"inputTokens": 150, "outputTokens": 23}}
    dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage=total)
    told = [event.usage for event in dialogue.events if isinstance(event, UsageReported)]
    assert told == [Usage(input=50, output=3)]


def test_a_resumed_thread_asks_before_its_commands_as_a_new_one_does() -> None:
    toolset = Toolset((), ("bash",))
    dialogue = Dialogue(reopens=THREAD, stored_session=STORED, toolset=toolset, **FREE)
    dialogue.agent_answers("thread/resume", {"thread": {"id": THREAD}})
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN, "status": "inProgress"}})
    event = asked(dialogue, COMMAND, **ASKED)
    assert event.details is not None
    assert event.details.use == ToolUse("bash", '{"command":"touch x"}', "always_ask")


def test_a_resumed_thread_asks_for_its_calls_one_by_one() -> None:
    dialogue = reopened()
    dialogue.wants_output(1)
    assert [each.call_id for each in dialogue.events if isinstance(each, ToolCallRequested)] == ["call_1"]
    assert dialogue.turn.can_resume
    assert dialogue.client_replies("call_1", SUNNY)["id"] == 1
    dialogue.wants_output(2)
    assert [each.call_id for each in dialogue.events if isinstance(each, ToolCallRequested)] == [
        "call_1",
        "call_2",
    ]


# --- what other programs have done ----------------------------------------------------------------


def listed(id: str, client: str | None = None, status: str = "completed", **more: object) -> ListedTurn:
    """A turn of the list whose message has this `clientId`."""
    said: dict[str, object] = {"type": "userMessage", "id": "u", "clientId": client, "content": []}
    turn = msgspec.json.encode({"id": id, "status": status, "items": [said], **more})
    return msgspec.json.decode(turn, type=ListedTurn)


def ids(*newest_first: ListedTurn, known: str = "") -> list[str]:
    return [turn.id for turn in new_turns(TurnPage(list(newest_first)), "sess_1", known)]


def test_turns_of_others_behind_the_last_of_this_server_are_new_oldest_first() -> None:
    ours = listed("2", "sess_1")
    assert ids(listed("4"), listed("3", "other"), ours, listed("1")) == ["3", "4"]
    assert ids(ours, listed("1")) == []
    assert ids(listed("4"), listed("3"), ours, known="3") == ["4"]
    assert ids(listed("5", status="inProgress"), listed("4"), ours) == ["4"]
    assert ids(listed("4"), listed("3", items=[]), listed("2")) == ["4"], "its message was injected by us"


def test_a_turn_of_another_program_has_what_was_said_and_done() -> None:
    items = [
        {"type": "userMessage", "id": "u", "content": [{"type": "text", "text": "Look."}, {"type": "skill"}]},
        {"type": "reasoning", "id": "r", "summary": ["Hm."]},
        {"type": "commandExecution", "id": "c", "command": "ls", "aggregatedOutput": "a", "exitCode": 0},
        {"type": "userMessage", "id": "v", "content": [{"type": "image", "url": "data:image/png;base64,x"}]},
        {"type": "unknownType", "id": "x"},
        {"type": 5},
        {"type": "agentMessage", "id": "m", "text": "Done."},
    ]
    turn = listed("9", status="interrupted", startedAt=5, completedAt=7)
    found = turn_elsewhere(turn, [msgspec.Raw(msgspec.json.encode(item)) for item in items])
    assert (found.id, found.stop, found.started_at, found.completed_at) == ("9", Stop.INTERRUPTED, 5, 7)
    said, reasoning, command, pictured, message = found.parts
    assert said == HistoryMessage("user", (TextPart("Look."),))
    assert pictured == HistoryMessage("user", (ImagePart("data:image/png;base64,x"),))
    texts = ItemTexts()
    for part in (reasoning, command, message):
        assert isinstance(part, tuple)
        texts.add(part)
        assert isinstance(part[-1], ItemEnded)
    assert [texts.text("r"), texts.output("c"), texts.text("m")] == ["Hm.", "a", "Done."]


@pytest.mark.parametrize("make", [lambda: stored().start(), reopened])
def test_a_stored_thread_is_unloaded_after_its_turn_so_that_others_can_use_it(make: object) -> None:
    dialogue = make()  # type: ignore[operator]
    dialogue.ends()
    assert dialogue.events[-1] == TurnEnded(Stop.STOP)
    assert not dialogue.turn.can_resume
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.methods[-1] == "thread/unsubscribe"
    dialogue.agent_answers("thread/unsubscribe", {"status": "unsubscribed"})
    assert not dialogue.turn.finished, "it is loaded"
    dialogue.agent_notifies("thread/closed")
    assert dialogue.turn.finished


def test_a_stored_thread_that_cannot_be_unsubscribed_holds_nothing_up() -> None:
    dialogue = stored().start()
    dialogue.ends()
    dialogue.take(dialogue.turn.interrupt())
    dialogue.agent_refuses("thread/unsubscribe", "no")
    assert dialogue.turn.finished


def test_a_thread_that_another_process_has_fails_the_turn() -> None:
    dialogue = stored(reopens=THREAD)
    dialogue.agent_refuses("thread/resume", f"thread {THREAD} already has an active writer")
    failure = dialogue.end.failure
    assert failure is not None
    assert failure.kind is FaultKind.CONFLICT
    assert failure.message.startswith("This conversation is open in a terminal.")
    assert not dialogue.turn.lost
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.turn.finished


@pytest.mark.parametrize(
    "refusal", [f"no rollout found for thread id {THREAD}", f"session {THREAD} is archived.", "whatever"]
)
def test_a_thread_that_cannot_be_resumed_is_lost_and_says_nothing(refusal: str) -> None:
    dialogue = stored(reopens=THREAD)
    dialogue.agent_refuses("thread/resume", refusal)
    assert dialogue.turn.lost
    assert dialogue.events == []
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.turn.finished
