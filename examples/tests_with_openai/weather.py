"""A program that answers a question with a tool: what the tests beside it test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def answer(client: openai.OpenAI, question: str, get_weather: Callable[[str], str]) -> str:
    """Returns the model's answer to a question, for which it may ask for the weather of cities."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        said = client.chat.completions.create(model="codex-5", messages=messages, tools=[WEATHER])
        message = said.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": get_weather(city)})
