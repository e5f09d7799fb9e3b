"""Schemas that are a trap: each request gets an answer soon, and the server serves others meanwhile."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final

import pytest

from tests.waiting import PATIENCE

DRAFT_4: Final = {"$schema": "http://json-schema.org/draft-04/schema#"}
MIXED: Final = [each for n in range(11_000) for each in (n, str(n))][:18_000]
DOUBLING: Final = {
    "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)} | {"a60": {}},
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a0"}},
    "required": ["a"],
}
ANCHORS: Final = {
    "$defs": {f"a{n}": {"$anchor": f"n{n}", "$ref": "#n0"} for n in range(500)},
    "type": "object",
}
IDS: Final = {
    "$id": "http://x/",
    "$defs": {f"a{n}": {"$id": f"n{n}", "$ref": "n0"} for n in range(500)},
    "type": "object",
}
DEEP: Final = json.loads('{"not":' * 60 + "{}" + "}" * 60)
WIDE: Final = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(4_000)}}


def answer_to(body: dict[str, Any], port: int) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def request_with(said: str, **more: Any) -> dict[str, Any]:
    return {"model": "codex-5", "messages": [{"role": "user", "content": said}], **more}


def with_response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def tools(*schemas: Any) -> dict[str, Any]:
    return {
        "tools": [
            {"type": "function", "function": {"name": f"f{n}", "parameters": schema, "strict": True}}
            for n, schema in enumerate(schemas)
        ]
    }


@pytest.mark.parametrize(
    "schema", [{**DRAFT_4, "type": "object", "properties": {"a": {"enum": MIXED}}}, ANCHORS, IDS, DEEP, WIDE]
)
@pytest.mark.parametrize("place", [with_response_format, tools])
def test_a_schema_that_took_minutes_holds_nobody_up(schema: Any, place: Any, port: int) -> None:
    status, answer = answer_to(request_with("[[fake:text say='{}']]", **place(schema)), port)
    assert status in (200, 400, 502), answer


def test_many_large_tools_hold_nobody_up(port: int) -> None:
    many = [{"type": "object", "title": str(n), "description": "x" * 20_000} for n in range(128)]
    assert answer_to(request_with("Hello", **tools(*many)), port)[0] == 200


@pytest.mark.exhaustive
def test_an_answer_that_cannot_be_checked_in_time_is_a_fault_with_a_name(port: int) -> None:
    said = "[[fake:text say='{\"a\": 1}']]"
    status, answer = answer_to(request_with(said, **with_response_format(DOUBLING)), port)
    assert (status, answer["error"]["code"]) == (502, "schema_check_failed")
