"""A chain of LangChain against the fake agent, and against recorded turns."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def model_of(server: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="codex-5",
        base_url=server.base_url,
        api_key=server.api_key,
        max_retries=0,
        use_responses_api=False,
    )


def test_a_chain_gets_the_text(openai_server: Any) -> None:
    openai_server.say("Good morning.")
    assert model_of(openai_server).invoke("Hello?").content == "Good morning."


def test_a_chain_gets_the_calls(openai_server: Any) -> None:
    openai_server.scenario("tool_calls", name="get_weather")
    said = model_of(openai_server).bind_tools([get_weather]).invoke("Paris or Rome?")
    assert [call["args"] for call in said.tool_calls] == [{"city": "Paris"}, {"city": "Rome"}]


@pytest.mark.cassette("greeting")
def test_a_chain_streams_what_was_recorded(openai_server: Any) -> None:
    pieces = [chunk.content for chunk in model_of(openai_server).stream("Say hello. [[fake:text]]")]
    assert "".join(map(str, pieces)) == "Hello from the deterministic fake agent."
