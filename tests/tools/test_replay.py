"""What was remembered of a turn takes the place of its echo; where that is not sure, the echo itself serves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.tools.replay import (
    RememberedTurn,
    assistant_text,
    call_key,
    key_of_all,
    keys_of,
    restore_items,
)
from tests.tools.histories import CALLS, HISTORIES, WORDS

QUESTION = HistoryMessage("user", (TextPart("Well?"),))
MORE = HistoryMessage("user", (TextPart("And?"),))


def message(text: str) -> HistoryMessage:
    return HistoryMessage("assistant", (TextPart(text),))


def call(call_id: str, arguments: str = "{}", name: str = "f") -> HistoryCall:
    return HistoryCall(call_id, name, arguments)


def output(call_id: str, text: str = "done") -> HistoryOutput:
    return HistoryOutput(call_id, (TextPart(text),))


def raw(type: str, **more: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"type": type, **more}).encode())


def past(item: msgspec.Raw) -> RawHistoryItem:
    return RawHistoryItem(bytes(item))


THOUGHT = raw("reasoning", id="rs_1", encrypted_content="secret", status="completed")
ITEMS = [
    THOUGHT,
    raw("message", id="msg_1"),
    raw("function_call", call_id="a"),
    raw("function_call", call_id="b"),
]
BACK = [past(item) for item in ITEMS]


def remembered_turns(*visible: HistoryCall, **more: Any) -> dict[bytes, RememberedTurn]:
    ids = [each.call_id for each in visible]
    fields = {"items": ITEMS, "hidden": {}, "calls": ids, "visible": ids, "said": "Hm.", "model": "m"} | more
    keys = [call_key(each) for each in visible]
    return {keys[0]: RememberedTurn(**fields, calls_key=key_of_all(keys))}


def put_back(
    history: Sequence[HistoryItem], recalled: dict[bytes, RememberedTurn], model: str = "m"
) -> list[HistoryItem]:
    return list(restore_items(history, recalled, model))


# --- what is put back ----------------------------------------------------------------------------


@pytest.mark.parametrize("echo", [[message("Hm.")], [message(""), message("Hm.")], []])
def test_remembered_items_take_the_place_of_the_repeated_answer(echo: list[HistoryItem]) -> None:
    history: list[HistoryItem] = [QUESTION, *echo, call("a"), output("a"), MORE]
    assert put_back(history, remembered_turns(call("a"))) == [QUESTION, *BACK, output("a"), MORE]


def test_calls_that_this_server_has_run_are_none_of_those_that_the_client_repeats() -> None:
    ran = HistoryCall("s", "files__read", "{}", by_server=True)
    gave = HistoryOutput("s", (TextPart("done"),), by_server=True)
    history: list[HistoryItem] = [QUESTION, ran, gave, message("Hm."), call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a"))) == [QUESTION, *BACK, output("a")]


def test_several_messages_are_recognised_as_a_client_joins_them() -> None:
    memory = remembered_turns(call("a"), said="One.\n\nTwo.")
    assert put_back([message("One."), message("Two."), call("a")], memory) == BACK
    assert put_back([message("One.\n\nTwo."), call("a")], memory) == BACK


@pytest.mark.parametrize(
    "echo",
    [
        [message("<think>\nSo.\n</think>\n\nOne.\n\nTwo.")],
        [message("<think>\nSo.\n</think>"), message("One."), message("Two.")],
        [message("One.\n<think>So.</think>\nTwo.")],
        [message("<think>So.</think><think>Hm.</think>One."), message("\nTwo.\n")],
        [message("<think>So.</think>")],
        [message("One.\n\nTwo.<think redacted>\n\n</think redacted>")],
    ],
)
def test_an_answer_is_recognised_without_reasoning_that_a_client_put_into_its_text(
    echo: list[HistoryItem],
) -> None:
    memory = remembered_turns(call("a"), said="One.\n\nTwo.")
    assert put_back([QUESTION, *echo, call("a"), output("a")], memory) == [QUESTION, *BACK, output("a")]


@pytest.mark.parametrize("text", ["<think>One.\n\nTwo.", "</think>One.\n\nTwo.", "One.</think>\n\nTwo."])
def test_half_a_tag_is_a_part_of_the_answer(text: str) -> None:
    history: list[HistoryItem] = [QUESTION, message(text), call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a"), said="One.\n\nTwo.")) == history


def test_outputs_in_another_order_are_put_into_the_models() -> None:
    history: list[HistoryItem] = [QUESTION, call("a"), call("b"), output("b"), output("a"), MORE]
    memory = remembered_turns(call("a"), call("b"))
    assert put_back(history, memory) == [QUESTION, *BACK, output("a"), output("b"), MORE]


def test_hidden_outputs_stand_between_the_visible_ones_in_the_models_order() -> None:
    memory = remembered_turns(
        call("a"), call("b"), calls=["h1", "a", "h2", "b"], hidden={"h1": "no", "h2": "later"}
    )
    history: list[HistoryItem] = [call("a"), call("b"), output("b"), output("a")]
    assert put_back(history, memory) == [
        *BACK,
        output("h1", "no"),
        output("a"),
        output("h2", "later"),
        output("b"),
    ]


def test_an_output_that_is_missing_stays_missing_and_hidden_ones_are_given() -> None:
    memory = remembered_turns(call("a"), call("b"), calls=["a", "h", "b"], hidden={"h": "no"})
    history: list[HistoryItem] = [call("a"), call("b"), output("b")]
    assert put_back(history, memory) == [*BACK, output("h", "no"), output("b")]


def test_an_output_that_is_given_twice_or_to_no_call_is_kept() -> None:
    history: list[HistoryItem] = [call("a"), output("a", "1"), output("x"), output("a", "2")]
    assert put_back(history, remembered_turns(call("a"))) == [
        *BACK,
        output("a", "1"),
        output("x"),
        output("a", "2"),
    ]


def test_several_remembered_turns_are_put_back_each_in_its_place() -> None:
    other = [raw("function_call", call_id="z")]
    memory = remembered_turns(call("a")) | remembered_turns(call("z"), items=other, said="")
    history: list[HistoryItem] = [
        QUESTION,
        call("a"),
        output("a"),
        call("z"),
        output("z"),
        message("Done."),
        MORE,
    ]
    back = [QUESTION, *BACK, output("a"), past(other[0]), output("z"), message("Done."), MORE]
    assert put_back(history, memory) == back


def test_turns_whose_calls_a_client_joins_are_put_back_one_after_the_other() -> None:
    other = [raw("reasoning", id="rs_2"), raw("function_call", call_id="c")]
    memory = remembered_turns(call("a"), call("b"))
    memory |= remembered_turns(call("c"), items=other, said="", calls=["h", "c"], hidden={"h": "mine"})
    calls = [call("a"), call("b"), call("c")]
    outputs = [output("c"), output("b"), output("a")]
    first = [*BACK, output("a"), output("b")]
    second = [*map(past, other), output("h", "mine"), output("c")]
    assert put_back([QUESTION, *calls, *outputs, MORE], memory) == [QUESTION, *first, *second, MORE]
    assert put_back([message("Hm."), *calls, *outputs], memory) == [*first, *second]
    assert put_back([call("d"), *calls], memory) == [call("d"), *calls]


def test_an_answer_in_text_between_two_turns_is_its_own() -> None:
    history: list[HistoryItem] = [message("An answer."), QUESTION, message("Hm."), call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a"))) == [
        message("An answer."),
        QUESTION,
        *BACK,
        output("a"),
    ]


def test_reasoning_is_dropped_when_the_model_changed() -> None:
    history: list[HistoryItem] = [QUESTION, call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a")), "other") == [QUESTION, *BACK[1:], output("a")]


# --- what is not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "echo",
    [
        [message("Something else."), call("a"), call("b")],
        [call("a", '{"x":1}'), call("b")],
        [call("a", name="g"), call("b")],
        [HistoryCall("a", "f", "{}", "custom"), call("b")],
        [call("a")],
        [call("b")],
        [call("b"), call("a")],
        [call("a"), call("b"), call("c")],
        [call("a"), message("Hm."), call("b")],
        [message("Hm.")],
    ],
)
def test_a_repeated_answer_that_says_something_else_is_used_as_it_is(echo: list[HistoryItem]) -> None:
    history: list[HistoryItem] = [QUESTION, *echo, output("a"), output("b"), MORE]
    assert put_back(history, remembered_turns(call("a"), call("b"))) == history


def test_a_call_id_that_was_used_again_with_other_arguments_is_not_taken() -> None:
    history: list[HistoryItem] = [QUESTION, call("a"), output("a"), MORE, call("a", '{"x":1}'), output("a")]
    assert put_back(history, remembered_turns(call("a"))) == [QUESTION, *BACK, *history[2:]]


def test_a_call_that_stands_twice_in_a_history_serves_itself_both_times() -> None:
    history: list[HistoryItem] = [QUESTION, call("a"), output("a"), MORE, call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a"))) == history


def test_calls_of_two_turns_in_one_repeated_answer_are_used_as_they_are() -> None:
    memory = remembered_turns(call("a"), visible=["a", "b"]) | remembered_turns(
        call("b"), visible=["a", "b"], said="Else."
    )
    history: list[HistoryItem] = [call("a"), call("b"), output("a"), output("b")]
    assert put_back(history, memory) == history


@pytest.mark.parametrize(
    "history", [[], [QUESTION], [message("Hm."), MORE], [output("a")], [BACK[0], QUESTION]]
)
def test_a_history_without_calls_stays_as_it_is(history: list[HistoryItem]) -> None:
    assert put_back(history, remembered_turns(call("a"))) == history


# --- reasoning that the client brings back itself --------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [
        raw("reasoning", id="rs_1"),
        raw("reasoning", id="rs_1", encrypted_content="secret", summary=[]),
        raw("reasoning", encrypted_content="secret"),
    ],
)
@pytest.mark.parametrize("before_text", [True, False])
def test_reasoning_that_was_remembered_comes_once(own: msgspec.Raw, before_text: bool) -> None:
    echo: list[HistoryItem] = [past(own), message("Hm.")] if before_text else [message("Hm."), past(own)]
    history: list[HistoryItem] = [QUESTION, *echo, call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a"))) == [QUESTION, *BACK, output("a")]


@pytest.mark.parametrize(
    "own",
    [
        raw("reasoning", id="rs_2"),
        raw("reasoning", encrypted_content="else"),
        raw("reasoning"),
        raw("message", id="rs_1"),
    ],
)
def test_reasoning_that_was_not_remembered_leaves_the_repeated_answer_as_it_is(own: msgspec.Raw) -> None:
    history: list[HistoryItem] = [QUESTION, past(own), call("a"), output("a")]
    assert put_back(history, remembered_turns(call("a"))) == history


# --- keys and texts ------------------------------------------------------------------------------


@given(st.lists(CALLS, unique=True), st.sampled_from(["function", "custom"]))
def test_every_call_has_its_own_key(calls: list[HistoryCall], kind: str) -> None:
    assert len({call_key(each) for each in calls}) == len(calls)
    for each in calls:
        other = msgspec.structs.replace(each, kind=kind, id="item")
        assert (call_key(other) == call_key(each)) is (kind == each.kind)


def test_the_fields_of_a_key_do_not_run_into_each_other() -> None:
    assert call_key(HistoryCall("a", "bc", "d")) != call_key(HistoryCall("ab", "c", "d"))
    assert call_key(HistoryCall("a", "b", "\ud800")) != call_key(HistoryCall("a", "b", "?"))


def test_the_key_of_a_call_is_the_one_of_earlier_releases_since_it_is_on_disk() -> None:
    key = "237359e89d39c5a3fe80ad78cf75044fcbe516675becf28ab041acaf853544e0"
    assert call_key(HistoryCall("call_1", "get", '{"b": 1.0, "a": [2]}')).hex() == key


@given(HISTORIES)
def test_there_is_a_key_for_every_call(history: list[HistoryItem]) -> None:
    assert keys_of(history) == [call_key(item) for item in history if isinstance(item, HistoryCall)]


@given(st.lists(WORDS))
def test_texts_are_joined_as_clients_echo_them(texts: list[str]) -> None:
    assert assistant_text([message(text) for text in texts]) == "\n\n".join(text for text in texts if text)


# --- as properties -------------------------------------------------------------------------------


@st.composite
def memories(draw: st.DrawFn) -> dict[bytes, RememberedTurn]:
    """Turns of which something is remembered, of calls that are likely to stand in a history."""
    recalled: dict[bytes, RememberedTurn] = {}
    for number in range(draw(st.integers(0, 3))):
        visible = draw(st.lists(CALLS, min_size=1, max_size=2, unique_by=lambda each: each.call_id))
        ids = [each.call_id for each in visible]
        hidden: dict[str, str | list[dict[str, Any]]] = draw(
            st.dictionaries(st.sampled_from(["h1", "h2"]), st.just("no"))
        )
        items = [raw("reasoning", id=f"r{number}"), raw("function_call", turn=number)]
        said_before = draw(WORDS)
        keys = [call_key(each) for each in visible]
        calls = draw(st.permutations([*ids, *hidden]))
        recalled[keys[0]] = RememberedTurn(items, hidden, calls, ids, said_before, "m", key_of_all(keys))
    return recalled


@given(HISTORIES)
def test_where_nothing_is_remembered_nothing_changes(history: list[HistoryItem]) -> None:
    assert put_back(history, {}) == history


@given(HISTORIES, memories(), st.sampled_from(["m", "other"]))
def test_nothing_that_the_client_said_is_lost_or_moved(
    history: list[HistoryItem], recalled: dict[bytes, RememberedTurn], model: str
) -> None:
    after = put_back(history, recalled, model)

    def questions(items: Sequence[HistoryItem]) -> list[HistoryItem]:
        return [item for item in items if isinstance(item, HistoryMessage) and item.role != "assistant"]

    assert questions(after) == questions(history)
    left = list(after)
    for item in history:
        if isinstance(item, HistoryOutput):
            left.remove(item)  # raises where it is lost
    ours = [item for item in left if isinstance(item, HistoryOutput)]
    assert all(item.call_id in ("h1", "h2") for item in ours)


@given(HISTORIES, memories())
def test_what_is_not_put_back_stays_in_its_order(
    history: list[HistoryItem], recalled: dict[bytes, RememberedTurn]
) -> None:
    """What the model said is either as the client echoes it, in its order, or replaced as a whole."""
    after = put_back(history, recalled)
    kept = [item for item in after if isinstance(item, HistoryMessage | HistoryCall)]
    rest = iter([item for item in history if isinstance(item, HistoryMessage | HistoryCall)])
    assert all(any(item is other for other in rest) for item in kept)


@given(HISTORIES, memories())
def test_no_memory_is_put_back_twice(
    history: list[HistoryItem], recalled: dict[bytes, RememberedTurn]
) -> None:
    after = [item.json for item in put_back(history, recalled) if isinstance(item, RawHistoryItem)]
    ours = [each for each in after if b'"turn"' in each]
    assert len(ours) == len(set(ours))
