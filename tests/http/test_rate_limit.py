"""How many requests a minute a key may make, and how it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError

from codex_proxy.http.middleware.rate_limit import RequestLimits, format_duration
from codex_proxy.store.team import KeyRequests
from tests.http.serving import Hands, fake_proxy, user

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
    assert format_duration(seconds) == text


def limits() -> tuple[RequestLimits, Hands]:
    clock = Hands()
    return RequestLimits(clock), clock


def test_requests_on_other_servers_count_against_the_same_minute() -> None:
    counted, clock = limits()
    assert counted.rate.take("one", 60).remaining == 59
    counted.count_elsewhere({"one": KeyRequests(taken=30), "two": KeyRequests(taken=60)}, lambda _: 60)
    assert counted.rate.take("one", 60).remaining == 28
    assert not counted.rate.take("two", 60).allowed
    clock.now += 1
    assert counted.rate.take("two", 60).allowed


def test_requests_above_the_limit_are_made_up_for_within_a_minute() -> None:
    counted, clock = limits()
    counted.count_elsewhere({"one": KeyRequests(taken=10_000)}, lambda _: 60)
    assert counted.rate.take("one", 60).wait == pytest.approx(61)
    clock.now += 61
    assert counted.rate.take("one", 60).allowed


def test_requests_that_run_on_other_servers_count_until_they_have_ended() -> None:
    counted, _ = limits()
    counted.count_elsewhere({"one": KeyRequests(running=2)}, lambda _: 0)
    assert counted.running.enter("one", 3)
    assert not counted.running.enter("one", 3)
    assert counted.running.enter("two", 1)
    counted.count_elsewhere({}, lambda _: 0)
    assert counted.running.enter("one", 3)


def test_a_report_has_what_was_taken_since_the_last_one_and_what_runs_or_has_ended() -> None:
    counted, _ = limits()
    counted.rate.take("one", 2)
    counted.rate.take("one", 2)
    assert not counted.rate.take("one", 2).allowed
    counted.running.enter("two", 0)
    assert counted.report() == {"one": KeyRequests(2, 0), "two": KeyRequests(0, 1)}
    assert counted.report() == {"two": KeyRequests(0, 1)}
    counted.running.leave("two")
    assert counted.report() == {"two": KeyRequests(0, 0)}
    assert counted.report() == {}
