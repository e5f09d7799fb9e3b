"""Asks a proxy for responses: with the official SDK, and as bytes. What comes is held to the SDK's own types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.http.serving import Answer, Proxy, fake_proxy
from tests.waiting import PATIENCE

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def client_of(proxy: Proxy, key: str = "no key") -> AsyncOpenAI:
    """The official SDK. It retries nothing: a test wants the first answer."""
    return AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)


@asynccontextmanager
async def proxy_and_client(
    folder: Path, environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[tuple[Proxy, AsyncOpenAI]]:
    """A proxy on the fake agent, and an SDK client of it."""
    async with fake_proxy(folder, environment, **settings) as proxy, client_of(proxy) as client:
        yield proxy, client


async def create(proxy: Proxy, input: Any = "Hello.", **fields: Any) -> Answer:
    """POST /v1/responses, read to its end."""
    return await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": input, **fields})


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream, which has its end, each as the SDK's types want it."""
    assert text.endswith("event: done\ndata: [DONE]\n\n"), text[-200:]
    return check_events(blocks_of(text.removesuffix("event: done\ndata: [DONE]\n\n")))


def blocks_of(text: str) -> list[dict[str, Any]]:
    """The events of a piece of a stream; comments are left out."""
    events = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        head, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        events.append(event)
    return events


def check_events(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events, numbered without a gap and valid."""
    events = list(events)
    first = events[0]["sequence_number"] if events else 0
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    for event in events:
        EVENT.validate_python(event)
    return events


def types_of(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The events' types, each run of deltas once."""
    types: list[str] = []
    for event in events:
        if not (types and types[-1] == event["type"]):
            types.append(event["type"])
    return types


def text_of(response: Response) -> str:
    return response.output_text


def prompt_for(text: str) -> str:
    """A prompt to which the fake agent answers with this text."""
    return f'[[fake:text say="{text}"]]'
