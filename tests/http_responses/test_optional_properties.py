"""Answers under schemas with optional properties, through the official SDK: null for what is absent never shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.http.serving import fake_proxy
from tests.http_responses.asking import client_of

pytestmark = pytest.mark.sampled(every=2, first=1)

USER_INFO = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
"""The contract's own example: `strict`, and neither closed nor with a word of what is required."""
TEXT: Any = {"format": {"type": "json_schema", "name": "user_info", "schema": USER_INFO, "strict": True}}
RESPONSE_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "user_info", "schema": USER_INFO, "strict": True},
}
SAYS_NULL = """[[fake:text say='{"name": "Ada", "age": null}']]"""
CLIENT_ANSWER = '{"name":"Ada"}'


@pytest.fixture(params=["proto", "app-server"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    async with fake_proxy(tmp_path, fake_dialect=request.param) as proxy, client_of(proxy) as made:
        yield made


async def chunks(client: AsyncOpenAI, prompt: str, response_format: Any) -> list[str]:
    """The pieces of a streamed chat answer."""
    stream = await client.chat.completions.create(
        model="codex-5",
        messages=[{"role": "user", "content": prompt}],
        response_format=response_format,
        stream=True,
    )
    deltas = [each.choices[0].delta.content async for each in stream if each.choices]
    return [each for each in deltas if each]


async def test_a_response_comes_without_the_nulls_and_is_stored_so(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model="codex-5", input=SAYS_NULL, text=TEXT)
    assert answer.output_text == CLIENT_ANSWER
    assert (await client.responses.retrieve(answer.id)).output_text == CLIENT_ANSWER


async def test_a_streamed_response_says_the_text_once_and_agrees_with_its_end(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="codex-5", input=SAYS_NULL, text=TEXT, stream=True)
    events = [event async for event in stream]
    assert [each.delta for each in events if each.type == "response.output_text.delta"] == [CLIENT_ANSWER]
    assert [each.text for each in events if each.type == "response.output_text.done"] == [CLIENT_ANSWER]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == CLIENT_ANSWER


async def test_a_later_response_goes_on_from_what_was_shown(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=SAYS_NULL, text=TEXT)
    later = await client.responses.create(
        model="codex-5", input="[[fake:echo]]", previous_response_id=first.id
    )
    assert json.dumps(CLIENT_ANSWER) in later.output_text


async def test_a_chat_answer_comes_without_the_nulls(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="codex-5",
        messages=[{"role": "user", "content": SAYS_NULL}],
        response_format=RESPONSE_FORMAT,
    )
    assert answer.choices[0].message.content == CLIENT_ANSWER


async def test_a_streamed_chat_answer_is_sent_once(client: AsyncOpenAI) -> None:
    assert await chunks(client, SAYS_NULL, RESPONSE_FORMAT) == [CLIENT_ANSWER]


async def test_without_optional_properties_the_text_streams_as_it_comes(client: AsyncOpenAI) -> None:
    schema = {**USER_INFO, "required": ["name", "age"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "user_info", "schema": schema}}
    pieces = await chunks(client, """[[fake:text say='{"name": "Ada", "age": 36}']]""", wanted)
    assert "".join(pieces) == '{"name": "Ada", "age": 36}'
    assert len(pieces) > 1


async def test_an_answer_that_breaks_the_clients_schema_is_no_answer(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        await client.responses.create(
            model="codex-5", input="""[[fake:text say='{"name": 5, "age": null}']]""", text=TEXT
        )
    assert failed.value.code == "invalid_structured_output"


class Person(BaseModel):
    """What a program without the SDK's own strict schemas sends: defaults, and properties that may be null."""

    name: str
    nick: str | None = None
    age: int = 5


MAY_BE_NULL = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "nick": {"type": ["string", "null"]}},
    "required": ["name"],
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("schema", "said", "shown"),
    [
        (
            Person.model_json_schema(),
            '{"name": "Ada", "nick": null, "age": null}',
            '{"name":"Ada","nick":null}',
        ),
        (MAY_BE_NULL, '{"name": "Ada", "nick": null}', '{"name":"Ada"}'),
        (MAY_BE_NULL, '{"name": "Ada", "nick": {"value_or_null": null}}', '{"name":"Ada","nick":null}'),
        (MAY_BE_NULL, '{"name": "Ada", "nick": {"value_or_null": "A"}}', '{"name":"Ada","nick":"A"}'),
    ],
)
async def test_defaults_and_properties_that_may_be_null_fit_and_are_undone_too(
    client: AsyncOpenAI, schema: dict[str, Any], said: str, shown: str
) -> None:
    text: Any = {"format": {"type": "json_schema", "name": "person", "schema": schema}}
    answer = await client.responses.create(model="codex-5", input=f"[[fake:text say='{said}']]", text=text)
    assert answer.output_text == shown
    made_up = await client.responses.create(model="codex-5", input="Hello.", text=text)
    jsonschema.validate(json.loads(made_up.output_text), schema)
