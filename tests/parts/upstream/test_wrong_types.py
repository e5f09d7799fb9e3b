"""A model server gives a field of an item a wrong type: the client gets the answer, and a later turn goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.http_responses.asking import create, events_of
from tests.model_server import Upstream, proxy_before
from tests.parts.upstream.test_hosted_tools import BEGUN, CODE_ITEM, HOSTED, IMAGE_ITEM, SEARCH_ITEM, TOOLS
from tests.response_events import CALL_ITEM, THOUGHT, event, message
from tests.weather_tool import RESPONSES_WEATHER

SAID: Final = message("Hello.")
GIVEN: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "reasoning": (THOUGHT | {"content": [], "status": "completed"}, SAID),
    "message": (SAID | {"phase": "final_answer"},),
    "call": (SAID, CALL_ITEM),
    "search": (SEARCH_ITEM, SAID),
    "code": (CODE_ITEM, SAID),
    "image": (IMAGE_ITEM, SAID),
}
WRONG: Final[tuple[Any, ...]] = (7, True, None, "x", [7], ["x"], [[]], [{"type": 7, "text": 7}], {"x": 7})
FIELDS: Final = [
    (kind, place, field)
    for kind, items in GIVEN.items()
    for place, item in enumerate(items)
    for field in item
    if field not in ("type", "name") and (item is not SAID or kind == "message")
]


ASKED: Final[Any] = {
    "model": "small",
    "tools": [*TOOLS, RESPONSES_WEATHER],
    "include": ["reasoning.encrypted_content"],
}


def answer_of(items: Sequence[dict[str, Any]], *, bare: bool = False) -> bytes:
    """`bare`: the items are only in the last event."""
    out = [
        event("response.created", response={"id": "resp_1", "object": "response", "status": "in_progress"})
    ]
    if not bare:
        out += [
            event("response.output_item.done", item=item, output_index=at) for at, item in enumerate(items)
        ]
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": items}
    return b"".join([*out, event("response.completed", response=response)])


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(("kind", "place", "field"), FIELDS)
async def test_a_field_of_a_wrong_type_breaks_no_answer_and_no_later_turn(
    kind: str, place: int, field: str, bare: bool, server: Upstream, tmp_path: Path
) -> None:
    table = {"hosted_tools": HOSTED}
    async with proxy_before(server.url, tmp_path, agent="openai-responses", table=table) as proxy:
        for value in WRONG:
            items = [dict(each) for each in GIVEN[kind]]
            items[place][field] = value
            for more in ({}, {"stream": True}, {"stream": True, "background": True}):
                server.script = [answer_of(items, bare=bare), answer_of([SAID])]
                reply = await create(proxy, "Hi", **ASKED, **more)
                assert reply.status == 200, (value, reply.text)
                found = events_of(reply.text)[-1]["response"] if more else reply.body
                assert found["status"] == "completed", value
                if "background" in more:
                    again = await proxy.send("GET", f"/v1/responses/{found['id']}?stream=true")
                    assert again.text == reply.text
                calls = [each["call_id"] for each in found["output"] if each["type"] == "function_call"]
                outputs = [{"type": "function_call_output", "call_id": id, "output": "sunny"} for id in calls]
                given = [*outputs, {"role": "user", "content": "?"}]
                later = await create(proxy, given, **ASKED, previous_response_id=found["id"])
                assert later.status == 200, (value, later.text)


TEXT: Final = {"type": "output_text", "text": "Hello."}
SUMMARY: Final = {"type": "summary_text", "text": "Well."}
LOGS: Final = {"type": "logs", "logs": "42"}
FOUND: Final[Any] = SEARCH_ITEM["results"][0]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(
    ("item", "field", "given", "kept"),
    [
        (SAID, "content", [TEXT, None], ["Hello."]),
        (SAID, "content", [{"type": None}, TEXT], ["Hello."]),
        (SAID, "content", [TEXT, {"type": "output_text", "text": 5}], ["Hello."]),
        (THOUGHT, "summary", [SUMMARY, None], ["Well."]),
        (CODE_ITEM, "outputs", [LOGS, {"type": "files", "files": []}], ["42"]),
        (SEARCH_ITEM, "results", [None, FOUND], ["It was me."]),
        (SEARCH_ITEM, "results", [FOUND | {"attributes": {"a": None}}], ["It was me."]),
    ],
)
async def test_a_list_keeps_the_elements_that_have_their_type(
    item: dict[str, Any],
    field: str,
    given: list[Any],
    kept: list[str],
    bare: bool,
    server: Upstream,
    tmp_path: Path,
) -> None:
    wrong = item | {field: given}
    items = [wrong] if item is SAID else [wrong, SAID]
    server.script = [answer_of(items, bare=bare)]
    table = {"hosted_tools": HOSTED}
    include = {"include": ["code_interpreter_call.outputs", "file_search_call.results"]}
    async with proxy_before(server.url, tmp_path, agent="openai-responses", table=table) as proxy:
        answer = await create(proxy, "Hi", **ASKED | include)
    shown = answer.body["output"][0][field]
    assert [each.get("text", each.get("logs")) for each in shown] == kept


@pytest.mark.parametrize("bare", [False, True])
async def test_arguments_that_are_an_object_reach_the_client_as_a_text(
    bare: bool, server: Upstream, tmp_path: Path
) -> None:
    server.script = [answer_of([CALL_ITEM | {"arguments": {"city": "Paris"}}], bare=bare)]
    async with proxy_before(server.url, tmp_path, agent="openai-responses") as proxy:
        answer = await create(proxy, "Hi", **ASKED | {"tools": [RESPONSES_WEATHER]})
    assert json.loads(answer.body["output"][0]["arguments"]) == {"city": "Paris"}


@pytest.mark.parametrize("value", [7.5, None, ["x"]])
@pytest.mark.parametrize(
    ("at", "name", "field"),
    [
        (0, "code_interpreter_call_code.delta", "delta"),
        (0, "code_interpreter_call_code.done", "code"),
        (2, "image_generation_call.partial_image", "partial_image_index"),
        (2, "image_generation_call.partial_image", "partial_image_b64"),
    ],
)
async def test_an_event_of_a_hosted_tool_with_a_wrong_type_is_left_out(
    at: int, name: str, field: str, value: Any, server: Upstream, tmp_path: Path
) -> None:
    given = {"delta": "x", "code": "x", "partial_image_index": 0, "partial_image_b64": "eA==", field: value}
    begun = BEGUN[at]
    place = {"item_id": begun["id"], "output_index": 0}
    added = event("response.output_item.added", item=begun, output_index=0)
    wrong = event(f"response.{name}", **given, **place)
    whole = answer_of([(CODE_ITEM, SEARCH_ITEM, IMAGE_ITEM)[at], SAID])
    server.script = [added + wrong + whole]
    table = {"hosted_tools": HOSTED}
    async with proxy_before(server.url, tmp_path, agent="openai-responses", table=table) as proxy:
        events = events_of((await create(proxy, "Hi", **ASKED, stream=True)).text)
    assert f"response.{name}" not in [each["type"] for each in events]
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("field", ["type", "url", "title", "start_index"])
async def test_an_annotation_of_a_wrong_type_is_left_out(
    field: str, bare: bool, server: Upstream, tmp_path: Path
) -> None:
    good = {"type": "url_citation", "url": "http://a", "title": "A", "start_index": 0, "end_index": 2}
    content = [{"type": "output_text", "text": "Hello.", "annotations": [good | {field: [7]}, good]}]
    server.script = [answer_of([SAID | {"content": content}], bare=bare)]
    async with proxy_before(server.url, tmp_path, agent="openai-responses") as proxy:
        answer = await create(proxy, "Hi")
    assert answer.body["output"][0]["content"][0]["annotations"] == [good]


@pytest.mark.parametrize("bare", [False, True])
async def test_an_annotation_with_null_for_a_text_is_passed_on_without_it(
    bare: bool, server: Upstream, tmp_path: Path
) -> None:
    cited = {"type": "url_citation", "url": "http://a", "start_index": 0, "end_index": 2}
    content = [TEXT | {"annotations": [cited | {"title": None}]}]
    server.script = [answer_of([SAID | {"content": content}], bare=bare)]
    async with proxy_before(server.url, tmp_path, agent="openai-responses") as proxy:
        answer = await create(proxy, "Hi")
    assert answer.body["output"][0]["content"][0]["annotations"] == [cited]
