"""LangChain's ChatAnthropic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import SecretStr

from tests.http.serving import Proxy
from tests.http.test_anthropic_sdks import TEXT, GetWeather, proxy
from tests.waiting import PATIENCE
from tests.weather_tool import MESSAGES_WEATHER

__all__ = ["proxy"]

pytestmark = pytest.mark.sampled(every=2)


@pytest.fixture
async def langchain(proxy: Proxy) -> AsyncIterator[ChatAnthropic]:
    model = ChatAnthropic(
        model="codex-5",
        base_url=proxy.url,
        api_key=SecretStr("none"),
        max_retries=0,
        timeout=PATIENCE,
        stop=None,
    )
    yield model
    # The package caches its HTTP clients for as long as the process runs: nobody else closes their sockets.
    await model._async_client.close()
    model._client.close()


async def test_langchain_folds_a_stream_to_what_it_gets_whole(langchain: ChatAnthropic) -> None:
    whole = await langchain.ainvoke("Hello.")
    folded: Any = None
    async for chunk in langchain.astream("Hello."):
        folded = chunk if folded is None else folded + chunk
    assert folded.text == whole.text == TEXT
    assert folded.usage_metadata == whole.usage_metadata


async def test_langchain_calls_tools_and_sends_their_results(langchain: ChatAnthropic) -> None:
    model = langchain.bind_tools([MESSAGES_WEATHER])
    whole = await model.ainvoke("[[fake:tool_calls]]")
    folded: Any = None
    async for chunk in model.astream("[[fake:tool_calls]]"):
        folded = chunk if folded is None else folded + chunk
    expected = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    for message in (whole, folded):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == expected
    assert isinstance(whole, AIMessage)
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in whole.tool_calls]
    last = await model.ainvoke([("user", "[[fake:tool_calls]]"), whole, *results])
    assert "sunny" in last.text


async def test_langchains_structured_output_is_a_forced_tool(langchain: ChatAnthropic) -> None:
    model = langchain.with_structured_output(GetWeather)
    made = await model.ainvoke("""[[fake:tool_call name=GetWeather args='{"city": "Rome"}']]""")
    assert made == GetWeather(city="Rome")


async def test_langchain_counts_tokens(langchain: ChatAnthropic) -> None:
    """In a thread, since it waits for the answer, which comes from this one."""
    count = langchain.get_num_tokens_from_messages
    assert 0 < await asyncio.to_thread(count, [HumanMessage("Hello.")]) < 100
