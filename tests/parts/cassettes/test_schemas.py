"""A turn with a schema that was recorded on one API is found on every other one, whatever name its schema has there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from codex_proxy.app.server import Server
from tests.parts.cassettes.talking import running_server

ANSWER: Final = {"city": "Oslo"}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "title": "City"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "a schema": SCHEMA,
    "a schema with a title": {"title": "Place", **SCHEMA},
    "a schema with its own description": {"description": "A place.", **SCHEMA},
    "any object": {"type": "object"},
    "a reference": {"$ref": "#/$defs/Place", "$defs": {"Place": {"title": "Place", **SCHEMA}}},
}
ASKED: Final = f"[[fake:text say={json.dumps(json.dumps(ANSWER))}]] Which city?"
APIS: Final = ("chat", "responses", "messages", "ollama")


async def ask(server: Server, api: str, schema: dict[str, Any], name: str, *, stream: bool = False) -> Any:
    """Asks for an answer by the schema; returns the answer's JSON. `name` is left out where an API has none."""
    messages = [{"role": "user", "content": ASKED}]
    named = {"name": name, "schema": schema}
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": (
            "v1/chat/completions",
            {"messages": messages, "response_format": {"type": "json_schema", "json_schema": named}},
        ),
        "responses": ("v1/responses", {"input": ASKED, "text": {"format": {"type": "json_schema", **named}}}),
        "messages": (
            "v1/messages",
            {
                "messages": messages,
                "max_tokens": 999,
                "output_config": {"format": {"type": "json_schema", "schema": schema}},
            },
        ),
        "ollama": ("api/chat", {"messages": messages, "format": schema}),
    }
    path, body = requests[api]
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://127.0.0.1:{server.port}/{path}", json={"model": "codex-5", "stream": stream, **body}
        ) as reply,
    ):
        said = await reply.text()
        assert reply.status == 200, said
    return json.loads(said) if not stream else said


def text_of(api: str, answer: Any) -> str:
    if api == "chat":
        return str(answer["choices"][0]["message"]["content"])
    if api == "responses":
        return str(answer["output"][-1]["content"][0]["text"])
    return str(answer["content"][0]["text"] if api == "messages" else answer["message"]["content"])


@pytest.mark.parametrize("recorded_on", APIS)
async def test_a_turn_with_a_schema_is_found_on_every_api_under_every_name(
    tmp_path: Path, recorded_on: str
) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        for schema in SCHEMAS.values():
            await ask(server, recorded_on, schema, "answer")
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        for what, schema in SCHEMAS.items():
            for api in APIS:
                for name in ("answer", "other-name_2"):
                    answer = await ask(server, api, schema, name)
                    assert json.loads(text_of(api, answer)) == ANSWER, (what, api, name)
                assert await ask(server, api, schema, "Place", stream=True)


async def test_a_turn_with_another_schema_is_not_found(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        await ask(server, "chat", SCHEMA, "answer")
    other = {**SCHEMA, "properties": {"city": {"type": "string", "title": "Town"}}}
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        for api in APIS:
            with pytest.raises(AssertionError, match=r"cassette_missing|differs in format\.properties"):
                await ask(server, api, other, "answer")
