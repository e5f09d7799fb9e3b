"""An upstream that refuses any one of the forms in which this server sends a request, in whatever words, gets another
one, and the turn is answered: on every API, streamed and whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from codex_proxy.parts.upstream.openai_chat import request_body as chat_forms
from codex_proxy.parts.upstream.openai_responses import request_body as responses_forms
from codex_proxy.parts.upstream.turn import ALTERNATING
from tests.fuzz.requests import PIXEL
from tests.growth import assert_linear
from tests.http.serving import Proxy
from tests.model_server import Case, Upstream, call, proxy_before, stream, text, upstream
from tests.response_events import message, response_with

Body = dict[str, Any]

ANSWER: Final = '{"city":"Oslo"}'
SPELLINGS: Final = (
    (400, "application/json", '{"error":{"message":"Bad.","type":"invalid_request_error","param":"temperature"}}'),
    (400, "application/json", '{"error":{"message":"Invalid input","code":"invalid_union","param":null}}'),
    (400, "application/json", '{"object":"error","message":"[{...}]","type":"BadRequestError","code":400}'),
    (422, "application/json", '{"detail":[{"loc":["body","x",0],"msg":"Input should be a valid string"}]}'),
    (422, "application/json", '{"detail":"Unprocessable Entity"}'),
    (400, "application/json", '{"error":"invalid message format"}'),
    (400, "application/json", '{"error":{"code":400,"message":"Failed to parse","type":"invalid_request_error"}}'),
    (400, "application/json", '{"error":{"message":"Jinja Exception: System message must be at the beginning."}}'),
    (400, "text/plain", "Conversation roles must alternate user/assistant/user/assistant/..."),
    (400, "text/html", "<html><body><h1>400 Bad Request</h1></body></html>"),
    (422, "application/json", "{}"),
    (400, "application/json", ""),
)  # fmt: skip
"""Refusals, as OpenAI, Zod, vLLM, FastAPI, Ollama, llama.cpp, templates and proxies write them."""

SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Final = {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}


def chat(*, plain: bool) -> Body:
    """A request of Chat Completions. `plain`: one that is passed on unchanged."""
    parts = [{"type": "text", "text": "Look"}, {"type": "text", "text": "here."}]
    messages: list[Body] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "anna"},
    ]
    limits = {"max_tokens": 50}
    if plain:
        messages.append({"role": "assistant", "content": "Yes.", "refusal": None})
        more: Body = {"tools": [], "stop": None, "user": None, **limits}
    else:
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": ANSWER}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Seen."},
        ]
        tools = [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": {"name": "patch"}}]
        named = {"name": "place", "strict": True, "schema": SCHEMA}
        more = {
            "tools": tools,
            "parallel_tool_calls": False,
            "response_format": {"type": "json_schema", "json_schema": named},
            "reasoning_effort": "low",
            "verbosity": "low",
            "service_tier": "flex",
            "seed": 7,
            **limits,
        }
    messages += [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "And now?"}]
    messages.append({"role": "user", "content": [{"type": "text", "text": "Still?"}]})
    return {"model": "small", "messages": messages, **more}


def responses() -> Body:
    texts = [{"type": "input_text", "text": each} for each in ("Look", "here.")]
    seen = [{"type": "input_text", "text": "Seen."}, {"type": "input_image", "image_url": PIXEL}]
    return {
        "model": "small",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": texts},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA-of-another"},
            {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": ANSWER},
            {"type": "function_call_output", "call_id": "call_1", "output": seen},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "+x"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."},
            {"role": "assistant", "content": "So.", "phase": "commentary"},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "And now?"},
            {"role": "user", "content": "Still?"},
        ],
        "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "patch"}],
        "parallel_tool_calls": False,
        "max_output_tokens": 50,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {
            "format": {"type": "json_schema", "name": "place", "strict": True, "schema": SCHEMA},
            "verbosity": "low",
        },
        "service_tier": "flex",
        "temperature": 0.5,
        "store": False,
    }


def messages() -> Body:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]},
    }
    outputs = [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "Seen."}, picture],
        }
    ]
    return {
        "model": "small",
        "max_tokens": 50,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": each} for each in ("Look", "here.")]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "Oslo"}}],
            },
            {"role": "user", "content": outputs},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"name": "look", "input_schema": SCHEMA, "strict": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "temperature": 0.5,
    }


def ollama() -> Body:
    call = {"function": {"name": "look", "arguments": {"city": "Oslo"}}}
    tool = {name: value for name, value in FUNCTION.items() if name != "strict"}
    return {
        "model": "small",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look here."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "Seen.", "tool_name": "look"},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"type": "function", "function": tool}],
        "format": SCHEMA,
        "think": "low",
        "options": {"num_predict": 50, "temperature": 0.5},
    }


REQUESTS: Final[Mapping[str, tuple[str, Callable[[], Body]]]] = {
    "chat": ("/v1/chat/completions", lambda: chat(plain=False)),
    "chat unchanged": ("/v1/chat/completions", lambda: chat(plain=True)),
    "responses": ("/v1/responses", responses),
    "messages": ("/v1/messages", messages),
    "ollama": ("/api/chat", ollama),
}


def told(body: Body) -> list[Body]:
    found: list[Body] = body["input"] if "input" in body else body["messages"]
    return found


def of_role(body: Body, *roles: str) -> list[int]:
    return [index for index, each in enumerate(told(body)) if each.get("role") in roles]


def parts_of(body: Body, field: str) -> list[Any]:
    return [each[field] for each in told(body) if isinstance(each.get(field), list)]


def has_type(body: Body, *kinds: str) -> bool:
    return any(each.get("type") in kinds for each in told(body))


def pictures(body: Body, role: str, field: str) -> bool:
    outputs = [
        each.get(field) for each in told(body) if each.get("role") == role or role in each.get("type", "")
    ]
    return "image_url" in json.dumps(outputs)


def functions(body: Body) -> list[Body]:
    return [tool.get("function", tool) for tool in body.get("tools") or ()]


FORMS: Final[Mapping[str, Callable[[Body], bool]]] = {
    "two system messages": lambda body: len(of_role(body, "system", "developer")) > 1,
    "a late system message": lambda body: any(of_role(body, "system", "developer")),
    "a schema, and a late system message": lambda body: (
        "json_schema" in json.dumps([body.get("response_format"), body.get("text")])
        or any(of_role(body, "system", "developer"))
    ),
    "roles that do not alternate": lambda body: any(
        first.get("role") == second.get("role") == "user" for first, second in pairwise(told(body))
    ),
    "the developer role": lambda body: bool(of_role(body, "developer")),
    "custom tools": lambda body: (
        any(tool["type"] == "custom" for tool in body.get("tools") or ())
        or has_type(body, "custom_tool_call", "custom_tool_call_output")
    ),
    "images of tools": lambda body: pictures(body, "tool", "content") or pictures(body, "_output", "output"),
    "another's reasoning": lambda body: has_type(body, "reasoning"),
    "phases": lambda body: any("phase" in each for each in told(body)),
    "parts": lambda body: any(
        all(part["type"] != "image_url" and part["type"] != "input_image" for part in parts)
        for parts in parts_of(body, "content")
    ),
    "names": lambda body: any("name" in each and "role" in each for each in told(body)),
    "nulls": lambda body: None in body.values() or any(None in each.values() for each in told(body)),
    "an empty list of tools": lambda body: body.get("tools") == [],
    "a schema": lambda body: "json_schema" in json.dumps([body.get("response_format"), body.get("text")]),
    "a format": lambda body: "response_format" in body or "format" in (body.get("text") or {}),
    "strict tools": lambda body: any(function.get("strict") for function in functions(body)),
    "parallel_tool_calls": lambda body: "parallel_tool_calls" in body,
    "max_tokens": lambda body: "max_tokens" in body,
    "stream_options": lambda body: "stream_options" in body,
    "an effort": lambda body: "reasoning_effort" in body or "reasoning" in body,
    "verbosity": lambda body: "verbosity" in body or "verbosity" in (body.get("text") or {}),
    "service_tier": lambda body: "service_tier" in body,
    "include": lambda body: "include" in body,
    "store": lambda body: "store" in body,
    "a seed": lambda body: "input" in body and "seed" in body,
    "a temperature": lambda body: "input" in body and "temperature" in body,
    "all at once": lambda body: any(
        FORMS[form](body) for form in ("two system messages", "custom tools", "nulls", "stream_options", "store")
    ),
}  # fmt: skip
"""Whether a body has the form that an upstream refuses."""

AGENTS: Final = {"openai-chat": text(ANSWER), "openai-responses": response_with(message(ANSWER))}


@pytest.mark.parametrize(
    "offset", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 12))]
)
@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_turn_is_answered_whatever_form_an_upstream_refuses(
    agent: str, api: str, offset: int, tmp_path: Path
) -> None:
    failed: dict[str, str] = {}
    async with upstream() as server:
        server.models = []  # it takes any name
        async with proxy_before(server.url, tmp_path, agent=agent, structured_output=True) as proxy:
            for number, form in enumerate(FORMS):
                spelling = SPELLINGS[(number + offset) % len(SPELLINGS)]
                for streamed in (False, True):
                    if wrong := await refuse(server, proxy, agent, api, form, spelling, streamed):
                        failed[form] = wrong
    assert failed == {}


async def refuse(
    server: Upstream,
    proxy: Proxy,
    agent: str,
    api: str,
    form: str,
    spelling: tuple[int, str, str],
    streamed: bool,
) -> str:
    """Asks twice at an upstream that refuses a form. Returns what is wrong, if anything."""
    status, kind, words = spelling
    path, make_body = REQUESTS[api]
    refused = Case(status, {"Content-Type": kind}, [words], [], "failed")
    model = f"{form} {streamed}"  # one each: what an upstream refuses is remembered
    server.refuses = lambda body: refused if FORMS[form](body) else None
    for most in (3, 1):
        server.requests.clear()
        server.script = [AGENTS[agent]]
        answer = await proxy.send("POST", path, make_body() | {"model": model, "stream": streamed})
        if answer.status != 200 or "Oslo" not in answer.text:
            return f"{answer.status} {answer.text}"
        if len(server.requests) > most:
            return f"{len(server.requests)} requests"
        if FORMS[form](server.requests[0].body) and not answer.headers.get("x-codex-changed-params"):
            return "unnamed"
    return ""


SIMPLE: Final[Mapping[str, Body]] = {
    "chat": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    "responses": {"instructions": "Be brief.", "input": "Hi"},
    "messages": {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50},
    "ollama": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", SIMPLE)
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_model_without_a_system_role_gets_the_instructions_from_the_user(
    agent: str, api: str, streamed: bool, tmp_path: Path
) -> None:
    """Gemma's template: no system role, and the roles alternate."""
    status, kind, words = SPELLINGS[8]
    refused = Case(status, {"Content-Type": kind}, [words], [], "failed")
    async with upstream() as server:
        server.models = []
        server.refuses = lambda body: (
            refused
            if of_role(body, "system", "developer") or FORMS["roles that do not alternate"](body)
            else None
        )
        server.script = [AGENTS[agent]]
        async with proxy_before(server.url, tmp_path, agent=agent) as proxy:
            answer = await proxy.send(
                "POST", REQUESTS[api][0], SIMPLE[api] | {"model": "m", "stream": streamed}
            )
    assert (answer.status, "Oslo" in answer.text) == (200, True), answer.text
    assert "system_role" in answer.headers["x-codex-changed-params"]
    (told_last,) = told(server.requests[-1].body)
    assert "Be brief." in json.dumps(told_last)
    assert len(server.requests) <= 3


@pytest.mark.parametrize("agent", AGENTS)
async def test_instructions_keep_their_role_where_another_form_may_be_refused(
    agent: str, tmp_path: Path
) -> None:
    async with upstream() as server:
        server.models = []
        refused = Case(400, {}, ["{}"], [], "failed")
        server.refuses = lambda body: refused if FORMS["an effort"](body) else None
        server.script = [AGENTS[agent]]
        async with proxy_before(server.url, tmp_path, agent=agent) as proxy:
            body = SIMPLE["messages"] | {"model": "m", "output_config": {"effort": "low"}}
            answer = await proxy.send("POST", "/v1/messages", body)
    assert answer.status == 200
    assert of_role(server.requests[-1].body, "system", "developer") == [0]


ROOTS: Final[Mapping[str, tuple[Body, Any]]] = {
    "an array": ({"type": "array", "items": {"type": "string"}}, ["Oslo"]),
    "a string": ({"type": "string", "minLength": 2}, "Oslo"),
    "an enum": ({"enum": ["Oslo", "Rome"]}, "Oslo"),
    "a boolean": ({"type": "boolean"}, True),
    "a number or null": ({"anyOf": [{"type": "number"}, {"type": "null"}]}, None),
}


def asking_for(api: str, schema: Body) -> Body:
    """A simple request for an answer of this schema."""
    named: Body = {"name": "place", "schema": schema}
    formats: dict[str, Body] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": named}},
        "responses": {"text": {"format": {"type": "json_schema", **named}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "ollama": {"format": schema},
    }
    return SIMPLE[api] | formats[api]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_an_answer_that_is_no_object_is_asked_for_in_words_alone(
    agent: str, root: str, tmp_path: Path
) -> None:
    """`json_object` beside the words would contradict them."""
    schema, value = ROOTS[root]
    said = json.dumps(value)
    async with upstream() as server:
        server.models = []
        refused = Case(400, {}, ["{}"], [], "failed")
        server.refuses = lambda body: refused if FORMS["a schema"](body) else None
        async with proxy_before(server.url, tmp_path, agent=agent, structured_output=True) as proxy:
            for api in SIMPLE:
                server.script = [text(said) if agent == "openai-chat" else response_with(message(said))]
                body = asking_for(api, schema) | {"model": api, "stream": False}
                answer = await proxy.send("POST", REQUESTS[api][0], body)
                assert (answer.status, json.dumps(said)[1:-1] in answer.text) == (200, True), (
                    api,
                    answer.text,
                )
                assert not FORMS["a format"](server.requests[-1].body)


FOUND_CALL: Final[Body] = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look"}
CALLS: Final = {
    "openai-chat": stream(call("look", ANSWER), finish="tool_calls"),
    "openai-responses": response_with(FOUND_CALL | {"arguments": ANSWER, "status": "completed"}),
}


@pytest.mark.parametrize("agent", CALLS)
async def test_a_named_tool_is_required_where_its_name_is_refused(agent: str, tmp_path: Path) -> None:
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("look", "touch")]
    async with upstream() as server:
        server.models = []
        refused = Case(422, {}, ['{"detail":[{"loc":["body","tool_choice"]}]}'], [], "failed")
        server.refuses = lambda body: refused if isinstance(body.get("tool_choice"), dict) else None
        server.script = [CALLS[agent]]
        async with proxy_before(server.url, tmp_path, agent=agent) as proxy:
            body = SIMPLE["messages"] | {"model": "m", "tools": tools}
            body["tool_choice"] = {"type": "tool", "name": "look"}
            answer = await proxy.send("POST", "/v1/messages", body)
    assert answer.status == 200, answer.text
    assert [block["name"] for block in answer.body["content"]] == ["look"]
    last = server.requests[-1].body
    assert last.get("tool_choice") == "required"
    assert len(functions(last)) == 1


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("tools", [False, True])
async def test_a_refused_request_of_very_many_items_is_sent_once(
    agent: str, tools: bool, tmp_path: Path
) -> None:
    """To find its other forms, it would be written some ten times. Without tools it is passed on unchanged."""
    status, kind, words = SPELLINGS[0]
    asked = [{"role": ("user", "assistant")[number % 2], "content": "Look."} for number in range(2_002)]
    body: Body = {
        "model": "m",
        "stop": None,
        "messages": [{"role": "system", "content": "Be brief."}, *asked],
    }
    if tools:
        body["tools"] = [{"type": "custom", "custom": {"name": "patch"}}]
    async with upstream() as server:
        server.models = []
        server.refuses = lambda body: Case(status, {"Content-Type": kind}, [words], [], "failed")
        async with proxy_before(server.url, tmp_path, agent=agent) as proxy:
            few = await proxy.send("POST", "/v1/chat/completions", body | {"messages": body["messages"][:20]})
            assert (few.status, len(server.requests) > 1) == (400, True)
            server.requests.clear()
            answer = await proxy.send("POST", "/v1/chat/completions", body)
    assert (answer.status, len(server.requests)) == (400, 1)


@pytest.mark.parametrize("of_api", ["chat", "responses"])
@pytest.mark.parametrize("content", ["texts", "parts"])
def test_user_messages_that_follow_each_other_are_joined_in_linear_time(of_api: str, content: str) -> None:
    module, kind = (chat_forms, "text") if of_api == "chat" else (responses_forms, "input_text")
    said: Any = "x" * 200 if content == "texts" else [{"type": kind, "text": "x" * 200}]

    def join(messages: list[Body]) -> list[Any]:
        return list(module.with_forms(messages, {ALTERNATING}))

    assert len(join([{"role": "user", "content": said}] * 50)) == 1
    assert_linear(lambda size: [{"role": "user", "content": said}] * size, join, 4_000)
