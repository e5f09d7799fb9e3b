"""Items in the one form in which they are stored, and the history that they tell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from codex_proxy.core.faults import Fault
from codex_proxy.core.items import (
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.surfaces.responses.history import decode_summary, encode_summary, history_of
from codex_proxy.surfaces.responses.items import references_of, resolve_references, with_ids
from tests.pictures import PIXEL
from tests.surfaces.chat.turns import activity, reasoning_item, text_item, tool_call, turn
from tests.surfaces.responses.answering import CountedIds
from tests.surfaces.responses.answering import output as output_of
from tests.surfaces.responses.asking import ask, call, history, output, refusal_of

EVERY_KIND: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "system", "content": [{"type": "input_text", "text": "hi"}]},
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
    },
    {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gA"},
    call(),
    output(),
    {"type": "custom_tool_call", "call_id": "call_2", "name": "sh", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "x"}]},
    {"type": "mcp_list_tools", "server_label": "a", "tools": [{"name": "t", "input_schema": {}}]},
    {"type": "mcp_call", "server_label": "a", "name": "t", "arguments": "{}", "output": "done"},
    {"type": "mcp_approval_request", "server_label": "a", "name": "t", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "compaction", "encrypted_content": "gA"},
    {"type": "web_search_call", "action": {"type": "search", "query": "q"}, "status": "completed"},
]
STORED: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def user(text: str) -> HistoryMessage:
    return HistoryMessage("user", (TextPart(text),))


# --- the form -------------------------------------------------------------------------------------


def test_stored_items_are_the_sdks_own() -> None:
    for item in with_ids(ask(input=EVERY_KIND).input_items, CountedIds()):
        assert STORED.validate_python(item).type == item["type"]


def test_ids_begin_as_their_kind_does_and_given_ones_are_kept() -> None:
    items = with_ids(ask(input=[*EVERY_KIND[:7], {**call("c"), "id": "fc_mine"}]).input_items, CountedIds())
    assert [item["id"] for item in items] == [
        "msg_1", "msg_2", "msg_3", "msg_4", "rs_5", "fc_6", "fco_7", "fc_mine",
    ]  # fmt: skip


def test_a_message_of_the_assistant_is_output_text() -> None:
    (item,) = ask(input=[{"role": "assistant", "content": "hi", "phase": "final_answer"}]).input_items
    assert item["content"] == [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}]
    assert item["phase"] == "final_answer"


def test_output_of_a_response_comes_back_as_it_was() -> None:
    items = output_of(turn(reasoning_item("Hm."), text_item("Hi."), tool_call('{"a":1}')))
    assert list(ask(input=items).input_items) == items


@pytest.mark.parametrize("kind", ["input_audio"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_parts_that_no_agent_takes_are_refused_by_name(kind: str, role: str) -> None:
    failure = refusal_of(
        input=[{"role": role, "content": [{"type": "input_text", "text": "x"}, {"type": kind}]}]
    )
    assert failure.param == "input[0].content[1]"
    assert f"'{kind}'" in failure.message


@pytest.mark.parametrize("part", [{"image_url": "ftp://a"}, {"image_url": "data:text/plain;base64,x"}, {}])
def test_an_image_needs_a_url_of_an_image(part: dict[str, Any]) -> None:
    failure = refusal_of(input=[{"role": "user", "content": [{"type": "input_image", **part}]}])
    assert failure.param == "input[0].content[0].image_url"


def test_an_image_of_a_file_that_is_not_stored_is_refused_by_its_id() -> None:
    failure = refusal_of(input=[{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}])
    assert failure.param == "input[0].content[0].file_id"
    assert "'file-1'" in failure.message


def test_a_reference_is_an_id_with_or_without_its_type() -> None:
    parsed = ask(
        input=[{"id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}, {"role": "user", "content": "x"}]
    )
    assert references_of(parsed.input_items) == ("msg_1", "msg_2")
    found = {f"msg_{n}": {"type": "message", "id": f"msg_{n}", "role": "user", "content": []} for n in (1, 2)}
    whole = resolve_references(parsed.input_items, found)
    assert [item.get("id") for item in whole] == ["msg_1", "msg_2", None]


def test_a_reference_to_nothing_is_refused() -> None:
    with pytest.raises(Fault) as raised:
        resolve_references(ask(input=[{"role": "user", "content": "x"}, {"id": "msg_1"}]).input_items, {})
    assert raised.value.failure.param == "input[1].id"
    assert "'msg_1'" in raised.value.failure.message


# --- the history ----------------------------------------------------------------------------------


def test_a_system_item_becomes_a_developer_message() -> None:
    items = history({"role": "system", "content": "a"}, {"role": "developer", "content": "b"})
    assert [item.role for item in items if isinstance(item, HistoryMessage)] == ["developer", "developer"]


def test_text_and_images_keep_their_order() -> None:
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "high"},
    ]
    assert history({"role": "user", "content": parts}) == (
        HistoryMessage("user", (TextPart("What is this?"), ImagePart(PIXEL, "high"))),
    )


def test_refusals_of_the_past_are_text() -> None:
    said_no = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "id": "msg_1"}
    assert history(said_no) == (HistoryMessage("assistant", (TextPart("No."),), id="msg_1"),)


def test_only_ids_that_a_provider_would_take_go_back() -> None:
    ids = [
        item.id
        for item in history(
            {"role": "assistant", "content": "a", "id": "msg_1"},
            {"role": "assistant", "content": "a", "id": "item_1"},
            {"role": "user", "content": "a", "id": "msg_2"},
        )
        if isinstance(item, HistoryMessage)
    ]
    assert ids == ["msg_1", None, None]


def test_a_call_and_its_output_are_reported_in_their_order() -> None:
    assert history({**call(), "id": "fc_1"}, output()) == (
        HistoryCall("call_1", "get_weather", "{}", id="fc_1"),
        HistoryOutput("call_1", (TextPart("sunny"),)),
    )


def test_a_custom_call_is_text_in_and_out() -> None:
    assert history(*EVERY_KIND[7:9]) == (
        HistoryCall("call_2", "sh", "ls", "custom"),
        HistoryOutput("call_2", (TextPart("x"),), "custom"),
    )


def test_an_output_can_have_an_image() -> None:
    (_, answered) = history(call(), output(text=[{"type": "input_image", "image_url": PIXEL}]))
    assert answered == HistoryOutput("call_1", (ImagePart(PIXEL, "auto"),))


def test_an_output_that_comes_before_its_call_is_put_behind_it() -> None:
    kinds = [type(item) for item in history(output(), {"role": "user", "content": "x"}, call())]
    assert kinds == [HistoryMessage, HistoryCall, HistoryOutput]


def test_a_second_output_of_a_call_is_left_out() -> None:
    items = history(call(), output(text="first"), output(text="second"))
    assert items[1:] == (HistoryOutput("call_1", (TextPart("first"),)),)


def test_a_call_that_is_reported_again_is_left_out() -> None:
    assert len(history(call(), output(), call(), output())) == 2


def test_a_call_that_is_reported_again_may_have_its_arguments_in_another_spelling() -> None:
    first, again = call(arguments='{"b": 1.0, "a": "\\u00e9"}'), call(arguments='{"a":"é","b":1}')
    (kept, _) = history(first, output(), again, output())
    assert kept == HistoryCall("call_1", "get_weather", first["arguments"])


@pytest.mark.parametrize("other", [{"name": "other"}, {"arguments": '{"a":1}'}, {"arguments": "{"}])
def test_two_calls_of_one_id_are_refused(other: dict[str, str]) -> None:
    assert refusal_of(input=[call(), output(), call(**other)]).param == "input[2].call_id"


def test_an_output_without_its_call_is_refused() -> None:
    failure = refusal_of(input=[{"role": "user", "content": "x"}, output("call_9")])
    assert failure.param == "input[1].call_id"
    assert failure.message == "No tool call found for function call output with call_id call_9."


def test_an_output_that_carries_its_call_is_made_whole() -> None:
    assert history({**output(), "name": "get_weather", "arguments": "{}"}) == history(call(), output())


def test_a_call_without_its_output_is_refused() -> None:
    failure = refusal_of(input=[call("call_9"), {"role": "user", "content": "x"}])
    assert (failure.param, failure.message) == ("input", "No tool output found for function call call_9.")


def test_a_call_that_was_cut_off_needs_no_output() -> None:
    assert history({**call(), "status": "incomplete"}, {"role": "user", "content": "x"}) == (user("x"),)


def test_a_known_call_of_an_earlier_response_is_answered_by_this_one() -> None:
    earlier = output_of(turn(tool_call("{}")))
    parsed = ask(input=[output("call_t")], previous_response_id="resp_1")
    told = history_of([*earlier, *parsed.input_items], earlier=len(earlier))
    assert [type(item) for item in told] == [HistoryCall, HistoryOutput]


def test_faults_name_the_item_of_this_request_and_not_of_the_whole_history() -> None:
    parsed = ask(input=[output("call_9")], previous_response_id="resp_1")
    earlier = ask(input="before").input_items
    with pytest.raises(Fault) as raised:
        history_of([*earlier, *parsed.input_items], earlier=1)
    assert raised.value.failure.param == "input[0].call_id"


def test_encrypted_reasoning_goes_back_as_it_came_and_once() -> None:
    reasoning = {**EVERY_KIND[4], "id": "rs_1", "status": "completed"}
    (raw,) = history(reasoning, reasoning)
    assert isinstance(raw, RawHistoryItem)
    assert json.loads(raw.json) == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "gA",
    }


def test_reasoning_that_nobody_encrypted_is_left_out() -> None:
    assert history({"type": "reasoning", "summary": [], "id": "rs_1"}) == ()


def test_activity_may_come_back_and_says_nothing_to_the_model() -> None:
    items = output_of(turn(activity("ls"), text_item("Done.")), activity="items")
    assert list(ask(input=items).input_items) == items
    assert [type(item) for item in history(*items)] == [HistoryMessage]


def test_lists_of_tools_are_not_for_the_model() -> None:
    assert history(EVERY_KIND[9]) == ()


def test_items_of_the_models_provider_go_back_as_they_came() -> None:
    (raw,) = history({**EVERY_KIND[14], "id": "ws_1"})
    assert isinstance(raw, RawHistoryItem)
    assert json.loads(raw.json)["action"] == {"type": "search", "query": "q"}


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "result": "iVBOR",
            "size": "1024",
        },
        {
            "type": "local_shell_call",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {"A": "b"}},
        },
    ],
)
def test_other_items_of_the_provider_go_back_whole(item: dict[str, Any]) -> None:
    (raw,) = history(item)
    assert isinstance(raw, RawHistoryItem)
    assert json.loads(raw.json).items() >= item.items()


def test_a_compaction_of_this_server_is_its_summary_and_any_other_is_opaque() -> None:
    (ours,) = history({"type": "compaction", "encrypted_content": encode_summary("We spoke of owls.")})
    assert isinstance(ours, HistoryMessage)
    assert ours.parts == (TextPart("What was said before, in a summary:\nWe spoke of owls."),)
    (other,) = history({"type": "compaction", "encrypted_content": "gAAAA"})
    assert isinstance(other, RawHistoryItem)


@pytest.mark.parametrize("content", ["codex-proxy-summary-1.%", "codex-proxy-summary-1._w==", "gAAAA", ""])
def test_a_compaction_that_is_no_summary_of_this_server_is_not_opened(content: str) -> None:
    assert decode_summary(content) is None


def test_messages_without_a_word_are_left_out() -> None:
    assert history({"role": "assistant", "content": ""}, {"role": "user", "content": []}) == ()


def test_a_kind_that_the_agent_cannot_take_is_refused() -> None:
    with pytest.raises(Fault) as raised:
        history_of([{"type": "computer_call"}])
    assert "'computer_call'" in raised.value.failure.message
