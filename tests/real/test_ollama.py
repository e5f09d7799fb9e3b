"""Ollama's own package for Python with the real Codex as the agent, whose model is scripted."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import ollama

from tests.ollama_client import SCHEMA, WEATHER, briefly, client_of
from tests.pictures import PIXEL
from tests.real.model_plans import call, plan, say, think, wait
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy
from tests.real.release import PLAIN_MODEL
from tests.real.shared import Proxies, living_on
from tests.real.tool_loop import assert_grows, outputs_of, types_of
from tests.waiting import eventually

pytestmark = PLAIN_MODEL


@living_on()
async def proxy(proxies: Proxies) -> Proxy:
    return await proxies.of()


@living_on()
async def client(proxy: Proxy) -> AsyncIterator[ollama.AsyncClient]:
    async with client_of(proxy.url) as made:
        yield made


async def test_a_tool_is_called_in_two_rounds_by_a_client_that_keeps_no_ids(
    client: ollama.AsyncClient, model_server: ModelServer
) -> None:
    step = [think(), say("Let me look.")]
    prompt = plan([*step, call(city="Bern")], [*step, call(city="Rome")], [say("Both are sunny.")])
    messages: list[Any] = briefly(prompt)
    cities = []
    for _ in range(2):
        answer = await client.chat("scripted-model", messages, tools=[WEATHER])
        (asked,) = answer.message.tool_calls or ()
        cities.append(asked.function.arguments["city"])
        messages += [answer.message, {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    assert cities == ["Bern", "Rome"]
    last = await client.chat("scripted-model", messages, tools=[WEATHER])
    assert (last.message.content, last.done_reason) == ("Both are sunny.", "stop")
    assert_grows(model_server.calls)
    assert types_of(model_server.calls[-1]).count("reasoning") == 2


async def test_two_equal_conversations_at_once_get_their_own_outputs_without_ids(
    client: ollama.AsyncClient, model_server: ModelServer
) -> None:
    prompt = plan([think(), call(city="Bern"), call(city="Bern")], [call(city="Rome")], [say("Done.")])
    conversations: dict[str, list[Any]] = {"first": briefly(prompt), "second": briefly(prompt)}
    last = {}
    for step in range(3):
        for name, messages in conversations.items():
            answer = await client.chat("scripted-model", messages, tools=[WEATHER])
            messages.append(answer.message)
            messages += [
                {"role": "tool", "tool_name": "get_weather", "content": f"{name} {step} {number}"}
                for number in range(len(answer.message.tool_calls or ()))
            ]
            last[name] = model_server.calls[-1]
    for name, request in last.items():
        outputs = [output for _, output in outputs_of(request)]
        assert outputs == [f"{name} 0 0", f"{name} 0 1", f"{name} 1 0"]
        assert types_of(request).count("reasoning") == 1


async def test_thinking_a_schema_and_counts_come_from_the_model(
    client: ollama.AsyncClient, model_server: ModelServer
) -> None:
    prompt = plan([think("Hm."), say('{"name": "Ada"}')])
    pieces = [
        piece
        async for piece in await client.chat(
            "scripted-model", briefly(prompt), format=SCHEMA, think=True, stream=True
        )
    ]
    assert json.loads("".join(piece.message.content or "" for piece in pieces)) == {"name": "Ada"}
    assert (pieces[-1].prompt_eval_count or 0) > 0
    assert model_server.calls[-1].body["text"]["format"]["schema"]["required"] == ["name"]


async def test_an_image_reaches_the_model(client: ollama.AsyncClient, model_server: ModelServer) -> None:
    picture = base64.b64decode(PIXEL.partition(",")[2])
    answer = await client.chat("scripted-model", briefly(plan([say("A dot.")]), images=[picture]))
    assert answer.message.content == "A dot."
    assert "data:image/png;base64," in json.dumps(model_server.calls[-1].body["input"])


async def test_a_client_that_leaves_ends_the_turn(
    client: ollama.AsyncClient, proxy: Proxy, model_server: ModelServer
) -> None:
    stream = await client.chat("scripted-model", briefly(plan([say("One"), wait(), say("two")])), stream=True)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: proxy.idle)
