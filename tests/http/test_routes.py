"""Routes of the settings through the whole server: every API, fallbacks, and what a key may not do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.core.faults import bad_request
from codex_proxy.responses import background
from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import events_of
from tests.http_responses.test_websocket import answer_to, error_of, open_socket, send
from tests.model_server import Upstream, upstream
from tests.waiting import poll

pytestmark = pytest.mark.part("upstream")

OWN: dict[str, Any] = {"model_aliases": "my-own=codex-5"}
"""A name of a client's own."""
PROMPT = "[[fake:text say=Fake.]]"


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with upstream() as made:
        yield made


def settings(server: Upstream, **routes: dict[str, Any]) -> dict[str, Any]:
    return {
        "upstreams": {"local": {"url": server.url, "retries": 0, "breaker_failures": 0}},
        "routes": routes,
    }


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "codex-5", "messages": [{"role": "user", "content": PROMPT}], **more}


async def routed_answer(proxy: Proxy, body: dict[str, Any]) -> tuple[str, str, str | None]:
    """The text of the answer, its model, and the route that chose."""
    answer = await proxy.ask(body)
    assert answer.status == 200, answer.text
    text: str = answer.body["choices"][0]["message"]["content"]
    return text, answer.body["model"], answer.headers.get("x-codex-route")


async def test_a_route_chooses_in_every_api_and_the_answer_has_the_model_asked_for(
    server: Upstream, tmp_path: Path
) -> None:
    async with fake_proxy(tmp_path, **settings(server, all={"to": "local/small"})) as proxy:
        assert await routed_answer(proxy, chat()) == ("Hello.", "codex-5", "all")
        messages = {"model": "claude-x", "max_tokens": 9, "messages": chat()["messages"]}
        for path, body in (
            ("/v1/messages", {**messages, "model": "codex-5"}),
            ("/v1/responses", {"model": "codex-5", "input": PROMPT, "store": False}),
            ("/v1/responses", {"model": "codex-5", "input": PROMPT}),
            ("/api/chat", {**chat(), "stream": False}),
            ("/v1/completions", {"model": "codex-5", "prompt": PROMPT}),
        ):
            answer = await proxy.send("POST", path, body)
            assert (answer.status, answer.headers["x-codex-route"]) == (200, "all"), answer.text
            assert answer.body["model"] == "codex-5"
            assert "Hello." in answer.text
            assert server.requests[-1].body["model"] == "small"


async def test_the_log_names_the_model_that_was_asked_for_and_the_one_of_the_target(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, small={"model": "my-*", "to": "local/small"})
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy, open_socket(proxy) as socket:
        with structlog.testing.capture_logs() as lines:
            await proxy.ask(chat(model="my-own"))
            for model in ("my-own", "codex-5"):
                await answer_to(socket, PROMPT, model=model)
        started = [(line["agent"], line["model"]) for line in lines if line["event"] == "turn_started"]
        assert started == [("local", "my-own"), ("local", "my-own"), ("fake", "codex-5")]
        (ended,) = [line for line in lines if line["event"] == "request"]
        assert (ended["model"], ended["response_model"]) == ("my-own", "small")


async def test_the_first_route_whose_conditions_hold_chooses(server: Upstream, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    routes = settings(
        server,
        tools={"tools": True, "to": "local/large"},
        long={"min_tokens": 2000, "to": "local/small"},
        quick={"model": "*haiku*", "to": "local/small"},
    )
    async with fake_proxy(tmp_path, **routes, model_aliases="claude-*=codex-5") as proxy:
        assert await routed_answer(proxy, chat()) == ("Fake.", "codex-5", None)
        assert (await routed_answer(proxy, chat(tools=[tool])))[2] == "tools"
        assert server.requests[-1].body["model"] == "large"
        assert (await routed_answer(proxy, chat(messages=[{"role": "user", "content": "word " * 3000}])))[
            2
        ] == "long"
        assert (await routed_answer(proxy, chat(model="claude-haiku-4")))[1:] == ("claude-haiku-4", "quick")


async def test_another_agent_is_asked_if_the_target_fails_before_its_answer_begins(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, all={"to": "local/large", "fallback": ["local/small", "codex-5"]})
    async with fake_proxy(tmp_path, **routes) as proxy:
        server.key = "another"  # every request to the upstream is refused
        for stream in (False, True):
            answer = await proxy.ask(chat(stream=stream))
            assert answer.status == 200
            assert answer.headers["x-codex-agent"] == "fake"
            assert "Fake." in answer.text
        assert [each.body["model"] for each in server.requests] == ["large", "small"] * 2


async def test_a_fault_of_the_request_asks_nobody_else(server: Upstream, tmp_path: Path) -> None:
    routes = settings(server, all={"to": "local/small", "fallback": ["codex-5"]})
    async with fake_proxy(tmp_path, **routes) as proxy:
        answer = await proxy.ask(chat(messages=[]))
        assert answer.status == 400
        assert not server.requests


async def test_a_route_serves_a_name_that_no_agent_has_in_every_api(server: Upstream, tmp_path: Path) -> None:
    routes = settings(server, gpt={"model": "gpt-*", "to": "local/small"})
    async with fake_proxy(tmp_path, **routes) as proxy:
        for path, body in (
            ("/v1/chat/completions", chat()),
            ("/v1/messages", {"max_tokens": 9, "messages": chat()["messages"]}),
            ("/v1/responses", {"input": PROMPT}),
            ("/api/chat", {**chat(), "stream": False}),
            ("/v1/completions", {"prompt": PROMPT}),
        ):
            answer = await proxy.send("POST", path, {**body, "model": "gpt-9"})
            assert (answer.status, answer.headers.get("x-codex-route")) == (200, "gpt"), answer.text
            assert answer.body["model"] == "gpt-9"
            assert "Hello." in answer.text


async def test_a_name_that_no_agent_has_and_no_route_matches_does_not_exist(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, gpt={"model": "gpt-*", "tools": True, "to": "local/small"})
    async with fake_proxy(tmp_path, **routes) as proxy:
        for model in ("gpt-9", "other"):
            answer = await proxy.ask(chat(model=model))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert f"'{model}'" in answer.error["message"]


async def test_a_route_to_a_model_that_does_not_exist_is_named(server: Upstream, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **settings(server, gpt={"model": "gpt-*", "to": "lokal/small"})) as proxy:
        answer = await proxy.ask(chat(model="gpt-9"))
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert answer.error["message"].startswith("[routes.gpt] sends this request to another model.")
        assert "'lokal/small' does not exist" in answer.error["message"]


async def test_tokens_are_counted_for_a_name_that_only_a_route_serves(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, gpt={"model": "gpt-*", "to": "local/small"})
    async with fake_proxy(tmp_path, **routes) as proxy:
        for model, status in (("gpt-9", 200), ("other", 404)):
            body = {"model": model, "messages": chat()["messages"]}
            answer = await proxy.send("POST", "/v1/messages/count_tokens", body)
            assert answer.status == status, answer.text


async def test_a_route_decides_between_agents_that_have_the_same_model(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, small={"model": "small", "to": "local/small"})
    routes["upstreams"]["other"] = routes["upstreams"]["local"]
    async with fake_proxy(tmp_path, **routes) as proxy:
        text, _, route = await routed_answer(proxy, chat(model="small"))
        assert (text, route) == ("Hello.", "small")
        assert (await proxy.ask(chat(model="large"))).error["code"] == "ambiguous_model"


async def test_another_target_is_asked_for_a_name_that_no_agent_has(server: Upstream, tmp_path: Path) -> None:
    routes = settings(server, gpt={"model": "gpt-*", "to": "local/large", "fallback": ["codex-5"]})
    server.key = "another"
    async with fake_proxy(tmp_path, **routes) as proxy:
        assert await routed_answer(proxy, chat(model="gpt-9")) == ("Fake.", "gpt-9", "gpt")


async def test_a_route_to_a_model_that_does_not_exist_is_reported(server: Upstream, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **settings(server, all={"to": "nobody/nothing"})) as proxy:
        answer = await proxy.ask(chat())
        assert (answer.status, answer.headers["x-codex-route"]) == (404, "all")
        assert "nobody/nothing" in answer.error["message"]


async def test_each_turn_of_a_websocket_is_routed_by_itself(server: Upstream, tmp_path: Path) -> None:
    routes = settings(server, small={"model": "*small*", "to": "local/small", "fallback": ["codex-5"]})
    async with (
        fake_proxy(tmp_path, **routes, model_aliases="my-small=codex-5") as proxy,
        open_socket(proxy) as socket,
    ):
        for model, text in (("my-small", "Hello."), ("codex-5", "Fake."), ("my-small", "Hello.")):
            answer = await answer_to(socket, PROMPT, model=model)
            assert text in str(answer["output"])
            assert answer["model"] == model


async def test_a_websocket_turn_asks_another_agent_too_and_is_continued(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, all={"to": "local/large", "fallback": ["codex-5"]})
    server.key = "another"
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy, open_socket(proxy) as socket:
        first = await answer_to(socket, PROMPT, store=False)
        assert "Fake." in str(first["output"])
        second = await answer_to(
            socket, "[[fake:echo]]", model="my-own", store=False, previous_response_id=first["id"]
        )
        assert "Fake." in str(second["output"])
        assert second["model"] == "my-own"
        assert [each.body["model"] for each in server.requests] == ["large"] * 2


async def test_a_websocket_turn_whose_last_target_fails_is_an_error(server: Upstream, tmp_path: Path) -> None:
    routes = settings(server, all={"to": "local/large", "fallback": ["local/small"]})
    server.key = "another"
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy, open_socket(proxy) as socket:
        await send(socket, PROMPT)
        assert (await error_of(socket))["code"] == "upstream_unauthorized"
        assert len(server.requests) == 2


async def in_background(proxy: Proxy, **more: Any) -> dict[str, Any]:
    """A background response, once it has ended."""
    body = {"model": "my-own", "input": PROMPT, "background": True, **more}
    created = await proxy.send("POST", "/v1/responses", body)
    assert created.headers["x-codex-route"] == "all"
    return await wait_for_end(
        proxy, events_of(created.text)[0]["response"]["id"] if more.get("stream") else created.body["id"]
    )


async def wait_for_end(proxy: Proxy, id: str) -> dict[str, Any]:
    async def over() -> Any:
        response = (await proxy.send("GET", f"/v1/responses/{id}")).body
        return None if response["status"] in ("queued", "in_progress") else response

    response: dict[str, Any] = await poll(over)
    return response


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"conversation": True}])
async def test_a_background_response_asks_another_agent_too(
    server: Upstream, tmp_path: Path, more: dict[str, Any]
) -> None:
    routes = settings(server, all={"to": "local/large", "fallback": ["local/small", "codex-5"]})
    server.key = "another"
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy:
        if more.get("conversation"):
            more = {"conversation": (await proxy.send("POST", "/v1/conversations", {})).body["id"]}
        response = await in_background(proxy, **more)
        assert (response["status"], response["model"]) == ("completed", "my-own")
        assert "Fake." in str(response["output"])
        assert [each.body["model"] for each in server.requests] == ["large", "small"]
        await proxy.settled()


async def test_a_background_response_whose_last_target_fails_has_failed(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, all={"to": "local/large", "fallback": ["local/small", "nobody/nothing"]})
    server.key = "another"
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy:
        response = await in_background(proxy)
        assert response["status"] == "failed"
        assert "nobody/nothing" in response["error"]["message"]
        assert len(server.requests) == 2


@pytest.mark.parametrize("refusing", ["prepare_again", "try_to_start"])
async def test_a_background_stream_whose_next_target_is_refused_ends_once_and_can_be_resumed(
    server: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    server.key = "another"
    original = getattr(background, refusing)

    async def refuse(*given: Any, **more: Any) -> Any:
        if not server.requests:
            return await original(*given, **more)
        raise bad_request("Small does not take this.", "model")

    monkeypatch.setattr(background, refusing, refuse)
    routes = settings(server, all={"to": "local/large", "fallback": ["local/small"]})
    body = {"model": "my-own", "input": PROMPT, "background": True, "stream": True}
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy:
        events = events_of((await proxy.send("POST", "/v1/responses", body)).text)
        path = f"/v1/responses/{events[0]['response']['id']}"
        again = events_of((await proxy.send("GET", f"{path}?stream=true")).text)
        response = (await proxy.send("GET", path)).body
    assert [event["type"] for event in events].count("error") == 1
    assert "Small" in response["error"]["message"]
    assert again == events
    assert events[-1]["response"] == response


async def test_a_background_response_that_is_run_again_after_a_restart_has_its_target(
    server: Upstream, tmp_path: Path
) -> None:
    routes = settings(server, all={"to": "local/small"}) | {"background_recovery": "rerun"}
    server.held.clear()
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy:
        body = {"model": "my-own", "input": PROMPT, "background": True}
        id = (await proxy.send("POST", "/v1/responses", body)).body["id"]
        await server.is_held.wait()
    server.held.set()
    async with fake_proxy(tmp_path, **routes, **OWN) as proxy:
        response = await wait_for_end(proxy, id)
        assert (response["status"], response["model"]) == ("completed", "my-own")
        assert [each.body["model"] for each in server.requests] == ["small"] * 2
