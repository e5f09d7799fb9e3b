"""What a definition cannot have here is refused: the message begins with the field's path, and says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Proxy
from tests.parts.managed_agents.driving import HEADERS, TOOLSET, WEATHER, ask
from tests.parts.managed_agents.following import IDLE, INTERRUPT, ManagedClient, message, result

AGENT: dict[str, Any] = {"model": "codex-5", "name": "a"}
SERVER = {"type": "url", "name": "desk", "url": "https://example.com/mcp"}
ALLOWED = {"permission_policy": {"type": "always_allow"}}
DESK = {"type": "mcp_toolset", "mcp_server_name": "desk", "default_config": ALLOWED}


def toolset(**config: Any) -> list[dict[str, Any]]:
    return [{**TOOLSET, "configs": [{"name": "web_fetch", **config}]}]


REFUSED_ENVIRONMENTS: list[tuple[Any, str]] = [
    (
        {"type": "self_hosted"},
        "config.type: self_hosted environments are not served here; tools run on this machine. "
        'Use {"type": "cloud"}.',
    ),
    (
        {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["a"]}},
        "config.networking: this server cannot limit the network of a session. Use unrestricted.",
    ),
    (
        {"type": "cloud", "packages": {"pip": ["numpy"]}},
        "config.packages: packages are not installed here; install them on this machine.",
    ),
]

REFUSED_AGENTS: list[tuple[dict[str, Any], str]] = [
    (
        {"tools": toolset(permission_policy={"type": "auto"})},
        "tools[0].configs[0].permission_policy: auto is judged by Anthropic's service; use always_ask or always_allow.",
    ),
    (
        {"tools": [{**TOOLSET, "default_config": {"permission_policy": {"type": "auto"}}}]},
        "tools[0].default_config.permission_policy: auto is judged by Anthropic's service; use always_ask or "
        "always_allow.",
    ),
    (
        {"tools": toolset(allowed_domains=["example.com"])},
        "tools[0].configs[0].allowed_domains: this server cannot limit the sites of web_fetch. Leave it out, or "
        "disable the tool.",
    ),
    (
        {"skills": [{"type": "anthropic", "skill_id": "xlsx"}]},
        "skills: not served here; put skills into the agent's own folder.",
    ),
    (
        {"multiagent": {"type": "coordinator", "agents": [{"type": "self"}, "agent_1"]}},
        'multiagent.agents[1]: an agent here has subagents like itself only. Use {"type": "self"}.',
    ),
    (
        {"multiagent": {"type": "multiagent_20261001", "subagents": {"type": "enabled"}}},
        "multiagent: multiagent_20261001 is not served here. Use "
        '{"type": "coordinator", "agents": [{"type": "self"}]}.',
    ),
    (
        {"execution_identity": {"type": "aws_role", "role_arn": "x"}},
        "execution_identity: agents run as the user of this server. Leave it out, or use "
        '{"type": "service_account"}.',
    ),
    (
        {"mcp_servers": [SERVER], "tools": [{**DESK, "configs": [{"name": "x", "enabled": False}]}]},
        "tools[0].configs[0].enabled: one tool cannot be left out here. Disable all in default_config, and enable the "
        "others by name.",
    ),
    ({"tools": [DESK]}, "tools[0].mcp_server_name: 'mcp_servers' has no server 'desk'."),
    (
        {"mcp_servers": [SERVER]},
        "mcp_servers[0]: No tool of the type 'mcp_toolset' names this server in 'mcp_server_name'.",
    ),
    (
        {"mcp_servers": [SERVER, SERVER], "tools": [DESK]},
        "mcp_servers[1]: It is the second server of this name.",
    ),
    ({"tools": [WEATHER, WEATHER]}, "tools[1]: It is the second tool of this name or type."),
    ({"tools": [TOOLSET, TOOLSET]}, "tools[1]: It is the second tool of this name or type."),
]


@pytest.mark.parametrize(("config", "message"), REFUSED_ENVIRONMENTS)
async def test_an_environment_that_this_machine_is_not_is_refused(
    proxy: Proxy, config: Any, message: str
) -> None:
    made = (await ask(proxy, "POST", "/v1/environments", {"name": "here"})).body
    for path in ("/v1/environments", f"/v1/environments/{made['id']}"):
        answer = await ask(proxy, "POST", path, {"name": "there", "config": config})
        assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error")
        assert answer.body["error"]["message"] == message
    assert (await ask(proxy, "GET", "/v1/environments")).body["data"] == [made]


@pytest.mark.parametrize(("fields", "message"), REFUSED_AGENTS)
async def test_a_field_that_an_agent_cannot_have_is_refused(
    proxy: Proxy, fields: dict[str, Any], message: str
) -> None:
    made = (await ask(proxy, "POST", "/v1/agents", AGENT)).body
    for path, more in (("/v1/agents", AGENT), (f"/v1/agents/{made['id']}", {})):
        answer = await ask(proxy, "POST", path, {**more, **fields})
        assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error"), answer.text
        assert answer.body["error"]["message"] == message
    assert (await ask(proxy, "GET", f"/v1/agents/{made['id']}")).body == made


async def test_unknown_fields_are_ignored_and_named(proxy: Proxy) -> None:
    model = {"id": "codex-5", "inference_geo": "eu"}
    body = {**AGENT, "model": model, "temper": "mild", "tools": [{**WEATHER, "colour": "red"}]}
    answer = await ask(proxy, "POST", "/v1/agents", body)
    named = "model.inference_geo, temper, tools[].colour"
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, named)
    answer = await ask(proxy, "POST", "/v1/environments", {"name": "e", "scope": "account", "place": "here"})
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, "scope, place")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("include_archived=", "include_archived"),
        ("created_at[lte]=", "created_at[lte]"),
        ("page=x", "page"),
        ("page=W10", "page"),
        (f"page={'A' * 600}", "page"),
        ("include_archived=maybe", "include_archived"),
        ("created_at[gte]=yesterday", "created_at[gte]"),
    ],
)
async def test_a_list_says_which_parameter_is_wrong(proxy: Proxy, query: str, param: str) -> None:
    answer = await ask(proxy, "GET", f"/v1/agents?{query}")
    assert answer.status == 400
    assert param in answer.body["error"]["message"]


@pytest.mark.parametrize("version", ["0", "x", "-1", "99999999999"])
async def test_a_version_is_a_number_from_1(proxy: Proxy, version: str) -> None:
    made = (await ask(proxy, "POST", "/v1/agents", AGENT)).body
    answer = await ask(proxy, "GET", f"/v1/agents/{made['id']}?version={version}")
    assert (answer.status, "version" in answer.text) == (400, True)


async def test_what_belongs_to_another_key_does_not_exist(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        one, two = ({**HEADERS, **key_header(name)} for name in ("one", "two"))
        agent = (await ask(proxy, "POST", "/v1/agents", AGENT, one)).body
        await ask(proxy, "POST", f"/v1/agents/{agent['id']}", {"name": "b"}, one)
        place = (await ask(proxy, "POST", "/v1/environments", {"name": "e"}, one)).body
        for method, path in (
            ("GET", f"/v1/agents/{agent['id']}"),
            ("GET", f"/v1/agents/{agent['id']}?version=1"),
            ("GET", f"/v1/agents/{agent['id']}/versions"),
            ("POST", f"/v1/agents/{agent['id']}"),
            ("POST", f"/v1/agents/{agent['id']}/archive"),
            ("GET", f"/v1/environments/{place['id']}"),
            ("POST", f"/v1/environments/{place['id']}"),
            ("POST", f"/v1/environments/{place['id']}/archive"),
            ("DELETE", f"/v1/environments/{place['id']}"),
        ):
            answer = await ask(proxy, method, path, {} if method == "POST" else None, two)
            assert (answer.status, answer.body["error"]["type"]) == (404, "not_found_error"), path
        for path in ("/v1/agents", "/v1/environments"):
            assert (await ask(proxy, "GET", path, headers=two)).body == {"data": [], "next_page": None}
            assert len((await ask(proxy, "GET", path, headers=one)).body["data"]) == 1
        assert (await ask(proxy, "POST", "/v1/environments", {"name": "e"}, two)).status == 200


BROKEN = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!!"}}


async def test_an_image_that_cannot_be_read_is_refused_at_its_place(client: ManagedClient) -> None:
    pictured = message("Look.")
    pictured["content"].append(BROKEN)
    id = await client.new_session()
    refused = await client.refused(400, f"/sessions/{id}/events", {"events": [message("Hello."), pictured]})
    assert refused.startswith("events[1].content[1].source: Invalid image")
    events = {"events": [INTERRUPT, message("Hello."), pictured]}
    refused = await client.refused(400, f"/sessions/{id}/events", events)
    assert refused.startswith("events[2].content[1].source: Invalid image")
    new = {"agent": await client.new_agent(), "environment_id": await client.environment()}
    refused = await client.refused(400, "/sessions", new | {"initial_events": [message("Hello."), pictured]})
    assert refused.startswith("initial_events[1].content[1].source: Invalid image")


async def test_an_image_in_a_result_that_cannot_be_read_is_refused_at_its_place(
    client: ManagedClient,
) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:tool_call]]"))
        (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
        given = result(use, "sunny")
        given["content"].append(BROKEN)
        refused = await client.refused(400, f"/sessions/{id}/events", {"events": [given]})
    assert refused.startswith("events[0].content[1].source: Invalid image")
