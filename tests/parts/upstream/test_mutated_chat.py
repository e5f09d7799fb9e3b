"""A Chat Completions server gets ids or indexes of calls wrong, or repeats itself: the answer is right or an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from codex_proxy.core.events import ItemStarted
from codex_proxy.core.items import Tool, ToolCall
from codex_proxy.parts.upstream.stream import End, Head
from tests.model_server import DONE, chunk, event
from tests.parts.upstream.test_openai_chat_dialect import STRICT_TURN, events_of, summary_of, turn_with_tool

TOOLS: Final = tuple(Tool(name=name) for name in ("get_weather", "now"))
OSLO: Final = ("get_weather", ('{"city"', ':"Oslo"}'))
ROME: Final = ("get_weather", ('{"city":', '"Rome"}'))
NOW: Final = ("now", ("{", "}"))
NOW_UNSAID: Final = ("now", ())
"""A call whose server says nothing of its arguments."""
OSLO_UNSAID: Final = ("get_weather", ())
Call = tuple[str, tuple[str, ...]]
IDS: Final = ("stable", "each delta", "shared", "missing", "first", "empty", "number")
INDEXES: Final = ("stable", "zero", "missing", "boolean", "text", "negative", "huge")
NAMES: Final = ("first", "each delta")
ORDERS: Final = ("in turn", "interleaved", "together")
"""`together`: each chunk has a delta of each call."""


def deltas_of(
    calls: Sequence[Call], ids: str, indexes: str, *, names: str, whole: bool, order: str
) -> list[dict[str, Any]]:
    """The deltas of calls, with such ids and indexes, in one of `ORDERS`."""
    rows: list[list[dict[str, Any]]] = []
    for place, (name, pieces) in enumerate(calls):
        row = []
        for number, piece in enumerate(("".join(pieces),) if whole else ("", *pieces)):
            function = {"arguments": piece} | ({"name": name} if names == "each delta" or not number else {})
            entry: dict[str, Any] = {"function": function}
            given = {
                "stable": f"c{place}",
                "each delta": f"c{place}_{number}",
                "shared": "c",
                "first": f"c{place}" if not number else None,
                "empty": "",
                "number": 7,
            }.get(ids)
            index = {
                "stable": place,
                "zero": 0,
                "boolean": bool(place),
                "text": str(place),
                "negative": -1 - place,
                "huge": 10**15 + place,
            }.get(indexes)
            entry |= ({} if given is None else {"id": given}) | ({} if index is None else {"index": index})
            row.append(entry)
        rows.append(row)
    if order == "in turn":
        lists = [[entry] for row in rows for entry in row]
    else:
        lists = [[row[n] for row in rows if n < len(row)] for n in range(max(map(len, rows)))]
        lists = lists if order == "together" else [[entry] for entries in lists for entry in entries]
    return [{"tool_calls": entries} for entries in lists]


def answer_to(*chunks: dict[str, Any]) -> dict[str, Any]:
    body = b"".join(map(event, chunks)) + DONE
    found = [
        summary_of(events_of(turn, [Head(200), body, End()]))
        for turn in (turn_with_tool(tools=TOOLS), STRICT_TURN)
    ]
    return found[0]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("whole", [False, True], ids=["in pieces", "whole"])
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("indexes", INDEXES)
@pytest.mark.parametrize("ids", IDS)
def test_no_call_is_lost_or_joined_whatever_its_id_and_index(
    ids: str, indexes: str, names: str, whole: bool, order: str
) -> None:
    told_apart = indexes in ("stable", "text", "negative", "huge") or (ids == "stable" and indexes != "zero")
    if order != "in turn" and not whole and not told_apart:
        return  # nobody can tell
    for calls in ((OSLO,), (OSLO, ROME), (OSLO, OSLO), (OSLO, NOW), (NOW, OSLO, ROME), (OSLO, NOW, ROME)):
        check_calls(calls, ids, indexes, names=names, whole=whole, order=order)


@pytest.mark.sampled(every=5, first=2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("whole", [False, True], ids=["in pieces", "whole"])
@pytest.mark.parametrize("indexes", INDEXES)
@pytest.mark.parametrize("ids", IDS)
def test_calls_without_arguments_stay_as_many_as_they_are(
    ids: str, indexes: str, whole: bool, order: str
) -> None:
    told_apart = indexes in ("stable", "text", "negative", "huge")
    told_by_id = ids in ("stable", "each delta", "first")
    for names in NAMES:
        check_calls((NOW_UNSAID,), ids, indexes, names=names, whole=whole, order=order)
        check_calls((NOW_UNSAID, OSLO_UNSAID), ids, indexes, names=names, whole=whole, order=order)
        if told_apart or (ids != "shared" and (order == "in turn" or whole)):
            check_calls((OSLO, OSLO_UNSAID, NOW_UNSAID), ids, indexes, names=names, whole=whole, order=order)
        in_one_list = order == "together" and ids != "shared"
        for calls in ((NOW_UNSAID, NOW_UNSAID, NOW_UNSAID), (NOW_UNSAID, NOW_UNSAID, OSLO)):
            if told_apart or ((whole or calls[-1] is not OSLO) and (told_by_id or in_one_list)):
                check_calls(calls, ids, indexes, names=names, whole=whole, order=order)


def check_calls(
    calls: Sequence[Call], ids: str, indexes: str, *, names: str, whole: bool, order: str
) -> None:
    """Checks that the client gets these calls."""
    deltas = deltas_of(calls, ids, indexes, names=names, whole=whole, order=order)
    found = answer_to(*map(chunk, deltas), chunk({}, "tool_calls"))
    said = [(name, text) for kind, name, text in found["items"] if kind == "ToolCall"]
    assert [*map(json.loads, (text for _, text in said))], "the arguments are JSON"
    known = [(name, "".join(pieces) or "{}") for name, pieces in calls]
    assert sorted({*said}) == sorted({*known})
    assert len(said) in (len(known), 2 * len(known)), "once as an item, or also as a request"


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
def test_an_id_that_comes_later_may_be_that_of_another_call(finish: str) -> None:
    first = {"index": 0, "id": "x", "function": {"name": "now", "arguments": '{"a'}}
    second = {"index": 1, "function": {"name": "now", "arguments": '{"b'}}
    deltas = [first, second, {"index": 1, "id": "x"}]
    ends = [{"index": n, "function": {"arguments": '":1}'}} for n in (0, 1)] if finish == "tool_calls" else []
    found = answer_to(*(chunk({"tool_calls": [each]}) for each in [*deltas, *ends]), chunk({}, finish))
    assert found["stop"] == finish
    assert found["fault"] is None
    body = b"".join(event(chunk({"tool_calls": [each]})) for each in [*deltas, *ends])
    log = events_of(turn_with_tool(tools=TOOLS), [Head(200), body + event(chunk({}, finish)) + DONE, End()])
    items = [each.item for each in log if isinstance(each, ItemStarted)]
    assert len({item.call_id for item in items if isinstance(item, ToolCall)}) == 2


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
def test_a_call_may_have_the_id_message_or_reasoning(finish: str) -> None:
    arguments = '{"a' if finish == "length" else "{}"
    calls = [
        {"index": n, "id": id, "function": {"name": "now", "arguments": arguments}}
        for n, id in enumerate(("message", "reasoning"))
    ]
    said = {"content": "Hi.", "tool_calls": calls}
    found = answer_to(chunk(said), chunk({"reasoning_content": "Hm."}), chunk({"content": "Ho."}, finish))
    assert (found["stop"], found["fault"]) == (finish, None)
    kinds = [kind for kind, *_ in found["items"]]
    assert kinds[:5] == ["Message", "ToolCall", "ToolCall", "Reasoning", "Message"]


def message_chunk(message: dict[str, Any], finish: str | None, delta: Any = None) -> dict[str, Any]:
    made = chunk({}, finish)
    made["choices"][0] |= {"message": message, "delta": delta}
    return made


@pytest.mark.parametrize("delta", [None, {}])
def test_a_whole_message_behind_its_deltas_is_said_once(delta: Any) -> None:
    pieces = [chunk({"content": "Hel"}), chunk({"content": "lo."})]
    for said in ("Hello.", "Hello. Bye.", "Hello.\n", ""):
        found = answer_to(*pieces, message_chunk({"role": "assistant", "content": said}, "stop", delta))
        [[_, _, text]] = found["items"]
        assert text.strip() == (said.strip() or "Hello.")
    found = answer_to(*pieces, message_chunk({"content": "Another."}, "stop", delta))
    assert found["stop"] == "failed"
    assert "two versions" in found["message"]


def test_a_whole_message_behind_the_deltas_of_its_calls_is_said_once() -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "c0", "type": "function", "function": function}
    deltas = deltas_of((OSLO,), "stable", "stable", names="first", whole=False, order="in turn")
    last = message_chunk({"content": None, "tool_calls": [call]}, "tool_calls")
    for given in (deltas, deltas[:2], deltas[:1], []):
        texts = {json.dumps(json.loads(text)) for *_, text in answer_to(*map(chunk, given), last)["items"]}
        assert texts == {'{"city": "Oslo"}'}
    other = {**call, "function": {**function, "arguments": '{"city":"Rome"}'}}
    assert answer_to(*map(chunk, deltas), message_chunk({"tool_calls": [other]}, "stop"))["stop"] == "failed"


def test_messages_in_place_of_deltas_are_pieces() -> None:
    found = answer_to(message_chunk({"content": "ha"}, None), message_chunk({"content": " ho"}, "stop"))
    assert [text for *_, text in found["items"]] == ["ha ho"]
