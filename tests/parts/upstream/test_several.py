"""Several upstreams in one server: whose model a name means, and what each is not told."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import Fault
from codex_proxy.core.keys import digest_of
from tests import pictures
from tests.http_responses.test_websocket import answer_to, error_of, open_socket, send
from tests.model_server import CASES, NOWHERE, Upstream, ask, proxy_before
from tests.parts.upstream.serving import several
from tests.response_events import message, response_with


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
            assert server.requests[-1].body["model"] == own
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
    b.script = [response_with(message("Hm."))]
    tables = {"a": {"url": a.url}, "b": {"url": b.url, "wire": "responses"}}
    async with several(tmp_path, upstreams=tables) as proxy:
        for model, server, field, text in (
            ("a/small", a, "messages", "Hello."),
            ("b/thinker", b, "input", "Hm."),
        ):
            answer = await proxy.ask(ask(model))
            assert answer.body["choices"][0]["message"]["content"] == text
            assert field in server.requests[-1].body
            assert answer.headers["x-codex-upstream"] == model[0]


async def test_a_name_that_two_have_is_refused_with_both(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        for path, body in (("/v1/chat/completions", ask("small")), ("/v1/responses", {"input": "Hi"})):
            answer = await proxy.send("POST", path, body | {"model": "small"})
            assert (answer.status, answer.error["code"]) == (400, "ambiguous_model")
            assert answer.error["param"] == "model"
            assert "'a/small', 'b/small'" in answer.error["message"]
        assert a.requests == b.requests == []


async def test_the_names_of_the_default_stay_where_an_upstream_has_them_too(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    b.models = [{"id": "codex-5"}]
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        for name, server in (("codex-5", a), ("codex-5-high", a), ("b/codex-5", b)):
            assert (await proxy.ask(ask(name))).status == 200
            assert len(server.requests) > 0
        assert (len(a.requests), len(b.requests)) == (2, 1)


async def test_the_error_of_an_unknown_name_suggests_a_similar_one(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    b.models = []  # it takes any name
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        answer = await proxy.ask(ask("a/lagre"))
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert "'a/large'" in answer.error["message"]
        assert "not listed write" not in answer.error["message"]  # `a` lists its models
        answer = await proxy.ask(ask("whatever"))
        assert "For a model that is not listed write b/MODEL." in answer.error["message"]
        assert (await proxy.ask(ask("b/Whatever:8B"))).status == 200
        assert b.requests[-1].body["model"] == "Whatever:8B"
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
            assert server.requests[-1].body["model"] == own


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
            assert b.requests[-1].body["model"] == own
        for name in ("a/small", "large", "a"):
            answer = await proxy.ask(ask(name), **of_one)
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert "a/" not in answer.error["message"].replace(f"'{name}'", "")
        limits = (await proxy.send("GET", "/v1/usage/limits", **of_one)).body
        assert [each["agent"] for each in limits["data"]] == ["b"]
        for name in ("a/small", "b/small", "codex-5", "small"):
            of_none: Any = {"headers": {"Authorization": "Bearer key-none"}}
            assert (await proxy.ask(ask(name), **of_none)).status in (403, 404)
        assert a.requests == []


async def test_a_name_means_a_model_that_the_key_may_use_and_no_other_is_suggested(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[keys.one]\nsha256 = "{digest_of("key-one")}"\nmodels = ["b/small"]\n')
    of_one: Any = {"headers": {"Authorization": "Bearer key-one"}}
    tables = {"a": {"url": a.url}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=tables, keys_file=keys) as proxy:
        assert (await proxy.ask(ask("small"), **of_one)).status == 200
        assert (len(a.requests), len(b.requests)) == (0, 1)
        for name in ("a/smal", "larg"):
            answer = await proxy.ask(ask(name), **of_one)
            assert answer.status == 404
            assert not any(other in answer.error["message"] for other in ("'a/small'", "'a/large'"))
        assert (await proxy.ask(ask("large"), **of_one)).error["code"] == "not_allowed"


async def test_a_key_of_a_server_with_one_agent_may_name_it(a: Upstream, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    for agents, status in (('["openai-chat"]', 200), ('["codex"]', 404)):
        keys.write_text(f'[keys.one]\nsha256 = "{digest_of("key-one")}"\nagents = {agents}\n')
        async with proxy_before(a.url, tmp_path, keys_file=keys) as proxy:
            answer = await proxy.ask(ask("small"), headers={"Authorization": "Bearer key-one"})
            assert answer.status == status


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
        assert a.requests[-1].body["temperature"] == 0.5
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
        said_before = [message["content"] for message in a.requests[-1].body["messages"]]
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
        assert [each["content"] for each in b.requests[-1].body["messages"]] == ["Hi", "Hello.", "And?"]
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
        assert b.requests[-1].body["model"] == "vendor/big"
        a.script = [CASES["http_500"]]
        answer = await proxy.send("POST", "/v1/messages", body | {"model": "claude-a/small", "stream": True})
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")
        refused = await proxy.send("POST", "/v1/messages", body | {"model": "small"})
        assert (refused.status, "'a/small', 'b/small'" in refused.text) == (400, True)
