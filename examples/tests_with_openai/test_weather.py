"""Run them with `pytest`. `pytest --cassettes=record` records the last one anew, with the agent of your settings."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from weather import answer


@pytest.fixture
def client(openai_server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=openai_server.base_url, api_key=openai_server.api_key, max_retries=0)


def test_the_program_says_what_the_model_says(openai_server: Any, client: openai.OpenAI) -> None:
    openai_server.say("Good morning.")
    assert answer(client, "Hello?", get_weather=str) == "Good morning."
    assert openai_server.requests[0].json["messages"][0]["content"] == "Hello?"


def test_the_program_asks_for_the_weather_of_both_cities(openai_server: Any, client: openai.OpenAI) -> None:
    openai_server.scenario("tool_calls", name="get_weather")
    asked: list[str] = []
    answer(client, "Paris or Rome?", get_weather=lambda city: asked.append(city) or "sunny")  # type: ignore[func-returns-value]
    assert asked == ["Paris", "Rome"]
    assert len(openai_server.requests) == 2


def test_the_program_learns_when_to_try_again(openai_server: Any, client: openai.OpenAI) -> None:
    openai_server.fail(status=429, retry_after=2)
    with pytest.raises(openai.RateLimitError) as caught:
        answer(client, "Hello?", get_weather=str)
    assert caught.value.response.headers["retry-after"] == "2"


@pytest.mark.cassette("two-cities")
def test_the_program_answers_as_it_did_when_it_was_recorded(client: openai.OpenAI) -> None:
    said = answer(
        client,
        "[[fake:tool_calls]] Is it sunny in Paris and Rome?",
        get_weather=lambda city: f"sunny in {city}",
    )
    assert said == "It is sunny."
