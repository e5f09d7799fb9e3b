"""Tools that a client groups in namespaces, defers, or brings as items: offered under one name, called by theirs."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response
from structlog.testing import capture_logs

from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import create, events_of

READ_TOOL: dict[str, Any] = {"type": "function", "name": "read", "parameters": {"type": "object"}}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch"}
FILES: dict[str, Any] = {
    "type": "namespace",
    "name": "files",
    "description": "Files.",
    "tools": [READ_TOOL, PATCH],
}
SEARCH: dict[str, Any] = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}


def calls(name: str, arguments: str = "{}") -> str:
    return f"[[fake:tool_call name={name} args='{arguments}' say=\"Seen: {{outputs}}\"]]"


async def test_a_function_of_a_namespace_is_called_by_its_name_and_namespace(proxy: Proxy) -> None:
    answer = await create(proxy, calls("files__read", '{"path": "a"}'), tools=[FILES])
    (call,) = Response.model_validate(answer.body).output
    assert (call.type, call.name, call.namespace) == ("function_call", "read", "files")  # type: ignore[union-attr]
    assert json.loads(call.arguments) == {"path": "a"}  # type: ignore[union-attr, arg-type]
    assert answer.body["tools"][0]["name"] == "files"


async def test_the_output_of_a_call_in_a_namespace_goes_back_to_the_same_tool(proxy: Proxy) -> None:
    prompt = {"role": "user", "content": calls("files__read")}
    first = await create(proxy, [prompt], tools=[FILES], store=False)
    (call,) = first.body["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "its content"}
    second = await create(proxy, [prompt, call, output], tools=[FILES], store=False)
    assert second.body["output"][0]["content"][0]["text"] == "Seen: its content"


async def test_the_events_of_a_call_in_a_namespace_name_it_as_the_client_does(proxy: Proxy) -> None:
    events = events_of((await create(proxy, calls("files__read"), tools=[FILES], stream=True)).text)
    done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert done["name"] == "read"
    items = [event["item"] for event in events if event["type"].startswith("response.output_item")]
    assert {(item["name"], item["namespace"]) for item in items} == {("read", "files")}


async def test_the_default_namespace_adds_nothing_to_a_name(proxy: Proxy) -> None:
    answer = await create(proxy, calls("read"), tools=[FILES | {"name": "functions"}])
    (call,) = answer.body["output"]
    assert (call["name"], call["namespace"]) == ("read", "functions")


async def test_tools_that_come_as_an_item_are_offered(proxy: Proxy) -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [FILES]}
    answer = await create(proxy, [brought, {"role": "user", "content": calls("files__read")}])
    assert answer.body["output"][0]["name"] == "read"
    assert answer.body["tools"] == []


async def test_tools_that_came_as_an_item_are_offered_in_what_goes_on_from_there(proxy: Proxy) -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [FILES]}
    first = await create(proxy, [brought, {"role": "user", "content": "Hello."}])
    second = await create(proxy, calls("files__read"), previous_response_id=first.body["id"])
    (call,) = second.body["output"]
    assert (call["name"], call["namespace"]) == ("read", "files")


async def test_what_goes_on_from_calls_of_the_clients_tools_is_no_agent_turn(proxy: Proxy) -> None:
    """Also where the request itself shows nothing of them: no tools and no outputs."""
    with capture_logs() as logs:
        first = await create(proxy, calls("files__read"), tools=[FILES])
        (call,) = first.body["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "its content"}
        second = await create(proxy, [output], previous_response_id=first.body["id"])
        await create(proxy, "And now?", previous_response_id=second.body["id"])
        await create(proxy, "And now?")
    modes = [line["mode"] for line in logs if line["event"] == "request"]
    assert modes == ["model", "model", "model", "agent"]


async def test_a_tool_search_comes_back_as_a_call_for_the_client(proxy: Proxy) -> None:
    deferred = FILES | {"tools": [READ_TOOL | {"defer_loading": True}]}
    prompt = calls("tool_search", '{"query": "files"}')
    answer = await create(proxy, prompt, tools=[deferred, SEARCH])
    (call,) = Response.model_validate(answer.body).output
    assert (call.type, call.execution, call.arguments) == (  # type: ignore[union-attr]
        "tool_search_call",
        "client",
        {"query": "files"},
    )


ON_THE_MACHINE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("local_shell", {"command": ["ls"]}, {"output": "a.py"}),
    ("shell", {"commands": ["ls"]}, {"output": []}),
    (
        "apply_patch",
        {"operation": {"type": "create_file", "path": "a.py", "diff": "+1"}},
        {"status": "completed"},
    ),
]


def agent_of(name: str, folder: Path) -> AbstractAsyncContextManager[Proxy]:
    return claude_proxy(folder) if name == "claude-code" else fake_proxy(folder, fake_dialect=name)


@pytest.mark.parametrize("agent", ["proto", "app-server", "acp", "claude-code"])
@pytest.mark.parametrize(("kind", "arguments", "output"), ON_THE_MACHINE, ids=["local", "shell", "patch"])
async def test_each_agent_has_the_tools_that_a_client_runs_on_its_machine(
    agent: str, kind: str, arguments: dict[str, Any], output: dict[str, Any], tmp_path: Path
) -> None:
    prompt = {"role": "user", "content": calls(kind, json.dumps(arguments))}
    given: dict[str, Any] = {"tools": [{"type": kind}], "store": False}
    async with agent_of(agent, tmp_path) as proxy:
        whole = await create(proxy, [prompt], **given)
        streamed = events_of((await create(proxy, [prompt], **given, stream=True)).text)[-1]["response"]
        for first in (Response.model_validate(answer) for answer in (whole.body, streamed)):
            (call,) = [item.model_dump() for item in first.output if item.type != "reasoning"]
            assert call["type"] == f"{kind}_call"
            made = call.get("action") or {"operation": call["operation"]}
            assert {name: made[name] for name in arguments} == arguments
            answer = {"type": f"{kind}_call_output", "call_id": call["call_id"], **output}
            second = await create(proxy, [prompt, call, answer], **given)
            assert second.body["output"][-1]["content"][0]["text"].startswith("Seen: ")


async def test_a_deferred_tool_is_offered_once_a_search_has_found_it(proxy: Proxy) -> None:
    deferred = FILES | {"tools": [READ_TOOL | {"defer_loading": True}]}
    prompt = {"role": "user", "content": "[[fake:echo]]"}
    before = await create(proxy, [prompt], tools=[deferred, SEARCH], store=False)
    found = [
        {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [deferred]},
    ]
    after = await create(proxy, [prompt, *found, prompt], tools=[deferred, SEARCH], store=False)
    names = [_offered_names(answer.body) for answer in (before, after)]
    assert names == [["tool_search"], ["tool_search", "files__read"]]


def _offered_names(body: Any) -> list[str]:
    """The names of the tools that the fake agent was offered, which it repeats."""
    echoed = json.loads(body["output"][0]["content"][0]["text"])
    names: list[str] = echoed["tools"]
    return names


async def test_without_a_search_of_the_clients_deferred_tools_are_offered_at_once(proxy: Proxy) -> None:
    deferred = FILES | {"tools": [READ_TOOL | {"defer_loading": True}]}
    answer = await create(proxy, "[[fake:echo]]", tools=[deferred, {"type": "tool_search"}])
    assert _offered_names(answer.body) == ["files__read"]
    assert answer.headers["x-codex-ignored-params"] == "tools[tool_search]"


async def test_an_item_with_a_broken_tool_is_a_400_that_names_its_place(proxy: Proxy) -> None:
    broken = {"type": "additional_tools", "tools": [{"type": "function", "name": 5}]}
    answer = await create(proxy, [broken, {"role": "user", "content": "Hello."}])
    assert (answer.status, answer.error["param"]) == (400, "input[0].tools[0].name")


async def test_the_same_name_twice_in_a_namespace_is_a_400_that_names_the_second(proxy: Proxy) -> None:
    answer = await create(proxy, "Hello.", tools=[FILES | {"tools": [READ_TOOL, READ_TOOL]}])
    assert (answer.status, answer.error["param"]) == (400, "tools[0].tools[1].name")


async def test_what_a_sub_agent_says_reaches_the_model_as_its_users_word(proxy: Proxy) -> None:
    said = {
        "type": "agent_message",
        "author": "/root",
        "recipient": "/root/sub",
        "content": [
            {"type": "input_text", "text": "Payload: "},
            {"type": "encrypted_content", "encrypted_content": '[[fake:text say="Understood."]]'},
        ],
    }
    answer = await create(proxy, [said])
    assert answer.body["output"][0]["content"][0]["text"] == "Understood."
