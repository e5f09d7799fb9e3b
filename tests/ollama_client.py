"""Ollama's own package for Python as the client, and what its tests ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import ollama

WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@asynccontextmanager
async def client_of(url: str, **headers: str) -> AsyncIterator[ollama.AsyncClient]:
    """A client of the server at `url`."""
    client = ollama.AsyncClient(host=url, headers=headers)
    try:
        yield client
    finally:
        await client._client.aclose()


def user_messages(text: str, **more: Any) -> list[dict[str, Any]]:
    """The messages of a user who says this."""
    return [{"role": "user", "content": text, **more}]


def briefly(text: str, **more: Any) -> list[dict[str, Any]]:
    """The same with instructions, which lead to the plain model."""
    return [{"role": "system", "content": "Be brief."}, *user_messages(text, **more)]
