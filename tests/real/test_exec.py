"""Turns through the real `codex exec`: its items as they come, its files, its faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import psutil
import pytest

from tests.pictures import PIXEL
from tests.real.codex_home import CodexHome
from tests.real.model_plans import call, plan, say, think, wait
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, chat_request, proxy
from tests.real.release import PLAIN_MODEL
from tests.real.shared import living_on
from tests.waiting import eventually

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@living_on()
async def exec_proxy(codex_home: CodexHome) -> AsyncIterator[Proxy]:
    async with proxy(codex_home, agent="codex-exec") as running:
        yield running


@pytest.mark.exhaustive
async def test_items_are_streamed_while_the_turn_goes_on(
    exec_proxy: Proxy, model_server: ModelServer
) -> None:
    prompt = plan(
        [think("Let me look."), say("First."), call("exec_command", cmd="echo hi")],
        [wait("second"), say("Second.")],
    )
    stream = await exec_proxy.client.chat.completions.create(
        **chat_request(prompt), stream=True, stream_options={"include_usage": True}
    )
    texts, reasoning, usage = [], "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            told: Any = choice.delta
            reasoning += getattr(told, "reasoning_content", None) or ""
            if told.content:
                texts.append(told.content)
        if "First." in "".join(texts):
            model_server.open_gate("second")  # closed until the first message was here
    assert "First." in "".join(texts)
    assert "Second." in "".join(texts)
    assert "Let me look." in reasoning
    assert usage is not None
    assert usage.prompt_tokens == 200


@PLAIN_MODEL
async def test_a_plain_model_gets_the_conversation_and_nothing_else(
    exec_proxy: Proxy, model_server: ModelServer
) -> None:
    raw = await exec_proxy.client.chat.completions.with_raw_response.create(
        **chat_request("[[model:echo]]", system="Be brief.")
    )
    assert raw.headers["x-codex-history"] == "flattened"
    told = json.loads(raw.parse().choices[0].message.content or "")
    assert (told["roles"], told["tools"]) == (["user"], [])
    [message] = model_server.calls[-1].body["input"]
    assert "[system]\nBe brief." in message["content"][0]["text"]


@pytest.mark.exhaustive
async def test_a_schema_reaches_the_model_and_holds(exec_proxy: Proxy, model_server: ModelServer) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    answer = await exec_proxy.client.chat.completions.create(
        **chat_request("""[[model:json body='{"answer": "42"}']]"""), response_format=wanted
    )
    assert json.loads(answer.choices[0].message.content or "") == {"answer": "42"}
    assert model_server.calls[-1].body["text"]["format"]["schema"]["required"] == ["answer"]


@pytest.mark.exhaustive
async def test_an_image_reaches_the_model(exec_proxy: Proxy, model_server: ModelServer) -> None:
    content: Any = [
        {"type": "text", "text": "[[model:text]]"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]
    await exec_proxy.client.chat.completions.create(**chat_request(content))
    parts = [part for item in model_server.calls[-1].body["input"] for part in item.get("content") or []]
    assert any(str(part.get("image_url", "")).startswith("data:image/png;base64,") for part in parts)
    state = exec_proxy.server.settings.state_dir
    await eventually(lambda: not list(state.glob("home-*")))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("http status=401 msg='Missing bearer authentication in header'", 401, "agent_not_authenticated"),
        ("http status=404 code=model_not_found msg='The model m does not exist'", 404, "model_not_found"),
        ("http status=429", 429, "rate_limit_exceeded"),
        ("http status=429 type=usage_limit_reached", 429, "usage_limit_reached"),
        ("http status=500", 502, "upstream_error"),
        ("drop n=3", 502, "upstream_disconnected"),
    ],
)
async def test_a_fault_of_the_provider_is_that_fault(
    exec_proxy: Proxy, marker: str, status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        await exec_proxy.client.chat.completions.create(**chat_request(f"[[model:{marker}]]"))
    assert (error.value.status_code, error.value.code) == (status, code)


@pytest.mark.exhaustive
async def test_a_client_that_leaves_ends_the_child_and_its_commands(
    exec_proxy: Proxy, model_server: ModelServer
) -> None:
    command = "(sleep 7719 & sleep 7719 & wait); true"
    stream = await exec_proxy.client.chat.completions.create(
        **chat_request(plan([say("Now."), call("exec_command", cmd=command)], [say("Never.")])), stream=True
    )
    await eventually(lambda: len(sleeping_processes()) == 2)
    await stream.close()
    await eventually(lambda: not sleeping_processes())
    await eventually(lambda: exec_proxy.server.agent.processes().busy == 0)


def sleeping_processes() -> list[int]:
    """The processes of the command of this test."""
    return [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if (each.info["cmdline"] or [])[:2] == ["sleep", "7719"]
    ]
