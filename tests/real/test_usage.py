"""What is told of usage and limits, where the real binary counts and its provider sends the headers of limits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.real.codex_home import MODEL
from tests.real.proxy import Proxy, chat_request


async def get_json(proxy: Proxy, path: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"{proxy.url}/v1{path}") as reply:
        assert reply.status == 200
        found: dict[str, Any] = await reply.json()
    return found


async def usage_figures(proxy: Proxy) -> Counter[str]:
    """All figures of this model, of today and of yesterday where the day has just begun."""
    page = await get_json(proxy, "/usage?group_by=model&limit=2")
    results = [each for bucket in page["data"] for each in bucket["results"] if each["model"] == MODEL]
    return Counter(
        {
            name: sum(each[name] for each in results)
            for name in ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")
        }
    )


async def test_usage_is_what_the_agent_counted_for_both_surfaces(proxy: Proxy) -> None:
    before = await usage_figures(proxy)
    chat = (await proxy.client.chat.completions.create(**chat_request("[[model:text say=Hi.]]"))).usage
    response = (await proxy.client.responses.create(model=MODEL, input="[[model:text say=Hi.]]")).usage
    assert chat is not None
    assert chat.prompt_tokens_details is not None
    assert response is not None
    found = await usage_figures(proxy)
    found.subtract(before)
    assert found == {
        "num_model_requests": 2,
        "input_tokens": chat.prompt_tokens + response.input_tokens,
        "input_cached_tokens": (
            (chat.prompt_tokens_details.cached_tokens or 0) + response.input_tokens_details.cached_tokens
        ),
        "output_tokens": chat.completion_tokens + response.output_tokens,
    }
    assert found["output_tokens"] > 0


@pytest.mark.exhaustive
async def test_limits_are_those_that_the_provider_sent_with_the_last_turn(proxy: Proxy) -> None:
    await proxy.client.chat.completions.create(**chat_request("[[model:limits]]"))
    found = await get_json(proxy, "/usage/limits")
    (limit,) = found["limits"]
    windows = {each["name"]: (each["window_seconds"], each["used_percent"]) for each in limit["windows"]}
    assert windows == {"primary": (18_000, 43), "secondary": (604_800, 7)}
    assert [each["resets_at"] for each in limit["windows"]] == [4_102_444_800, 4_102_531_200]
