"""How many requests a minute a key may make, and how it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError

from codex_proxy.http.middleware.rate_limit import span
from tests.http.serving import fake_proxy, user

FIGURES = ("limit", "remaining", "reset")


def figures(answer: Any) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(f"x-ratelimit-{name}-requests") for name in FIGURES)


async def test_a_request_over_the_limit_is_429_with_retry_after(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, rate_limit_rpm=2) as proxy:
        assert [(await proxy.ask(user())).status for _ in range(2)] == [200, 200]
        answer = await proxy.ask(user())
        assert answer.status == 429
        assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert 1 <= int(answer.headers["Retry-After"]) <= 30


async def test_accepted_and_rejected_replies_carry_the_figures(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, rate_limit_rpm=2) as proxy:
        first = figures(await proxy.ask(user(stream=True)))
        assert first[:2] == ("2", "1")
        assert first[2] == "30s"
        assert figures(await proxy.ask(user(n=99)))[:2] == ("2", "0")
        assert figures(await proxy.ask(user()))[:2] == ("2", "0")


async def test_without_a_limit_there_are_no_figures(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        assert figures(await proxy.ask(user())) == (None, None, None)


async def test_models_and_test_endpoints_cost_nothing(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, rate_limit_rpm=1, test_endpoints=True) as proxy:
        for _ in range(3):
            assert (await proxy.send("GET", "/v1/models")).status == 200
            assert (await proxy.send("POST", "/__test/conc/release")).status == 404  # no file, and no 429
        assert (await proxy.ask(user())).status == 200


async def test_a_wrong_key_takes_nothing_from_the_right_one(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, rate_limit_rpm=1, api_key="right") as proxy:
        for _ in range(3):
            assert (await proxy.ask(user(), headers={"Authorization": "Bearer wrong"})).status == 401
        right = {"Authorization": "Bearer right"}
        assert (await proxy.ask(user(), headers=right)).status == 200
        assert (await proxy.ask(user(), headers=right)).status == 429


async def test_the_official_sdk_sees_a_rate_limit_error(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, rate_limit_rpm=1) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        await client.chat.completions.create(**user())
        with pytest.raises(RateLimitError) as caught:
            await client.chat.completions.create(**user())
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.request_id is not None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.34, "340ms"), (1, "1s"), (12.5, "12.5s"), (60, "1m0s"), (90, "1m30s"), (3601, "60m1s")],
)
def test_a_span_of_time_is_written_as_openais_headers_do(seconds: float, text: str) -> None:
    assert span(seconds) == text
