"""What is configured holds on every way to an upstream: limits of keys, profiles of streams, stop sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.keys import digest_of
from tests.http.serving import fake_proxy, user
from tests.model_server import proxy_before, upstream


async def test_a_limited_key_reaches_no_other_upstream_and_sees_none(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        "".join(
            f'[keys.{name}]\nsha256 = "{digest_of(f"key-{name}")}"\n{more}\n'
            for name, more in (("limited", 'agents = ["a"]'), ("whole", ""))
        )
    )
    async with upstream() as b:
        dead = {"url": "http://127.0.0.1:1/v1", "retries": 0, "fallback": ["b/small"]}
        tables = {"a": dead, "b": {"url": b.url}}
        async with fake_proxy(tmp_path, agent="a", upstreams=tables, keys_file=keys) as proxy:
            of: dict[str, Any] = {
                name: {"headers": {"Authorization": f"Bearer key-{name}"}} for name in ("limited", "whole")
            }
            assert (await proxy.ask(user() | {"model": "a/x"}, **of["limited"])).status == 502
            assert b.requests == []
            assert (await proxy.ask(user() | {"model": "a/x"}, **of["whole"])).status == 200
            for name, agents in (("limited", ["a"]), ("whole", ["a", "b"])):
                health = await proxy.send("GET", "/healthz", **of[name])
                assert [each["name"] for each in health.body["agents"]] == agents
            assert "b" not in (await proxy.send("GET", "/readyz", **of["limited"])).body.get("without", [])


@pytest.mark.parametrize("tools", [False, True])
async def test_the_profile_of_chat_streams_holds_for_upstreams_too(tools: bool, tmp_path: Path) -> None:
    function = {"type": "function", "function": {"name": "f"}}
    body = user(stream=True) | {"model": "small"} | ({"tools": [function]} if tools else {})
    settings: dict[str, Any] = {"chat_profile": "codex-completions-api"}
    async with upstream() as server, proxy_before(server.url, tmp_path, **settings) as proxy:
        *chunks, _ = (await proxy.ask(body)).frames
        assert all("usage" in chunk for chunk in chunks)
        assert chunks[0]["id"] != "chatcmpl-1"


@pytest.mark.parametrize("agent", ["openai-chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_messages_learns_which_stop_sequence_was_met(
    agent: str, stream: bool, tmp_path: Path
) -> None:
    body = {"model": "small", "max_tokens": 99, "stop_sequences": ["END", "lo."], "stream": stream}
    asked = body | {"messages": [{"role": "user", "content": "Hi"}]}
    async with upstream() as server, proxy_before(server.url, tmp_path, agent=agent) as proxy:
        answer = await proxy.send("POST", "/v1/messages", asked)
        assert '"stop_reason":"stop_sequence"' in answer.text
        assert '"stop_sequence":"lo."' in answer.text
        assert "stop" not in server.requests[-1].body
        await proxy.ask(user(stop=["lo."], tools=[]) | {"model": "small"})
        assert server.requests[-1].body["stop"] == ["lo."]


async def test_an_unknown_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        for path, body in (("/v1/chat/completions", user()), ("/v1/responses", {"input": "Hi"})):
            answer = await proxy.send("POST", path, body | {"model": "gpt-4o"})
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert "PROXY_MODEL_ALIASES" in answer.error["message"]
    async with (
        upstream() as server,
        proxy_before(server.url, tmp_path, model_aliases="gpt-4o=small") as proxy,
    ):
        assert (await proxy.ask(user() | {"model": "gpt-4o"})).status == 200
