"""GET /v1/usage: every turn is in it, whoever asked for it and however it ended, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.http.app_keys import USAGE
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.waiting import poll

KEY = {"Authorization": "Bearer a-key"}


@pytest.fixture(params=["sqlite", "off"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, store=request.param) as proxy:
        yield proxy


async def result(proxy: Proxy, query: str = "", **more: Any) -> dict[str, Any]:
    """The one sum of today."""
    answer = await proxy.send("GET", f"/v1/usage{query}", **more)
    assert answer.status == 200, answer.text
    (found,) = answer.body["data"][-1]["results"]
    assert isinstance(found, dict)
    return found


async def wait_for_usage(proxy: Proxy, turns: int) -> dict[str, Any]:
    """The sum of today, once it has so many turns."""

    async def summed() -> dict[str, Any]:
        results = (await proxy.send("GET", "/usage")).body["data"][-1]["results"]
        return dict(results[0]) if results and results[0]["num_model_requests"] >= turns else {}

    sum = await poll(summed)
    assert sum["num_model_requests"] == turns
    return sum


async def test_turns_of_both_surfaces_are_summed_as_their_answers_say(kept: Proxy) -> None:
    whole = (await kept.ask(user("[[fake:text in=100 out=7 cached=30]]"))).body["usage"]
    streamed = await kept.ask(
        user("[[fake:text in=100 out=7 cached=30]]", stream=True, stream_options={"include_usage": True})
    )
    second = streamed.frames[-2]["usage"]
    third = (await kept.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello."})).body["usage"]
    found = await result(kept)
    assert found["num_model_requests"] == 3
    assert found["input_tokens"] == whole["prompt_tokens"] + second["prompt_tokens"] + third["input_tokens"]
    assert found["output_tokens"] == (
        whole["completion_tokens"] + second["completion_tokens"] + third["output_tokens"]
    )
    assert found["num_failed_requests"] == 0


async def test_the_answer_names_where_usage_is_stored(kept: Proxy) -> None:
    answer = (await kept.send("GET", "/v1/usage")).body
    if kept.server.store_lifecycle is None:
        assert (answer["kept"], type(answer["kept_since"])) == ("memory", int)
    else:
        assert (answer["kept"], answer["kept_since"]) == ("disk", None)


async def test_a_turn_in_the_background_one_on_a_socket_and_a_compaction_count(proxy: Proxy) -> None:
    body = {"model": "codex-5", "input": "Hello."}
    await proxy.send("POST", "/v1/responses", body | {"background": True})
    await wait_for_usage(proxy, 1)
    async with proxy.session.ws_connect(proxy.url + "/v1/responses") as socket:
        await socket.send_json({"type": "response.create", **body})
        while (await socket.receive_json())["type"] != "response.completed":
            pass
        await wait_for_usage(proxy, 2)
    assert (await proxy.send("POST", "/v1/responses/compact", body)).status == 200
    assert (await wait_for_usage(proxy, 3))["output_tokens"] > 0


async def test_a_turn_that_fails_counts_with_what_it_cost_as_far_as_that_is_known(proxy: Proxy) -> None:
    await proxy.ask(user("[[fake:count n=30 misbehave=crash at=20]]", stream=True))
    found = await result(proxy)
    assert (found["num_model_requests"], found["num_failed_requests"]) == (1, 1)
    assert found["estimated"] is True
    assert found["output_tokens"] > 0


async def test_a_turn_that_gets_no_slot_counts_as_failed(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, max_running_turns=1, queue_wait=0) as proxy:
        async with proxy.open(user("[[fake:count n=500 delay=10]]", stream=True)) as reply:
            await reply.content.readany()
            assert (await proxy.ask(user())).status == 429
        found = await wait_for_usage(proxy, 2)
    assert found["num_failed_requests"] == 1


async def test_a_request_that_is_refused_is_no_turn(proxy: Proxy) -> None:
    assert (await proxy.ask(user(n=0))).status == 400
    assert (await proxy.send("GET", "/v1/usage")).body["data"][-1]["results"] == []


async def test_a_turn_whose_client_leaves_counts_and_has_not_failed(proxy: Proxy) -> None:
    async with proxy.open(user("[[fake:count n=500 delay=10]]", stream=True)) as reply:
        await reply.content.readany()
    await proxy.settled()
    found = await wait_for_usage(proxy, 1)
    assert (found["num_failed_requests"], found["num_estimated_requests"]) == (0, 1)


async def test_an_answer_sent_as_several_choices_is_counted_once(proxy: Proxy) -> None:
    usage = (await proxy.ask(user("[[fake:text in=100 out=7 cached=30]]", n=3))).body["usage"]
    assert (await result(proxy))["output_tokens"] * 3 == usage["completion_tokens"]


async def test_models_are_distinguished_by_the_agents_own_names(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, {"FAKE_CODEX_MODELS": "any"}) as proxy:
        await proxy.ask(user())
        await proxy.ask(user(model="another"))
        await proxy.ask(user(model="codex-5-high"))
        answer = await proxy.send("GET", "/v1/usage?group_by=model")
    results = answer.body["data"][-1]["results"]
    assert {each["model"]: each["num_model_requests"] for each in results} == {"another": 1, "fake-model": 2}


async def test_a_key_sees_its_own_usage_only_and_no_key_sees_none(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        await proxy.ask(user())
    async with fake_proxy(tmp_path, api_key="a-key") as proxy:
        await proxy.ask(user(), headers=KEY)
        await proxy.ask(user(), headers=KEY)
        found = await result(proxy, "?group_by=key", headers=KEY)
        assert (found["num_model_requests"], found["key"]) == (2, "default")
        assert (await proxy.send("GET", "/v1/usage")).status == 401
    async with fake_proxy(tmp_path) as proxy:
        assert (await result(proxy, "?group_by=key"))["key"] == "local"


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "Via"])
async def test_without_a_key_it_is_for_this_machine_only(proxy: Proxy, header: str) -> None:
    answer = await proxy.send("GET", "/v1/usage", headers={header: "for=203.0.113.7"})
    assert answer.status in (401, 403)
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}


async def test_usage_of_a_turn_is_on_disk_by_itself_and_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.store.usage.FLUSH_SECONDS", 0.01)
    async with fake_proxy(tmp_path) as proxy:
        await proxy.ask(user())
        book = proxy.app[USAGE]
        await until(lambda: not book.waiting)
        await proxy.ask(user())
    async with fake_proxy(tmp_path) as proxy:
        assert (await result(proxy))["num_model_requests"] == 2


async def test_a_query_that_is_wrong_names_its_parameter(proxy: Proxy) -> None:
    answer = await proxy.send("GET", "/v1/usage?limit=1000")
    assert (answer.status, answer.body["error"]["param"]) == (400, "limit")


# --- what the agent's account may still use -------------------------------------------------------

TOLD = {
    "name": "primary",
    "window_seconds": 18000,
    "used_percent": 43,
    "resets_at": 4_102_444_800,
    "over": False,
}


async def limits(proxy: Proxy) -> dict[str, Any]:
    answer = await proxy.send("GET", "/v1/usage/limits")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.body
    return found


async def test_limits_are_asked_of_the_agent_before_its_first_turn(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, {"FAKE_CODEX_LIMITS": "43"}, fake_dialect="app-server") as proxy:
        found = await limits(proxy)
    assert found["limits"] == [
        {"id": "codex", "name": None, "plan": "plus", "reached": None, "windows": [TOLD]}
    ]
    assert found["reason"] is None
    assert isinstance(found["as_of"], int)


async def test_limits_that_an_agent_does_not_report_have_a_reason(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        await proxy.ask(user())
        found = await limits(proxy)
    assert (found["limits"], found["as_of"]) == (None, None)
    assert "has reported no limits" in found["reason"]


@pytest.mark.parametrize("dialect", ["app-server", "proto"])
async def test_the_newest_limits_that_a_turn_reported_are_given(tmp_path: Path, dialect: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        await proxy.ask(user("[[fake:text limits=12]]"))
        await proxy.ask(user("[[fake:text limits=13]]"))
        (limit,) = (await limits(proxy))["limits"]
    (window,) = limit["windows"]
    assert (window["used_percent"], window["over"]) == (13, False)
    assert window["resets_at"] > 1_700_000_000


async def test_limits_too_are_for_this_machine_only_where_there_is_no_key(proxy: Proxy) -> None:
    answer = await proxy.send("GET", "/v1/usage/limits", headers={"Via": "1.1 elsewhere"})
    assert answer.status in (401, 403)
