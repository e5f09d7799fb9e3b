"""Mutated and damaged streams of upstreams, read through a whole server by the official SDKs: what they read is the
answer that is known, or an error of the SDK's own type.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anthropic
import msgspec
import ollama
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from codex_proxy.core.json_values import canonical_json
from codex_proxy.runs.model_items import ModelItem
from tests.http.serving import Proxy
from tests.model_server import DONE, Case, Upstream, chunk, proxy_before
from tests.ollama_client import client_of
from tests.parts.upstream.mutated_responses import (
    ALL_WORDS,
    ANSWERS,
    Form,
    body_of,
    is_decidable,
)
from tests.parts.upstream.mutated_responses import (
    IDS as ITEM_IDS,
)
from tests.parts.upstream.mutated_responses import (
    INDEXES as ITEM_INDEXES,
)
from tests.parts.upstream.test_damaged_streams import DAMAGES
from tests.parts.upstream.test_mutated_chat import (
    IDS,
    INDEXES,
    NAMES,
    NOW,
    ORDERS,
    OSLO,
    ROME,
    Call,
    deltas_of,
)
from tests.waiting import PATIENCE

Answer = tuple[str, list[tuple[str, str]]]
"""The text, and the calls: names and arguments, sorted."""
SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES_OF_TOOLS: Final = ("get_weather", "now")
FUNCTIONS: Final = [{"name": name, "description": "x", "parameters": SCHEMA} for name in NAMES_OF_TOOLS]
CHAT_TOOLS: Final[Any] = [{"type": "function", "function": each} for each in FUNCTIONS]
MESSAGES: Final[Any] = [{"role": "user", "content": "?"}]
HARMLESS: Final = ("none", *DAMAGES)


def calls_of(pairs: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    return sorted(
        (name, canonical_json(given if isinstance(given, str) else json.dumps(given)))
        for name, given in pairs
    )


# --- the SDKs ---------------------------------------------------------------------------------------


async def ask_chat(url: str, *, stream: bool) -> Answer:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        if not stream:
            whole = await client.chat.completions.create(model="small", messages=MESSAGES, tools=CHAT_TOOLS)
            message = whole.choices[0].message
            functions = [call.function for call in message.tool_calls or () if call.type == "function"]
            return message.content or "", calls_of([(each.name, each.arguments) for each in functions])
        text, calls = "", dict[int, list[str]]()
        async for each in await client.chat.completions.create(
            model="small", messages=MESSAGES, tools=CHAT_TOOLS, stream=True
        ):
            for choice in each.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    entry = calls.setdefault(call.index, ["", ""])
                    assert call.function is not None
                    entry[0] += call.function.name or ""
                    entry[1] += call.function.arguments or ""
        return text, calls_of([(name, given) for name, given in calls.values()])


async def ask_responses(url: str, *, stream: bool) -> Answer:
    tools: Any = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        if not stream:
            response = await client.responses.create(model="small", input="?", tools=tools)
        else:
            async with client.responses.stream(model="small", input="?", tools=tools) as events:
                async for each in events:
                    if each.type == "error":
                        raise openai.APIError(each.message, None, body=None)  # type: ignore[arg-type]
                response = await events.get_final_response()
        if response.status == "failed":
            assert response.error is not None
            raise openai.APIError(response.error.message, None, body=None)  # type: ignore[arg-type]
        functions = [each for each in response.output if each.type == "function_call"]
        return response.output_text, calls_of([(each.name, each.arguments) for each in functions])


async def ask_messages(url: str, *, stream: bool) -> Answer:
    tools: Any = [{"name": name, "description": "x", "input_schema": SCHEMA} for name in NAMES_OF_TOOLS]
    async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        if stream:
            async with client.messages.stream(
                model="small", max_tokens=100, messages=MESSAGES, tools=tools
            ) as events:
                message: Any = await events.get_final_message()
        else:
            message = await client.messages.create(
                model="small", max_tokens=100, messages=MESSAGES, tools=tools
            )
    text = "".join(block.text for block in message.content if block.type == "text")
    uses = [block for block in message.content if block.type == "tool_use"]
    return text, calls_of([(each.name, each.input) for each in uses])


async def ask_ollama(url: str, *, stream: bool) -> Answer:
    text, calls = "", []
    async with client_of(url) as client:
        if stream:
            answers: Any = await client.chat(model="small", messages=MESSAGES, tools=CHAT_TOOLS, stream=True)
        else:
            answers = one(await client.chat(model="small", messages=MESSAGES, tools=CHAT_TOOLS))
        async for each in answers:
            text += each.message.content or ""
            calls += [(call.function.name, call.function.arguments) for call in each.message.tool_calls or ()]
    return text, calls_of(calls)


async def one(answer: Any) -> AsyncIterator[Any]:
    yield answer


Ask = Callable[..., Awaitable[Answer]]
SDKS: Final[dict[str, tuple[Ask, type[Exception]]]] = {
    "chat": (ask_chat, openai.APIError),
    "responses": (ask_responses, openai.APIError),
    "messages": (ask_messages, anthropic.APIError),
    "ollama": (ask_ollama, ollama.ResponseError),
}

# --- the upstreams ----------------------------------------------------------------------------------


def chat_answer(chance: random.Random) -> tuple[bytes, Answer, bool]:
    """A stream of Chat, what it says, and whether its reader can know that."""
    calls: tuple[Call, ...] = chance.choice(
        [(), (OSLO,), (OSLO, ROME), (OSLO, OSLO), (OSLO, NOW), (NOW, OSLO, ROME)]
    )
    ids, indexes, order = chance.choice(IDS), chance.choice(INDEXES), chance.choice(ORDERS)
    whole = chance.random() < 0.5
    told_apart = indexes in ("stable", "text", "negative", "huge") or (ids == "stable" and indexes != "zero")
    names = chance.choice(NAMES)
    deltas = deltas_of(calls, ids, indexes, names=names, whole=whole, order=order) if calls else []
    texts = (
        chance.choice([[], ["Hel", "lo wörld \U0001f600"], ["Hi \ud83d", "\ude00"]])
        if calls
        else ["Hel", "lo"]
    )
    chunks = [*(chunk({"content": text}) for text in texts), *map(chunk, deltas)]
    chunks.append(chunk({}, "tool_calls" if calls else "stop"))
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks) + DONE
    text = "".join(texts).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    known = text, calls_of([(name, "".join(pieces)) for name, pieces in calls])
    return body, known, order == "in turn" or whole or told_apart


PLAIN: Final = [
    items for items in ANSWERS if all(item.kind in ("reasoning", "message", "function") for item in items)
]


def responses_answer(chance: random.Random) -> tuple[bytes, Answer, bool]:
    """A stream of Responses, what it says, and whether its reader can know that."""
    items = chance.choice(PLAIN)
    form = Form(
        ids=chance.choice(ITEM_IDS),
        call_ids=chance.choice(ITEM_IDS),
        indexes=chance.choice(ITEM_INDEXES),
        output=chance.choice(("full", "empty")),
        interleaved=chance.random() < 0.3,
        wrong=chance.choice(["", "", "", *sorted(ALL_WORDS)]),
    )
    text = "".join(item.text for item in items if item.kind == "message")
    known = text, calls_of([(item.name, item.text) for item in items if item.kind == "function"])
    return body_of(items, form), known, is_decidable(form) and not form.wrong


UPSTREAMS: Final[dict[str, Callable[[random.Random], tuple[bytes, Answer, bool]]]] = {
    "openai-chat": chat_answer,
    "openai-responses": responses_answer,
}


@pytest.fixture(params=UPSTREAMS)
async def asked(
    request: pytest.FixtureRequest, server: Upstream, tmp_path: Path
) -> AsyncIterator[tuple[str, Proxy]]:
    async with proxy_before(server.url, tmp_path, agent=request.param) as proxy:
        yield request.param, proxy


async def test_an_item_with_an_id_of_another_type_is_stored(server: Upstream, tmp_path: Path) -> None:
    items = ANSWERS[-3]
    server.script[:] = [Case(200, {}, [body_of(items, Form(ids="number")).decode()], [], "stop")]
    async with proxy_before(server.url, tmp_path, agent="openai-responses") as proxy:
        assert await ask_responses(proxy.url, stream=False)


@pytest.mark.parametrize(
    ("item", "known"),
    [
        (b'{"type":"message","id":5,"content":[{"text":7},5,{"text":"a"}]}', ("message", None, "a")),
        (b'{"type":"reasoning","id":"r","call_id":[],"content":"x"}', ("reasoning", "r", "")),
        (b'{"type":7,"id":"r"}', ("", None, "")),
    ],
)
def test_fields_of_another_type_of_a_models_item_count_as_missing(
    item: bytes, known: tuple[Any, ...]
) -> None:
    head = ModelItem("m", msgspec.Raw(item)).head
    assert (head.type, head.id, head.text) == known


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize(
    "times", [pytest.param(5, id="some"), pytest.param(60, id="many", marks=pytest.mark.exhaustive)]
)
async def test_an_sdk_reads_the_answer_of_a_mutated_stream_or_an_error(
    asked: tuple[str, Proxy], server: Upstream, sdk: str, stream: bool, times: int
) -> None:
    agent, proxy = asked
    ask, error = SDKS[sdk]
    chance = random.Random(f"{agent} {sdk} {stream}")
    for _ in range(times):
        body, known, decidable = UPSTREAMS[agent](chance)
        damage = chance.choice(HARMLESS)
        body = DAMAGES[damage](body) if damage in DAMAGES else body
        server.script[:] = [Case(200, {}, [body.decode()], [], "stop")]
        try:
            found = await ask(proxy.url, stream=stream)
        except error as fault:
            if decidable:
                pytest.fail(f"{fault!r}: {damage} {body.decode()}")
        else:
            # Ollama's one message has a blank line between several.
            found = found[0].replace("\n\n", ""), found[1]
            assert found == known or not decidable, (damage, body)
