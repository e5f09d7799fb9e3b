"""Subagents on a thread of `codex app-server`: whose messages are whose, what waits for what, and how they end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.children import children_named
from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_app_server.wire import Message, Params
from codex_proxy.core.events import (
    Event,
    FullText,
    ItemEnded,
    ItemStarted,
    OfSubagent,
    Stop,
    SubagentClosed,
    SubagentOpened,
    TaskGiven,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.items import Activity, ActivityKind
from codex_proxy.core.turn import StoredSession
from tests.agents.app_server_dialogue import THREAD, TURN, WEATHER, Dialogue, output

CHILD = "C"


def call_item(
    tool: str, status: str = "completed", *children: str, id: str = "call", **more: Any
) -> dict[str, Any]:
    item = {"type": "collabAgentToolCall", "id": id, "tool": tool, "status": status, "senderThreadId": THREAD}
    return item | {"receiverThreadIds": list(children), "prompt": None} | more


def activity_item(kind: str, id: str = "call") -> dict[str, Any]:
    return {
        "type": "subAgentActivity",
        "id": id,
        "kind": kind,
        "agentThreadId": CHILD,
        "agentPath": "/root/kid",
    }


def started(**turn: Any) -> Dialogue:
    given: dict[str, Any] = {"mode": "agent", "tools": (), "subagents": 2} | turn
    return Dialogue(keeps_thread=True, **given).start()


def making(turn: Dialogue, *, named: str = "Ada") -> list[Event]:
    """The agent makes a subagent."""
    turn.agent_notifies("item/started", item=call_item("spawnAgent", "inProgress", prompt="Say hi."))
    events = turn.agent_notifies(
        "item/completed", item=call_item("spawnAgent", "completed", CHILD, prompt="Say hi.")
    )
    if named:
        output = json.dumps({"agent_id": CHILD, "nickname": named})
        item = {"type": "function_call_output", "call_id": "call", "output": output}
        events = [*events, *turn.agent_notifies("rawResponseItem/completed", item=item)]
    return events


def of_child(dialogue: Dialogue, method: str, *, id: str = "CU", **params: Any) -> list[Event]:
    return dialogue.agent_notifies(method, threadId=CHILD, turnId=id, **params)


def child_says(turn: Dialogue, text: str, *, id: str = "CU") -> list[Event]:
    return of_child(turn, "item/completed", id=id, item={"type": "agentMessage", "id": "m", "text": text})


def child_ends(turn: Dialogue, status: str = "completed", *, id: str = "CU") -> list[Event]:
    return of_child(turn, "turn/completed", id=id, turn={"id": id, "status": status})


def own(events: list[Event]) -> list[Event]:
    """The events of the subagent's turns."""
    return [event.event for event in events if isinstance(event, OfSubagent)]


def ends(turn: Dialogue, status: str = "completed") -> list[Event]:
    return turn.agent_notifies("turn/completed", turn={"id": TURN, "status": status})


def test_a_subagent_is_told_when_its_name_is_known_with_the_task_that_it_was_given() -> None:
    turn = started()
    assert [type(event) for event in making(turn, named="")] == [ItemEnded]
    output = json.dumps({"agent_id": CHILD, "nickname": "Ada"})
    item = {"type": "function_call_output", "call_id": "call", "output": output}
    _, opened, *rest = turn.agent_notifies("rawResponseItem/completed", item=item)
    assert opened == SubagentOpened(CHILD, "", "Ada", "Say hi.")
    assert own(rest)[:2] == [TurnStarted(CHILD), TaskGiven("Say hi.")]


def test_a_subagent_without_a_name_is_told_when_it_rests() -> None:
    turn = started()
    making(turn, named="")
    events = child_ends(turn)
    assert events[0] == SubagentOpened(CHILD, "", "", "Say hi.")
    assert own(events)[-1] == TurnEnded(Stop.STOP)


def test_a_call_about_subagents_is_an_activity_with_their_ids() -> None:
    turn = started()
    making(turn)
    begun = turn.agent_notifies("item/started", item=call_item("wait", "inProgress", CHILD, id="call_2"))
    item = begun[0].item if isinstance(begun[0], ItemStarted) else None
    kind: ActivityKind = "subagent"
    assert isinstance(item, Activity)
    assert item.kind == kind
    assert item.details is not None
    assert item.details.subagent is not None
    assert (item.details.subagent.kind, item.details.subagent.recipients) == ("wait", (CHILD,))


def test_a_subagents_message_is_passed_on_whole() -> None:
    turn = started()
    making(turn)
    assert of_child(turn, "item/started", item={"type": "agentMessage", "id": "m", "text": ""}) == []
    assert of_child(turn, "item/agentMessage/delta", itemId="m", delta="Hi") == []
    events = own(child_says(turn, "Hi there."))
    assert [type(event) for event in events] == [ItemStarted, *(type(e) for e in events[1:-1]), ItemEnded]


def test_the_turn_ends_when_its_subagents_rest() -> None:
    turn = started()
    making(turn)
    assert ends(turn) == []
    events = child_ends(turn)
    assert own(events)[-1] == TurnEnded(Stop.STOP)
    assert events[-1] == TurnEnded(Stop.STOP)


def test_a_turn_that_fails_does_not_wait() -> None:
    turn = started()
    making(turn)
    [ended] = [event for event in ends(turn, "failed") if isinstance(event, TurnEnded)]
    assert ended.stop == Stop.FAILED


def test_a_message_to_a_resting_subagent_begins_its_next_turn() -> None:
    turn = started()
    making(turn)
    child_ends(turn)
    item = call_item("sendInput", "completed", CHILD, id="call_2", prompt="Again.")
    turn.agent_notifies("item/started", item=item)
    events = turn.agent_notifies("item/completed", item=item)
    assert own(events) == [TurnStarted(CHILD), TaskGiven("Again.")]
    user = {"type": "userMessage", "id": "u", "content": [{"type": "text", "text": "Again."}]}
    assert own(of_child(turn, "item/completed", id="CU2", item=user)) == []  # is known already
    assert ends(turn) == []
    assert child_ends(turn, id="CU2")[-1] == TurnEnded(Stop.STOP)


def test_late_messages_of_a_subagents_ended_turn_begin_no_other() -> None:
    turn = started()
    making(turn)
    child_says(turn, "Hi")
    child_ends(turn)
    assert child_says(turn, "late") == []
    assert ends(turn)[-1] == TurnEnded(Stop.STOP)


def test_messages_while_the_client_is_asked_are_told_when_it_has_answered() -> None:
    turn = started(tools=(WEATHER,))
    making(turn)
    turn.calls(1)
    turn.completes()
    assert child_says(turn, "Hi") == []
    assert child_ends(turn) == []
    begun, *told = turn.client_resumes(output(1))
    assert begun == TurnStarted(THREAD, "m-1", subagents=(CHILD,))
    assert own(told)[-1] == TurnEnded(Stop.STOP)


def test_what_a_subagent_asks_is_declined_at_once() -> None:
    turn = started()
    making(turn)
    asked = {
        "item/commandExecution/requestApproval": {"decision": "decline"},
        "item/fileChange/requestApproval": {"decision": "decline"},
        "item/tool/requestUserInput": {"answers": {}},
    }
    for number, (method, answer) in enumerate(asked.items()):
        turn.agent_sends({"id": number, "method": method, "params": {"threadId": CHILD, "turnId": "CU"}})
        assert turn.sent[-1] == {"id": number, "result": answer}
    turn.agent_sends({"id": 8, "method": "item/tool/call", "params": {"threadId": CHILD, "turnId": "CU"}})
    assert turn.sent[-1]["result"]["success"] is False
    turn.agent_sends({"id": 9, "method": "later/method", "params": {"threadId": CHILD}})
    assert turn.sent[-1]["error"]["code"] == -32601


def test_an_interrupt_ends_the_subagents_with_their_threads() -> None:
    turn = started()
    making(turn)
    of_child(turn, "item/started", item={"type": "agentMessage", "id": "m", "text": ""})
    turn.take(turn.turn.interrupt())
    sent = [
        (each["method"], each["params"])
        for each in turn.sent
        if each.get("params", {}).get("threadId") == CHILD
    ]
    assert sent == [
        ("turn/interrupt", {"threadId": CHILD, "turnId": "CU"}),
        ("thread/backgroundTerminals/clean", {"threadId": CHILD}),
        ("thread/unsubscribe", {"threadId": CHILD}),
    ]


def test_a_subagent_that_has_told_nothing_yet_is_interrupted_too() -> None:
    turn = started()
    making(turn)
    turn.take(turn.turn.interrupt())
    assert {"threadId": CHILD, "turnId": ""} in [each["params"] for each in turn.sent if "params" in each]


def test_a_closed_subagent_has_ended_its_turn() -> None:
    turn = started()
    making(turn)
    item = call_item("closeAgent", "completed", CHILD, id="call_2")
    turn.agent_notifies("item/started", item=item)
    events = turn.agent_notifies("item/completed", item=item)
    assert own(events) == [TurnEnded(Stop.INTERRUPTED)]
    assert SubagentClosed(CHILD) in events
    assert ends(turn)[-1] == TurnEnded(Stop.STOP)


def test_models_with_encrypted_messages_tell_a_subagents_name_and_no_text() -> None:
    turn = started()
    events = turn.agent_notifies("item/started", item=activity_item("started"))
    turn.agent_notifies("item/completed", item=activity_item("started"))
    assert SubagentOpened(CHILD, "", "kid") in events
    assert own(events) == [TurnStarted(CHILD)]
    child_ends(turn)
    for name, working in (("send_message", False), ("followup_task", True)):
        call = {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}
        turn.agent_notifies("rawResponseItem/completed", item=call)
        events = turn.agent_notifies("item/started", item=activity_item("interacted", name))
        turn.agent_notifies("item/completed", item=activity_item("interacted", name))
        assert bool(own(events)) is working


def test_a_task_whose_call_is_told_behind_it_begins_a_turn_too() -> None:
    turn = started()
    turn.agent_notifies("item/started", item=activity_item("started"))
    child_ends(turn)
    turn.agent_notifies("item/started", item=activity_item("interacted", "call_2"))
    call = {"type": "function_call", "call_id": "call_2", "name": "followup_task", "arguments": "{}"}
    turn.agent_notifies("rawResponseItem/completed", item=call)
    assert ends(turn) == []
    assert child_ends(turn, id="CU2")[-1] == TurnEnded(Stop.STOP)


def test_a_turn_that_the_agent_begins_by_itself_is_waited_for() -> None:
    turn = started()
    making(turn)
    child_ends(turn)
    events = of_child(turn, "turn/started", turn={"id": "CU2", "status": "inProgress"})
    assert own(events) == [TurnStarted(CHILD)]
    assert ends(turn) == []
    assert child_ends(turn, id="CU2")[-1] == TurnEnded(Stop.STOP)


def test_what_a_subagent_says_before_it_is_named_is_its_own() -> None:
    turn = started()
    assert child_says(turn, "Early.") == []
    events = own(making(turn))
    assert [event.text for event in events if isinstance(event, FullText)] == ["Early."]


def test_the_end_of_a_subagents_thread_is_not_that_of_its_parents() -> None:
    turn = started(stored_session=StoredSession("s"))
    making(turn)
    turn.take(turn.turn.interrupt())
    turn.agent_answers("turn/interrupt")
    turn.agent_answers("thread/unsubscribe")
    of_child(turn, "thread/closed")
    assert not turn.turn.finished
    turn.agent_notifies("thread/closed")
    assert turn.turn.finished


def test_the_messages_of_a_subagent_go_where_its_parents_go_and_end_with_them() -> None:
    connection = AppServerConnection()
    one, two = connection.open_channel(), connection.open_channel()
    lines: list[dict[str, Any]] = [
        {"id": f"{one}.1", "result": {"thread": {"id": THREAD}}},
        {"id": f"{two}.1", "result": {"thread": {"id": "other"}}},
        {
            "method": "item/completed",
            "params": {"threadId": THREAD, "item": call_item("spawnAgent", "completed", CHILD)},
        },
        # Another thread may name it, and does not get it.
        {
            "method": "item/completed",
            "params": {"threadId": "other", "item": call_item("sendInput", "completed", CHILD)},
        },
        {"method": "item/completed", "params": {"threadId": CHILD, "item": {"type": "agentMessage"}}},
    ]
    connection.send(one, b"")
    received = connection.receive([json.dumps(line).encode() for line in lines])
    found = {
        channel: [m.params.thread_id for m in messages] for channel, messages in received.messages_by_channel
    }
    assert found == {one: [None, THREAD, CHILD], two: [None, "other"]}
    connection.close_channel(one)
    asked = {"id": 5, "method": "item/commandExecution/requestApproval", "params": {"threadId": CHILD}}
    received = connection.receive([json.dumps(asked).encode()])
    assert received.messages_by_channel == []
    assert json.loads(received.writes)["error"]["code"] == -32601


@pytest.mark.parametrize("item", [call_item("wait", "completed", CHILD), activity_item("started")])
@pytest.mark.parametrize("last", [False, True])
def test_a_child_is_found_wherever_the_item_tells_its_type(item: dict[str, Any], last: bool) -> None:
    told = {**{name: item[name] for name in item if name != "type"}, "type": item["type"]} if last else item
    message = Message(method="item/completed", params=Params(item=msgspec.Raw(json.dumps(told).encode())))
    assert children_named(message) == (CHILD,)


def test_an_item_that_only_speaks_of_the_calls_names_no_child() -> None:
    said = {"type": "agentMessage", "id": "m", "text": json.dumps(call_item("wait", "completed", CHILD))}
    message = Message(method="item/completed", params=Params(item=msgspec.Raw(json.dumps(said).encode())))
    assert children_named(message) == ()
