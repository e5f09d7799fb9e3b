"""OpenAI's Agents API on the real Codex and the real Claude Code, with the official SDK as the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.real.anthropic_model import AnthropicModel, anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.model_plans import call, plan, say, think
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.shared import Proxies, living_on
from tests.real.tool_loop import input_of

pytestmark = pytest.mark.part("sessions")

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def new_session(client: AsyncOpenAI, input: str, **agent: Any) -> tuple[str, list[Any]]:
    """Creates a session of the plain model; returns its id and all events until it is idle or waits."""
    settings: Any = {"model": "codex-5", **agent}
    stream = await client.beta.agents.sessions.create(
        environment={"type": "none"}, agent=settings, input=input, stream=True
    )
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "agent.session.requires_action":
            break
    session: str = events[0].session.id
    return session, events


async def finish(client: AsyncOpenAI, session: str, input: str, **handlers: Any) -> Any:
    async with client.beta.agents.sessions.stream(session, input=input, tool_handlers=handlers) as stream:
        return await stream.get_final_result()


def told(events: list[Any]) -> str:
    return "".join(each.delta for each in events if each.type == "agent.session.turn.output_text.delta")


async def test_a_session_goes_on_where_its_first_turn_ended(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    session, events = await new_session(
        client, f"{plan([say('Hello.')])} I am Rumpel.", instructions="Be brief."
    )
    assert told(events) == "Hello."
    assert [events[0].type, events[-2].type, events[-1].type] == [
        "agent.session.created",
        "agent.session.turn.completed",
        "agent.session.idle",
    ]
    answer = await finish(client, session, f"{plan([say('Rumpel.')])} Who am I?")
    assert answer.output_text == "Rumpel."
    seen = [item for item in input_of(model_server.calls[1]) if item.get("type") == "message"]
    assert [item["role"] for item in seen] == ["developer", "user", "assistant", "user"]
    assert len(model_server.calls) == 2


async def test_a_function_of_the_client_gets_the_models_call_and_gives_its_result(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    session, _ = await new_session(client, f"{plan([say('Hi.')])} Hello", tools=[WEATHER])
    asked = []

    async def get_weather(arguments: dict[str, Any]) -> str:
        asked.append(arguments)
        return "sunny"

    steps = plan([think(), call(city="Paris"), call(city="Rome")], [say("Both are sunny.")])
    answer = await finish(client, session, f"{steps} Weather?", get_weather=get_weather)
    assert answer.output_text == "Both are sunny."
    assert asked == [{"city": "Paris"}, {"city": "Rome"}]
    assert list(tools_of(model_server.calls[-1].body)) == ["get_weather"]
    assert len(model_server.calls) == 3
    items = [item async for item in client.beta.agents.sessions.items.list(session, order="asc")]
    assert [item.type for item in items[2:]] == [
        *("message", "reasoning", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]


@pytest.mark.exhaustive
async def test_a_session_of_a_folder_tells_the_agents_command(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy = await proxies.of()
    stream = await proxy.client.beta.agents.sessions.create(
        environment={"type": "self_hosted", "workspace_directory": str(proxies.home.workdir)},
        agent={"model": "codex-5"},
        input="[[model:shell cmd='echo hello' say=Done.]] Do it.",
        stream=True,
    )
    events = [event async for event in stream]
    done = [event.item for event in events if event.type == "agent.session.turn.item.done"]
    commands = [item for item in done if item.type == "command_execution"]
    [command] = commands
    assert ("echo hello" in command.command, command.status) == (True, "completed")
    assert (command.cwd, command.output, command.exit_code) == (str(proxies.home.workdir), "hello\n", 0)
    assert command.duration_ms is not None
    assert told(events) == "Done."


# --- Claude Code --------------------------------------------------------------------------------


@living_on()
async def claude(tmp_path: Path) -> AsyncIterator[tuple[AsyncOpenAI, AnthropicModel]]:
    async with anthropic_model() as model, claude_proxy(tmp_path, model) as (client, _):
        yield client, model


@pytest.mark.exhaustive
async def test_claude_code_runs_turns_and_calls_functions(claude: tuple[AsyncOpenAI, AnthropicModel]) -> None:
    client, _ = claude
    steps = script(
        {"tools": [{"name": "mcp__client__get_weather", "args": {"city": "Oslo"}}]}, {"text": "It rains."}
    )
    session, events = await new_session(client, f"Hello {script({'text': 'Hi.'})}", tools=[WEATHER])
    assert told(events) == "Hi."

    async def get_weather(arguments: dict[str, Any]) -> str:
        return f"rain in {arguments['city']}"

    answer = await finish(client, session, f"Weather? {steps}", get_weather=get_weather)
    assert answer.output_text == "It rains."
