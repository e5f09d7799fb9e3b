"""A model server gives a field of an item a wrong type: the client gets the answer, and a later turn goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.http_responses.asking import create, events_of
from tests.parts.upstream.serving import Upstream, proxy_before
from tests.parts.upstream.test_hosted_tools import BEGUN, CODE_ITEM, HOSTED, IMAGE_ITEM, SEARCH_ITEM, TOOLS
from tests.parts.upstream.test_responses_upstream import CALL_ITEM, THOUGHT, event, message
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
