"""The client's history as the agent's own items."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.calls import dynamic_tools
from codex_proxy.agents.codex_app_server.thread_turns import (
    MAX_TURN_INPUT,
    history_items,
    split_input,
    thread_params,
    turn_settings,
)
from codex_proxy.agents.codex_app_server.wire import request
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    Role,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import Mode, StoredSession, Turn

PIXEL = "data:image/png;base64,iVBORw0KGgo="
USER = HistoryMessage("user", (TextPart("Hello"),))


def native(*items: HistoryItem, first: int = 0) -> list[Any]:
    """As JSON, which is what the agent sees."""
    return json.loads(msgspec.json.encode(history_items(items, first=first)))  # type: ignore[no-any-return]


def bare(*items: HistoryItem) -> list[Any]:
    """Without ids, which have their own tests."""
    return [{name: value for name, value in item.items() if name != "id"} for item in native(*items)]


@pytest.mark.parametrize(
    ("role", "text_type"), [("developer", "input_text"), ("user", "input_text"), ("assistant", "output_text")]
)
def test_each_role_says_its_text_in_its_own_type_of_part(role: Role, text_type: str) -> None:
    assert bare(HistoryMessage(role, (TextPart("a"), TextPart("b")))) == [
        {
            "type": "message",
            "role": role,
            "content": [{"type": text_type, "text": "a"}, {"type": text_type, "text": "b"}],
        }
    ]


def test_a_message_without_parts_is_left_out_since_the_agent_would_refuse_them_all() -> None:
    assert native(HistoryMessage("assistant", ()), USER) == native(USER, first=1)


def test_ids_and_phases_of_messages_are_kept() -> None:
    [message] = native(HistoryMessage("assistant", (TextPart("a"),), phase="commentary", id="msg_1"))
    assert (message["id"], message["phase"]) == ("msg_1", "commentary")


@pytest.mark.parametrize(
    ("detail", "sent"),
    [(None, "auto"), ("auto", "auto"), ("low", "auto"), ("high", "high"), ("original", "original")],
)
def test_an_image_of_low_detail_is_sent_as_auto_since_the_agent_would_drop_it(
    detail: str | None, sent: str
) -> None:
    [message] = native(HistoryMessage("user", (TextPart("see"), ImagePart(PIXEL, detail))))
    assert message["content"][1] == {"type": "input_image", "image_url": PIXEL, "detail": sent}


def test_a_call_keeps_its_exact_arguments_and_its_output_follows() -> None:
    call = HistoryCall("call_1", "get_weather", '{"z":1.0, "a":1e3}')
    assert bare(call, HistoryOutput("call_1", (TextPart("sunny"),))) == [
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"z":1.0, "a":1e3}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ]


def test_a_custom_call_travels_as_a_function_with_one_string() -> None:
    [call, output] = bare(
        HistoryCall("call_1", "patch", 'say "hi"\n', "custom"),
        HistoryOutput("call_1", (TextPart("ok"),), "custom"),
    )
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"input": 'say "hi"\n'})
    assert output == {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


def test_a_tool_output_without_parts_is_an_empty_text() -> None:
    assert native(HistoryOutput("call_1", ()))[0]["output"] == ""


def test_an_output_of_several_parts_or_an_image_is_a_list() -> None:
    [two, image] = native(
        HistoryOutput("call_1", (TextPart("a"), TextPart("b"))),
        HistoryOutput("call_2", (ImagePart(PIXEL, "low"),)),
    )
    assert two["output"] == [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert image["output"] == [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]


def test_what_the_model_said_before_goes_back_untouched() -> None:
    reasoning = b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}'
    assert native(RawHistoryItem(reasoning)) == [json.loads(reasoning)]


# --- ids ------------------------------------------------------------------------------------------

CALL = HistoryCall("call_1", "get_weather", "{}")
OUTPUT = HistoryOutput("call_1", (TextPart("sunny"),))
ANSWER = HistoryMessage("assistant", (TextPart("It is sunny."),))
REASONING = RawHistoryItem(b'{"type":"reasoning","id":"rs_1","summary":[]}')
TALK = (USER, REASONING, CALL, OUTPUT, ANSWER, USER)


def test_every_item_has_an_id_of_its_type_that_no_other_has() -> None:
    ids = [item["id"] for item in native(*TALK)]
    assert [id.partition("_")[0] for id in ids] == ["msg", "rs", "fc", "fco", "msg", "msg"]
    assert len(set(ids)) == len(ids), "also where the same is said twice"
    assert all(len(id) <= 64 for id in ids), "the provider takes no more"


def test_ids_are_the_same_when_the_same_comes_again_with_more_behind_it() -> None:
    for length in range(len(TALK)):
        assert native(*TALK)[:length] == native(*TALK[:length])


def test_ids_are_the_same_when_only_what_is_new_is_injected() -> None:
    for length in range(len(TALK)):
        assert native(*TALK[length:], first=length) == native(*TALK)[length:]


@pytest.mark.parametrize(
    "other",
    [
        HistoryMessage("user", (TextPart("Hello!"),)),
        HistoryMessage("developer", (TextPart("Hello"),)),
        HistoryMessage("user", (TextPart("Hello"), ImagePart(PIXEL))),
    ],
)
def test_an_item_with_another_content_has_another_id(other: HistoryMessage) -> None:
    assert native(other)[0]["id"] != native(USER)[0]["id"]


@pytest.mark.parametrize(
    ("item", "kept"),
    [
        (HistoryMessage("assistant", (TextPart("a"),), id="msg_1"), True),
        (HistoryMessage("assistant", (TextPart("a"),), id="item_1"), False),
        (HistoryMessage("assistant", (TextPart("a"),), id="msg_" + "1" * 61), False),
        (HistoryCall("call_1", "f", "{}", id="fc_1"), True),
        (HistoryCall("call_1", "f", "x", "custom", id="ctc_1"), False),
    ],
)
def test_an_id_of_the_clients_is_kept_where_the_provider_takes_it_for_an_item_of_that_type(
    item: HistoryMessage | HistoryCall, kept: bool
) -> None:
    [sent] = native(item)
    without = native(msgspec.structs.replace(item, id=None))
    assert sent["id"] == (item.id if kept else without[0]["id"])


# --- what is injected, what is the turn's input ---------------------------------------------------


def split(mode: Mode, *history: HistoryItem) -> tuple[list[Any], list[dict[str, Any]]]:
    injected, given = split_input(Turn(model="m", history=history, mode=mode), history)
    return json.loads(msgspec.json.encode(injected)), given


def test_a_plain_model_gets_all_as_items_and_starts_on_nothing() -> None:
    repair = HistoryMessage("developer", (TextPart("Be brief."),))
    assert split("model", repair, USER) == (native(repair, USER), [])


@pytest.mark.parametrize("text", ["$skill-creator", "Use $imagegen, please.", "[@x](plugin://x)", "$HOME"])
def test_an_agent_gets_a_text_with_what_may_be_a_mention_as_an_item_in_which_it_looks_for_none(
    text: str,
) -> None:
    said = HistoryMessage("user", (TextPart("See"), TextPart(text)))
    assert split("agent", USER, said) == (native(USER, said), [])


def test_an_agent_gets_the_newest_message_as_a_person_would_type_it() -> None:
    before = HistoryMessage("assistant", (TextPart("Hm?"),))
    said = HistoryMessage("user", (TextPart("See"), ImagePart(PIXEL, "low")))
    assert split("agent", USER, before, said) == (
        native(USER, before),
        [{"type": "text", "text": "See", "text_elements": []}, {"type": "image", "url": PIXEL}],
    )


@pytest.mark.parametrize(
    "last",
    [
        HistoryOutput("call_1", (TextPart("sunny"),)),
        HistoryMessage("assistant", (TextPart("I was"),)),
        HistoryMessage("user", ()),
        HistoryMessage("user", (TextPart("x" * MAX_TURN_INPUT), TextPart("y"))),
    ],
    ids=["an output", "the assistant", "nothing", "more than the agent takes"],
)
def test_an_agent_starts_on_nothing_where_the_last_item_cannot_be_typed(last: HistoryItem) -> None:
    assert split("agent", USER, last) == (native(USER, last), [])


def test_a_long_message_that_the_agent_takes_is_typed() -> None:
    injected, given = split("agent", HistoryMessage("user", (TextPart("x" * MAX_TURN_INPUT),)))
    assert injected == []
    assert len(given) == 1


def test_a_turn_without_history_has_nothing_to_inject() -> None:
    assert split("agent") == ([], [])
    assert split("model") == ([], [])


@pytest.mark.parametrize("mode", ["agent", "model"])
def test_of_a_turn_on_a_thread_that_is_used_again_only_new_items_are_sent(mode: Mode) -> None:
    turn = Turn(model="m", history=(USER, CALL, OUTPUT, ANSWER, USER), mode=mode)
    injected, given = split_input(turn, turn.history[3:], first=3)
    ids = [item["id"] for item in native(ANSWER, USER, first=3)]
    if mode == "agent":
        assert [part["text"] for part in given] == ["Hello"]
        ids.pop()
    assert [item["id"] for item in injected] == ids


def test_the_same_item_of_two_parts_of_a_conversation_has_two_ids() -> None:
    parts = (StoredSession("c", before=item) for item in ("", "msg_1", "msg_2"))
    turns = (Turn(model="m", history=(USER, USER), mode="agent", stored_session=part) for part in parts)
    ids = [split_input(turn, turn.history)[0][0]["id"] for turn in turns]
    assert len(set(ids)) == 3


# --- settings -------------------------------------------------------------------------------------


def test_only_the_settings_that_the_client_gave_are_sent() -> None:
    assert turn_settings(Turn(model="m", history=())) == {}
    turn = Turn(model="m", history=(), effort="low", summary="auto", service_tier="flex")
    assert turn_settings(turn) == {"effort": "low", "summary": "auto", "serviceTier": "flex"}


def test_a_thread_of_the_agents_own_model_names_none() -> None:
    assert "model" not in thread_params(Turn(model="", history=(), mode="model"))
    assert thread_params(Turn(model="m", history=(), mode="agent"))["model"] == "m"


# --- tools ----------------------------------------------------------------------------------------


def test_a_function_keeps_its_schema_as_the_client_wrote_it() -> None:
    schema = b'{"type": "object",\n  "properties": {"x": {"type": "number"}}}'
    [sent] = dynamic_tools([Tool("f", "does f", msgspec.Raw(schema), strict=True)])
    assert sent == {
        "type": "function",
        "name": "f",
        "description": "does f",
        "inputSchema": msgspec.Raw(schema),
    }


def test_a_function_without_a_schema_takes_any_object() -> None:
    assert dynamic_tools([Tool("f")])[0]["inputSchema"] == {"type": "object", "properties": {}}


def test_a_name_that_the_agent_does_not_take_is_changed_in_the_offer_and_in_the_history_alike() -> None:
    offered = dynamic_tools([Tool("mcp__files")])[0]["name"]
    assert offered != "mcp__files"
    assert native(HistoryCall("call_1", "mcp__files", "{}"))[0]["name"] == offered


def test_a_custom_tool_is_a_function_of_one_string() -> None:
    assert dynamic_tools([Tool("patch", kind="custom")])[0]["inputSchema"]["required"] == ["input"]


def test_json_that_the_client_laid_out_on_lines_stays_one_line() -> None:
    schema = msgspec.Raw(b'{\n\t"title": "a\\nb",\r\n "type": "object"\n}')
    line = request("1.1", "thread/start", {"dynamicTools": dynamic_tools([Tool("f", parameters=schema)])})
    assert line.count(b"\n") == 1
    sent = json.loads(line)["params"]["dynamicTools"][0]["inputSchema"]
    assert sent == {"title": "a\nb", "type": "object", "properties": {}}
