"""LiteLLM's proxy as the upstream of both wires, with the official SDK as the client; and as a client of this server.

LiteLLM answers some models by itself (`mock_response`), and asks a server of the test for the others. `TEST_LITELLM`
names its program; else the one on PATH is taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.parts.upstream.openai_chat.answer_forms import WholeAnswer
from tests.http.serving import Proxy, fake_proxy
from tests.model_server import Upstream, call, proxy_before, stream, text, upstream
from tests.parts.upstream.test_connections import wait_until_nothing_is_left
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

PROGRAM = os.environ.get("TEST_LITELLM") or shutil.which("litellm")
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="LiteLLM's proxy is not there: python3 -m venv DIR && DIR/bin/pip install 'litellm[proxy]', and name "
    "DIR/bin/litellm with TEST_LITELLM",
)
KEY = "sk-of-litellm-1234567890"
KEY_BEHIND = "sk-of-its-upstream-0987654321"
HI: Any = [{"role": "user", "content": "Hi"}]
PARIS = '{"city":"Paris"}'
MOCKS = {
    "mock": "Hello there.",
    "mock-limited": "litellm.RateLimitError",
    "mock-toolong": "litellm.ContextWindowExceededError",
    "mock-broken": "litellm.InternalServerError",
}
BEHIND = ("small", "http_401", "http_429", "toolong", "http_500", "error_mid", "fake-model")
"""Models that LiteLLM asks the server behind it for."""


@dataclass(frozen=True)
class LiteLLM:
    """A running proxy at `url`, which looks for the server behind it at `port`."""

    url: str
    port: int


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteLLM]:
    assert PROGRAM is not None
    folder = tmp_path_factory.mktemp("litellm")
    port, own = _free_ports(2)
    (folder / "config.yaml").write_text(json.dumps(_configuration(port)))  # JSON is YAML
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    flags = ("--config", "config.yaml", "--host", "127.0.0.1", "--port", str(own), "--telemetry", "False")
    with subprocess.Popen(
        [PROGRAM, *flags],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Uvicorn running" in line:
                break
        else:
            raise AssertionError(f"LiteLLM did not start: {said}")
        reader = Thread(target=process.stdout.read)  # else it waits for somebody to read its log
        reader.start()
        try:
            yield LiteLLM(f"http://127.0.0.1:{own}/v1", port)
        finally:
            process.terminate()
            reader.join()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _configuration(port: int) -> dict[str, Any]:
    mocks = {
        name: {"model": f"openai/{name}", "api_key": "none", "mock_response": said}
        for name, said in MOCKS.items()
    }
    server = {
        "api_base": f"http://127.0.0.1:{port}/v1",
        "api_key": KEY_BEHIND,
        "use_chat_completions_api": True,
    }
    behind = {name: {"model": f"openai/{name}", **server} for name in BEHIND}
    return {
        "model_list": [
            {"model_name": name, "litellm_params": asked} for name, asked in (mocks | behind).items()
        ],
        "litellm_settings": {"num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": KEY},
    }


def whole_answer(stream: bytes) -> dict[str, Any]:
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: {")]
    answer = WholeAnswer(str)
    for line in lines:
        answer.add(json.loads(line))
    return answer.whole()


@pytest.fixture
async def server(litellm: LiteLLM) -> AsyncIterator[Upstream]:
    """The server behind LiteLLM."""
    async with upstream(port=litellm.port) as served:
        served.key = KEY_BEHIND
        served.whole = whole_answer
        yield served


@pytest.fixture(params=["openai-chat", "openai-responses"])
async def proxy(litellm: LiteLLM, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    async with proxy_before(litellm.url, tmp_path, agent=request.param, upstream_key=KEY) as running:
        yield running


async def test_both_apis_answer_streamed_and_whole_with_the_usage(
    client: AsyncOpenAI, server: Upstream
) -> None:
    whole = await client.chat.completions.create(model="small", messages=HI)
    assert whole.choices[0].message.content == "Hello."
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (11, 7)
    said, usage = "", None
    async for part in await client.chat.completions.create(
        model="small", messages=HI, stream=True, stream_options={"include_usage": True}
    ):
        usage = part.usage or usage
        said += "".join(choice.delta.content or "" for choice in part.choices)
    assert said == "Hello."
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (11, 7)
    response = await client.responses.create(model="small", input="Hi")
    assert response.output_text == "Hello."
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)
    events = [each async for each in await client.responses.create(model="small", input="Hi", stream=True)]
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == "Hello."
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert (last.response.usage.input_tokens, last.response.usage.output_tokens) == (11, 7)


async def test_an_answer_that_litellm_makes_itself_is_reported(litellm: LiteLLM, tmp_path: Path) -> None:
    async with (
        proxy_before(litellm.url, tmp_path, upstream_key=KEY) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        whole = await client.chat.completions.create(model="mock", messages=HI)
        assert whole.choices[0].message.content == "Hello there."
        assert whole.usage is not None
        assert whole.usage.prompt_tokens > 0
        response = await client.responses.create(model="mock", input="Hi")
        assert response.output_text == "Hello there."
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="mock-limited", messages=HI)
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="mock-limited", input="Hi")
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="mock-toolong", messages=HI)
        assert raised.value.code == "context_length_exceeded"
        with pytest.raises(openai.InternalServerError) as broken:
            await client.responses.create(model="mock-broken", input="Hi")
        assert broken.value.code == "upstream_error"


async def test_a_tool_loop_goes_round_on_both_apis(client: AsyncOpenAI, server: Upstream) -> None:
    called = stream(call("get_weather", PARIS), finish="tool_calls")
    server.script = [called, text("Sunny."), called, text("Sunny.")]
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    first = await client.chat.completions.create(model="small", messages=messages, tools=[CHAT_WEATHER])
    message = first.choices[0].message
    assert message.tool_calls is not None
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    last = await client.chat.completions.create(model="small", messages=messages, tools=[CHAT_WEATHER])
    assert last.choices[0].message.content == "Sunny."
    created = await client.responses.create(model="small", input="weather?", tools=[RESPONSES_WEATHER])
    [made] = [item for item in created.output if item.type == "function_call"]
    assert (made.name, json.loads(made.arguments)) == ("get_weather", {"city": "Paris"})
    output: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "sunny"}
    answer = await client.responses.create(
        model="small", input=[output], tools=[RESPONSES_WEATHER], previous_response_id=created.id
    )
    assert answer.output_text == "Sunny."
    assert [each["role"] for each in server.requests[-1].body["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("http_401", 502, "upstream_unauthorized"),
        ("http_429", 429, "rate_limit_exceeded"),
        ("toolong", 400, "context_length_exceeded"),
        ("http_500", 502, "upstream_error"),
        ("nowhere", 404, "model_not_found"),
    ],
)
async def test_a_refusal_behind_litellm_is_reported_as_what_it_is_and_without_a_key(
    model: str,
    status: int,
    code: str,
    streamed: bool,
    client: AsyncOpenAI,
    server: Upstream,
    log_lines: list[Any],
) -> None:
    if model == "http_401":
        server.key = "another"  # then LiteLLM repeats its key
    for ask in (
        lambda: client.chat.completions.create(model=model, messages=HI, stream=streamed),
        lambda: client.responses.create(model=model, input="Hi", stream=streamed),
    ):
        with pytest.raises(openai.APIStatusError) as raised:
            await ask()
        assert (raised.value.status_code, raised.value.code) == (status, code)
        told = raised.value.response.text + str(log_lines)
        assert KEY not in told
        assert KEY_BEHIND not in told
        assert str(server.url.split(":")[-1]) not in told


async def test_a_wrong_key_of_litellm_is_reported_as_such(litellm: LiteLLM, tmp_path: Path) -> None:
    wrong = "sk-no-key-of-litellm"
    for agent in ("openai-chat", "openai-responses"):
        folder = tmp_path / agent
        folder.mkdir()
        async with proxy_before(litellm.url, folder, agent=agent, upstream_key=wrong) as proxy:
            for path, body in (
                ("/v1/chat/completions", {"messages": HI}),
                ("/v1/responses", {"input": "Hi"}),
            ):
                answer = await proxy.send("POST", path, body | {"model": "mock"})
                assert (answer.status, answer.error["code"]) == (502, "upstream_unauthorized")
                assert "no-key-of-litellm" not in answer.text
            assert "PROXY_UPSTREAM_KEY" in (await proxy.send("GET", "/readyz")).text


async def test_a_client_that_leaves_leaves_no_connection_to_litellm(proxy: Proxy, server: Upstream) -> None:
    for path, body in (("/v1/chat/completions", {"messages": HI}), ("/v1/responses", {"input": "Hi"})):
        server.held.clear()
        server.is_held.clear()
        leaving = asyncio.create_task(proxy.send("POST", path, {"model": "small", "stream": True, **body}))
        await server.is_held.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await wait_until_nothing_is_left(proxy)
        server.held.set()  # whether LiteLLM then leaves its own upstream is its affair: it does not always


async def test_litellm_is_a_client_of_this_server_on_both_apis(litellm: LiteLLM, tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, {"FAKE_CODEX_MODELS": "any"}, port=litellm.port, api_key=KEY_BEHIND),
        AsyncOpenAI(base_url=litellm.url, api_key=KEY, max_retries=0) as client,
    ):
        asked: Any = [{"role": "user", "content": "Say hello."}]
        whole = await client.chat.completions.create(model="fake-model", messages=asked)
        said = whole.choices[0].message.content
        assert said
        streamed = await client.chat.completions.create(model="fake-model", messages=asked, stream=True)
        parts = [part.choices[0].delta.content or "" async for part in streamed if part.choices]
        assert "".join(parts) == said
        response = await client.responses.create(model="fake-model", input="Say hello.")
        assert response.output_text == said
        events = await client.responses.create(model="fake-model", input="Say hello.", stream=True)
        assert (
            "".join([each.delta async for each in events if each.type == "response.output_text.delta"])
            == said
        )
