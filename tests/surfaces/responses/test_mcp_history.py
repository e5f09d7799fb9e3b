"""What calls of MCP servers, requests to approve one and answers to those tell of the past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.faults import Fault
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, TextPart
from codex_proxy.surfaces.responses.context import context_history, parse_context
from codex_proxy.surfaces.responses.history import history_entries, history_of
from codex_proxy.surfaces.responses.mcp import error_text
from tests.surfaces.chat.turns import approval, gave, open_call, text_item, tool_list, turn
from tests.surfaces.responses.answering import output as output_of
from tests.surfaces.responses.asking import CATALOG, ask, history

MCP_CALL: dict[str, Any] = {
    "type": "mcp_call",
    "id": "mcp_0123456789ab-call_1",
    "server_label": "files",
    "name": "read",
    "arguments": "{}",
    "output": "done",
    "error": None,
    "status": "completed",
    "approval_request_id": None,
}
REQUEST: dict[str, Any] = {
    "type": "mcp_approval_request",
    "id": "mcpr_0123456789ab-call_1",
    "server_label": "files",
    "name": "read",
    "arguments": "{}",
}
YES: dict[str, Any] = {
    "type": "mcp_approval_response",
    "approval_request_id": REQUEST["id"],
    "approve": True,
}
NO = YES | {"approve": False}
APPROVED_MCP_CALL = MCP_CALL | {"id": "mcp_ba9876543210-call_1", "approval_request_id": REQUEST["id"]}
HELLO: dict[str, Any] = {"type": "message", "role": "user", "content": "hello"}

CALL = HistoryCall("call_1", "files__read", "{}")
OUTPUT = HistoryOutput("call_1", (TextPart("done"),))


def call_output(text: str) -> HistoryOutput:
    return HistoryOutput("call_1", (TextPart(text),))


def text_of(item: HistoryItem) -> str:
    assert isinstance(item, HistoryOutput)
    (part,) = item.parts
    assert isinstance(part, TextPart)
    return part.text


def with_earlier(earlier: Sequence[Any], *fresh: Any) -> tuple[HistoryItem, ...]:
    """The history of a request that goes on from these earlier items."""
    before = ask(input=list(earlier)).input_items if earlier else ()
    return history_of([*before, *ask(input=list(fresh)).input_items], earlier=len(before))


def refusal(earlier: Sequence[Any], *fresh: Any) -> tuple[str | None, str]:
    with pytest.raises(Fault) as raised:
        with_earlier(earlier, *fresh)
    return raised.value.failure.param, raised.value.failure.message


# --- calls that were run --------------------------------------------------------------------------


def test_a_call_is_one_of_the_function_that_the_model_knows_and_was_answered() -> None:
    done = HistoryOutput("call_1", (TextPart("done"),), by_server=True)
    assert history(MCP_CALL) == (HistoryCall("call_1", "files__read", "{}", by_server=True), done)


@pytest.mark.parametrize(
    "error",
    [
        "No such file.",
        {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "No such file."}]},
        {"type": "mcp_protocol_error", "code": -32000, "message": "No such file."},
    ],
)
def test_a_failed_call_has_the_error(error: Any) -> None:
    failed = MCP_CALL | {"output": None, "error": error, "status": "failed"}
    assert text_of(history(failed)[1]) == "No such file."


def test_an_error_of_any_other_shape_is_reported_as_it_is() -> None:
    assert error_text({"type": "a", "content": [1]}) == '{"type":"a","content":[1]}'
    assert error_text(["x"]) == '["x"]'


@pytest.mark.parametrize("status", ["incomplete", "in_progress", "calling"])
def test_a_call_that_was_cut_off_is_reported_as_one(status: str) -> None:
    assert "cut off" in text_of(history(MCP_CALL | {"output": None, "status": status})[1])


def test_a_call_that_gave_nothing_was_still_answered() -> None:
    assert text_of(history(MCP_CALL | {"output": None})[1]) == ""


def test_a_call_that_is_reported_again_is_reported_once() -> None:
    assert with_earlier([MCP_CALL], MCP_CALL) == history(MCP_CALL)


def test_two_calls_with_one_call_id_of_the_model_are_two() -> None:
    other = MCP_CALL | {"id": "mcp_ba9876543210-call_1", "name": "write"}
    first, _, second, answer = history(MCP_CALL, other)
    assert isinstance(first, HistoryCall)
    assert isinstance(second, HistoryCall)
    assert isinstance(answer, HistoryOutput)
    assert second.call_id == answer.call_id == other["id"] != first.call_id
    function = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    answered = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    ids = [item.call_id for item in history(MCP_CALL, function, answered) if isinstance(item, HistoryCall)]
    assert ids == [MCP_CALL["id"], "call_1"]


def test_ids_with_a_common_beginning_longer_than_a_call_id_stay_different() -> None:
    long = [MCP_CALL | {"id": "mcp_" + "x" * 80 + str(number)} for number in range(3)]
    ids = [item.call_id for item in history(*long) if isinstance(item, HistoryCall)]
    assert len(set(ids)) == 3
    assert max(map(len, ids)) == 64


def test_many_calls_that_nobody_answered_are_reported_in_little_time() -> None:
    many = [REQUEST | {"id": f"mcpr_{number}", "status": "completed"} for number in range(20_000)]
    assert len(history_of([*many, REQUEST])) == 2 * 20_001


def test_output_items_of_a_response_can_be_sent_as_input() -> None:
    items = output_of(
        turn(tool_list(), open_call(), gave("x"), text_item("y"), approval(), stop="tool_calls")
    )
    parsed = ask(input=items)
    assert list(parsed.input_items) == items
    assert [type(item) for item in history_of(parsed.input_items)] == [
        HistoryCall, HistoryOutput, HistoryMessage, HistoryCall, HistoryOutput,
    ]  # fmt: skip


# --- approvals ------------------------------------------------------------------------------------


def test_an_approved_call_waits_to_be_run() -> None:
    assert with_earlier([REQUEST], YES) == (CALL, HistoryOutput("call_1", (), approved_by=REQUEST["id"]))
    assert history(REQUEST, YES) == with_earlier([REQUEST], YES)


def test_a_denied_call_is_not_made_and_the_model_gets_the_reason() -> None:
    assert with_earlier([REQUEST], NO) == (CALL, call_output("The user has not approved this call."))
    reasoned = NO | {"reason": "Not now."}
    assert with_earlier([REQUEST], reasoned)[1] == call_output(
        "The user has not approved this call: Not now."
    )


def test_a_call_that_was_approved_and_run_has_its_output_where_it_was_approved() -> None:
    items = with_earlier([REQUEST, YES, HELLO, APPROVED_MCP_CALL], HELLO)
    assert items[:2] == (CALL, OUTPUT)
    assert [type(item) for item in items[2:]] == [HistoryMessage, HistoryMessage]
    assert history(REQUEST, YES, APPROVED_MCP_CALL) == (CALL, OUTPUT)


def test_a_call_that_was_approved_once_and_cut_off_is_not_made_later() -> None:
    assert "cut off" in text_of(with_earlier([REQUEST, YES], HELLO)[1])
    under_way = APPROVED_MCP_CALL | {"output": None, "status": "incomplete"}
    assert "cut off" in text_of(with_earlier([REQUEST, YES, under_way], HELLO)[1])


def test_a_run_without_its_response_answers_the_request() -> None:
    assert with_earlier([REQUEST, APPROVED_MCP_CALL], HELLO)[:2] == (CALL, OUTPUT)


def test_a_run_without_its_request_is_a_call_of_its_own() -> None:
    assert with_earlier([YES, APPROVED_MCP_CALL], HELLO)[:2] == history(MCP_CALL)


def test_an_answer_that_comes_before_its_request_is_put_behind_it() -> None:
    assert history(YES, REQUEST) == history(REQUEST, YES)
    assert history(APPROVED_MCP_CALL, REQUEST) == (CALL, OUTPUT)


def test_a_conversation_may_go_on_without_an_answer_and_then_the_call_was_not_made() -> None:
    call, answer, hello = with_earlier([REQUEST], HELLO)
    assert call == CALL
    assert "did not say whether" in text_of(answer)
    assert isinstance(hello, HistoryMessage)


def test_the_word_for_an_unanswered_call_stands_behind_the_outputs_of_its_step() -> None:
    second = REQUEST | {"id": "mcpr_ba9876543210-call_2"}
    yes = YES | {"approval_request_id": second["id"]}
    items = with_earlier([REQUEST, second], yes, HELLO)
    assert [getattr(item, "call_id", None) for item in items] == [
        "call_1",
        "call_2",
        "call_2",
        "call_1",
        None,
    ]


def test_a_request_that_is_answered_late_is_answered() -> None:
    items = with_earlier([REQUEST, HELLO], YES)
    assert [type(item) for item in items] == [HistoryCall, HistoryMessage, HistoryOutput]


def test_a_response_to_nothing_is_refused() -> None:
    param, message = refusal([], HELLO, YES)
    assert param == "input[1].approval_request_id"
    assert REQUEST["id"] in message
    assert with_earlier([YES], HELLO) == history(HELLO)
    assert refusal([], REQUEST | {"status": "incomplete"}, YES)[0] == "input[1].approval_request_id"


def test_a_second_response_is_refused_where_it_would_change_something() -> None:
    for first, second in ((YES, NO), (NO, YES), (YES, YES)):
        param, message = refusal([REQUEST, first], second)
        assert (param, REQUEST["id"] in message) == ("input[0].approval_request_id", True)
        assert refusal([REQUEST], first, second)[0] == "input[1].approval_request_id"


def test_a_response_that_is_reported_again_is_left_out() -> None:
    assert with_earlier([REQUEST, YES, APPROVED_MCP_CALL], YES) == (CALL, OUTPUT)
    assert with_earlier([REQUEST, NO], NO) == with_earlier([REQUEST], NO)


def test_an_approved_call_is_one_that_waits_where_no_turn_is_run() -> None:
    parsed = parse_context(b'{"model":"codex-5","input":"x"}', catalog=CATALOG)
    items = ask(input=[REQUEST, YES]).input_items
    assert "has yet to be made" in text_of(context_history(parsed, items)[1])


# --- all of it ------------------------------------------------------------------------------------

IDS = ["mcpr_0123456789ab-call_1", "mcpr_0123456789ab-call_2", "mcpr_x"]
ITEMS = st.one_of(
    st.builds(lambda id: REQUEST | {"id": id}, st.sampled_from(IDS)),
    st.builds(
        lambda id, approve: YES | {"approval_request_id": id, "approve": approve},
        st.sampled_from(IDS),
        st.booleans(),
    ),
    st.builds(
        lambda id, request, done: (
            MCP_CALL
            | {"id": id, "approval_request_id": request}
            | ({} if done else {"output": None, "status": "incomplete"})
        ),
        st.sampled_from(["mcp_0123456789ab-call_1", "mcp_ba9876543210-call_1", "mcp_y"]),
        st.sampled_from([None, *IDS]),
        st.booleans(),
    ),
    st.just(HELLO),
)


@given(st.lists(ITEMS, max_size=8), st.integers(0, 8))
def test_every_call_is_reported_once_with_one_output_behind_it(items: list[Any], earlier: int) -> None:
    given_items = ask(input=items or [HELLO]).input_items
    try:
        parts = history_entries(given_items, earlier=min(earlier, len(given_items)))
    except Fault:
        return
    seen: dict[str, int] = {}
    for place, part in parts:
        assert 0 <= place < len(given_items)
        if isinstance(part, HistoryCall):
            assert part.call_id not in seen
            seen[part.call_id] = 0
        elif isinstance(part, HistoryOutput):
            seen[part.call_id] += 1
            assert part.approved_by is None or (place >= earlier and not part.parts)
    assert set(seen.values()) <= {1}
    hellos = [item for item in given_items if item["type"] == "message"]
    assert len([part for _, part in parts if isinstance(part, HistoryMessage)]) == len(hellos)
