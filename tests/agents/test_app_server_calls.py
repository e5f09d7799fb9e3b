"""The client's tools: what the model calls, who is asked for it, and how the answers find their way."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.calls import agent_name, javascript_name, name_for_agent
from codex_proxy.agents.codex_app_server.thread_turns import history_items, split_input, with_raw_items
from codex_proxy.agents.dialect import ToolReply
from codex_proxy.core import events as ev
from codex_proxy.core.events import Event
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    ImagePart,
    RawHistoryItem,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import Mode, Turn
from codex_proxy.tools.policy import with_tool_choice
from tests.agents.app_server_dialogue import (
    ASK_1,
    HISTORY,
    SUNNY,
    THREAD,
    TURN,
    Dialogue,
    output,
    tool_output_line,
)


def asks(events: list[Event]) -> list[str]:
    """The calls that are asked of us."""
    return [event.request_id for event in events if isinstance(event, ev.ToolCallRequested)]


# --- the client's tools ---------------------------------------------------------------------------


def test_the_calls_of_a_response_are_asked_for_together_when_it_is_over() -> None:
    dialogue = Dialogue().start()
    exact = '{"city":  "Paris", "n": 1e3}'
    assert dialogue.calls(1, exact) == []
    assert dialogue.wants_output(1, arguments={"city": "Paris", "n": 1000.0}) == []
    assert dialogue.calls(2) == []
    events = dialogue.completes()
    assert [event.type for event in events if isinstance(event, ev.RawItem)] == ["function_call"] * 2
    assert [event for event in events if not isinstance(event, ev.RawItem)] == [
        ev.UsageReported(ev.Usage(10, 4, 2, 1), "provider"),
        ev.ToolCallRequested("call_1", "call_1", "get_weather", exact, "fc_1"),
        ev.ToolCallRequested("call_2", "call_2", "get_weather", "{}", "fc_2"),
        ev.StepCompleted(ev.Usage(10, 4, 2, 1)),
    ]
    assert dialogue.methods[3:] == [], "the agent waits; it is not stopped"
    assert not dialogue.turn.finished


def test_the_calls_of_a_response_that_is_retried_are_discarded() -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1)
    dialogue.wants_output(1)
    dialogue.agent_notifies("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    dialogue.calls(2)
    assert asks(dialogue.completes()) == ["call_2"]


def test_a_call_that_comes_twice_in_a_response_is_asked_for_once() -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1)
    dialogue.calls(1)
    assert asks(dialogue.completes()) == ["call_1"]


def test_two_requests_for_one_call_get_the_same_answer() -> None:
    dialogue = Dialogue().start()
    dialogue.step(1)
    dialogue.wants_output(1, id=7)
    dialogue.wants_output(1, id=8)
    step = dialogue.turn.answer("call_1", SUNNY)
    assert [json.loads(line) for line in step.writes.splitlines()] == [
        tool_output_line(7),
        tool_output_line(8),
    ]


def test_calls_are_asked_for_before_the_end_of_the_step() -> None:
    events = Dialogue().start().step(1, 2)
    kinds = [type(event) for event in events]
    assert kinds[-3:] == [ev.ToolCallRequested, ev.ToolCallRequested, ev.StepCompleted]


def test_outputs_between_two_model_calls_come_before_the_next_text() -> None:
    dialogue = Dialogue().start()
    (output,) = dialogue.agent_notifies(
        "rawResponseItem/completed", item={"type": "function_call_output", "call_id": "c"}
    )
    assert isinstance(output, ev.RawItem)
    assert output.type == "function_call_output"
    assert not [event for event in dialogue.completes() if isinstance(event, ev.RawItem)]


def test_outputs_stay_when_a_response_is_tried_again() -> None:
    dialogue = Dialogue().start()
    for item in ({"type": "reasoning", "id": "rs_1"}, {"type": "function_call_output", "call_id": "c"}):
        dialogue.agent_notifies("rawResponseItem/completed", item=item)
    dialogue.agent_notifies("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    keeps_thread = [event.type for event in dialogue.completes() if isinstance(event, ev.RawItem)]
    assert keeps_thread == ["function_call_output"]


def test_a_retry_says_why_and_with_which_status() -> None:
    info = {"responseStreamDisconnected": {"httpStatusCode": 429}}
    error = {
        "message": "Reconnecting... 1/5",
        "codexErrorInfo": info,
        "additionalDetails": "last status: 429",
    }
    [retry] = Dialogue().start().agent_notifies("error", error=error, willRetry=True)
    assert isinstance(retry, ev.Retrying)
    assert retry.http_status == 429


@pytest.mark.parametrize(
    "call",
    [
        {"turn": "to-compact-0"},
        {"turn": "auto-compact-0"},
        {"name": "exec_command"},
        {"arguments": '{"city": '},
    ],
    ids=["injected", "compacted", "not offered", "bad JSON"],
)
def test_calls_that_the_agent_answers_itself_are_not_the_clients(call: dict[str, Any]) -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1, **call)
    assert asks(dialogue.completes()) == []
    assert not dialogue.turn.can_resume


def test_a_response_of_another_turn_is_not_the_end_of_this_turn() -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1)
    assert dialogue.agent_notifies("rawResponse/completed", turnId="to-compact-0", usage=None) == []


@pytest.mark.parametrize("usage", [None, {"inputTokens": None}, "nonsense"])
def test_calls_are_asked_for_though_nobody_counted_tokens(usage: Any) -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1)
    assert dialogue.agent_notifies("rawResponse/completed", usage=usage)[-2:] == [
        ASK_1,
        ev.StepCompleted(None),
    ]


@pytest.mark.parametrize(
    ("call", "noticed"),
    [
        ({"name": "exec_command"}, ev.Notice("unoffered_call", "exec_command")),
        ({"arguments": '{"city": '}, ev.Notice("unreadable_arguments", "get_weather")),
    ],
)
def test_a_call_that_the_agent_answers_itself_gets_a_notice_with_its_response(
    call: dict[str, Any], noticed: ev.Notice
) -> None:
    dialogue = Dialogue().start()
    assert dialogue.calls(1, **call) == []
    assert noticed in dialogue.completes()


def test_a_call_whose_output_the_agent_never_told_keeps_no_later_call_waiting() -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1, name="exec_command")
    dialogue.completes()
    assert asks(dialogue.step(2)) == ["call_2"]


def test_an_agent_that_works_may_call_its_own_tools_without_notice() -> None:
    dialogue = Dialogue(mode="agent").start()
    dialogue.calls(1, name="exec_command")
    assert not [
        event for event in dialogue.completes() if isinstance(event, ev.Notice | ev.ToolCallRequested)
    ]


@pytest.mark.parametrize(
    "arguments", ["", " ", "[]", '{"n": 1e999}', '{"n": 123456789012345678901234567890}']
)
def test_arguments_that_the_agent_reads_are_asked_for_as_they_are(arguments: str) -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1, arguments)
    [ask] = [event for event in dialogue.completes() if isinstance(event, ev.ToolCallRequested)]
    assert ask.arguments == arguments


def test_a_custom_tool_is_called_with_its_own_text() -> None:
    dialogue = Dialogue(tools=(Tool("patch", kind="custom"),)).start()
    dialogue.calls(1, '{"input": "*** Begin"}', name="patch")
    [ask] = [event for event in dialogue.completes() if isinstance(event, ev.ToolCallRequested)]
    assert (ask.name, ask.kind, ask.arguments) == ("patch", "custom", "*** Begin")


@pytest.mark.parametrize("arguments", ["{}", '{"input": 5}', "[1]", '"x"'])
def test_a_custom_call_without_its_string_keeps_what_the_model_wrote(arguments: str) -> None:
    dialogue = Dialogue(tools=(Tool("patch", kind="custom"),)).start()
    dialogue.calls(1, arguments, name="patch")
    [ask] = [event for event in dialogue.completes() if isinstance(event, ev.ToolCallRequested)]
    assert ask.arguments == arguments


@pytest.mark.parametrize("name", ["exec_command", "mcp__x", "client_x", "a b", "x" * 200])
def test_a_name_that_the_agent_does_not_take_is_another_one_to_it_and_the_clients_own_to_the_client(
    name: str,
) -> None:
    dialogue = Dialogue(tools=(Tool(name),))
    offered = dialogue.sent[0]["params"]["dynamicTools"][0]["name"]
    assert offered == agent_name(name) != name
    dialogue.start()
    dialogue.calls(1, name=offered)
    [ask] = [event for event in dialogue.completes() if isinstance(event, ev.ToolCallRequested)]
    assert ask.name == name


@pytest.mark.parametrize("mode", ["model", "agent"])
@pytest.mark.parametrize("name", ["apply_patch", "view_image", "exec_command", "get_weather"])
def test_a_tools_name_is_the_same_to_the_agent_in_the_offer_the_history_and_the_call(
    name: str, mode: str
) -> None:
    called = HistoryCall("call_0", name, "{}")
    asked = (*HISTORY, called, output(0), HistoryMessage("user", (TextPart("And?"),)))
    dialogue = Dialogue(tools=(Tool(name),), mode=mode, history=asked)
    offered = dialogue.sent[0]["params"]["dynamicTools"][0]["name"]
    assert offered == agent_name(name, plain=mode == "model")
    dialogue.start()
    [seen] = [item for item in dialogue.sent[1]["params"]["items"] if item["type"] == "function_call"]
    assert seen["name"] == offered
    dialogue.calls(1, name=offered)
    [ask] = [event for event in dialogue.completes() if isinstance(event, ev.ToolCallRequested)]
    assert ask.name == name


@pytest.mark.parametrize(
    "names",
    [
        *(("get-weather", "get_weather"), ("get_weather", "get-weather")),
        *(("a-b_c", "a_b-c"), ("1x", "2x"), ("1x", "-x", "_x"), ("client-x", "client_x")),
    ],
    ids=",".join,
)
def test_tools_whose_names_are_one_in_javascript_are_called_by_different_names(
    names: tuple[str, ...],
) -> None:
    history = (*HISTORY, *(HistoryCall("call_0", name, "{}") for name in names), output(0))
    dialogue = Dialogue(tools=tuple(map(Tool, names)), mode="agent", history=history)
    offered = [tool["name"] for tool in dialogue.sent[0]["params"]["dynamicTools"]]
    assert len(set(map(javascript_name, offered))) == len(names)
    dialogue.start()
    items = dialogue.sent[1]["params"]["items"]
    assert [item["name"] for item in items if item["type"] == "function_call"] == offered
    for number, name in enumerate(offered):
        dialogue.calls(number, name=name)
    called = [event.name for event in dialogue.completes() if isinstance(event, ev.ToolCallRequested)]
    assert called == list(names)


@pytest.mark.parametrize("mode", ["model", "agent"])
def test_a_long_history_has_the_names_that_a_short_one_has(mode: Mode) -> None:
    """Its items are written beside the event loop."""
    names = ("apply_patch", "get-weather", "get_weather")
    asked: tuple[HistoryItem, ...] = (*(HistoryCall("call_0", name, "{}") for name in names), output(0))
    turn = Turn(model="m", history=asked, mode=mode, tools=tuple(map(Tool, names)))
    long = with_raw_items(turn)
    assert isinstance(long.history[0], RawHistoryItem)
    items = [msgspec.json.encode(split_input(each, each.history)[0]) for each in (long, turn)]
    assert items[0] == items[1]


@pytest.mark.parametrize("mode", ["model", "agent"])
def test_a_message_about_the_required_tools_has_the_agents_names(mode: Mode) -> None:
    tools = (Tool("apply_patch"), Tool("exec_command"), Tool("client_apply_patch"))
    asked = Turn(model="m", history=HISTORY, mode=mode, tools=tools, tool_choice="required")
    given = with_tool_choice(asked)
    name_of = name_for_agent(tools, plain=mode == "model")
    told = json.dumps(history_items(given.history, name_of=name_of)[-1])
    names = ", ".join(f"`{agent_name(tool.name, plain=mode == 'model')}`" for tool in tools)
    assert f"Call one of these tools now: {names}." in told


@pytest.mark.parametrize("mode", ["model", "agent"])
@pytest.mark.parametrize(("space", "of_client"), [(None, 1), ("", 1), ("functions", 1), ("mcp__files", 0)])
def test_a_call_in_a_namespace_is_not_for_the_clients_tool_of_that_name(
    space: str | None, of_client: int, mode: str
) -> None:
    dialogue = Dialogue(mode=mode).start()
    dialogue.calls(1, namespace=space)
    assert len(asks(dialogue.completes())) == of_client


def test_a_raw_item_of_which_a_field_is_null_is_kept() -> None:
    dialogue = Dialogue(mode="agent").start()
    shell = {"type": "local_shell_call", "id": "sh_1", "call_id": None, "name": None}
    dialogue.agent_notifies("rawResponseItem/completed", item=shell)
    assert [event.type for event in dialogue.completes() if isinstance(event, ev.RawItem)] == [
        "local_shell_call"
    ]


@pytest.mark.parametrize(
    "field",
    [
        {"content": ["words"]},
        {"content": "words"},
        {"content": [{"text": 5}]},
        {"encrypted_content": {}},
        {"name": 1},
    ],
)
@pytest.mark.parametrize("type", ["message", "reasoning", "function_call_output"])
def test_a_raw_item_that_could_not_be_read_again_gets_a_notice_and_is_not_kept(
    type: str, field: dict[str, Any]
) -> None:
    dialogue = Dialogue(mode="agent").start()
    item = {"type": type, "id": "x_1", "role": "assistant", "call_id": "c", **field}
    assert dialogue.agent_notifies("rawResponseItem/completed", item=item) == [
        ev.Notice("unreadable_message", "rawResponseItem/completed")
    ]
    assert not [event for event in dialogue.completes() if isinstance(event, ev.RawItem)]


def test_a_call_without_an_id_cannot_be_asked_for_and_gets_a_notice() -> None:
    dialogue = Dialogue().start()
    assert dialogue.calls(1, call_id=None) == [ev.Notice("unreadable_message", "rawResponseItem/completed")]
    assert asks(dialogue.completes()) == []


# --- calls that no raw item tells of --------------------------------------------------------------


def test_a_call_out_of_a_program_of_the_models_is_asked_for_when_the_agent_wants_its_output() -> None:
    dialogue = Dialogue(mode="agent").start()
    dialogue.calls(
        0, type="custom_tool_call", call_id="call_0", name="exec", input="await tools.get_weather()"
    )
    dialogue.completes()
    events = dialogue.wants_output(1, id=4, callId="exec-1", arguments={"city": "Paris"})
    ask = ev.ToolCallRequested("exec-1", "exec-1", "get_weather", '{"city": "Paris"}', "exec-1")
    assert events == [ask, ev.StepCompleted(None)]
    assert dialogue.turn.can_resume
    assert dialogue.client_replies("exec-1", SUNNY) == tool_output_line(4)


def test_a_call_whose_raw_item_got_lost_comes_with_the_others_of_its_response() -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1)
    assert dialogue.wants_output(2) == []
    assert asks(dialogue.completes()) == ["call_1", "call_2"]


def test_several_calls_of_a_program_are_asked_for_one_after_the_other() -> None:
    dialogue = Dialogue(mode="agent").start()
    assert asks(dialogue.wants_output(1)) == ["call_1"]
    assert dialogue.wants_output(2) == [], "the client's turn may have ended with the first"
    assert asks(dialogue.client_resumes(output(1))) == ["call_2"]
    assert dialogue.sent[-1] == tool_output_line(1)
    assert dialogue.turn.can_resume


def test_several_calls_of_a_program_that_come_in_one_read_are_asked_for_together() -> None:
    dialogue = Dialogue(mode="agent").start()
    call = {"threadId": THREAD, "turnId": TURN, "tool": "get_weather", "arguments": {}}
    requests = [
        {"id": n, "method": "item/tool/call", "params": call | {"callId": f"exec-{n}"}} for n in (1, 2)
    ]
    events = dialogue.agent_sends(*requests)
    assert [type(event) for event in events] == [ev.ToolCallRequested, ev.ToolCallRequested, ev.StepCompleted]


@pytest.mark.parametrize("params", [{"tool": "another"}, {"tool": None}, {"callId": None}, {"callId": ""}])
def test_a_call_of_nothing_that_was_offered_is_refused_at_once(params: dict[str, Any]) -> None:
    dialogue = Dialogue().start()
    assert dialogue.wants_output(1, **params) == [ev.Notice("unknown_request", "item/tool/call")]
    assert dialogue.sent[-1] == {"id": 1, "error": {"code": -32601, "message": "unsupported"}}


# --- answers --------------------------------------------------------------------------------------


def test_the_output_of_a_tool_goes_back_in_the_agents_parts() -> None:
    dialogue = Dialogue().start()
    dialogue.step(1)
    dialogue.wants_output(1, id=0)
    reply = ToolReply((TextPart("a"), ImagePart("data:image/png;base64,x")), success=False)
    content = [
        {"type": "inputText", "text": "a"},
        {"type": "inputImage", "imageUrl": "data:image/png;base64,x"},
    ]
    assert dialogue.client_replies("call_1", reply) == {
        "id": 0,
        "result": {"contentItems": content, "success": False},
    }
    assert dialogue.client_replies("call_1", reply) is None, "only once"


def test_an_answer_waits_for_the_agents_request() -> None:
    dialogue = Dialogue().start()
    dialogue.step(1)
    assert dialogue.client_replies("call_1", SUNNY) is None
    assert dialogue.wants_output(1, id=5) == []
    assert dialogue.sent[-1] == tool_output_line(5)


def test_an_agent_that_asks_for_one_output_after_the_other_gets_each_when_it_asks() -> None:
    dialogue = Dialogue().start()
    dialogue.calls(1)
    dialogue.wants_output(1)
    dialogue.calls(2)
    dialogue.calls(3)
    assert asks(dialogue.completes()) == ["call_1", "call_2", "call_3"]
    assert dialogue.client_replies("call_3", ToolReply((TextPart("three"),))) is None
    assert dialogue.client_replies("call_1", ToolReply((TextPart("one"),))) == tool_output_line(1, "one")
    dialogue.wants_output(2)
    assert dialogue.client_replies("call_2", ToolReply((TextPart("two"),))) == tool_output_line(2, "two")
    dialogue.wants_output(3)
    assert dialogue.sent[-1] == tool_output_line(3, "three")


def test_an_answer_that_the_agent_never_asked_for_is_not_the_answer_to_a_later_call_of_that_id() -> None:
    dialogue = Dialogue().start()
    dialogue.step(1)
    dialogue.client_replies("call_1", ToolReply((TextPart("old"),)))
    dialogue.agent_notifies(
        "rawResponseItem/completed", item={"type": "function_call_output", "call_id": "call_1"}
    )
    dialogue.calls(1)
    dialogue.wants_output(1, id=6)
    assert asks(dialogue.completes()) == ["call_1"]
    assert dialogue.client_replies("call_1", ToolReply((TextPart("new"),))) == tool_output_line(6, "new")
