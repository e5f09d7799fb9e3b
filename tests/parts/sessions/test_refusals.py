"""What is refused: in which words, for which field, and that nothing has happened then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.sessions import wire
from tests.access.keyed import key_of, keyed_proxy
from tests.http.serving import Answer, fake_proxy
from tests.parts.sessions.driving import (
    BETA,
    CANCEL,
    WEATHER,
    AgentsClient,
    message,
    session_body,
)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path) as proxy:
        yield AgentsClient(proxy)


def errors_in(
    answer: Answer, status: int, code: str | None, param: str | None, message: str = ""
) -> list[str]:
    """Returns how an answer differs from the error of this status, code and field."""
    if answer.status != status:
        return [f"{answer.status} instead of {status}: {answer.text}"]
    error = answer.error
    found = [f"more than an error: {answer.text}"] if answer.body.keys() != {"error"} else []
    if error.keys() != {"message", "type", "param", "code"}:
        found.append(f"not the fields of an error: {error}")
    if (error["code"], error["param"]) != (code, param):
        found.append(f"code and param: {error}")
    if message not in error["message"]:
        found.append(f"not {message!r}: {error}")
    return found


# --- headers ----------------------------------------------------------------------------------------

PATHS = (
    ("GET", "/agents"),
    ("POST", "/agents"),
    ("GET", "/agents/agent_1"),
    ("POST", "/agents/sessions"),
    ("GET", "/agents/sessions/sess_1/events"),
    ("POST", "/agents/sessions/sess_1/events"),
    ("DELETE", "/agents/sessions/sess_1"),
    ("GET", "/vaults"),
)


async def test_the_beta_header_is_looked_at_before_the_key(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}) as proxy:
        for method, path in PATHS:
            for beta in ({}, {"OpenAI-Beta": "assistants=v2"}, {"OpenAI-Beta": "agents=v1,agents=v1"}):
                answer = await proxy.send(method, f"/v1{path}", headers=beta)
                assert answer.status == 400, (method, path, answer.text)
                assert answer.error["type"] == answer.error["code"] == "invalid_beta"
                assert answer.headers["x-request-id"]


async def test_two_beta_headers_are_one_too_many(client: AgentsClient) -> None:
    headers = [("OpenAI-Beta", "agents=v1"), ("OpenAI-Beta", "agents=v1")]
    async with client.proxy.session.get(f"{client.proxy.url}/v1/agents", headers=headers) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "invalid_beta"


async def test_a_wrong_key_is_refused_in_the_form_of_the_api(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}) as proxy:
        for key in ("", "wrong"):
            for method, path in PATHS:
                headers = BETA | ({"Authorization": f"Bearer {key}"} if key else {})
                answer = await proxy.send(method, f"/v1{path}", headers=headers)
                assert answer.status == 401
                assert (answer.error["type"], answer.error["code"]) == ("invalid_request_error", None)


# --- bodies -----------------------------------------------------------------------------------------


async def test_bodies_that_are_no_json_objects_are_refused(client: AgentsClient) -> None:
    bodies = (
        b"{",
        b"[]",
        b'"x"',
        b"1",
        b'{"model":"a","model":"b"}',
        b'{"agent":{"model":"a","model":"b"}}',
        b"\xff",
    )
    found: list[Any] = []
    for path in ("", "/sessions"):
        for body in bodies:
            answer = await client.ask("POST", path, body)
            error = answer.error
            if (answer.status, error["type"], error["param"]) != (400, "invalid_request_error", None):
                found.append((path, body, answer.status, error))
    assert not found


async def test_a_body_has_to_be_json_by_its_type(client: AgentsClient) -> None:
    for kind, status in (
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
        ("application/vnd.api+json", 201),
        ("application/json; charset=utf-8", 201),
    ):
        answer = await client.ask("POST", "", {"model": "codex-5"}, headers={"Content-Type": kind})
        assert answer.status == status, (kind, answer.text)


async def test_an_empty_body_and_null_count_as_an_empty_object(client: AgentsClient) -> None:
    made = await client.post("", {"model": "codex-5", "name": "n"})
    for body in (b"", b"null", b"{}"):
        answer = await client.ask("POST", f"/{made['id']}", body)
        assert (answer.status, answer.body["name"]) == (200, "n"), answer.text


NO: dict[str, Any] = {"type": "none"}


def agent(**fields: Any) -> dict[str, Any]:
    return {"model": "codex-5", **fields}


def tool(**fields: Any) -> dict[str, Any]:
    return agent(tools=[fields])


def part(**fields: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": "x", **fields}


def said(content: Any, **fields: Any) -> dict[str, Any]:
    """The field `input` with one message."""
    return {"input": [{"role": "user", "content": content, **fields}]}


MCP: dict[str, Any] = {
    "type": "mcp",
    "server_label": "s",
    "transport": {"type": "http", "server_url": "http://127.0.0.1:1/"},
}

STDIO = {"type": "stdio", "command": "x", "cwd": "/"}
SUBAGENTS = {"enabled": False, "max_concurrent_subagents": 0}

AGENT_REFUSALS: tuple[tuple[dict[str, Any], str, str | None], ...] = (
    ({}, "model", None),
    ({"model": ""}, "model", None),
    ({"model": None}, "model", None),
    ({"model": 1}, "model", None),
    (agent(name="n" * 129), "name", None),
    (agent(name=""), "name", None),
    (agent(metadata={f"k{n}": "v" for n in range(17)}), "metadata", None),
    (agent(metadata={"k" * 65: "v"}), "metadata." + "k" * 65, None),
    (agent(metadata={"k": "v" * 513}), "metadata.k", None),
    (agent(metadata={"k": 1}), "metadata.k", None),
    (agent(unknown=1), "unknown", None),
    (agent(reasoning={"effort": "huge"}), "reasoning.effort", None),
    (agent(reasoning={"unknown": 1}), "reasoning.unknown", None),
    (agent(text={"format": {"type": "xml"}}), "text.format.type", None),
    (agent(text={"unknown": 1}), "text.unknown", None),
    (
        agent(text={"format": {"type": "json_schema", "schema": {"type": "array"}}}),
        "text.format.schema",
        None,
    ),
    (agent(service_tier="slow"), "service_tier", None),
    (agent(instructions=1), "instructions", None),
    (agent(tools={}), "tools", None),
    (tool(type="sing"), "tools[0].type", None),
    (tool(**{**WEATHER, "unknown": 1}), "tools[0].unknown", None),
    (tool(**{**WEATHER, "name": "no name"}), "tools[0].name", None),
    (tool(**{**WEATHER, "parameters": 1}), "tools[0].parameters", None),
    (tool(**{**WEATHER, "parameters": {"type": "array"}}), "tools[0].parameters", None),
    (tool(type="function", name="x", description="d"), "tools[0].parameters", None),
    (agent(tools=[WEATHER, WEATHER]), "tools[1]", None),
    (agent(tools=[{"type": "web_search"}, {"type": "web_search"}]), "tools[1]", None),
    (agent(tools=[{"type": "tool_search"}, {"type": "tool_search"}]), "tools[1]", None),
    (tool(type="web_search", mode="dead"), "tools[0].mode", None),
    (tool(type="computer_use"), "tools[0].type", "unsupported_by_server"),
    (tool(type="automations"), "tools[0].type", "unsupported_by_server"),
    (tool(type="programmatic_tool_calling", enabled=True), "tools[0].enabled", "unsupported_by_server"),
    (tool(type="programmatic_tool_calling"), "tools[0].enabled", "unsupported_by_server"),
    (tool(**{**MCP, "credential_id": "cred_1"}), "tools[0].credential_id", "unsupported_by_server"),
    (
        tool(**{**MCP, "transport": {"type": "stdio", "command": "x", "cwd": "/"}}),
        "tools[0].transport.type",
        "unsupported_by_server",
    ),
    (tool(**{**MCP, "transport": {"type": "http"}}), "tools[0].transport.server_url", None),
    (
        agent(multi_agent={"enabled": False, "max_concurrent_subagents": 0}),
        "multi_agent.max_concurrent_subagents",
        None,
    ),
)
"""Settings of an agent that are refused, the field at fault, and the code if it is not the usual one."""


async def test_each_refused_setting_of_an_agent_is_named(client: AgentsClient) -> None:
    found: list[Any] = []
    for body, param, code in AGENT_REFUSALS:
        answer = await client.ask("POST", "", body)
        found += [
            (str(body)[:100], each) for each in errors_in(answer, 400, code or "invalid_request_error", param)
        ]
    assert not found
    assert await client.all("") == []


async def test_a_tool_behind_one_that_the_agent_does_not_get_is_named_with_its_own_place(
    client: AgentsClient,
) -> None:
    tools = [{"type": "tool_search"}, {"type": "web_search", "mode": "disabled"}, MCP]
    answer = await client.ask("POST", "/sessions", session_body("x", agent=agent(tools=tools)))
    assert (answer.status, answer.error["param"]) == (400, "agent.tools[2].transport.server_url")


async def test_tools_have_a_limit_of_bytes(client: AgentsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_TOOL_BYTES", 1000)
    answer = await client.ask("POST", "", tool(**{**WEATHER, "description": "d" * 1000}))
    assert not errors_in(answer, 400, "invalid_request_error", "tools")


async def test_the_same_settings_are_refused_in_a_session_with_their_place_there(
    client: AgentsClient,
) -> None:
    found: list[Any] = []
    for body, param, code in AGENT_REFUSALS:
        if not {"name", "metadata"} & body.keys():
            answer = await client.ask(
                "POST", "/sessions", {"environment": NO, "agent": body, "input": "Hello."}
            )
            found += [
                (str(body)[:100], each)
                for each in errors_in(answer, 400, code or "invalid_request_error", f"agent.{param}")
            ]
    assert not found
    assert await client.all("/sessions") == []


SESSION_REFUSALS: tuple[tuple[Mapping[str, Any], str | None, str, str], ...] = (
    ({"environment": None}, "environment", "", ""),
    ({"environment": {"type": "moon"}}, "environment.type", "", ""),
    ({"environment": {"type": "none", "more": 1}}, "environment.more", "", ""),
    (
        {"environment": {"type": "openai_hosted"}},
        "environment.type",
        "unsupported_by_server",
        "no hosted sandboxes",
    ),
    (
        {"environment": {"type": "openai_hosted", "environment_id": "env_1", "plugins": []}},
        "environment.type",
        "unsupported_by_server",
        "`self_hosted`",
    ),
    ({"environment": {"type": "self_hosted"}}, "environment.workspace_directory", "", ""),
    (
        {
            "environment": {
                "type": "self_hosted",
                "workspace_directory": "/tmp",
                "capability_directories": ["/x"],
            }
        },
        "environment.capability_directories",
        "unsupported_by_server",
        "",
    ),
    ({"agent": None}, "agent.model", "", "agent.model is required when agent_id is omitted"),
    ({"agent": {}}, "agent.model", "", "agent.model is required when agent_id is omitted"),
    ({"agent": agent(tools=[MCP])}, "agent.tools[0].transport.server_url", "", "PROXY_MCP_ALLOWED_URLS"),
    ({"agent": agent(name="n")}, "agent.name", "", ""),
    ({"agent": agent(metadata={})}, "agent.metadata", "", ""),
    ({"input": None}, "input", "", "conversation-only sessions currently require initial input"),
    ({"input": ""}, "input", "", ""),
    ({"input": []}, "input", "", ""),
    ({"input": 1}, "input", "", ""),
    (said("Hello."), "input[0].content", "", ""),
    (said([]), "input[0].content", "", ""),
    (said([part()], role="system"), "input[0].role", "", ""),
    (said([part()], type=None), "input[0].type", "", ""),
    (said([part()], more=1), "input[0].more", "", ""),
    (said([part(text="")]), "input[0].content[0].text", "", ""),
    (said([part(type="output_text")]), "input[0].content[0].type", "", ""),
    (said([part(more=1)]), "input[0].content[0].more", "", ""),
    (said([part(), {"type": "input_image"}]), "input[0].content[1].image_url", "", ""),
    (
        said([part(), {"type": "input_image", "image_url": "ftp://x/y.png"}]),
        "input[0].content[1].image_url",
        "",
        "",
    ),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "", ""),
    ({"review": None}, "review", "", ""),
    ({"review": "auto_review"}, "review", "unsupported_by_agent", ""),
    ({"vault_ids": ["vlt_1"]}, "vault_ids", "unsupported_by_server", "keeps no credentials"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options", "", ""),
    ({"stream": "yes"}, "stream", "", ""),
    ({"stream": True, "input": None}, "input", "", ""),
)


async def test_each_refused_field_of_a_session_is_named(client: AgentsClient) -> None:
    found: list[Any] = []
    for fields, param, code, words in SESSION_REFUSALS:
        answer = await client.ask("POST", "/sessions", {**session_body("Hello."), **fields})
        found += [
            (str(fields), each)
            for each in errors_in(answer, 400, code or "invalid_request_error", param, words)
        ]
    assert not found
    assert await client.all("/sessions") == []


async def test_unknown_fields_at_the_top_are_ignored_and_named(client: AgentsClient) -> None:
    body = session_body("Hello.", more=1, spend_control={"limit": 5}, prompt_cache_options={"ttl": "30m"})
    answer = await client.ask("POST", "/sessions", body)
    assert answer.status == 201
    named = set(answer.headers["x-codex-ignored-params"].replace(" ", "").split(","))
    assert named == {"more", "spend_control", "prompt_cache_options"}
    id = answer.body["id"]
    answer = await client.ask("POST", f"/sessions/{id}/events", {"events": [], "more": 1})
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (202, "more")


async def test_settings_without_effect_are_named(client: AgentsClient) -> None:
    settings = agent(
        compaction={"async": True},
        experimental={"time_awareness": True},
        tools=[{**WEATHER, "async": True, "defer_loading": True}],
    )
    names = {"compaction", "experimental", "tools[].async", "tools[].defer_loading"}
    for path, body, place in (
        ("", settings, ""),
        ("/sessions", {**session_body("Hello."), "agent": settings}, "agent."),
    ):
        answer = await client.ask("POST", path, body)
        assert answer.status == 201, answer.text
        named = set(answer.headers["x-codex-ignored-params"].replace(" ", "").split(","))
        assert named == {place + name for name in names}


async def test_errors_of_settings_come_before_the_missing_input_and_the_unknown_agent(
    client: AgentsClient,
) -> None:
    body = {"environment": NO, "agent_id": "agent_x", "agent": {"unknown": 1}}
    assert not errors_in(
        await client.ask("POST", "/sessions", body), 400, "invalid_request_error", "agent.unknown"
    )
    body = {"environment": NO, "agent_id": "agent_x"}
    answer = await client.ask("POST", "/sessions", body)
    assert answer.status in (400, 404)


async def test_an_update_of_a_session_needs_a_field(client: AgentsClient) -> None:
    id = await client.idle_session()
    assert not errors_in(await client.ask("POST", f"/sessions/{id}", {}), 400, "invalid_request_error", None)
    for fields, param in (
        ({"agent": {"model": None}}, "agent.model"),
        ({"agent": {"instructions": "x"}}, "agent.instructions"),
        ({"agent": {"tools": [{"type": "sing"}]}}, "agent.tools[0].type"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"review": None}, "review"),
    ):
        answer = await client.ask("POST", f"/sessions/{id}", fields)
        assert not errors_in(answer, 400, "invalid_request_error", param)


# --- lists ------------------------------------------------------------------------------------------


async def test_limits_and_orders_of_lists_are_those_of_the_api(client: AgentsClient) -> None:
    id = await client.idle_session()
    made = [(await client.post("", {"model": "codex-5"}))["id"] for _ in range(2)]
    assert len(made) == 2
    turn = (await client.all(f"/sessions/{id}/turns"))[0]["id"]
    clamping = ("", "/sessions", f"/sessions/{id}/items", f"/sessions/{id}/turns/{turn}/items")
    found: list[Any] = []
    for path in clamping:
        for limit, shown in (("0", 1), ("-5", 1), ("101", 100), ("999999999", 100)):
            answer = await client.ask("GET", f"{path}?limit={limit}")
            if answer.status != 200 or len(answer.body["data"]) > shown:
                found.append((path, limit, answer.text))
    for limit in ("0", "101", "-1", "x", "1.5"):
        answer = await client.ask("GET", f"/sessions/{id}/turns?limit={limit}")
        found += errors_in(answer, 400, "invalid_request_error", "limit", "limit must be between 1 and 100")
    for path in (*clamping, f"/sessions/{id}/turns", f"/sessions/{id}/subagents"):
        for query, param in (("order=", "order"), ("order=up", "order"), ("limit=1&limit=2", "limit")):
            answer = await client.ask("GET", f"{path}?{query}")
            found += errors_in(answer, 400, "invalid_request_error", param)
        answer = await client.ask("GET", f"{path}?unknown=1")
        if answer.status != 200:
            found.append((path, answer.text))
    assert not found


async def test_an_unknown_item_to_begin_after_has_the_words_of_the_api(client: AgentsClient) -> None:
    id = await client.idle_session()
    turn = (await client.all(f"/sessions/{id}/turns"))[0]["id"]
    found: list[Any] = []
    for path in ("", "/sessions", f"/sessions/{id}/turns"):
        found += errors_in(await client.ask("GET", f"{path}?after=x_1"), 404, "not_found_error", None)
    for path in (f"/sessions/{id}/items", f"/sessions/{id}/turns/{turn}/items"):
        answer = await client.ask("GET", f"{path}?after=x_1")
        found += errors_in(
            answer, 400, "invalid_request_error", "after", "Invalid session item ID in `after`"
        )
    for path in (f"/sessions/{id}/subagents",):
        answer = await client.ask("GET", f"{path}?after=x_1")
        found += errors_in(answer, 400, "invalid_request_error", "after", "Invalid resource ID in `after`")
    assert not found


async def test_an_item_of_another_session_is_no_item_to_begin_after(client: AgentsClient) -> None:
    one, two = await client.idle_session(), await client.idle_session()
    item = (await client.all(f"/sessions/{one}/items"))[0]["id"]
    answer = await client.ask("GET", f"/sessions/{two}/items?after={item}")
    assert answer.status == 400


# --- ids --------------------------------------------------------------------------------------------


async def test_foreign_and_unknown_ids_have_the_same_answer(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        mine, other = AgentsClient(proxy, key_of("one")), AgentsClient(proxy, key_of("two"))
        agent_id = (await mine.post("", {"model": "codex-5"}))["id"]
        id = await mine.idle_session("[[fake:text]]")
        turn = (await mine.all(f"/sessions/{id}/turns"))[0]["id"]
        requests = (
            ("GET", "/{a}"),
            ("POST", "/{a}"),
            ("DELETE", "/{a}"),
            ("GET", "/sessions/{s}"),
            ("POST", "/sessions/{s}"),
            ("DELETE", "/sessions/{s}"),
            ("GET", "/sessions/{s}/events"),
            ("POST", "/sessions/{s}/events"),
            ("GET", "/sessions/{s}/items"),
            ("GET", "/sessions/{s}/turns"),
            ("GET", "/sessions/{s}/turns/{t}"),
            ("GET", "/sessions/{s}/turns/{t}/items"),
            ("GET", "/sessions/{s}/subagents"),
        )
        bodies = {
            "/{a}": {"name": "n"},
            "/sessions/{s}": {"metadata": {}},
            "/sessions/{s}/events": {"events": [CANCEL]},
        }
        found: list[Any] = []
        for method, path in requests:
            body = bodies[path] if method == "POST" else None
            foreign = await other.ask(method, path.format(a=agent_id, s=id, t=turn), body)
            unknown = await other.ask(method, path.format(a="agent_x", s="sess_x", t="turn_x"), body)
            found += errors_in(foreign, 404, "not_found_error", None) + errors_in(
                unknown, 404, "not_found_error", None
            )
            told = foreign.error["message"], unknown.error["message"]
            if told[0].replace(agent_id, "agent_x").replace(id, "sess_x").replace(turn, "turn_x") != told[1]:
                found.append(told)
        assert not found
        answer = await other.ask(
            "POST", "/sessions", {"environment": NO, "agent_id": agent_id, "input": "Hello."}
        )
        assert not errors_in(answer, 404, "not_found_error", None) or answer.error["param"] == "agent_id"
        assert await other.all("/sessions") == await other.all("") == []
        assert (await mine.get(f"/sessions/{id}"))["status"] == "idle"


async def test_a_turn_of_another_session_is_not_found(client: AgentsClient) -> None:
    one, two = await client.idle_session(), await client.idle_session()
    turn = (await client.all(f"/sessions/{one}/turns"))[0]["id"]
    for path in (f"/sessions/{two}/turns/{turn}", f"/sessions/{two}/turns/{turn}/items"):
        assert not errors_in(await client.ask("GET", path), 404, "not_found_error", None)


async def test_other_methods_and_slashes_at_the_end_are_refused(client: AgentsClient) -> None:
    answer = await client.ask("PUT", "/agent_1")
    assert answer.status == 405
    assert {"GET", "POST", "DELETE"} <= set(answer.headers["Allow"].replace(" ", "").split(","))
    assert (await client.ask("GET", "/sessions/")).status == 404


async def test_without_a_store_every_path_says_so(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off") as proxy:
        client = AgentsClient(proxy)
        for method, path, body in (
            ("POST", "", {"model": "codex-5"}),
            ("GET", "", None),
            ("POST", "/sessions", session_body("Hello.")),
            ("GET", "/sessions", None),
            ("GET", "/sessions/sess_1", None),
            ("POST", "/sessions/sess_1/events", {"events": [CANCEL]}),
        ):
            answer = await client.ask(method, path, body)
            assert answer.status == 400, (path, answer.text)
            assert "store" in answer.error["message"].lower()


async def test_the_store_in_memory_serves_sessions(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="memory") as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("[[fake:tool_calls]]")
        assert len(await client.all(f"/sessions/{id}/items")) == 6


async def test_a_model_that_does_not_exist_is_refused_when_the_session_is_made(client: AgentsClient) -> None:
    body = {**session_body("Hello."), "agent": {"model": "nothing-9"}}
    answer = await client.ask("POST", "/sessions", body)
    assert answer.status in (400, 404), answer.text
    assert answer.error["param"] == "agent.model"
    assert await client.all("/sessions") == []


async def test_deletion_waits_for_the_end_of_the_turn(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id = event["session"]["id"]
        answer = await client.ask("DELETE", f"/sessions/{id}")
        assert not errors_in(answer, 409, "conflict_error", None)
        assert answer.error["type"] == "conflict_error"
        assert answer.headers["x-should-retry"] == "false"
        await client.send(id, CANCEL)
        await reader.rest()
    for _ in range(2):
        assert (await client.delete(f"/sessions/{id}"))["deleted"] is True
    for method, path, body in (
        ("POST", f"/sessions/{id}/events", {"events": [message("x")]}),
        ("GET", f"/sessions/{id}", None),
    ):
        assert (await client.ask(method, path, body)).status == 404
