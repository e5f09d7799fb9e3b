"""MCP servers that a Responses request names, through the real binary: items, events, and what the model sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mcp.serving import web_server
from tests.real.codex_home import MODEL
from tests.real.model_plans import call, plan, say, think
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.shared import Proxies
from tests.real.tool_loop import outputs_of

pytest.importorskip("codex_proxy.parts.mcp")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where a server over Streamable HTTP listens."""
    with web_server("http") as (port, _):
        yield port


def news(port: int, **more: Any) -> Any:
    return {"type": "mcp", "server_label": "news", "server_url": f"http://127.0.0.1:{port}/mcp", **more}


def outputs(model_server: ModelServer, number: int) -> list[Any]:
    return [output for _, output in outputs_of(model_server.calls[number])]


def mcp_settings(port: int) -> dict[str, Any]:
    return {"mcp_allowed_urls": f"http://127.0.0.1:{port}/"}


async def test_an_agentic_workflow_lists_calls_and_answers(
    proxies: Proxies, model_server: ModelServer, port: int
) -> None:
    async with proxies.serving(**mcp_settings(port)) as proxy:
        response = await proxy.client.responses.create(
            model=MODEL,
            input=plan([think(), say("Looking."), call("news__echo", text="sunny")], [say("It is sunny.")]),
            tools=[news(port)],
            tool_choice="auto",
        )
    assert [item.type for item in response.output] == [
        *("mcp_list_tools", "reasoning", "message", "mcp_call", "message"),
    ]
    assert response.output_text == "Looking.It is sunny."
    made = response.output[3]
    assert made.type == "mcp_call"
    assert (made.name, made.server_label, made.output, made.error) == ("echo", "news", "sunny", None)
    assert json.loads(made.arguments) == {"text": "sunny"}
    assert outputs(model_server, 1) == ["sunny"]
    assert "news__echo" in tools_of(model_server.calls[0].body)


async def test_a_stream_has_the_events_of_lists_and_calls(
    proxies: Proxies, model_server: ModelServer, port: int
) -> None:
    asking = plan([call("news__echo", text="a"), call("news__refuse")], [say("Done.")])
    tools: Any = [news(port, allowed_tools=["echo", "refuse"])]
    async with (
        proxies.serving(**mcp_settings(port)) as proxy,
        proxy.client.responses.stream(model=MODEL, input=asking, tools=tools) as stream,
    ):
        types = [event.type async for event in stream]
        response = await stream.get_final_response()
    of_mcp = [type for type in types if "mcp" in type]
    assert of_mcp[:2] == ["response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"]
    assert sorted(of_mcp[2:]) == sorted(
        [
            *(["response.mcp_call.in_progress"] * 2),
            *(["response.mcp_call_arguments.delta", "response.mcp_call_arguments.done"] * 2),
            *("response.mcp_call.completed", "response.mcp_call.failed"),
        ]
    )
    listed, echo, refuse, message = response.output
    assert listed.type == "mcp_list_tools"
    assert [tool.name for tool in listed.tools] == ["echo", "refuse"]
    assert echo.type == refuse.type == "mcp_call"
    assert echo.output == "a"
    assert "not today" in refuse.model_dump_json(include={"error"})
    assert message.type == "message"
    assert outputs(model_server, 1) == ["a", "not today"]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kept", [32, 0])
@pytest.mark.parametrize("approve", [True, False])
async def test_a_call_waits_for_its_approval_in_the_next_request(
    proxies: Proxies, model_server: ModelServer, port: int, approve: bool, kept: int
) -> None:
    tools = [news(port, require_approval="always")]
    async with proxies.serving(kept_threads=kept, **mcp_settings(port)) as proxy:
        create = proxy.client.responses.create
        first = await create(
            model=MODEL, input=plan([think(), call("news__echo", text="a")], [say("Done.")]), tools=tools
        )
        assert [item.type for item in first.output] == ["mcp_list_tools", "reasoning", "mcp_approval_request"]
        assert first.status == "completed"
        asked = first.output[-1]
        assert asked.type == "mcp_approval_request"
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}
        if not approve:
            answer["reason"] = "too dear"
        last = await create(
            model=MODEL,
            previous_response_id=first.id,
            tools=tools,
            input=[answer],
        )
        again = await create(
            model=MODEL, previous_response_id=last.id, tools=tools, input="[[model:text]] Thanks."
        )
    assert again.status == "completed"
    assert [item.type for item in last.output] == (["mcp_call"] if approve else []) + ["message"]
    assert last.output_text == "Done."
    [output] = outputs(model_server, 1)
    if approve:
        made = last.output[0]
        assert made.type == "mcp_call"
        assert (made.approval_request_id, made.output) == (asked.id, "a")
        assert output == "a"
    else:
        assert "too dear" in output
    assert len(outputs(model_server, 2)) == 1
    types = [item["type"] for item in model_server.calls[2].body["input"]]
    assert types.count("function_call") == types.count("function_call_output") == 1
    assert types.count("reasoning") == 1


async def test_a_list_is_made_once_in_a_chain(proxies: Proxies, model_server: ModelServer, port: int) -> None:
    async with proxies.serving(**mcp_settings(port)) as proxy:
        create = proxy.client.responses.create
        first = await create(model=MODEL, input="[[model:text]] Hi.", tools=[news(port)])
        last = await create(
            model=MODEL,
            previous_response_id=first.id,
            input=plan([call("news__echo", text="a")], [say("Done.")]),
            tools=[news(port)],
        )
    assert [item.type for item in first.output] == ["mcp_list_tools", "message"]
    assert [item.type for item in last.output] == ["mcp_call", "message"]


async def test_a_chain_shows_the_model_each_call_once_and_as_it_was(
    proxies: Proxies, model_server: ModelServer, port: int
) -> None:
    async with proxies.serving(kept_threads=0, **mcp_settings(port)) as proxy:
        create = proxy.client.responses.create
        first = await create(
            model=MODEL,
            input=plan([think(), call("news__echo", text="a"), call("news__echo", text="b")], [say("Done.")]),
            tools=[news(port)],
        )
        await create(
            model=MODEL, previous_response_id=first.id, input="[[model:text]] Hi.", tools=[news(port)]
        )
    types = [item["type"] for item in model_server.calls[2].body["input"]]
    before = [item["type"] for item in model_server.calls[1].body["input"]]
    assert types[: len(before)] == before
    assert outputs(model_server, 2) == ["a", "b"]


@pytest.mark.exhaustive
async def test_the_client_s_own_history_is_enough(
    proxies: Proxies, model_server: ModelServer, port: int
) -> None:
    """`store: false`: all items go back and forth."""
    tools = [news(port, require_approval="always")]
    async with proxies.serving(**mcp_settings(port)) as proxy:
        create = proxy.client.responses.create
        said: list[Any] = [{"role": "user", "content": plan([call("news__echo", text="a")], [say("Done.")])}]
        first = await create(model=MODEL, input=said, tools=tools, store=False)
        said += [item.model_dump(exclude_none=True) for item in first.output]
        said.append(
            {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}
        )
        last = await create(model=MODEL, input=said, tools=tools, store=False)
        said += [item.model_dump(exclude_none=True) for item in last.output]
        said.append({"role": "user", "content": "[[model:text]] Thanks."})
        again = await create(model=MODEL, input=said, tools=tools, store=False)
    assert last.output_text == "Done."
    assert [item.type for item in first.output] == ["mcp_list_tools", "mcp_approval_request"]
    assert [item.type for item in last.output] == ["mcp_call", "message"]
    assert again.status == "completed"
    assert outputs(model_server, 2) == ["a"]


async def test_calls_beyond_max_tool_calls_are_not_made(
    proxies: Proxies, model_server: ModelServer, port: int
) -> None:
    async with proxies.serving(**mcp_settings(port)) as proxy:
        response = await proxy.client.responses.create(
            model=MODEL,
            input=plan([call("news__echo", text="a"), call("news__echo", text="b")], [say("Done.")]),
            tools=[news(port)],
            max_tool_calls=1,
        )
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
    first, second = outputs(model_server, 1)
    assert first == "a"
    assert "limit" in second
