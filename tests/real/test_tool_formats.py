"""Structured output through the real binary: what the model is told, what is checked, what the client gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.codex_home import MODEL
from tests.real.model_plans import call, plan, say
from tests.real.model_scenarios import text_of
from tests.real.model_server import ModelServer, Request
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.tool_loop import call_ids, input_of, loop_of

STRICT = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LOOSE = {"type": "object", "properties": {"city": {"type": "string", "minLength": 3}}, "required": ["city"]}
GOOD, BAD = '{"city": "Paris"}', '{"town": "Paris"}'
ON = {"structured_output": True}


def schema(value: dict[str, Any], *, strict: bool | None = None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": value, "strict": strict}}


def developer_text(call: Request) -> str:
    """What developer messages tell the model."""
    return "\n".join(text_of(item) for item in input_of(call) if item.get("role") == "developer")


def format_of(call: Request) -> Any:
    return (call.body.get("text") or {}).get("format")


@pytest.mark.sampled(every=2)
@EVERY_WAY
async def test_a_schema_that_the_agent_takes_is_given_to_the_provider(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way, **ON) as loop:
        loop.request["response_format"] = schema(STRICT, strict=True)
        loop.say(plan([call(city="Paris")], [say(GOOD)]))
        for id in call_ids(await loop.ask()):
            loop.output(id, "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == GOOD
    for each in model_server.calls:
        assert format_of(each)["type"] == "json_schema"
        assert format_of(each)["schema"] == {"title": "answer", **STRICT}
        assert format_of(each)["strict"] is True
        assert developer_text(each) == ""


USER_INFO = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
USER_INFO_FITTED = {
    "title": "answer",
    "type": "object",
    "properties": {"name": {"type": ["string", "null"]}, "age": {"type": ["integer", "null"]}},
    "additionalProperties": False,
    "required": ["name", "age"],
}


@EVERY_WAY
async def test_a_schema_with_optional_properties_is_made_strict_and_undone_in_the_answer(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way, **ON) as loop:
        loop.request |= {"response_format": schema(USER_INFO, strict=True), "tools": []}
        for said, shown in (
            ('{"name": "Ada", "age": null}', '{"name":"Ada"}'),
            ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}'),
        ):
            loop.say(plan([say(said)]))
            assert (await loop.ask()).choices[0].message.content == shown
    assert len(model_server.calls) == 2
    for each in model_server.calls:
        assert format_of(each)["schema"] == USER_INFO_FITTED
        assert format_of(each)["strict"] is True
        assert developer_text(each) == ""
    # A thread that was kept goes on with what its model said, a new one with what the client saw.
    (earlier,) = [
        text_of(item) for item in input_of(model_server.calls[1]) if item.get("role") == "assistant"
    ]
    assert earlier == ('{"name": "Ada", "age": null}' if way == "kept" else '{"name":"Ada"}')


@pytest.mark.exhaustive
async def test_a_schema_with_defaults_and_properties_that_may_be_null_goes_to_the_provider_too(
    proxies: Proxies, model_server: ModelServer
) -> None:
    nullable = {"type": ["string", "null"]}
    given = {
        "type": "object",
        "properties": {
            "nick": nullable,
            "zip": {**nullable, "default": None},
            "age": {"default": 5, "type": "integer"},
        },
    }
    async with loop_of(proxies, "kept", **ON) as loop:
        loop.request |= {"response_format": schema(given), "tools": []}
        loop.say(plan([say('{"nick": {"value_or_null": null}, "zip": null, "age": null}')]))
        assert (await loop.ask()).choices[0].message.content == '{"nick":null,"zip":null}'
    (call,) = model_server.calls
    assert (format_of(call)["strict"], developer_text(call)) == (True, "")
    shown = format_of(call)["schema"]["properties"]
    assert shown["nick"]["anyOf"][0]["properties"] == {"value_or_null": nullable}
    assert shown["zip"] == {**nullable, "description": "Default: null"}
    assert shown["age"] == {"type": ["integer", "null"], "description": "Default: 5"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["kept", "replayed"])
async def test_a_chain_of_responses_goes_on_from_what_was_shown(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way, **ON) as loop:
        client = (await loop.serve()).client
        text: Any = {"format": {"type": "json_schema", "name": "answer", "schema": USER_INFO, "strict": True}}
        previous: str | None = None
        for said, shown in (
            ('{"name": "Ada", "age": null}', '{"name":"Ada"}'),
            ('{"name": null, "age": 36}', '{"age":36}'),
        ):
            answer = await client.responses.create(
                model=MODEL, input=plan([say(said)]), text=text, previous_response_id=previous
            )
            assert answer.output_text == shown
            previous = answer.id
    assert [format_of(each)["schema"] for each in model_server.calls] == [USER_INFO_FITTED] * 2
    (earlier,) = [
        text_of(item) for item in input_of(model_server.calls[1]) if item.get("role") == "assistant"
    ]
    assert earlier == ('{"name": "Ada", "age": null}' if way == "kept" else '{"name":"Ada"}')


HELD = [
    pytest.param(schema(LOOSE), id="another schema"),
    pytest.param({"type": "json_object"}, id="json_object"),
]


@pytest.mark.exhaustive
@EVERY_WAY
@pytest.mark.parametrize("wanted", HELD)
async def test_a_format_other_than_the_known_ones_is_reported_and_checked(
    proxies: Proxies, model_server: ModelServer, way: str, wanted: dict[str, Any]
) -> None:
    async with loop_of(proxies, way, **ON) as loop:
        loop.request["response_format"] = wanted
        loop.say(plan([call(city="Paris")], [say(GOOD)]))
        for id in call_ids(await loop.ask()):
            loop.output(id, "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == GOOD
    for each in model_server.calls:
        assert format_of(each) is None
        assert "JSON" in developer_text(each)
