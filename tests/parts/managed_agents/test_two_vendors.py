"""`/v1/agents` belongs to OpenAI's API and to Anthropic's: the headers of a request say whose is meant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.serving import Proxy

OPENAI = {"OpenAI-Beta": "agents=v1"}
ANTHROPIC = [
    {"anthropic-version": "2026-10-21"},
    {"anthropic-beta": "managed-agents-2026-04-01"},
    {"x-api-key": "k"},
    {"anthropic-version": "2023-06-01", "Authorization": "Bearer k"},
]


def is_openai(body: Any) -> bool:
    return set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}


def is_anthropic(body: Any) -> bool:
    return set(body) == {"type", "error", "request_id"} and body["type"] == "error"


@pytest.mark.parametrize("headers", ANTHROPIC, ids=lambda each: next(iter(each)))
async def test_headers_of_anthropic_choose_its_api(proxy: Proxy, headers: dict[str, str]) -> None:
    made = await proxy.send("POST", "/v1/agents", {"model": "codex-5", "name": "a"}, headers=headers)
    assert (made.status, made.body["type"], made.body["version"]) == (200, "agent", 1)
    for method, path, status in (
        ("GET", "/v1/agents/agent_unknown", 404),
        ("POST", "/v1/agents", 400),
        ("PUT", "/v1/agents", 405),
        ("OPTIONS", "/v1/agents", 405),
        ("DELETE", f"/v1/agents/{made.body['id']}", 405),
        ("GET", "/v1/agents/sessions", 404),
        ("POST", "/v1/agents/sessions/archive", 404),
        ("GET", "/v1/agents/a/b/c/d/e", 404),
        ("GET", "/v1/vaults", 404),
    ):
        answer = await proxy.send(method, path, {} if method == "POST" else None, headers=headers)
        assert (answer.status, is_anthropic(answer.body)) == (status, True), (method, path, answer.text)
        assert answer.headers["request-id"] == answer.body["request_id"]
        if status == 405:
            expected = "GET, HEAD, POST"
            assert answer.headers["Allow"] == expected


async def test_the_beta_of_openai_chooses_its_api(proxy: Proxy) -> None:
    made = await proxy.send("POST", "/v1/agents", {"model": "codex-5"}, headers=OPENAI)
    assert (made.status, made.body["object"]) == (201, "agent")
    for method, path, status in (
        ("GET", "/v1/agents/agent_unknown", 404),
        ("PUT", f"/v1/agents/{made.body['id']}", 405),
        ("POST", f"/v1/agents/{made.body['id']}/archive", 404),
        ("GET", f"/v1/agents/{made.body['id']}/versions", 404),
    ):
        answer = await proxy.send(method, path, {} if method == "POST" else None, headers=OPENAI)
        assert (answer.status, is_openai(answer.body)) == (status, True), (method, path, answer.text)
        if status == 405:
            assert answer.headers["Allow"] == "DELETE, GET, HEAD, POST"


async def test_openais_beta_with_the_key_as_x_api_key_is_openais(proxy: Proxy) -> None:
    answer = await proxy.send("GET", "/v1/agents", headers=OPENAI | {"x-api-key": "k"})
    assert answer.body["object"] == "list"


@pytest.mark.parametrize("path", ["", "/agent_1", "/agent_1/versions", "/sessions"])
async def test_a_request_that_does_not_say_whose_api_it_means_is_told_both_headers(
    proxy: Proxy, path: str
) -> None:
    answer = await proxy.send("GET", f"/v1/agents{path}", headers={"Authorization": "Bearer k"})
    assert answer.status == 400
    for name in ("OpenAI-Beta: agents=v1", "anthropic-version: 2023-06-01"):
        assert name in answer.body["error"]["message"]


@pytest.mark.parametrize("headers", [{}, OPENAI, {"Authorization": "Bearer k"}, *ANTHROPIC])
async def test_environments_are_anthropics_alone_whatever_the_headers(
    proxy: Proxy, headers: dict[str, str]
) -> None:
    listed = await proxy.send("GET", "/v1/environments", headers=headers)
    assert (listed.status, listed.body) == (200, {"data": [], "next_page": None})
    for method, path, status in (
        ("GET", "/v1/environments/env_unknown", 404),
        ("PUT", "/v1/environments", 405),
        ("GET", "/v1/environments/a/b/c/d", 404),
    ):
        answer = await proxy.send(method, path, headers=headers)
        assert (answer.status, is_anthropic(answer.body)) == (status, True), answer.text


async def test_an_agent_of_one_api_is_read_through_the_other(proxy: Proxy) -> None:
    function = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
    server = {"type": "http", "server_url": "https://example.com/mcp", "headers": {"a": "secret"}}
    mcp = {"type": "mcp", "server_label": "desk", "transport": server, "allowed_tools": ["one"]}
    body = {"model": "codex-5", "instructions": "Hi.", "tools": [function, mcp, {"type": "web_search"}]}
    made = (await proxy.send("POST", "/v1/agents", body, headers=OPENAI)).body
    path = f"/v1/agents/{made['id']}"
    seen = (await proxy.send("GET", path, headers=ANTHROPIC[0])).body
    assert (seen["system"], seen["name"], seen["version"]) == ("Hi.", made["id"], 1)
    assert [tool["type"] for tool in seen["tools"]] == ["custom", "mcp_toolset"]
    assert seen["tools"][0]["input_schema"] == {"type": "object"}
    assert seen["mcp_servers"] == [{"type": "url", "name": "desk", "url": "https://example.com/mcp"}]

    await proxy.send("POST", path, {"system": "Ho."}, headers=ANTHROPIC[0])
    changed = (await proxy.send("GET", path, headers=OPENAI)).body
    assert changed | {"instructions": "", "updated_at": 0} == made | {"instructions": "", "updated_at": 0}
    assert changed["instructions"] == "Ho."
    await proxy.send("POST", path, {"name": "N"}, headers=OPENAI)
    seen = (await proxy.send("GET", f"{path}?version=2", headers=ANTHROPIC[0])).body
    assert (seen["system"], seen["name"], seen["version"]) == ("Ho.", made["id"], 2)
    tools = [{"type": "agent_toolset_20260401", "default_config": {"enabled": False}}, seen["tools"][0]]
    await proxy.send("POST", path, {"tools": tools, "mcp_servers": []}, headers=ANTHROPIC[0])
    changed = (await proxy.send("GET", path, headers=OPENAI)).body
    assert [tool["type"] for tool in changed["tools"]] == ["function", "web_search"]  # which was not shown
    await proxy.send("POST", path, {"tools": []}, headers=OPENAI)
    seen = (await proxy.send("GET", path, headers=ANTHROPIC[0])).body
    assert [tool["type"] for tool in seen["tools"]] == ["agent_toolset_20260401"]  # nor was this
    await proxy.send("POST", f"{path}/archive", {}, headers=ANTHROPIC[0])
    assert (await proxy.send("POST", path, {"name": "M"}, headers=OPENAI)).status == 409
    assert (await proxy.send("DELETE", path, headers=OPENAI)).status == 200
    for gone in (path, f"{path}?version=1", f"{path}/versions"):
        assert (await proxy.send("GET", gone, headers=ANTHROPIC[0])).status == 404
