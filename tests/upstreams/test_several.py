"""Several upstreams in one server: whose model a name means, who is asked instead, and what each is not told."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from openai import AsyncOpenAI
from pydantic import ValidationError

from codex_proxy.agents.openai_chat.body import OPTIONAL
from codex_proxy.agents.spec import NoAgentError
from codex_proxy.agents.upstream.config import CAPABILITIES
from codex_proxy.agents.upstream.presets import PRESETS
from codex_proxy.app import make_server
from codex_proxy.cli import load_settings, main
from codex_proxy.commands.doctor import examine
from codex_proxy.commands.serve import banner
from codex_proxy.config import Settings, load
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.keys import digest_of
from codex_proxy.store_lifecycle import retention_of
from codex_proxy.surfaces.errors import TABLE
from tests import pictures
from tests.http.serving import WEATHER, Proxy, fake_proxy, user
from tests.http_responses.test_websocket import answer_to, error_of, open_socket, send
from tests.upstreams.cases import CASES, Case, call, stream, text
from tests.upstreams.serving import Upstream, proxy_before, raw_upstream, upstream
from tests.upstreams.test_connections import HI, OK, ROLE, said, sending, silent
from tests.upstreams.test_responses_upstream import THOUGHT, answered, message
from tests.waiting import eventually

NOWHERE = {"url": "http://127.0.0.1:1/v1", "retries": 0}


@asynccontextmanager
async def several(
    folder: Path, environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A server whose first upstream is its default."""
    first = next(iter(settings["upstreams"]))
    async with fake_proxy(folder, environment, **({"agent": first} | settings)) as proxy:
        yield proxy


@pytest.fixture
async def a() -> AsyncIterator[Upstream]:
    async with upstream() as server:
        yield server


@pytest.fixture
async def b() -> AsyncIterator[Upstream]:
    async with upstream() as server:
        server.models = [{"id": "small"}, {"id": "vendor/big"}]
        yield server


def ask(model: str, **more: Any) -> dict[str, Any]:
    return user(**more) | {"model": model}


async def test_a_model_is_asked_of_the_agent_that_its_name_begins_with(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        for name, server, own in (
            ("a/small", a, "small"),
            ("b/small", b, "small"),
            ("large", a, "large"),
            ("vendor/big", b, "vendor/big"),
            ("B/Vendor/Big", b, "vendor/big"),
            ("b", b, "small"),
            ("codex-5", a, "small"),
        ):
            answer = await proxy.ask(ask(name))
            assert answer.status == 200
            assert server.asked[-1].body["model"] == own
            agent = "a" if server is a else "b"
            assert answer.headers["x-codex-agent"] == answer.headers["x-codex-upstream"] == agent
            assert answer.headers["x-codex-attempts"] == "1"


async def test_the_official_sdk_lists_and_asks_every_model(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    async with (
        several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        listed = {model.id: model async for model in client.models.list()}
        assert list(listed) == ["a/small", "a/large", "b/small", "b/vendor/big"]
        for name in listed:
            assert (await client.models.retrieve(name)).id == name
            answer = await client.responses.create(model=name, input="Hi")
            assert answer.output_text == "Hello."
            chat = await client.chat.completions.with_raw_response.create(
                model=name, messages=[{"role": "user", "content": "Hi"}]
            )
            assert chat.headers["x-codex-agent"] == name.partition("/")[0]
            assert chat.parse().choices[0].message.content == "Hello."


async def test_upstreams_of_both_wires_serve_side_by_side(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    b.models = [{"id": "thinker"}]
    b.script = [answered(message("Hm."))]
    tables = {"a": {"url": a.url}, "b": {"url": b.url, "wire": "responses"}}
    async with several(tmp_path, upstreams=tables) as proxy:
        for model, server, field, text in (
            ("a/small", a, "messages", "Hello."),
            ("b/thinker", b, "input", "Hm."),
        ):
            answer = await proxy.ask(ask(model))
            assert answer.body["choices"][0]["message"]["content"] == text
            assert field in server.asked[-1].body
            assert answer.headers["x-codex-upstream"] == model[0]


# --- names ------------------------------------------------------------------------------------------


async def test_a_name_that_two_have_is_refused_with_both(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        for path, body in (("/v1/chat/completions", ask("small")), ("/v1/responses", {"input": "Hi"})):
            answer = await proxy.send("POST", path, body | {"model": "small"})
            assert (answer.status, answer.error["code"]) == (400, "ambiguous_model")
            assert answer.error["param"] == "model"
            assert "'a/small', 'b/small'" in answer.error["message"]
        assert a.asked == b.asked == []


async def test_the_names_of_the_default_stay_where_an_upstream_has_them_too(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    b.models = [{"id": "codex-5"}]
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        for name, server in (("codex-5", a), ("codex-5-high", a), ("b/codex-5", b)):
            assert (await proxy.ask(ask(name))).status == 200
            assert len(server.asked) > 0
        assert (len(a.asked), len(b.asked)) == (2, 1)


async def test_an_unknown_name_is_told_what_is_like_it(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    b.models = []  # it takes any name
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        answer = await proxy.ask(ask("a/lagre"))
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert "'a/large'" in answer.error["message"]
        assert "not listed write" not in answer.error["message"]  # `a` lists its models
        answer = await proxy.ask(ask("whatever"))
        assert "For a model that is not listed write b/MODEL." in answer.error["message"]
        assert (await proxy.ask(ask("b/Whatever:8B"))).status == 200
        assert b.asked[-1].body["model"] == "Whatever:8B"
        assert (await proxy.ask(ask("nowhere/small"))).status == 404


async def test_an_alias_of_the_table_and_one_of_the_server_lead_to_the_model(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    upstreams = {"a": {"url": a.url}, "b": {"url": b.url, "aliases": {"big": "vendor/big"}}}
    async with several(
        tmp_path, upstreams=upstreams, model_aliases="gpt-4o=big,gpt-4o-mini=a/small"
    ) as proxy:
        for name, server, own in (
            ("big", b, "vendor/big"),
            ("gpt-4o", b, "vendor/big"),
            ("gpt-4o-mini", a, "small"),
        ):
            assert (await proxy.ask(ask(name))).status == 200
            assert server.asked[-1].body["model"] == own


async def test_the_operators_list_of_models_is_the_one_that_counts(a: Upstream, tmp_path: Path) -> None:
    a.models += [{"id": "large-2"}, {"id": "other"}]
    upstreams = {"a": {"url": a.url, "models": ["own", "large*"], "default_model": "large-2"}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        listed = (await proxy.send("GET", "/v1/models")).body["data"]
        assert [each["id"] for each in listed] == ["a/own", "a/large", "a/large-2"]
        assert (await proxy.ask(ask("other"))).status == 404
        assert (await proxy.ask(ask("a"))).status == 200
        assert a.asked[-1].body["model"] == "large-2"


async def test_each_upstream_is_asked_for_its_models_as_often_as_its_table_says(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    upstreams = {"a": {"url": a.url, "health_interval": 0.01}, "b": {"url": b.url, "health_interval": 600}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        asked = a.listed
        a.models = [{"id": "new"}]
        await eventually(lambda: a.listed > asked + 1)
        assert (await proxy.ask(ask("a/new"))).status == 200
        assert b.listed == 1


# --- one that is not there --------------------------------------------------------------------------


async def test_two_upstreams_of_which_one_is_dead(a: Upstream, tmp_path: Path) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "dead": NOWHERE}) as proxy:
        assert (await proxy.ask(ask("a/small"))).status == 200
        answer = await proxy.ask(ask("dead/m"))
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert answer.headers["x-codex-upstream"] == "dead"
        health = (await proxy.send("GET", "/healthz")).body
        assert health["status"] == "degraded"
        assert [(each["name"], "trouble" in each) for each in health["agents"]] == [
            ("a", False),
            ("dead", True),
        ]
        assert not any("version" in each for each in health["agents"])  # it would be this server's own
        ready = await proxy.send("GET", "/readyz")
        assert (ready.status, ready.body["without"]) == (200, ["dead"])
        shown = banner(proxy.server)
        assert "TROUBLE" in shown
        assert "models     not known yet" in shown, "of the one that is not there"


async def test_if_no_upstream_can_be_reached_the_error_says_so_and_readyz_is_503(tmp_path: Path) -> None:
    dead = {"a": NOWHERE | {"fallback": ["b"]}, "b": NOWHERE}
    async with several(tmp_path, upstreams=dead) as proxy:
        for streamed in (False, True):
            answer = await proxy.ask(ask("a/m", stream=streamed))
            assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
            assert answer.headers["x-codex-attempts"] == "2"
        assert (await proxy.send("GET", "/readyz")).status == 503


async def test_a_missing_key_is_the_trouble_of_one_upstream(a: Upstream, tmp_path: Path) -> None:
    upstreams = {
        "a": {"url": a.url},
        "b": {"url": a.url, "key_env": "NO_SUCH_KEY"},
        "openai": {"preset": "openai"},
    }
    async with several(tmp_path, upstreams=upstreams) as proxy:
        assert (await proxy.ask(ask("a/small"))).status == 200
        for name, variable in (("b", "NO_SUCH_KEY"), ("openai", "OPENAI_API_KEY")):
            answer = await proxy.ask(ask(f"{name}/small"))
            assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
            assert variable in answer.error["message"]
        assert variable in (await proxy.send("GET", "/healthz")).body["agents"][2]["trouble"]


async def test_a_server_none_of_whose_agents_can_start_does_not(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="NO_SUCH_KEY"):
        async with several(tmp_path, upstreams={"a": {"url": "http://h/v1", "key_env": "NO_SUCH_KEY"}}):
            raise AssertionError("it has started")


async def test_each_upstream_gets_its_own_key_and_headers_and_no_other(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-b\n")
    upstreams = {
        "a": {"url": a.url, "key_env": "KEY_OF_A", "headers": {"x-team": "one-of-them"}},
        "b": {"url": b.url, "key_file": file},
    }
    async with several(tmp_path, {"KEY_OF_A": "key-of-a"}, upstreams=upstreams) as proxy:
        await proxy.ask(ask("a/small"))
        await proxy.ask(ask("b/small"))
        assert a.asked[-1].headers["Authorization"] == "Bearer key-of-a"
        assert a.asked[-1].headers["x-team"] == "one-of-them"
        assert b.asked[-1].headers["Authorization"] == "Bearer key-of-b"
        assert "x-team" not in b.asked[-1].headers
        assert "key-of-a" not in str(proxy.server.settings)
        assert "one-of-them" not in str(proxy.server.settings)


async def test_the_key_of_a_preset_goes_to_no_other_address(a: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "preset": "openai"}}
    async with several(tmp_path, {"OPENAI_API_KEY": "sk-openais"}, upstreams=upstreams) as proxy:
        assert (await proxy.ask(ask("a/small", max_completion_tokens=5))).status == 200
        assert "Authorization" not in a.asked[-1].headers


async def test_headers_that_the_operator_names_are_passed_on_and_no_others(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    tables = {"a": {"url": a.url, "forward_headers": ["X-Request-Id", "x-team"]}, "b": {"url": b.url}}
    given = {
        "x-request-id": "req-7",
        "x-team": "search",
        "x-other": "1",
        "cookie": "a=b",
        "authorization": "Bearer k",
    }
    async with several(tmp_path, upstreams=tables) as proxy:
        for server, name in ((a, "a/small"), (b, "b/small")):
            assert (await proxy.ask(ask(name), headers=given)).status == 200
            sent = {name.lower(): value for name, value in server.asked[-1].headers.items()}
            passed = {name: value for name, value in given.items() if sent.get(name) == value}
            assert passed == ({"x-request-id": "req-7", "x-team": "search"} if server is a else {})


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_context_window_is_the_lists_or_the_tables(wire: str, a: Upstream, tmp_path: Path) -> None:
    a.models = [{"id": "v", "max_model_len": 4096}, {"id": "l", "meta": {"n_ctx": 2048}}, {"id": "o"}]
    table = {"url": a.url, "wire": wire, "context_window": 1024, "models": ["*", "mine"]}
    async with several(tmp_path, upstreams={"a": table}) as proxy:
        listed = (await proxy.send("GET", "/v1/models")).body["data"]
    assert {each["id"]: each["context_window"] for each in listed} == {
        "a/v": 4096,
        "a/l": 2048,
        "a/o": 1024,
        "a/mine": 1024,
    }


async def test_reasoning_goes_back_to_its_upstream_with_the_clients_calls(
    a: Upstream, tmp_path: Path
) -> None:
    table = {"url": a.url, "reasoning_back": "reasoning_content"}
    called = stream({"reasoning_content": "Hm."}, call("get_weather", "{}"), finish="tool_calls")
    async with several(tmp_path, upstreams={"a": table}) as proxy:
        a.script = [called, text("Sunny.")]
        asked = ask("a/small", tools=[WEATHER])
        made = (await proxy.ask(asked)).body["choices"][0]["message"]
        output = {"role": "tool", "tool_call_id": "call_a", "content": "sunny"}
        messages = [*asked["messages"], {"role": "assistant", "tool_calls": made["tool_calls"]}, output]
        assert (await proxy.ask({**asked, "messages": messages})).status == 200
    assert [each.get("reasoning_content") for each in a.asked[-1].body["messages"]] == [None, "Hm.", None]


@pytest.mark.parametrize(
    ("limit", "scheme", "code", "words"),
    [
        ("connect_timeout", "https", "upstream_unreachable", "no connection within its time limit"),
        ("first_byte_timeout", "http", "request_timeout", "did not begin to answer within 0.2 s"),
        ("total_timeout", "http", "request_timeout", "took longer than 0.2 s"),
    ],
)
async def test_each_time_limit_of_a_table_holds(
    limit: str, scheme: str, code: str, words: str, tmp_path: Path
) -> None:
    async with raw_upstream(silent) as url:
        table = {"url": url.replace("http:", f"{scheme}:"), "models": ["m"], "retries": 0, limit: 0.2}
        async with several(tmp_path, upstreams={"a": table}) as proxy:
            answer = await proxy.ask(ask("a/m"))
    assert answer.error["code"] == code
    assert words in answer.error["message"]


def test_the_names_of_open_responses_server_set_what_they_set_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROXY_PORT", raising=False)
    monkeypatch.delenv("PROXY_HOST", raising=False)
    for name, value in {
        "API_ADAPTER_HOST": "0.0.0.0",
        "API_ADAPTER_PORT": "9876",
        "OPENAI_BASE_URL_INTERNAL": "http://127.0.0.1:1",
        "STREAM_TIMEOUT": "7",
        "MCP_SERVERS_CONFIG_PATH": "/etc/mcp.json",
        "MAX_CONVERSATION_HISTORY": "5",
        "MAX_TOOL_CALL_ITERATIONS": "3",
        "HEARTBEAT_INTERVAL": "4",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load({}, None)
    assert (settings.host, settings.port) == ("0.0.0.0", 9876)
    assert settings.upstream_url == "http://127.0.0.1:1"
    assert settings.mcp_config == Path("/etc/mcp.json")
    assert (settings.upstream_idle_timeout, settings.heartbeat_interval) == (7, 4)
    assert (settings.max_conversation_history, settings.max_tool_call_iterations) == (5, 3)
    assert retention_of(settings).max_conversations == 5, "since it was set"


# --- another attempt --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_that_fails_before_its_answer_is_asked_again(
    path: str, streamed: bool, a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.agents.attempts.FIRST_WAIT", 0.001)
    async with several(tmp_path, upstreams={"a": {"url": a.url, "retries": 2}}) as proxy:
        a.script = [CASES["http_500"], CASES["http_500"]]
        body = {"model": "a/small", "stream": streamed} | (
            {"input": "Hi"} if "resp" in path else user(stream=streamed) | {"model": "a/small"}
        )
        answer = await proxy.send("POST", path, body)
        assert answer.status == 200
        assert said(answer.text) == "Hello."
        assert (answer.headers["x-codex-upstream"], answer.headers["x-codex-attempts"]) == ("a", "3")
        assert len(a.asked) == 3
        await proxy.settled()


def failing(status: int, **headers: str) -> Case:
    return Case(status, headers, ['{"error":{"message":"Not now."}}'], [], "failed")


@pytest.mark.parametrize("agent", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("status", [408, 429, 500, 503, 504])
async def test_a_single_upstream_is_asked_again_by_default_as_one_of_a_table_is(
    agent: str, status: int, a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.agents.attempts.FIRST_WAIT", 0.001)
    good = text("Hello.") if agent == "openai-chat" else answered(message("Hello."))
    async with fake_proxy(tmp_path, agent=agent, upstream_url=a.url) as proxy:
        for path, asked in (("/v1/chat/completions", user()), ("/v1/responses", {"input": "Hi"})):
            a.script = [failing(status), failing(status), good]
            answer = await proxy.send("POST", path, {**asked, "model": "small", "stream": True})
            assert answer.status == 200
            assert said(answer.text) == "Hello."
            assert answer.headers["x-codex-attempts"] == "3"
            assert "x-codex-upstream" not in answer.headers, "it has no name"
        assert len(a.asked) == 6
        await proxy.settled()


async def test_of_several_servers_in_a_row_only_the_first_asks_again(
    a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.agents.attempts.FIRST_WAIT", 0.001)
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
    async with (
        fake_proxy(tmp_path / "inner", agent="openai-chat", upstream_url=a.url) as inner,
        fake_proxy(tmp_path / "outer", agent="openai-chat", upstream_url=f"{inner.url}/v1") as outer,
    ):
        a.script = [failing(500)] * 9
        answer = await outer.ask(ask("small"))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert len(a.asked) == 3


@pytest.mark.parametrize(
    ("case", "table", "asked"),
    [
        (failing(500), {"retries": 0}, 1),
        (failing(400), {}, 1),
        (failing(401), {}, 1),
        (failing(429, **{"retry-after": "31"}), {}, 1),
        (failing(503, **{"retry-after": "2"}), {"retry_wait": 1}, 1),
        (failing(500), {"retries": 1}, 2),
        (CASES["cut_mid"], {}, 1),
    ],
    ids=[
        *("no retries", "its refusal", "a refused key", "a wait above 30 s", "a wait above the setting"),
        *("as many as the setting says", "after the first word"),
    ],
)
async def test_a_single_upstream_is_asked_no_more_than_makes_sense(
    case: Case,
    table: dict[str, Any],
    asked: int,
    a: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codex_proxy.agents.attempts.FIRST_WAIT", 0.001)
    async with fake_proxy(tmp_path, agent="default", upstreams={"default": {"url": a.url, **table}}) as proxy:
        a.script = [case] * 5
        await proxy.ask(ask("small", stream=True))
        assert len(a.asked) == asked


async def test_a_single_upstream_that_keeps_failing_is_left_alone_for_a_while(
    a: Upstream, tmp_path: Path
) -> None:
    table = {"url": a.url, "retries": 0}
    async with fake_proxy(tmp_path, agent="openai-chat", upstreams={"default": table}, metrics=True) as proxy:
        a.script = [failing(500)] * 9
        statuses = [(await proxy.ask(ask("small"))).status for _ in range(6)]
        assert statuses == [*[502] * 5, 503]
        answer = await proxy.ask(ask("small"))
        assert 0 < int(answer.headers["retry-after"]) <= 10
        assert "'" not in answer.error["message"], "it has no name"
        assert len(a.asked) == 5
        assert (await proxy.send("GET", "/healthz")).body["agent"]["breaker"] == "open"
        metrics = (await proxy.send("GET", "/metrics")).text
        assert 'codex_proxy_upstream_breaker{agent="openai-chat",state="open"} 1.0' in metrics
        assert 'codex_proxy_upstream_attempts_total{agent="openai-chat",outcome="failed"} 5.0' in metrics


async def test_encrypted_reasoning_of_a_single_upstream_is_not_marked(a: Upstream, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, agent="openai-responses", upstream_url=a.url) as proxy:
        a.script = [answered(THOUGHT, message("Hm."))]
        include = ["reasoning.encrypted_content"]
        answer = await proxy.send(
            "POST", "/v1/responses", {"model": "small", "input": "?", "include": include}
        )
        assert answer.body["output"][0]["encrypted_content"] == THOUGHT["encrypted_content"]


async def test_another_upstream_is_asked_where_one_limits(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "fallback": ["b"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.script = [CASES["http_429"]]
        answer = await proxy.ask(ask("a/small"))
        assert answer.status == 200
        assert (answer.headers["x-codex-upstream"], answer.headers["x-codex-attempts"]) == ("b", "2")
        assert answer.headers["x-codex-agent"] == "a"
        assert (len(a.asked), b.asked[-1].body["model"]) == (1, "small")


async def test_a_fallback_may_name_its_own_model(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "retries": 0, "fallback": ["b/vendor/big"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.script = [CASES["http_500"]]
        assert (await proxy.ask(ask("a/large"))).status == 200
        assert b.asked[-1].body["model"] == "vendor/big"


async def test_a_bad_request_is_asked_of_nobody_else(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "fallback": ["b"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.script = [CASES["toolong_llamacpp"]]
        answer = await proxy.ask(ask("a/small"))
        assert answer.error["code"] == "context_length_exceeded"
        assert "8192" in answer.error["message"]
        assert (len(a.asked), len(b.asked)) == (1, 0)


async def test_another_upstream_is_asked_after_silence_before_the_first_byte(
    b: Upstream, tmp_path: Path
) -> None:
    async with raw_upstream(silent) as url:
        upstreams = {"a": {"url": url, "first_byte_timeout": 0.3, "fallback": ["b"]}, "b": {"url": b.url}}
        async with several(tmp_path, upstreams=upstreams) as proxy:
            answer = await proxy.ask(ask("a/small"))
            assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_nobody_else_is_asked_after_the_first_word(path: str, b: Upstream, tmp_path: Path) -> None:
    async with raw_upstream(sending(OK, ROLE, HI)) as url:
        upstreams = {"a": {"url": url, "fallback": ["b"], "retries": 2}, "b": {"url": b.url}}
        async with several(tmp_path, upstreams=upstreams) as proxy:
            body = {"model": "a/m", "stream": True} | (
                {"input": "Hi"} if "resp" in path else user(stream=True) | {"model": "a/m"}
            )
            answer = await proxy.send("POST", path, body)
            assert answer.status == 200
            assert "Hi" in answer.text
            assert "upstream_disconnected" in answer.text
            assert (answer.headers["x-codex-upstream"], answer.headers["x-codex-attempts"]) == ("a", "1")
            assert b.asked == []


async def test_a_client_that_leaves_ends_the_wait_for_another_attempt(
    a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.agents.attempts.FIRST_WAIT", 100.0)
    monkeypatch.setattr("codex_proxy.agents.attempts.MAX_WAIT", 100.0)
    async with several(tmp_path, upstreams={"a": {"url": a.url, "concurrency": 1}}) as proxy:
        a.script = [CASES["http_500"]]
        request = asyncio.ensure_future(proxy.ask(ask("a/small", stream=True)))
        await eventually(lambda: bool(a.asked))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await proxy.settled()
        assert (await proxy.ask(ask("a/small"))).status == 200  # its place is free again


async def test_an_upstream_that_keeps_failing_is_left_alone_for_a_while(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    rules = {"retries": 0, "breaker_failures": 2, "breaker_seconds": 0.2}
    upstreams = {"a": {"url": a.url, **rules}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams, metrics=True) as proxy:
        a.script = [CASES["http_500"], CASES["http_500"]]
        for _ in range(2):
            assert (await proxy.ask(ask("a/small"))).status == 502
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
        assert len(a.asked) == 2
        metrics = (await proxy.send("GET", "/metrics")).text
        assert 'codex_proxy_upstream_breaker{agent="a",state="open"} 1.0' in metrics
        assert 'codex_proxy_upstream_attempts_total{agent="a",outcome="failed"} 2.0' in metrics
        assert 'codex_proxy_agents_ready{agent="b"} 1.0' in metrics
        assert 'codex_proxy_agent_requests_total{agent="a",error="upstream_error"} 2.0' in metrics
        assert (await proxy.send("GET", "/healthz")).body["agents"][0]["breaker"] == "open"
        member: Any = proxy.server.agent.members["a"]
        await eventually(lambda: member.breaker_state == "half-open")
        assert (await proxy.ask(ask("a/small"))).status == 200
        assert member.breaker_state == "closed"


async def test_turns_beyond_its_number_wait_or_go_to_another_upstream(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    upstreams = {
        "a": {"url": a.url, "concurrency": 1},
        "busy": {"url": a.url, "concurrency": 1, "fallback": ["b"]},
        "b": {"url": b.url},
    }
    async with several(tmp_path, upstreams=upstreams, queue_wait=0.2) as proxy:
        for name, expected in (("a", (429, None)), ("busy", (200, "b"))):
            a.held.clear()
            a.is_held.clear()
            async with proxy.open(ask(f"{name}/small", stream=True)) as first:
                await a.is_held.wait()
                answer = await proxy.ask(ask(f"{name}/small"))
                assert (answer.status, answer.headers.get("x-codex-upstream")) == expected
                a.held.set()
                assert said(await first.text()) == "Hello."


# --- keys -------------------------------------------------------------------------------------------


async def test_a_key_that_is_limited_to_agents_sees_a_server_that_has_no_others(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "upstreams": {"a": {"url": a.url}, "b": {"url": b.url}},
        "keys_file": tmp_path / "keys.toml",
    }
    keys = tmp_path / "keys.toml"
    table = '[keys.{}]\nsha256 = "{}"\nagents = {}\n'
    keys.write_text(
        table.format("one", digest_of("key-one"), '["b"]')
        + table.format("none", digest_of("key-none"), '["c"]')
    )
    async with several(tmp_path, **settings) as proxy:
        of_one: Any = {"headers": {"Authorization": "Bearer key-one"}}
        listed = (await proxy.send("GET", "/v1/models", **of_one)).body["data"]
        assert [each["id"] for each in listed] == ["b/small", "b/vendor/big"]
        for name, own in (("b/small", "small"), ("small", "small"), ("codex-5", "small"), ("b", "small")):
            assert (await proxy.ask(ask(name), **of_one)).status == 200
            assert b.asked[-1].body["model"] == own
        for name in ("a/small", "large", "a"):
            answer = await proxy.ask(ask(name), **of_one)
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert "a/" not in answer.error["message"].replace(f"'{name}'", "")
        limits = (await proxy.send("GET", "/v1/usage/limits", **of_one)).body
        assert [each["agent"] for each in limits["data"]] == ["b"]
        for name in ("a/small", "b/small", "codex-5", "small"):
            of_none: Any = {"headers": {"Authorization": "Bearer key-none"}}
            assert (await proxy.ask(ask(name), **of_none)).status in (403, 404)
        assert a.asked == []


async def test_a_key_of_a_server_with_one_agent_may_name_it(a: Upstream, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    for agents, status in (('["openai-chat"]', 200), ('["codex"]', 404)):
        keys.write_text(f'[keys.one]\nsha256 = "{digest_of("key-one")}"\nagents = {agents}\n')
        async with proxy_before(a.url, tmp_path, keys_file=keys) as proxy:
            answer = await proxy.ask(ask("small"), headers={"Authorization": "Bearer key-one"})
            assert answer.status == status


async def test_an_upstream_without_a_system_prompt_has_the_user_say_it(a: Upstream, tmp_path: Path) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url, "cannot": ["system_prompt"]}}) as proxy:
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
        answer = await proxy.ask({"model": "a/small", "messages": said})
        assert (answer.status, answer.headers["x-codex-history"]) == (200, "system-as-user")
        assert a.asked[-1].body["messages"] == [
            {"role": "user", "content": "[system]\nBe brief."},
            {"role": "user", "content": "Hello."},
        ]
        assert "x-codex-history" not in (await proxy.ask(ask("a/small"))).headers


async def test_an_upstream_that_takes_no_schema_has_it_told_in_words_and_the_answer_checked(
    a: Upstream, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    async with several(tmp_path, upstreams={"a": {"url": a.url, "cannot": ["structured_output"]}}) as proxy:
        answer = await proxy.ask(ask("a/small", response_format=wanted))
        assert (answer.status, answer.error["code"]) == (502, "invalid_structured_output")
        assert len(a.asked) >= 2
        body = a.asked[-1].body
        assert body["response_format"] == {"type": "json_object"}
        assert "It must be valid under this JSON schema" in str(body["messages"])


# --- an upstream beside another agent ---------------------------------------------------------------


async def test_each_agent_has_the_modes_and_abilities_that_are_its_own(a: Upstream, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "agent": "fake",
        "agents": {"second": {"agent": "fake", "fake_dialect": "app-server"}},
    }
    async with several(tmp_path, upstreams={"a": {"url": a.url, "cannot": ["images"]}}, **settings) as proxy:
        for name, agent in (
            ("fake/fake-model", "fake"),
            ("second/fake-model", "second"),
            ("codex-5", "fake"),
        ):
            answer = await proxy.ask(ask(name))
            assert (answer.status, answer.headers["x-codex-agent"]) == (200, agent)
            assert "x-codex-upstream" not in answer.headers
        refused = await proxy.ask(ask("a/small"), headers={"X-Codex-Mode": "agent"})
        assert (refused.status, refused.error["code"]) == (403, "not_allowed")
        assert "from a model server" in refused.error["message"]
        assert (await proxy.ask(ask("fake"), headers={"X-Codex-Mode": "agent"})).status == 200
        image = {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{base64.b64encode(pictures.PNG).decode()}"},
        }
        answer = await proxy.ask({"model": "a/small", "messages": [{"role": "user", "content": [image]}]})
        assert (answer.status, answer.error["code"]) == (400, "unsupported_by_agent")
        assert "Use a model of fake or second instead." in answer.error["message"]
        assert (
            "temperature" in (await proxy.ask(ask("fake", temperature=0.5))).headers["x-codex-ignored-params"]
        )
        assert "x-codex-ignored-params" not in (await proxy.ask(ask("a/small", temperature=0.5))).headers
        assert a.asked[-1].body["temperature"] == 0.5
        shown = banner(proxy.server)
        for line in (
            "agent      fake",
            "agent      second",
            "agent      a",
            "models     2",
            "FAKE agent serves as fake",
        ):
            assert line in shown


async def test_tokens_are_counted_by_the_model_that_a_short_name_means(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    b.models = []  # it takes any name
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}, metrics=True) as proxy:
        for name in ("a", "small", "a/large", "b/whatever"):
            assert (await proxy.ask(ask(name))).status == 200
        metrics = (await proxy.send("GET", "/metrics")).text
    counted = set(re.findall(r'_tokens_total\{kind="input",model="([^"]*)"', metrics))
    assert counted == {"a/small", "a/large", "b/other"}


async def test_a_conversation_goes_on_with_another_agent(a: Upstream, tmp_path: Path) -> None:
    async with (
        several(tmp_path, agent="fake", upstreams={"a": {"url": a.url}}) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = await client.responses.create(model="fake/fake-model", input="Say hello.")
        second = await client.responses.create(model="a/small", input="And?", previous_response_id=first.id)
        assert second.output_text == "Hello."
        said_before = [message["content"] for message in a.asked[-1].body["messages"]]
        assert said_before == ["Say hello.", first.output_text, "And?"]


async def test_a_websocket_asks_each_turn_of_the_agent_of_its_model(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    async with (
        several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy,
        open_socket(proxy) as socket,
    ):
        first = await answer_to(socket, "Hi", model="a/small", store=False)
        await answer_to(socket, "And?", model="b/small", store=False, previous_response_id=first["id"])
        assert [each["content"] for each in b.asked[-1].body["messages"]] == ["Hi", "Hello.", "And?"]
        await send(socket, "Hi", model="small")
        assert (await error_of(socket))["code"] == "ambiguous_model"


async def test_anthropics_api_asks_the_agent_of_the_model_too(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    upstreams = {"a": {"url": a.url, "retries": 0, "fallback": ["b"]}, "b": {"url": b.url}}
    body = {"max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        answer = await proxy.send("POST", "/v1/messages", body | {"model": "b/vendor/big"})
        assert (answer.status, answer.headers["x-codex-agent"]) == (200, "b")
        assert answer.body["content"][0]["text"] == "Hello."
        assert b.asked[-1].body["model"] == "vendor/big"
        a.script = [CASES["http_500"]]
        answer = await proxy.send("POST", "/v1/messages", body | {"model": "claude-a/small", "stream": True})
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")
        refused = await proxy.send("POST", "/v1/messages", body | {"model": "small"})
        assert (refused.status, "'a/small', 'b/small'" in refused.text) == (400, True)


# --- settings, and doctor ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"upstreams": {"a": {}}}, "needs the address"),
        (
            {"upstreams": {"a": {"url": "http://h/v1", "fallback": ["b"]}}},
            "the fallback b is no other upstream; there is none",
        ),
        (
            {
                "upstreams": {
                    "a": {"url": "http://h/v1", "fallback": ["fake/m"]},
                    "c": {"url": "http://h/v1"},
                },
                "agents": {"fake": {}},
            },
            "the fallback fake/m is an agent, and no upstream; write one of c, or NAME/MODEL",
        ),
        ({"upstreams": {"a": {"url": "http://h"}}, "agents": {"a": {"agent": "fake"}}}, "have the same name"),
        ({"agents": {"x": {}}}, "there is no agent 'x'"),
        (
            {"agents": {"fake": {"codex_bin": "c"}}},
            "codex_bin is not a setting of the agent fake; its own settings are fake_dialect",
        ),
        ({"agents": {"fake": {"fake_dialect": "x"}}}, "fake_dialect is invalid"),
    ],
)
async def test_tables_that_mean_nothing_keep_the_server_from_starting(
    tables: dict[str, Any], words: str, tmp_path: Path
) -> None:
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", **tables}
    with pytest.raises(NoAgentError, match=words):
        await make_server(Settings(**flags), {})
    check = (await examine(flags, None, {})).checks[1]
    assert check.status == "failed"
    assert re.search(words, check.message)


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ({"agent": "acp"}, "agent_command"),
        ({"agent": "acp", "agent_command": "nothing-here --acp"}, "agent_command"),
        ({"agent": "gemini"}, "agent_command"),
        ({"agent": "claude-code"}, "claude_bin"),
        ({"agent": "claude-code", "claude_bin": "/nothing/here"}, "claude_bin"),
        ({"agent": "codex-app-server", "codex_bin": "/nothing/here"}, "codex_bin"),
    ],
)
async def test_the_program_of_an_agent_that_is_not_found_is_named_in_its_table(
    table: dict[str, Any], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLAUDE_BIN", "CODEX_BIN"):
        monkeypatch.delenv(name, raising=False)
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", "agents": {"x": table}}
    checks = (await examine(flags, None, {"PATH": str(tmp_path)})).checks
    advice = next(
        check.advice for check in checks if check.name.startswith("x: ") and check.status == "failed"
    )
    assert f"{setting} of [agents.x]" in advice  # a flag would name it for the other agents, too
    assert "--" not in advice.replace("--acp", "").replace("--agent fake", "")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[upstreams.a]\nurl = 7", "upstreams.a.url"),
        ("[upstreams.a]\nurll = 'http://h'", "upstreams.a.urll"),
        ("[upstreams.A]\nurl = 'http://h'", "upstreams.A"),
        ("[upstreams.'a/b']\nurl = 'http://h'", "upstreams.a/b"),
        ("[upstreams.a]\nurl = 'http://h'\nheaders = {authorization = 'Bearer x'}", "upstreams.a.headers"),
        ("[upstreams.a]\nurl = 'http://h'\ncannot = ['fly']", "upstreams.a.cannot"),
        ("[upstreams.a]\nurl = 'http://h'\nforward_headers = ['Cookie']", "upstreams.a.forward_headers"),
        ("[upstreams.a]\nurl = 'http://h'\nforward_headers = ['x-api-key']", "upstreams.a.forward_headers"),
        ("[upstreams.a]\nurl = 'http://h'\nreasoning_back = 'thoughts'", "upstreams.a.reasoning_back"),
        ("[upstreams.a]\npreset = 'acme'", "upstreams.a.preset"),
    ],
)
def test_a_wrong_table_is_refused_by_the_name_of_its_key(text: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ValidationError) as refusal:
        load({}, file)
    first = refusal.value.errors()[0]
    assert ".".join(map(str, first["loc"])).startswith(where)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[upstreams.a]\nmodel = 'x'", "there is no setting `model` in [upstreams.a]; is `models` meant?"),
        (
            "[upstreams.a]\nzzz = 'x'",
            "`zzz` in [upstreams.a]; docs/configuration.md lists all of them.",
        ),
        (
            "[upstreams.a]\nkey = 'sk-secret'",
            "in [upstreams.a]; `key_env` or `key_file` names what holds it.",
        ),
        (
            "[upstreams.a]\nwire = 'auto'",
            "upstreams.a.wire is invalid: Input should be 'chat' or 'responses'.",
        ),
        (
            "[upstreams.A]\nurl = 'http://h'",
            "The setting upstreams.A is invalid: a name has up to 64 lower-case letters",
        ),
        ("[upstream.a]\nurl = 'http://h'", "there is no setting `upstream`; is `upstreams` meant?"),
    ],
)
def test_a_wrong_key_of_a_table_is_told_in_words_that_help(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(click.UsageError) as refusal:
        load_settings({}, file)
    shown = " ".join(CliRunner().invoke(main, ["doctor", "--config", str(file)]).output.split())
    assert words.lower() in shown.lower()
    assert words.rstrip(".").lower() in refusal.value.message.lower()
    assert "sk-secret" not in shown + refusal.value.message


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"url": "h:1/v1"}, "url of [upstreams.a] must be an address"),
        ({"url": "http://u:pw@h/v1"}, "Set a key with key_env of [upstreams.a]"),
        (
            {"url": "http://h/v1", "key_file": "/nowhere"},
            "key_file of [upstreams.a]: /nowhere cannot be read",
        ),
        ({"url": "http://h/v1", "key_env": "BAD_KEY"}, "Check key_env of [upstreams.a]"),
        ({"url": "https://h/v1", "ca_file": "/nowhere"}, "ca_file of [upstreams.a]"),
        (NOWHERE, "set another address with url of [upstreams.a]"),
    ],
)
async def test_doctor_names_what_to_change_as_the_table_has_it(
    table: dict[str, Any], words: str, tmp_path: Path, logged: list[Any]
) -> None:
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", "upstreams": {"a": table}}
    checkup = await examine({**flags, "agent": "a"}, None, {"PATH": os.defpath, "BAD_KEY": "a\nb"})
    check = next(check for check in checkup.checks if check.name == "a: upstream")
    assert check.status == "failed"
    assert words in check.message + check.advice
    assert "PROXY_UPSTREAM_URL" not in check.message + check.advice
    assert logged == [], "it is told once"


async def test_what_a_client_is_told_names_the_table(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    a.key, b.models = "another", []
    dead = NOWHERE | {"fallback": ["b/m"]}
    upstreams = {"a": {"url": a.url, "models": ["m"]}, "b": {"url": b.url}, "dead": dead}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        refused = await proxy.ask(ask("a/m"))
        assert (refused.status, refused.error["code"]) == (502, "upstream_unauthorized")
        assert "key_env of [upstreams.a]" in refused.error["message"]
        nameless = await proxy.ask(ask("b"))
        assert (nameless.status, nameless.error["param"]) == (404, "model")
        assert "default_model of [upstreams.b]" in nameless.error["message"]
        answer = await proxy.ask(ask("dead"))
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b"), (
            "nobody could list its models"
        )


@pytest.mark.parametrize(("wire", "path"), [("chat", "/chat/completions"), ("responses", "/responses")])
@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_upstream_without_the_endpoint_of_its_wire_is_asked_once_and_the_setting_is_named(
    status: int, wire: str, path: str, a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    a.script = [Case(status, {}, ['{"detail":"Not there"}'], [], "failed")] * 2
    table = {"url": a.url, "wire": wire}
    async with several(tmp_path, upstreams={"a": table, "b": {"url": b.url}}) as proxy:
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.error["code"]) == (500, "agent_misconfigured")
        for said in (
            f"no {path} (HTTP {status}: Not there)",
            "url of [upstreams.a]",
            "wire of [upstreams.a]",
        ):
            assert said in answer.error["message"]
        assert answer.headers["x-codex-attempts"] == "1"
    spare = {"a": {**table, "fallback": ["b"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=spare) as proxy:
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")


async def test_doctor_looks_at_each_and_shows_no_key(a: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "headers": {"x-secret": "sk-in-a-header"}}, "b": NOWHERE}
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", "upstreams": upstreams}
    checkup = await examine({**flags, "agent": "a"}, None, {"PATH": os.defpath})
    found = {check.name: check.status for check in checkup.checks}
    assert (found["a: upstream"], found["b: upstream"], found["workspace"]) == ("ok", "failed", "skipped")
    assert "sk-in-a-header" not in str(checkup)
    assert next(setting.value for setting in checkup.settings if setting.name == "upstreams") == "a,b"


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("preset", PRESETS)
async def test_every_dialect_means_the_same_with_every_preset(
    preset: str, a: Upstream, tmp_path: Path
) -> None:
    table = {"preset": preset, "url": a.url, "retries": 0, "breaker_failures": 1000}
    a.models = [{"id": name} for name in CASES]
    async with several(tmp_path, upstreams={"p": table}) as proxy:
        for name, case in CASES.items():
            whole = await proxy.ask(ask(f"p/{name}", tools=[WEATHER]))
            streamed = await proxy.ask(ask(f"p/{name}", tools=[WEATHER], stream=True))
            response = await proxy.send("POST", "/v1/responses", {"model": f"p/{name}", "input": "weather?"})
            if case.stop == "failed":
                wanted = TABLE[FaultKind(case.fault or "")]
                assert whole.status == wanted.status, name
                words = case.message.replace("PROXY_UPSTREAM_KEY", "key_env of [upstreams.p]")
                assert words in whole.error["message"]
                assert '"finish_reason":"' not in streamed.text, name
                assert response.status == wanted.status or response.body["status"] == "failed", name
                continue
            choice = whole.body["choices"][0]
            assert choice["finish_reason"] == case.stop, name
            text = "".join(text for kind, _, text in case.items if kind == "Message")
            assert (choice["message"].get("content") or choice["message"].get("refusal") or "") == text, name
            calls = [
                [name, json.loads(arguments)] for kind, name, arguments in case.items if kind == "ToolCall"
            ]
            made = [each["function"] for each in choice["message"].get("tool_calls") or ()]
            assert [[each["name"], json.loads(each["arguments"])] for each in made] == calls, name
            ends = [frame["choices"] for frame in streamed.frames if isinstance(frame, dict)]
            assert case.stop in [choice["finish_reason"] for choices in ends for choice in choices], name
            if case.usage:
                usage = whole.body["usage"]
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == case.usage, name
        asked = a.asked[-1].body
        assert ("stream_options" in asked) is ("stream_options" not in PRESETS[preset].refuses)  # type: ignore[index]


def test_every_preset_has_an_address_and_names_its_key() -> None:
    for name, preset in PRESETS.items():
        assert preset.url.startswith("http"), name
        assert preset.key_env or not preset.needs_key
        assert preset.cannot <= CAPABILITIES
        assert preset.refuses <= set(OPTIONAL)
