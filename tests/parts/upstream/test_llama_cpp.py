"""llama.cpp's own server as the upstream, with a model of random weights: its answers are its own, and mean nothing."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
from openai import AsyncOpenAI

from tests.http.serving import Proxy, fake_proxy
from tests.model_server import proxy_before
from tests.waiting import PATIENCE

NEEDS_LLAMA = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="llama.cpp's server is not there: pip install --no-deps xllamacpp",
)
pytestmark = NEEDS_LLAMA
ROOT = Path(__file__).parents[3]
HI: Any = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def llama(file: Path, *mode: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.parts.upstream.tiny_model", str(file), *mode),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            line = b""
            while not line.startswith(b"http"):
                line = await process.stdout.readline()
                assert line, "llama.cpp's server did not start"
        yield f"{line.decode().strip()}/v1"
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with llama(tmp_path / "tiny.gguf") as made:
        yield made


@pytest.fixture(params=["openai-chat", "openai-responses"])
async def proxy(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    async with proxy_before(url, tmp_path, agent=request.param) as running:
        yield running


async def model_of(client: AsyncOpenAI) -> str:
    return (await client.models.list()).data[0].id


async def test_both_apis_answer_streamed_and_whole(client: AsyncOpenAI) -> None:
    model = await model_of(client)
    whole = await client.chat.completions.create(model=model, messages=HI, max_tokens=7, temperature=0)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 7, "exactly as many as were asked for"
    said, usage = "", None
    async for part in await client.chat.completions.create(
        model=model,
        messages=HI,
        max_tokens=7,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = part.usage or usage
        said += "".join(choice.delta.content or "" for choice in part.choices)
    assert said
    assert usage is not None
    assert usage.completion_tokens == 7
    response = await client.responses.create(model=model, input="Hi", max_output_tokens=16, temperature=0)
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    kinds = [
        each.type
        async for each in await client.responses.create(
            model=model, input="Hi", max_output_tokens=16, temperature=0, stream=True
        )
    ]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.incomplete", "response.completed")


async def test_a_conversation_goes_on(client: AsyncOpenAI) -> None:
    model = await model_of(client)
    first = await client.responses.create(model=model, input="Hi", max_output_tokens=16, temperature=0)
    second = await client.responses.create(
        model=model, input="And?", max_output_tokens=16, temperature=0, previous_response_id=first.id
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


async def test_a_context_that_is_too_long_is_reported_as_such(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(
            model=await model_of(client), messages=[{"role": "user", "content": "x" * 5000}]
        )
    assert raised.value.code == "context_length_exceeded"


async def test_log_probabilities_and_a_schema_are_llama_cpps_own(url: str, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    async with (
        proxy_before(url, tmp_path) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        model = await model_of(client)
        answer = await client.chat.completions.create(
            model=model, messages=HI, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
        )
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.content, "an entry may stand for the bytes of several tokens"
        formatted = await client.chat.completions.create(
            model=model,
            messages=HI,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema, "strict": True},
            },
        )
        assert json.loads(formatted.choices[0].message.content or "")["a"] in ("yes", "no")


async def use_as_an_editor(base_url: str, prompt: str) -> str:
    """Completes, embeds and chats at one address, as an editor does: with the model servers of `beside_llama`, and
    with the server's agent, whose answer is returned.
    """
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        listed = [model.id async for model in client.models.list()]
        (typing,) = [name for name in listed if name.startswith("typing/")]
        (own,) = [name for name in listed if name.startswith("vectors/")]
        completed = await client.completions.create(model=typing, prompt="def f(", max_tokens=5, stream=True)
        assert "".join([part.choices[0].text async for part in completed])
        for name in (own, "text-embedding-3-small"):
            found = await client.embeddings.create(model=name, input=["one", "two"])
            assert [len(each.embedding) for each in found.data] == [32, 32]
        asked: Any = [{"role": "user", "content": prompt}]
        chat = await client.chat.completions.create(model="codex-5", messages=asked)
        own_client = ollama.AsyncClient(host=base_url)
        vector = (await own_client.embed(own, "one")).embeddings[0]
        assert list(vector) == pytest.approx(found.data[0].embedding, abs=1e-6)
        assert (await own_client.chat(typing, HI, options={"num_predict": 5})).message.content
        await own_client._client.aclose()
        return chat.choices[0].message.content or ""


@asynccontextmanager
async def beside_llama(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """The tables of two servers of llama.cpp: one that writes, one that embeds."""
    async with (
        llama(folder / "tiny.gguf") as typing,
        llama(folder / "embeddings.gguf", "embeddings") as vectors,
    ):
        yield {"typing": {"url": typing}, "vectors": {"url": vectors, "paths": ["/embeddings"]}}


async def test_one_base_url_has_an_editors_completion_its_embeddings_and_its_chat(tmp_path: Path) -> None:
    async with (
        beside_llama(tmp_path) as tables,
        fake_proxy(tmp_path, upstreams=tables) as proxy,
    ):
        assert (await use_as_an_editor(proxy.url, "Hi")) == "Hello from the deterministic fake agent."
