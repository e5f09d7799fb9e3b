"""Items of MCP servers in a response: lists of tools, calls that this server runs, requests to approve one."""

from __future__ import annotations

import json
from typing import Any

from codex_proxy.core.events import Event, ItemEnded, OutputDelta, RawItem, TurnEnded
from codex_proxy.surfaces.responses.mcp import call_id_of
from tests.surfaces.chat.turns import (
    CRASH,
    TOOLS,
    approval,
    gave,
    open_call,
    step,
    text_item,
    tool_call,
    tool_list,
    turn,
)
from tests.surfaces.responses.answering import (
    fold,
    in_profile,
    output,
    payloads,
    renderer,
    stream_events,
    types,
    whole,
)


def short(events: list[Event], **options: Any) -> list[str]:
    """The events of a stream but its first two and its last, without what they have in common."""
    return [type.removeprefix("response.") for type in types(events, **options)[2:-1]]


# --- lists ----------------------------------------------------------------------------------------


def test_a_list_of_tools_has_its_events() -> None:
    stream = stream_events(turn(tool_list(), text_item("x")))
    assert [payload["type"] for payload in stream[2:6]] == [
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
    ]
    added, item = stream[2]["item"], stream[5]["item"]
    assert (added["status"], added["tools"]) == ("in_progress", [])
    assert item == {
        "type": "mcp_list_tools",
        "id": added["id"],
        "status": "completed",
        "server_label": "files",
        "tools": json.loads(TOOLS),
    }
    assert added["id"].startswith("mcpl_")
    assert stream[3] == {
        "type": "response.mcp_list_tools.in_progress",
        "item_id": added["id"],
        "output_index": 0,
        "sequence_number": 3,
    }


def test_a_server_that_could_not_be_asked_says_why() -> None:
    events = turn(tool_list(error="It is down."), text_item("x"))
    assert short(events)[2] == "mcp_list_tools.failed"
    item = output(events)[0]
    assert (item["status"], item["tools"], item["error"]) == ("failed", [], "It is down.")
    assert whole(events)["status"] == "completed"


def test_a_list_does_not_begin_an_answer_so_that_a_fault_can_still_be_a_status() -> None:
    answer = renderer(stream=True)
    assert answer.feed(turn(tool_list())[:-1]) == b""
    assert not answer.visible
    sse = answer.feed([TurnEnded("failed", failure=CRASH)])
    assert not answer.visible
    assert fold(payloads(sse.removesuffix(b"event: done\ndata: [DONE]\n\n")))[0]["type"] == "mcp_list_tools"


def test_a_list_goes_out_with_the_first_keepalive() -> None:
    answer = renderer(stream=True)
    answer.feed(turn(tool_list())[:-1])
    assert [payload["type"] for payload in payloads(answer.open())][2:] == [
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
    ]


def test_an_answer_without_a_word_has_an_empty_message_behind_its_list() -> None:
    assert [item["type"] for item in output(turn(tool_list()))] == ["mcp_list_tools", "message"]


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_is_reported_from_its_beginning_to_its_output() -> None:
    events = turn(open_call(), gave("It says hi."), text_item("Done."))
    assert short(events)[:7] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
        "output_item.added",
    ]
    stream = stream_events(events)
    assert stream[4]["delta"] == stream[5]["arguments"] == '{"path":"x"}'
    assert stream[2]["item"] | {"id": ""} == {
        "type": "mcp_call",
        "id": "",
        "status": "in_progress",
        "server_label": "files",
        "name": "read",
        "arguments": "",
        "output": None,
        "error": None,
        "approval_request_id": None,
    }
    done = {"status": "completed", "arguments": '{"path":"x"}', "output": "It says hi."}
    assert stream[7]["item"] == stream[2]["item"] | done


def test_a_call_is_done_when_it_is_over_and_not_when_something_follows() -> None:
    answer = renderer(stream=True)
    answer.feed(turn(open_call())[:-1])
    assert payloads(answer.feed(gave("x")))[-1]["type"] == "response.output_item.done"


def test_the_output_of_a_call_is_not_seen_before_the_call_has_ended() -> None:
    answer = renderer()
    answer.feed([*turn(open_call())[:-1], OutputDelta("a", "secr")])
    (item,) = answer.snapshot()["output"]
    assert (item["status"], item["output"]) == ("in_progress", None)


def test_a_failed_call_in_a_response_that_went_well_stays_failed() -> None:
    events = turn(open_call(), gave("No such file.", status="failed"), text_item("Sorry."))
    assert "mcp_call.failed" in short(events)
    assert whole(events)["status"] == "completed"
    item = output(events)[0]
    assert (item["status"], item["output"]) == ("failed", None)
    assert item["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "No such file."}],
    }


def test_a_call_without_output_has_an_empty_one() -> None:
    (item, _) = output(turn(open_call(), [ItemEnded("a")], text_item("x")))
    assert (item["output"], item["error"]) == ("", None)


def test_calls_that_run_side_by_side_are_done_in_their_order() -> None:
    events = turn(open_call("a"), open_call("b"), gave("second", "b"), gave("first", "a"), text_item("x"))
    stream = stream_events(events)
    over = [payload["output_index"] for payload in stream if payload["type"] == "response.mcp_call.completed"]
    done = [payload["output_index"] for payload in stream if payload["type"] == "response.output_item.done"]
    assert (over, done) == ([1, 0], [0, 1, 2])
    assert [item.get("output") for item in fold(stream)[:2]] == ["first", "second"]


def test_a_call_that_the_end_cut_off_is_incomplete_and_gave_nothing() -> None:
    cut: list[Event] = [ItemEnded("a", "incomplete")]
    events = turn(text_item("x"), open_call(), cut, stop="interrupted")
    item = output(events)[-1]
    assert (item["status"], item["output"], item["error"]) == ("incomplete", None, None)
    assert {"mcp_call.completed", "mcp_call.failed"}.isdisjoint(short(events))


def test_of_several_calls_that_the_end_cut_off_only_the_last_is_incomplete() -> None:
    cut: list[Event] = [ItemEnded("a", "incomplete"), ItemEnded("b", "incomplete")]
    events = turn(open_call("a"), open_call("b"), cut, stop="interrupted")
    first, last = output(events)
    assert (first["status"], last["status"]) == ("failed", "incomplete")
    assert "cut off" in first["error"]["content"][0]["text"]
    assert short(events).count("mcp_call.failed") == 1


def test_a_call_that_was_answered_stays_so_when_the_response_is_cut() -> None:
    events = turn(open_call(), gave("x"), stop="length")
    assert whole(events)["status"] == "incomplete"
    assert output(events)[0]["status"] == "completed"


def test_the_call_id_of_the_model_is_in_the_id() -> None:
    (item, _) = output(turn(open_call(), gave("x"), text_item("x")))
    assert item["id"].startswith("mcp_")
    assert call_id_of(item["id"]) == "call_a"


def test_encrypted_reasoning_that_comes_behind_a_call_that_runs_here_still_has_its_place() -> None:
    raw: list[Event] = [RawItem("reasoning", b'{"type":"reasoning","id":"rs_2","encrypted_content":"gA"}')]
    events = turn(step(None), open_call(), gave("x"), raw, text_item("x"))
    kinds = [item["type"] for item in output(events, encrypted_reasoning=True)]
    assert kinds == ["mcp_call", "reasoning", "message"]


# --- approvals ------------------------------------------------------------------------------------


def test_a_request_for_approval_is_reported_whole() -> None:
    events = turn(approval(), stop="tool_calls")
    assert short(events) == ["output_item.added", "output_item.done"]
    added, done = stream_events(events)[2:4]
    assert done["item"] == {
        "type": "mcp_approval_request",
        "id": added["item"]["id"],
        "status": "completed",
        "server_label": "files",
        "name": "write",
        "arguments": '{"path":"x"}',
    }
    assert added["item"]["arguments"] == '{"path":"x"}'
    assert added["item"]["id"].startswith("mcpr_")
    assert call_id_of(added["item"]["id"]) == "call_q"
    assert whole(events)["status"] == "completed"


def test_half_a_request_for_approval_is_not_sent() -> None:
    cut: list[Event] = [*approval()[:2], ItemEnded("q", "incomplete")]
    assert [item["type"] for item in output(turn(text_item("x"), cut, stop="interrupted"))] == ["message"]


def test_a_call_that_was_approved_names_the_request() -> None:
    item = output(turn(open_call(approved_by="mcpr_1"), gave("x"), text_item("x")))[0]
    assert item["approval_request_id"] == "mcpr_1"


# --- the profile of open-responses-server ---------------------------------------------------------


def test_scenario_2_a_call_that_the_server_runs() -> None:
    events = turn(tool_list(), open_call(), gave("sunny"), text_item("It is ", "sunny."), approval())
    stream = in_profile(events)
    assert [payload["type"].removeprefix("response.") for payload in stream] == [
        "created",
        "in_progress",
        "in_progress",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "completed",
    ]
    (detected,) = stream[2]["response"]["output"]
    assert (detected["type"], detected["name"], detected["call_id"]) == ("function_call", "read", "call_a")
    assert (detected["status"], detected["arguments"]) == ("in_progress", "")
    assert stream[4] == {
        "type": "response.function_call_arguments.done",
        "id": detected["id"],
        "output_index": 0,
        "arguments": '{"path":"x"}',
    }
    call, result, message = stream[-1]["response"]["output"]
    assert call == detected | {"status": "completed", "arguments": '{"path":"x"}'}
    assert result == {
        "type": "function_call_output",
        "id": stream[5]["item_id"],
        "call_id": "call_a",
        "output": '["sunny"]',
        "status": "completed",
    }
    assert (stream[5]["delta"], stream[5]["output_index"]) == ('["sunny"]', 1)
    assert message["content"][0]["text"] == "It is sunny."


def test_several_texts_of_a_result_are_a_json_array_already() -> None:
    results = ['["a","b"]', "[1]", "[", '"x"', "\ud800"]
    streams = [in_profile(turn(open_call(), gave(text), text_item("x"))) for text in results]
    given = [stream[-1]["response"]["output"][1]["output"] for stream in streams]
    assert given == ['["a","b"]', '["[1]"]', '["["]', '["\\"x\\""]', '["\ufffd"]']


def test_results_stand_where_they_came_and_the_clients_calls_are_ready() -> None:
    events = turn(
        open_call("a"),
        open_call("b"),
        gave("no", "b", "failed"),
        gave("yes", "a"),
        tool_call("{}"),
        stop="tool_calls",
    )
    final = in_profile(events)[-1]["response"]["output"]
    assert [(item["type"], item["call_id"], item["status"]) for item in final] == [
        ("function_call", "call_a", "completed"),
        ("function_call", "call_b", "failed"),
        ("function_call_output", "call_b", "completed"),
        ("function_call_output", "call_a", "completed"),
        ("function_call", "call_t", "ready"),
    ]


def test_a_call_that_runs_here_and_was_cut_off_has_no_result() -> None:
    cut: list[Event] = [ItemEnded("a", "incomplete")]
    final = in_profile(turn(open_call(), cut, stop="interrupted"))[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["function_call"]
