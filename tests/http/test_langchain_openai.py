"""LangChain's ChatOpenAI, which the contract names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.http.serving import Proxy
from tests.http.test_sdks import TEXT, proxy
from tests.weather_tool import CHAT_WEATHER

__all__ = ["proxy"]

pytestmark = pytest.mark.sampled(every=2, first=1)


def langchain(proxy: Proxy, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="codex-5",
        base_url=f"{proxy.url}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        stream_usage=True,
        use_responses_api=False,  # which it takes for names with "codex" in them
        **more,
    )


async def test_langchain_observes_the_finish_chunk_and_then_the_usage(proxy: Proxy) -> None:
    chunks = [chunk async for chunk in langchain(proxy).astream("[[fake:length in=8 out=4]]")]
    assert "".join(str(chunk.content) for chunk in chunks) == "This answer was cut off because"
    finish = [i for i, chunk in enumerate(chunks) if chunk.response_metadata.get("finish_reason")]
    usage = [i for i, chunk in enumerate(chunks) if chunk.usage_metadata]
    assert chunks[finish[0]].response_metadata["finish_reason"] == "length"
    assert len(usage) == 1
    assert usage[0] > finish[0]
    told = chunks[usage[0]].usage_metadata
    assert told is not None
    assert (told["input_tokens"], told["output_tokens"], told["total_tokens"]) == (8, 4, 12)


async def test_langchain_folds_a_stream_to_what_it_gets_whole(proxy: Proxy) -> None:
    model = langchain(proxy)
    whole = await model.ainvoke("Hello.")
    chunks = [chunk async for chunk in model.astream("Hello.")]
    folded = chunks[0]
    for chunk in chunks[1:]:
        folded += chunk
    assert folded.content == whole.content == TEXT
    assert folded.usage_metadata == whole.usage_metadata


async def test_langchain_calls_tools_streamed_and_whole(proxy: Proxy) -> None:
    model = langchain(proxy).bind_tools([json.loads(json.dumps(CHAT_WEATHER))])
    whole = await model.ainvoke("[[fake:tool_calls]]")
    folded: Any = None
    async for chunk in model.astream("[[fake:tool_calls]]"):
        folded = chunk if folded is None else folded + chunk
    expected = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    for message in (whole, folded):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_langchain_knows_a_context_that_is_too_long(proxy: Proxy, stream: bool) -> None:
    """So that what is built on it can leave something out, or sum it up, and go on."""
    model = langchain(proxy, streaming=stream)
    with pytest.raises(ContextOverflowError, match="This model's maximum context length is"):
        await model.ainvoke("[[fake:context_length]]")
