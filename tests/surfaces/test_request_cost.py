"""What a request costs to be read: CPU time and memory in proportion to its bytes, in each of the APIs.

A further shape is a row of a table. The shapes are valid requests, or those that are refused only at their end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.admission.clients import Client, Workspace
from codex_proxy.core.faults import Fault
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.chat.parse import parse as parse_chat
from codex_proxy.surfaces.messages.parse import count_tokens
from codex_proxy.surfaces.ollama.parse import parse_chat as parse_ollama
from codex_proxy.surfaces.requests.fields import models_in
from codex_proxy.surfaces.requests.options import ParseContext, RequestSettings
from codex_proxy.surfaces.responses.history import history_of
from codex_proxy.surfaces.responses.parse import turn_of
from tests.growth import assert_linear
from tests.pictures import PIXEL
from tests.surfaces.chat import asking as chat
from tests.surfaces.messages import asking as messages
from tests.surfaces.responses import asking as responses

Fields = dict[str, Any]
Make = Callable[[int], Fields]

DEEP: Final = 100
"""Levels of nesting, of at most 128."""


def deep(value: Any) -> Any:
    for _ in range(DEEP):
        value = [value]
    return value


def schema(count: int) -> Fields:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


def user(content: Any) -> Fields:
    return {"role": "user", "content": content}


def text(value: str, type: str = "text") -> Fields:
    return {"type": type, "text": value}


def rounds(count: int, *make: Callable[[int], Fields]) -> list[Fields]:
    return [one(i) for i in range(count) for one in make]


# --- Chat Completions -----------------------------------------------------------------------------


def assistant(*calls: Fields) -> Fields:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def calls_of(count: int) -> list[Fields]:
    return [chat.call(f"c{i}") for i in range(count)]


def outputs_of(count: int) -> list[Fields]:
    return [chat.answer(f"c{i}") for i in range(count)]


def chat_fields(*given: Fields) -> Fields:
    return {"messages": [chat.HELLO, *given, chat.HELLO]}


CHAT: Final[dict[str, tuple[int, Make]]] = {
    "messages": (
        1200,
        lambda n: chat_fields(
            *rounds(n, lambda i: user(f"word {i}"), lambda i: {"role": "assistant", "content": "ok"})
        ),
    ),
    "one long text": (1 << 20, lambda n: chat_fields(user("word " * (n // 5)))),
    "parts": (400, lambda n: chat_fields(user([text("a")] * n))),
    "images": (400, lambda n: chat_fields(user([{"type": "image_url", "image_url": {"url": PIXEL}}] * n))),
    "tools": (32, lambda n: {"tools": [chat.function_tool(f"f{i}", parameters=schema(3)) for i in range(n)]}),
    "properties of a tool": (500, lambda n: {"tools": [chat.function_tool(parameters=schema(n))]}),
    "properties of an answer": (
        500,
        lambda n: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(n)}}
        },
    ),
    "calls of one message": (1000, lambda n: chat_fields(assistant(*calls_of(n)), *outputs_of(n))),
    "calls answered backwards": (1000, lambda n: chat_fields(assistant(*calls_of(n)), *outputs_of(n)[::-1])),
    "calls of many messages": (
        1200,
        lambda n: chat_fields(
            *rounds(n, lambda i: assistant(chat.call(f"c{i}")), lambda i: chat.answer(f"c{i}"))
        ),
    ),
    "calls of one id": (
        1000,
        lambda n: chat_fields(*rounds(n, lambda _: assistant(chat.call()), lambda _: chat.answer())),
    ),
    "outputs without calls": (400, lambda n: chat_fields(*outputs_of(n))),
    "calls without outputs": (400, lambda n: chat_fields(assistant(*calls_of(n)))),
    "unknown fields": (1000, lambda n: {f"field_{i}": i for i in range(n)}),
    "nested": (40, lambda n: {"metadata": [deep(1)] * n}),
    "stop sequences": (50, lambda n: {"stop": [f"s{i}" for i in range(n)]}),
}

# --- Messages -------------------------------------------------------------------------------------


def uses(count: int) -> list[Fields]:
    return [messages.use(f"c{i}") for i in range(count)]


def results(count: int) -> list[Fields]:
    return [messages.result(f"c{i}") for i in range(count)]


def picture(_: int = 0) -> Fields:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]},
    }


def talk(*given: Fields) -> Fields:
    return {"messages": [messages.HELLO, *given, messages.HELLO]}


MESSAGES: Final[dict[str, tuple[int, Make]]] = {
    "messages": (
        1200,
        lambda n: talk(
            *rounds(n, lambda i: user(f"word {i}"), lambda _: messages.message_of("assistant", "ok"))
        ),
    ),
    "one long text": (1 << 16, lambda n: talk(user("word " * (n // 5)))),
    "one long word": (1 << 16, lambda n: talk(user("w" * n))),
    "blocks": (500, lambda n: talk(user([text("a")] * n))),
    "blocks of the assistant": (500, lambda n: talk(messages.message_of("assistant", *["a"] * n))),
    "images": (400, lambda n: talk(user([picture()] * n))),
    "tools": (400, lambda n: {"tools": [messages.tool(f"f{i}", input_schema=schema(3)) for i in range(n)]}),
    "deferred tools": (
        400,
        lambda n: {
            "tools": [messages.tool(f"f{i}", defer_loading=True) for i in range(n)] + [messages.tool()]
        },
    ),
    "properties of a tool": (500, lambda n: {"tools": [messages.tool(input_schema=schema(n))]}),
    "calls of one message": (
        1200,
        lambda n: talk(messages.message_of("assistant", *uses(n)), user(results(n))),
    ),
    "calls answered backwards": (
        1200,
        lambda n: talk(messages.message_of("assistant", *uses(n)), user(results(n)[::-1])),
    ),
    "calls of many messages": (
        1200,
        lambda n: talk(
            *rounds(
                n,
                lambda i: messages.message_of("assistant", messages.use(f"c{i}")),
                lambda i: user([messages.result(f"c{i}")]),
            )
        ),
    ),
    "calls of one id": (
        1000,
        lambda n: talk(
            *rounds(
                n,
                lambda _: messages.message_of("assistant", messages.use()),
                lambda _: user([messages.result()]),
            )
        ),
    ),
    "outputs without calls": (400, lambda n: talk(user(results(n)))),
    "outputs of many blocks": (
        500,
        lambda n: talk(
            messages.message_of("assistant", messages.use()), user([messages.result(content=[text("a")] * n)])
        ),
    ),
    "thinking": (
        400,
        lambda n: talk(
            messages.message_of(
                "assistant", *[{"type": "thinking", "thinking": "hm", "signature": f"s{i}"} for i in range(n)]
            )
        ),
    ),
    "unknown blocks": (
        400,
        lambda n: talk(messages.message_of("assistant", *[{"type": f"t{i}"} for i in range(n)])),
    ),
    "system blocks": (500, lambda n: {"system": [text("a")] * n}),
    "unknown fields": (1000, lambda n: {f"field_{i}": i for i in range(n)}),
    "nested": (40, lambda n: {"metadata": {"user_id": [deep(1)] * n}}),
}

# --- Responses ------------------------------------------------------------------------------------


def function_call(i: int) -> Fields:
    return {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"}


def function_output(i: int) -> Fields:
    return {"type": "function_call_output", "call_id": f"c{i}", "output": "sunny"}


def body_with(*items: Fields) -> Fields:
    return {"input": [responses.HELLO, *items, responses.HELLO]}


RESPONSES: Final[dict[str, tuple[int, Make]]] = {
    "messages": (
        1200,
        lambda n: body_with(
            *rounds(n, lambda i: user(f"word {i}"), lambda _: {"role": "assistant", "content": "ok"})
        ),
    ),
    "one long text": (1 << 20, lambda n: {"input": "word " * (n // 5)}),
    "parts": (500, lambda n: body_with(user([text("a", "input_text")] * n))),
    "images": (400, lambda n: body_with(user([{"type": "input_image", "image_url": PIXEL}] * n))),
    "tools": (
        30,
        lambda n: {"tools": [responses.function_tool(f"f{i}", parameters=schema(3)) for i in range(n)]},
    ),
    "properties of a tool": (500, lambda n: {"tools": [responses.function_tool(parameters=schema(n))]}),
    "properties of an answer": (
        500,
        lambda n: {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema(n)}}},
    ),
    "calls and outputs by turns": (1200, lambda n: body_with(*rounds(n, function_call, function_output))),
    "calls, then outputs": (
        1000,
        lambda n: body_with(*rounds(n, function_call), *rounds(n, function_output)),
    ),
    "calls, then outputs, backwards": (
        1000,
        lambda n: body_with(*rounds(n, function_call), *rounds(n, function_output)[::-1]),
    ),
    "calls of one id": (
        400,
        lambda n: body_with(*rounds(n, lambda _: function_call(0), lambda _: function_output(0))),
    ),
    "outputs without calls": (400, lambda n: body_with(*rounds(n, function_output))),
    "calls without outputs": (400, lambda n: body_with(*rounds(n, function_call))),
    "reasoning": (
        1600,
        lambda n: body_with(
            *(
                {"type": "reasoning", "id": f"rs_{i}", "summary": [], "encrypted_content": "x"}
                for i in range(n)
            )
        ),
    ),
    "references": (
        400,
        lambda n: body_with(*({"type": "item_reference", "id": f"msg_{i}"} for i in range(n))),
    ),
    "searches": (
        1000,
        lambda n: body_with(
            *({"type": "web_search_call", "id": f"ws_{i}", "status": "completed"} for i in range(n))
        ),
    ),
    "approvals": (
        400,
        lambda n: body_with(
            *(
                {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{i}", "approve": True}
                for i in range(n)
            )
        ),
    ),
    "unknown fields": (1000, lambda n: {f"field_{i}": i for i in range(n)}),
    "includes": (1000, lambda n: {"include": [f"field_{i}" for i in range(n)]}),
    "a hosted tool": (1000, lambda n: {"tools": [{"type": "code_interpreter", "a" * n: [0] * n}]}),
    "nested": (40, lambda n: {"metadata": [deep(1)] * n}),
}


# --- Ollama ---------------------------------------------------------------------------------------


def ollama_calls(count: int) -> Fields:
    calls = [{"function": {"name": f"f{i}", "arguments": {}}} for i in range(count)]
    return {"role": "assistant", "tool_calls": calls}


def ollama_outputs(count: int) -> list[Fields]:
    return [{"role": "tool", "tool_name": f"f{i}", "content": "sunny"} for i in range(count)]


OLLAMA: Final[dict[str, tuple[int, Make]]] = {
    "calls of one message": (1000, lambda n: chat_fields(ollama_calls(n), *ollama_outputs(n))),
    "calls answered backwards": (1000, lambda n: chat_fields(ollama_calls(n), *ollama_outputs(n)[::-1])),
    "outputs without names": (
        1000,
        lambda n: chat_fields(ollama_calls(n), *[{"role": "tool", "content": "sunny"}] * n),
    ),
    "calls of many messages": (
        1000,
        lambda n: chat_fields(*[ollama_calls(1), *ollama_outputs(1)] * n),
    ),
}


def _responses(body: bytes) -> object:
    parsed = responses.ask_bytes(body)
    return turn_of(parsed, history_of(parsed.input_items))


APIS: Final[dict[str, tuple[dict[str, tuple[int, Make]], Callable[[bytes], object]]]] = {
    "chat": (
        CHAT,
        lambda body: parse_chat(
            body, context=ParseContext(chat.STRUCTURED_OUTPUT, chat.CATALOG, chat.NO_HINTS)
        ),
    ),
    "messages": (MESSAGES, messages.parse_body),
    "count_tokens": (MESSAGES, lambda body: count_tokens(body, chat.CATALOG)),
    "responses": (RESPONSES, _responses),
    "ollama": (
        OLLAMA,
        lambda body: parse_ollama(
            body, context=ParseContext(chat.STRUCTURED_OUTPUT, chat.CATALOG, chat.NO_HINTS)
        ),
    ),
}
HEAD: Final = {"model": "codex-5", "max_tokens": 100}


def body_of(fields: Fields, api: str) -> bytes:
    more: Fields = {"input": "hi"} if api == "responses" else {"messages": [chat.HELLO]}
    head = {"model": "codex-5"} if api == "responses" else HEAD
    return json.dumps({**head, **more, **fields}).encode()


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize(("api", "shape"), [(api, shape) for api in APIS for shape in APIS[api][0]])
def test_a_request_takes_time_proportional_to_its_size(api: str, shape: str) -> None:
    shapes, parse = APIS[api]
    size, make = shapes[shape]

    def read(body: bytes) -> object:
        try:
            return parse(body)
        except Fault as fault:
            return fault.failure.message

    refusal = read(body_of(make(4 * size), api))
    assert not isinstance(refusal, str) or size < 100 or "too long" not in refusal, "not read to its end"
    assert_linear(lambda count: body_of(make(count), api), read, size)


# --- the names that a key may use ----------------------------------------------------------------

NAMING: Final[dict[str, tuple[int, Make]]] = {
    "values below a long name": (3000, lambda n: {"a" * n: [0] * n}),
    "lists below a long name": (2000, lambda n: {"a" * n: [[]] * n}),
    "fields below a long name": (1000, lambda n: {"a" * n: {f"f{i}": {} for i in range(n)}}),
    "models below a long name": (1000, lambda n: {"a" * n: [{"model": "m"}] * n}),
}
OF_A_KEY: Final = Client(
    name="limited",
    digest="0",
    settings=RequestSettings(),
    workspace=Workspace("/", ()),
    rpm=0,
    concurrency=0,
    models=frozenset({("m", None)}),
    catalog=chat.CATALOG,
)


def check_passed_fields(fields: Fields) -> None:
    OF_A_KEY.check_models(
        "a", models_in({name: msgspec.Raw(json_bytes(each)) for name, each in fields.items()})
    )


def check_hosted_tool(fields: Fields) -> None:
    (offer,) = responses.ask(tools=[{"type": "code_interpreter", **fields}]).hosted
    OF_A_KEY.check_models("a", offer.models())
    assert not offer.own_object()


@pytest.mark.parametrize("check", [check_passed_fields, check_hosted_tool])
@pytest.mark.parametrize("shape", NAMING)
def test_models_that_a_key_may_name_are_looked_for_in_time_proportional_to_the_request(
    shape: str, check: Callable[[Fields], None]
) -> None:
    size, make = NAMING[shape]
    assert_linear(make, check, size)
