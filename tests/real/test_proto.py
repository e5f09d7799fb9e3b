"""Turns through the real `codex proto`, which the last releases up to 0.42 have.

The variable ``TEST_CODEX_PROTO`` names the binary; scripts/codex-matrix and continuous integration set it where npm is
there. Without it these tests are left out, and say so: the installed package has no such release.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import psutil
import pytest

from tests.pictures import PIXEL
from tests.real.codex_home import CodexHome
from tests.real.model_plans import plan, say, think, wait
from tests.real.model_scenarios import items_of, text_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, chat_request, proxy
from tests.real.release import PROTO_VARIABLE, proto_path
from tests.real.shared import living_on
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(
    proto_path() is None,
    reason=f"{PROTO_VARIABLE} names no Codex with `codex proto` (npm's @openai/codex@0.42.0)",
)


@pytest.fixture(params=["codex-proto", "auto"])
def agent(request: pytest.FixtureRequest) -> str:
    """The agent by its name, and by what `auto` finds."""
    return str(request.param)


@living_on()
async def proto_proxy(codex_home: CodexHome, agent: str) -> AsyncIterator[Proxy]:
    async with proxy(codex_home, agent=agent, codex_bin=str(proto_path())) as running:
        yield running


async def test_the_agent_is_the_one_for_this_protocol(proto_proxy: Proxy) -> None:
    assert proto_proxy.server.agent.name == "codex-proto"
    assert proto_proxy.server.agent.version.startswith("0.")


async def test_a_text_comes_word_by_word_with_its_usage(
    proto_proxy: Proxy, model_server: ModelServer
) -> None:
    stream = await proto_proxy.client.chat.completions.create(
        **chat_request("[[model:stall n=3 gate=rest]]"), stream=True, stream_options={"include_usage": True}
    )
    texts, usage = [], None
    async for chunk in stream:
        usage = chunk.usage or usage
        texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        if "".join(texts).strip() == "word0 word1 word2":
            model_server.open_gate("rest")  # closed until the first words were here
    assert "".join(texts) == "word0 word1 word2 and on."
    assert len(texts) > 3
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 20)


async def test_reasoning_comes_before_the_text(proto_proxy: Proxy) -> None:
    answer: Any = await proto_proxy.client.chat.completions.create(**chat_request("[[model:reasoning]]"))
    assert "think0.0" in answer.choices[0].message.reasoning_content
    assert answer.choices[0].message.content == "The answer is 42."


async def test_a_conversation_reaches_the_model_as_one_text(
    proto_proxy: Proxy, model_server: ModelServer
) -> None:
    raw = await proto_proxy.client.chat.completions.with_raw_response.create(
        **chat_request("[[model:text say=Yes.]]", system="Be brief.")
    )
    assert raw.headers["x-codex-history"] == "flattened"
    said = "\n".join(text_of(item) for item in items_of(model_server.calls[-1].body))
    assert "[system]\nBe brief." in said


async def test_an_image_reaches_the_model(proto_proxy: Proxy, model_server: ModelServer) -> None:
    content: Any = [
        {"type": "text", "text": "[[model:text]]"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]
    await proto_proxy.client.chat.completions.create(**chat_request(content))
    assert PIXEL in json.dumps(model_server.calls[-1].body)


async def test_tools_of_the_client_are_refused(proto_proxy: Proxy) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError) as error:
        await proto_proxy.client.chat.completions.create(**chat_request("[[model:text]]"), tools=[tool])
    assert error.value.code == "unsupported_by_agent"


@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("http status=401", 502, "upstream_unauthorized"),  # of which it tells the status only
        ("http status=404 code=model_not_found msg='The model m does not exist'", 404, "model_not_found"),
        ("http status=429", 429, "rate_limit_exceeded"),
        ("http status=500", 502, "upstream_error"),
        ("drop n=3", 502, "upstream_disconnected"),
    ],
)
async def test_a_fault_of_the_provider_is_that_fault(
    proto_proxy: Proxy, marker: str, status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        await proto_proxy.client.chat.completions.create(**chat_request(f"[[model:{marker}]]"))
    assert (error.value.status_code, error.value.code) == (status, code)


async def test_a_client_that_leaves_ends_the_child(proto_proxy: Proxy, model_server: ModelServer) -> None:
    stream = await proto_proxy.client.chat.completions.create(
        **chat_request(plan([think(), say("Now."), wait()])), stream=True
    )
    async for chunk in stream:
        if any(choice.delta.content for choice in chunk.choices):
            break
    children = psutil.Process().children(recursive=True)
    codexes = [child for child in children if "proto" in child.cmdline()]
    assert codexes
    await stream.close()
    await eventually(lambda: not any(child.is_running() for child in codexes))
    assert await (await model_server.call(0)).ending() == "client_gone"
