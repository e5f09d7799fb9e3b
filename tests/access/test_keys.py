"""What a key opens, and what it does not: its own limits, and nobody else's belongings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.keys import digest_of
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.middleware.rate_limit import MAX_WAITING, WRONG_KEYS, WrongKeys
from tests.access.keyed import (
    filled,
    id_of_environment,
    id_of_file,
    ids_of_agents,
    key_header,
    keyed_proxy,
    look_now,
    refusal_of,
    write_keys,
    write_text,
)
from tests.http.serving import Hands, Proxy, fake_proxy, until, user
from tests.waiting import poll
from tests.weather_tool import CHAT_WEATHER


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy with two keys, which have no limits."""
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        yield proxy


# --- who comes in -------------------------------------------------------------------------------


def test_the_endpoints_that_need_no_key_are_these() -> None:
    without_key = {each.route for each in ENDPOINTS if each.kind == "open"}
    assert {route for route in without_key if not route.startswith("GET /ui/")} == {
        *("GET /", "GET /v1", "GET /api/hello", "GET /openapi.json"),
        *("GET /healthz", "GET /livez", "GET /readyz", "GET /metrics"),
    }
    assert {route for route in without_key if route.startswith("GET /ui/api/")} == set()


async def test_every_key_of_the_file_and_of_the_settings_opens_and_nothing_else_does(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, api_key="third") as proxy:
        for headers in (key_header("one"), key_header("two"), {"Authorization": "bearer   third "}):
            assert (await proxy.ask(user(), headers=headers)).status == 200
        for wrong in (
            "",
            "Bearer",
            "Bearer cpx_on",
            "Bearer cpx_onee",
            "Basic cpx_one",
            "cpx_one",
            "Bearer \xff",
        ):
            answer = await proxy.ask(user(), headers={"Authorization": wrong} if wrong else {})
            assert refusal_of(answer) == (401, "invalid_api_key", None)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer ")


async def test_a_key_that_is_removed_or_replaced_opens_no_longer(two: Proxy, tmp_path: Path) -> None:
    assert (await two.ask(user(), headers=key_header("one"))).status == 200
    write_keys(tmp_path, two={}, three={})
    look_now(two.server)
    statuses = [(await two.ask(user(), headers=key_header(name))).status for name in ("one", "two", "three")]
    assert statuses == [401, 200, 200]


async def test_a_broken_keys_file_is_in_the_health_report_and_earlier_keys_stay_valid(
    two: Proxy, tmp_path: Path
) -> None:
    write_text(tmp_path, "[keys.one")
    look_now(two.server)
    assert (await two.ask(user(), headers=key_header("one"))).status == 200
    health = (await two.send("GET", "/healthz")).body
    assert health["status"] == "degraded"
    assert "keys file" in health["keys"]
    assert str(tmp_path) not in str(health)
    assert (await two.send("GET", "/readyz")).status == 200


async def test_with_the_first_key_a_running_server_wants_one(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        assert (await proxy.ask(user())).status == 200
        write_keys(tmp_path, one={})
        look_now(proxy.server)
        assert (await proxy.ask(user())).status == 401
        assert (await proxy.ask(user(), headers=key_header("one"))).status == 200


# --- wrong keys ---------------------------------------------------------------------------------


class Sleeper:
    """Stands in for the waiting: notes how long, and waits for the test."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.wake = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.wake.wait()


def with_sleeper(proxy: Proxy) -> Sleeper:
    sleeper = Sleeper()
    wrong_keys = proxy.app[WRONG_KEYS]
    wrong_keys._sleep = sleeper
    wrong_keys._attempts._clock = Hands()
    return sleeper


async def test_wrong_keys_wait_longer_and_longer_and_hold_no_right_one_up(two: Proxy) -> None:
    assert (await two.ask(user(), headers=key_header("one"))).status == 200
    sleeper = with_sleeper(two)
    guesses = [asyncio.ensure_future(two.ask(user(), headers=key_header(f"guess{n}"))) for n in range(6)]
    await until(lambda: len(sleeper.slept) == 3 and sum(guess.done() for guess in guesses) == 3)
    assert (await two.ask(user(), headers=key_header("one"))).status == 200
    assert sleeper.slept == [0.25, 0.75, 1.75]
    sleeper.wake.set()
    assert {(await guess).status for guess in guesses} == {401}


async def test_a_right_key_that_is_new_at_an_address_that_guesses_waits_as_a_wrong_one_does(
    two: Proxy,
) -> None:
    """Else whoever tries many at once sees by the time that it takes which one is right. Then it is known there."""
    sleeper = with_sleeper(two)
    for n in range(3):
        await two.ask(user(), headers=key_header(f"guess{n}"))
    wrong = asyncio.ensure_future(two.ask(user(), headers=key_header("guess")))
    await until(lambda: len(sleeper.slept) == 1)
    right = asyncio.ensure_future(two.ask(user(), headers=key_header("one")))
    await until(lambda: len(sleeper.slept) == 2)
    assert not right.done()
    sleeper.wake.set()
    assert ((await wrong).status, (await right).status) == (401, 200)
    sleeper.wake.clear()
    assert (await two.ask(user(), headers=key_header("one"))).status == 200


async def test_a_request_without_a_key_is_no_guess(two: Proxy) -> None:
    sleeper = with_sleeper(two)
    assert {(await two.ask(user())).status for _ in range(10)} == {401}
    assert sleeper.slept == []


async def looked_at(wrong_keys: WrongKeys, address: str) -> bool:
    """Whether a wrong key of this address was looked at."""
    looked = False
    with contextlib.suppress(Fault):
        async with wrong_keys.delay_guess(address, "a digest"):
            looked = True
            raise Fault(Failure(kind=FaultKind.INVALID_API_KEY, message="It is wrong."))
    return looked


async def test_only_so_many_keys_of_one_address_and_of_all_wait_at_once() -> None:
    sleeper = Sleeper()
    wrong_keys = WrongKeys(Hands(), sleeper)
    of_one = [asyncio.ensure_future(looked_at(wrong_keys, "192.0.2.1")) for _ in range(20)]
    await until(lambda: sum(each.done() for each in of_one) == 20 - len(sleeper.slept))
    assert sleeper.slept == [0.25, 0.75, 1.75, 3.75, 7.75, 12.75, 17.75]
    assert [each.result() for each in of_one if each.done()] == [True] * 3 + [False] * 10
    for number in range(MAX_WAITING):
        of_one += [asyncio.ensure_future(looked_at(wrong_keys, f"198.51.{number}.1")) for _ in range(4)]
    await until(
        lambda: len(sleeper.slept) == MAX_WAITING and sum(not each.done() for each in of_one) == MAX_WAITING
    )
    assert await looked_at(wrong_keys, "203.0.113.1"), "an address without wrong keys does not wait"
    sleeper.wake.set()
    await asyncio.gather(*of_one)


async def test_past_that_no_key_is_looked_at_but_those_that_are_known(two: Proxy) -> None:
    assert (await two.ask(user(), headers=key_header("one"))).status == 200
    sleeper = with_sleeper(two)
    sleeper.wake.set()
    assert {(await two.ask(user(), headers=key_header("wrong"))).status for _ in range(4)} == {401}
    two.app[WRONG_KEYS]._held = MAX_WAITING
    for name in ("wrong", "two"):
        answer = await two.ask(user(), headers=key_header(name))
        assert refusal_of(answer) == (429, "rate_limit_exceeded", None)
        assert int(answer.headers["Retry-After"]) > 0
    assert (await two.ask(user(), headers=key_header("one"))).status == 200


async def test_the_key_of_the_metrics_is_guarded_alike(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, metrics=True, metrics_key="mine") as proxy:
        sleeper = with_sleeper(proxy)
        sleeper.wake.set()
        for _ in range(5):
            assert (await proxy.send("GET", "/metrics", headers=key_header("guess"))).status == 401
        assert sleeper.slept == [0.25, 0.75]
        assert (await proxy.send("GET", "/metrics", headers={"Authorization": "Bearer mine"})).status == 200


# --- the limits of a key ------------------------------------------------------------------------


async def test_each_key_has_its_own_requests_a_minute(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"slow": {"rpm": 1}, "other": {}}, rate_limit_rpm=2) as proxy:
        statuses = [(await proxy.ask(user(), headers=key_header("slow"))).status for _ in range(2)]
        assert statuses == [200, 429]
        answers = [await proxy.ask(user(), headers=key_header("other")) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "2"


async def test_each_key_has_its_own_requests_at_once(tmp_path: Path) -> None:
    held = user('[[fake:text say="a b" hold=1]]', stream=True)
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    keys = {"narrow": {"concurrency": 1}, "other": {}}
    async with keyed_proxy(tmp_path, keys, environment) as proxy:
        async with proxy.open(held, headers=key_header("narrow")) as first:
            assert first.status == 200
            answer = await proxy.ask(user(), headers=key_header("narrow"))
            assert refusal_of(answer) == (429, "concurrency_exceeded", None)
            assert int(answer.headers["Retry-After"]) >= 1
            assert (await proxy.send("GET", "/v1/models", headers=key_header("narrow"))).status == 200
            assert (await proxy.ask(user(), headers=key_header("other"))).status == 200
        await proxy.settled()
        assert (await proxy.ask(user(), headers=key_header("narrow"))).status == 200


async def test_what_runs_in_the_background_counts_for_its_key_too(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with keyed_proxy(tmp_path, {"narrow": {"concurrency": 2}, "other": {}}, environment) as proxy:
        held = {"input": '[[fake:text say="a b" hold=1]]', "background": True}
        names = ("other", "other", "narrow", "narrow", "narrow", "other")
        statuses = [(await ask_response(proxy, name, **held)).status for name in names]
        assert statuses == [200, 200, 200, 200, 429, 200]
        (tmp_path / "go").write_text("go")
        await until(lambda: not proxy.server.background.leases)
        assert (await ask_response(proxy, "narrow", **held)).status == 200


async def test_the_operator_limits_how_many_requests_any_key_may_have_at_once(tmp_path: Path) -> None:
    held = user('[[fake:text say="a b" hold=1]]', stream=True)
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with fake_proxy(tmp_path, environment, key_concurrency=1) as proxy, proxy.open(held) as first:
        assert first.status == 200
        assert refusal_of(await proxy.ask(user()))[:2] == (429, "concurrency_exceeded")


async def test_the_log_names_whose_request_it_was_and_never_the_key(two: Proxy) -> None:
    with structlog.testing.capture_logs() as logged:
        await two.ask(user(), headers=key_header("one"))
        await two.ask(user(), headers=key_header("wrong"))
    owners = [line.get("owner") for line in logged if line["event"] == "request"]
    assert owners == ["one", None]
    assert "cpx_" not in str(logged)


@pytest.mark.parametrize("headers", [{}, key_header("guess")], ids=["no key", "a wrong key"])
async def test_the_log_has_the_address_from_which_a_refused_key_came(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}, trusted_proxies="127.0.0.1") as proxy:
        with structlog.testing.capture_logs() as logged:
            for more in (headers, key_header("one")):
                await proxy.ask(user(), headers={**more, "X-Forwarded-For": "192.0.2.7"})
    addresses = [line.get("address") for line in logged if line["event"] == "request"]
    assert addresses == ["192.0.2.7", None]


@pytest.fixture
async def choosy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy with a key for one model, one for one effort of another, and one for every model."""
    keys = {"default": {"models": ["codex-5"]}, "low": {"models": ["codex-5-low"]}, "all": {}}
    async with keyed_proxy(tmp_path, keys) as proxy:
        yield proxy


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello."}]},
    "/v1/responses": {"input": "Hello."},
    "/v1/responses/compact": {"input": "Hello."},
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_asks_for_its_models_and_for_no_other(choosy: Proxy, path: str, stream: bool) -> None:
    def body(model: str) -> dict[str, Any]:
        return {**BODIES[path], "model": model, "stream": stream}

    for model in ("codex-5", "CODEX-5", "codex-5-high", "codev-5:model"):
        assert (await choosy.send("POST", path, body(model), headers=key_header("default"))).status == 200
    for model in ("gpt-large", "codex-6"):
        answer = await choosy.send("POST", path, body(model), headers=key_header("default"))
        assert refusal_of(answer) == (403, "not_allowed", "model")
        assert f"'{model}'" in answer.error["message"]
        assert (await choosy.send("POST", path, body(model), headers=key_header("all"))).status == 200


async def test_a_key_for_one_effort_gets_no_other(choosy: Proxy) -> None:
    async def status(model: str, **more: Any) -> int:
        return (await choosy.ask({**user(), "model": model, **more}, headers=key_header("low"))).status

    assert await status("codex-5-low") == await status("codex-5", reasoning_effort="low") == 200
    assert await status("codex-5") == await status("codex-5-low", reasoning_effort="high") == 403


async def test_a_key_is_shown_its_models_only(choosy: Proxy) -> None:
    async def listed(name: str) -> set[str]:
        answer = await choosy.send("GET", "/v1/models", headers=key_header(name))
        return {model["id"] for model in answer.body["data"]}

    assert await listed("low") == {"codex-5-low"}
    assert await listed("all") == await listed("default") >= {"codex-5-low", "codex-5"}
    assert (await choosy.send("GET", "/v1/models/codex-5-low", headers=key_header("low"))).status == 200
    answer = await choosy.send("GET", "/v1/models/codex-5", headers=key_header("low"))
    assert refusal_of(answer) == (403, "not_allowed", "model")


async def test_a_plain_model_key_gets_no_agent_turn_in_any_way(tmp_path: Path) -> None:
    keys = {"plain": {"plain_model": True}, "full": {}}
    async with keyed_proxy(tmp_path, keys, builtin_tools="always") as proxy:
        for body, headers in (
            (user(model="codex-5:agent"), {}),
            (user(), {"X-Codex-Mode": "agent"}),
        ):
            answer = await proxy.ask(body, headers={**key_header("plain"), **headers})
            assert (answer.status, answer.error["code"]) == (403, "not_allowed")
            assert (await proxy.ask(body, headers={**key_header("full"), **headers})).status == 200
        with structlog.testing.capture_logs() as logged:
            assert (await proxy.ask(user(), headers=key_header("plain"))).status == 200
            assert (await proxy.ask(user(), headers=key_header("full"))).status == 200
        assert [line["mode"] for line in logged if line["event"] == "request"] == ["model", "agent"]


# --- what belongs to whom -----------------------------------------------------------------------


async def test_what_one_key_has_stored_no_other_finds(tmp_path: Path) -> None:
    one, other = key_header("one"), key_header("two")
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, ui=True, fake_dialect="app-server") as proxy:
        conversation = (await proxy.send("POST", "/v1/conversations", {"items": [ITEM]}, headers=one)).body[
            "id"
        ]
        items = (await proxy.send("GET", f"/v1/conversations/{conversation}/items", headers=one)).body["data"]
        response = (await ask_response(proxy, "one")).body["id"]
        [turn] = (await proxy.send("GET", "/ui/api/turns", headers=one)).body["data"]
        of_agents = await ids_of_agents(proxy, one, folder=tmp_path)
        ids = {"responses": response, "conversations": conversation, "turns": turn["id"], "stored": response}
        ids |= {"agents": of_agents["agent"], "sessions": of_agents["session"]}
        ids |= {"environments": of_agents["environment"]}
        ids["files"] = await id_of_file(proxy, one)
        of_anthropic = ids | {"environments": await id_of_environment(proxy, one)}
        for endpoint in ENDPOINTS:
            collection = endpoint.path.partition("/{")[0].rpartition("/")[2]
            if "{" not in endpoint.path or collection == "models":
                continue
            id = (of_anthropic if endpoint.errors == "messages" else ids)[collection]
            path = filled(endpoint.path, of_agents, id=id, item_id=items[0]["id"])
            own: dict[str, Any] = (
                {"events": []} if path.endswith("/events") else {} if endpoint.beta else {"items": [ITEM]}
            )
            if path.endswith("/mcpr_none"):
                own = {"decision": "approve", "digest": "0" * 64}
            if path.endswith("/summary"):
                own = {"title": "Mine"}
            if path.endswith("/resources"):
                own = {"type": "file", "file_id": "file_none"}
            body = {"metadata": {}, **own} if endpoint.method == "POST" else None
            beta = {"OpenAI-Beta": endpoint.beta} if endpoint.beta else {}
            if endpoint.errors == "messages":
                beta = {"anthropic-version": "2023-06-01"}
            for query in ("", "?stream=true"):
                answer = await proxy.send(endpoint.method, path + query, body, headers=other | beta)
                assert answer.status == 404, (endpoint.route, answer.text)
            of_session = path.startswith("/turns/")  # whose paths have only turns outside of sessions
            if (
                endpoint.method == "GET"
                and not of_session
                and not path.endswith(
                    (
                        "/cassette",
                        "/events",
                        "/stream",
                        "sesrsc_none",
                        "/patch",
                        "/worktree",
                        "artifact_none",
                        "artifact_none/content",
                    )
                )
            ):  # nothing is recorded; no end; nothing was put there
                assert (await proxy.send("GET", path, headers=one | beta)).status == 200
        for field in (
            {"previous_response_id": response},
            {"conversation": conversation},
            {"input": [{"type": "item_reference", "id": items[0]["id"]}]},
        ):
            assert (await ask_response(proxy, "two", **field)).status in (400, 404)
            assert (await ask_response(proxy, "one", **field)).status == 200
        assert (await proxy.send("GET", f"/v1/responses/{response}", headers=one)).status == 200


ITEM = {"type": "message", "role": "user", "content": "Mine."}


async def ask_response(proxy: Proxy, name: str, **fields: Any) -> Any:
    body = {"model": "codex-5", "input": "Hello.", **fields}
    return await proxy.send("POST", "/v1/responses", body, headers=key_header(name))


async def test_a_new_key_of_the_same_name_goes_on_with_what_is_stored(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}, api_key="first") as proxy:
        first = {"Authorization": "Bearer first"}
        made = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "a"}, headers=first)
    async with keyed_proxy(tmp_path, {"one": {}}, api_key="second") as proxy:
        path = f"/v1/responses/{made.body['id']}"
        assert (await proxy.send("GET", path, headers={"Authorization": "Bearer second"})).status == 200
        assert (await proxy.send("GET", path, headers=key_header("one"))).status == 404


async def test_an_idle_session_and_the_memory_of_a_step_serve_their_own_key_alone(tmp_path: Path) -> None:
    strict = {"type": "function", "function": {**CHAT_WEATHER["function"], "strict": True}}
    asked: dict[str, Any] = {
        "model": "codex-5",
        "tools": [strict],
        "messages": [{"role": "user", "content": "[[fake:tool_call_corrected]]"}],
    }
    for kept in (0, 8):
        keys: dict[str, dict[str, Any]] = {"one": {}, "two": {}}
        async with keyed_proxy(tmp_path, keys, fake_dialect="app-server", kept_threads=kept) as proxy:
            [choice] = (await proxy.ask(asked, headers=key_header("one"))).body["choices"]
            [call] = choice["message"]["tool_calls"]
            output = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
            request = {**asked, "messages": [*asked["messages"], choice["message"], output]}
            # A model that is not told of its hidden, wrong call makes the next one.
            ends = [
                (await proxy.ask(request, headers=key_header(name))).body["choices"][0]["finish_reason"]
                for name in ("two", "one")
            ]
            assert ends == ["tool_calls", "stop"]


async def test_a_key_that_goes_while_its_turn_waits_in_the_background_is_not_run(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    keys: dict[str, dict[str, Any]] = {"one": {}, "two": {}}
    async with keyed_proxy(tmp_path, keys, environment, max_running_turns=1) as proxy:
        conversation = (await proxy.send("POST", "/v1/conversations", {}, headers=key_header("one"))).body[
            "id"
        ]
        held = {"input": '[[fake:text say="a b" hold=1]]', "background": True}
        await ask_response(proxy, "two", **held)
        waits = await ask_response(proxy, "one", background=True, conversation=conversation)
        write_keys(tmp_path, two={})
        look_now(proxy.server)
        (tmp_path / "go").write_text("go")
        store = proxy.server.store_lifecycle.store  # type: ignore[union-attr]

        async def failed() -> bytes:
            found = await store.response("one", waits.body["id"])
            return found.json if found is not None and found.status == "failed" else b""

        assert b"key" in await poll(failed)


async def test_an_interrupted_response_is_not_run_again_for_a_removed_key(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    again: dict[str, Any] = {"background_recovery": "rerun", "builtin_tools": "never"}
    left = []
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, environment, **again) as proxy:
        for name in ("one", "two"):
            held = {"input": '[[fake:text say="a b" hold=1]]', "background": True}
            left.append((await ask_response(proxy, name, **held)).body["id"])
        await until(lambda: proxy.server.runs.running == 2)
    (tmp_path / "go").write_text("go")
    async with keyed_proxy(tmp_path, {"two": {}}, environment, **again) as proxy:
        store = proxy.server.store_lifecycle.store  # type: ignore[union-attr]
        await until(lambda: not proxy.server.background.leases)
        found = [await store.response(name, id) for name, id in zip(("one", "two"), left, strict=True)]
        assert [response.status for response in found if response] == ["failed", "completed"]


async def test_an_interrupted_response_is_not_run_again_for_another_key_of_its_name(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    again: dict[str, Any] = {"background_recovery": "rerun", "builtin_tools": "never"}
    async with keyed_proxy(tmp_path, {"one": {}}, environment, **again) as proxy:
        held = {"input": '[[fake:text say="a b" hold=1]]', "background": True}
        id = (await ask_response(proxy, "one", **held)).body["id"]
        await until(lambda: proxy.server.runs.running == 1)
    (tmp_path / "go").write_text("go")
    async with keyed_proxy(
        tmp_path, {"one": {"sha256": digest_of("another")}}, environment, **again
    ) as proxy:
        store = proxy.server.store_lifecycle.store  # type: ignore[union-attr]
        await until(lambda: not proxy.server.background.leases)
        found = await store.response("one", id)
        assert found is not None
        assert found.status == "failed"
