"""`local_shell`, `shell` and `apply_patch`, which the client runs on its machine, before both kinds of upstreams. What
comes is held to the SDK's own types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from tests.http.serving import Proxy
from tests.http_responses.asking import events_of
from tests.model_server import Model, Upstream, proxy_before

DIFF = "@@ def greet():\n-    return 1\n+    return 2\n"


@dataclass(frozen=True)
class Machine:
    """A tool, a call as the model makes it and as the client gets it, and an output and what the model gets of it."""

    kind: str
    arguments: dict[str, Any]
    fields: dict[str, Any]
    output: dict[str, Any]
    told: str


def patch(kind: str, **changed: str) -> Machine:
    operation = {"type": kind, "path": "a.py", **changed}
    output = {"status": "failed", "output": "No such file."} if changed else {"status": "completed"}
    told = "failed: No such file." if changed else "completed"
    return Machine("apply_patch", {"operation": operation}, {"operation": operation}, output, told)


def action(**known: Any) -> dict[str, Any]:
    return {"type": "exec", "env": {}, "working_directory": None, "timeout_ms": None, **known}


COMMANDS = {"commands": ["ls", "exit 3"], "timeout_ms": 5000}
PRINTED = [
    {"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}},
    {"stdout": "", "stderr": "slow", "outcome": {"type": "timeout"}},
]
LOCAL = {"command": ["bash", "-lc", "ls"], "timeout_ms": 5000}
TOOLS = [
    Machine("local_shell", LOCAL, {"action": action(**LOCAL)}, {"output": "a.py"}, "a.py"),
    Machine(
        "shell",
        COMMANDS,
        {"action": {"max_output_length": None, **COMMANDS}, "environment": {"type": "local"}},
        {"output": PRINTED, "max_output_length": 100},
        json.dumps(PRINTED, separators=(",", ":")),
    ),
    patch("create_file", diff="+print(1)\n"),
    patch("update_file", diff=DIFF),
    patch("delete_file"),
]
EACH_TOOL = pytest.mark.parametrize(
    "tool", TOOLS, ids=["local_shell", "shell", "create_file", "update_file", "delete_file"]
)
SHELL = TOOLS[1]


@pytest.fixture(params=["openai-chat", "openai-responses"])
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def proxy(wire: str, server: Upstream, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with proxy_before(server.url, tmp_path, agent=wire) as running:
        yield running


@pytest.fixture
def model(wire: str, server: Upstream) -> Model:
    return Model(wire, server)


async def asked(proxy: Proxy, *, streamed: bool, **fields: Any) -> dict[str, Any]:
    """A response, whose items and events are as the SDK's types want them."""
    body = {"model": "small", "stream": streamed, **fields}
    answer = await proxy.send("POST", "/v1/responses", body)
    assert answer.status == 200, answer.text
    whole: dict[str, Any] = answer.body if not streamed else events_of(answer.text)[-1]["response"]
    Response.model_validate(whole)
    return whole


@EACH_TOOL
@pytest.mark.parametrize("chained", [False, True], ids=["sent back", "stored"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_call_comes_as_an_item_of_its_own_and_its_output_reaches_the_model(
    tool: Machine, streamed: bool, chained: bool, proxy: Proxy, model: Model
) -> None:
    model.calls(tool.kind, json.dumps(tool.arguments))
    model.says("Done.")
    request = {"tools": [{"type": tool.kind}], "store": chained}
    asking = {"role": "user", "content": "Work."}
    first = await asked(proxy, streamed=streamed, input=[asking], **request)
    (offered,) = model.tools
    assert offered["name"] == tool.kind
    (made,) = first["output"]
    assert (made["type"], made["status"]) == (f"{tool.kind}_call", "completed")
    assert {name: made[name] for name in tool.fields} == tool.fields
    output = {"type": f"{tool.kind}_call_output", "call_id": made["call_id"], **tool.output}
    more: dict[str, Any] = (
        {"input": [output], "previous_response_id": first["id"]}
        if chained
        else {"input": [asking, made, output]}
    )
    second = await asked(proxy, streamed=streamed, **request, **more)
    assert second["output"][0]["content"][0]["text"] == "Done."
    assert model.called == [(tool.kind, tool.arguments)]
    assert model.told == [tool.told]


@EACH_TOOL
async def test_a_conversation_keeps_calls_and_outputs(
    tool: Machine, client: AsyncOpenAI, model: Model
) -> None:
    talk = await client.conversations.create()
    model.calls(tool.kind, json.dumps(tool.arguments))
    model.says("Done.")
    tools: Any = [{"type": tool.kind}]
    given: dict[str, Any] = {"model": "small", "conversation": talk.id, "tools": tools}
    first: Any = await client.responses.create(**given, input="Work.")
    output: Any = {"type": f"{tool.kind}_call_output", "call_id": first.output[0].call_id, **tool.output}
    await client.responses.create(**given, input=[output])
    kept = [item async for item in client.conversations.items.list(talk.id, order="asc")]
    assert [item.type for item in kept] == ["message", f"{tool.kind}_call", output["type"], "message"]
    shown = kept[2].to_dict()
    assert {name: shown[name] for name in tool.output} == tool.output


async def test_the_commands_of_a_shell_are_streamed_one_after_the_other(proxy: Proxy, model: Model) -> None:
    model.calls("shell", json.dumps(COMMANDS))
    body = {"model": "small", "tools": [{"type": "shell"}], "input": "Work.", "stream": True}
    events = events_of((await proxy.send("POST", "/v1/responses", body)).text)
    of_item = [event for event in events if "output_index" in event]
    assert [event["type"].removeprefix("response.") for event in of_item] == [
        "output_item.added",
        *[f"shell_call_command.{stage}" for _ in COMMANDS for stage in ("added", "delta", "done")],
        "output_item.done",
    ]
    assert of_item[0]["item"]["action"]["commands"] == []
    said = ["", "", "", ""]
    for event in of_item[1:-1]:
        said[event["command_index"]] += event.get("delta", "")
    assert said[:2] == of_item[-1]["item"]["action"]["commands"] == COMMANDS["commands"]


async def test_an_operation_is_whole_when_it_is_first_heard_of(proxy: Proxy, model: Model) -> None:
    patched = TOOLS[3]
    model.calls("apply_patch", json.dumps(patched.arguments))
    body = {"model": "small", "tools": [{"type": "apply_patch"}], "input": "Work.", "stream": True}
    events = events_of((await proxy.send("POST", "/v1/responses", body)).text)
    items = [event["item"] for event in events if "item" in event]
    assert [item["operation"] for item in items] == [patched.arguments["operation"]] * 2


WRONG = [
    ("local_shell", "{}"),
    ("local_shell", '{"command": "ls"}'),
    ("shell", '{"commands": []}'),
    ("shell", '{"commands": ["ls"], "timeout_ms": -1}'),
    ("apply_patch", '{"type": "update_file", "path": "a", "diff": "+"}'),
    ("apply_patch", '{"operation": {"type": "update_file", "path": "a.py", "diff": ""}}'),
    ("apply_patch", '{"operation": {"type": "create_file", "path": "", "diff": "+"}}'),
    ("apply_patch", '{"operation": {"type": "move_file", "path": "a.py"}}'),
]
"""Arguments for which an SDK that is given their items ends its whole run."""


@pytest.mark.parametrize(("kind", "arguments"), WRONG)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_model_is_told_of_arguments_that_fit_into_no_item(
    kind: str, arguments: str, streamed: bool, proxy: Proxy, model: Model
) -> None:
    right = next(tool for tool in TOOLS if tool.kind == kind)
    model.calls(kind, arguments)
    model.calls(kind, json.dumps(right.arguments), "call_b")
    answer = await asked(proxy, streamed=streamed, tools=[{"type": kind}], input="Work.")
    (made,) = answer["output"]
    assert {name: made[name] for name in right.fields} == right.fields
    assert "break the tool's schema" in model.told[0]


@EACH_TOOL
async def test_a_model_that_never_keeps_to_the_form_gives_an_item_with_empty_fields(
    tool: Machine, proxy: Proxy, model: Model
) -> None:
    for id in "abc":
        model.calls(tool.kind, '{"command": 1, "commands": [null], "operation": []}', id)
    answer = await asked(proxy, streamed=False, tools=[{"type": tool.kind}], input="Work.")
    assert [item["type"] for item in answer["output"]] == [f"{tool.kind}_call"]


@EACH_TOOL
async def test_a_tool_can_be_chosen(tool: Machine, proxy: Proxy, model: Model) -> None:
    choices: list[Any] = [
        {"type": tool.kind},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": tool.kind}]},
    ]
    other = {"type": "function", "name": "other", "parameters": {"type": "object"}}
    for choice in choices:
        model.calls(tool.kind, json.dumps(tool.arguments))
        body = {"model": "small", "tool_choice": choice, "input": "Work."}
        answer = await proxy.send("POST", "/v1/responses", {**body, "tools": [{"type": tool.kind}, other]})
        assert [item["type"] for item in answer.body["output"]] == [f"{tool.kind}_call"]
        assert [each["name"] for each in model.tools] == [tool.kind]
        refused = await proxy.send("POST", "/v1/responses", {**body, "tools": [other]})
        assert (refused.status, refused.error["param"].split(".")[0]) == (400, "tool_choice")


async def test_an_output_of_the_local_shell_may_name_its_call_by_either_field(
    proxy: Proxy, model: Model
) -> None:
    called = {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_a", "status": "completed"}
    called["action"] = action(command=["ls"])  # type: ignore[assignment]
    outputs = [
        {"type": "local_shell_call_output", "id": "call_a", "output": "a.py"},
        {"type": "local_shell_call_output", "call_id": "call_a", "output": "a.py"},
        {"type": "function_call_output", "call_id": "call_a", "output": "a.py"},  # as Codex says it
    ]
    for output in outputs:
        model.says("Done.")
        items = [{"role": "user", "content": "List."}, called, output]
        await asked(proxy, streamed=False, input=items, tools=[{"type": "local_shell"}])
        assert model.told == ["a.py"]
    nameless = {"model": "small", "input": [{"type": "local_shell_call_output", "output": "x"}]}
    refused = await proxy.send("POST", "/v1/responses", nameless)
    assert (refused.status, refused.error["param"]) == (400, "input[0].call_id")
