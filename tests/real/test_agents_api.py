"""OpenAI's Agents API on the real Codex and the real Claude Code, with the official SDK as the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.real.anthropic_model import AnthropicModel, anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.model_plans import call, plan, say, think
from tests.real.model_scenarios import text_of, tools_of
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


# --- steering -----------------------------------------------------------------------------------


def user_input(text: str) -> Any:
    """The event of a client with this message."""
    content = [{"type": "input_text", "text": text}]
    return {"type": "agent.session.input.message", "input": [{"role": "user", "content": content}]}


async def steered(
    client: AsyncOpenAI,
    stream: Any,
    until: Callable[[Any], bool],
    *texts: str,
    then: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Sends messages when an event has come for which `until` is true, then does something. Returns all events until
    the session is idle.
    """
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if until(event):
            until = _never
            for text in texts:
                await client.beta.agents.sessions.events.create(event.session_id, events=[user_input(text)])
            then()
        if event.type == "agent.session.idle":
            break
    assert until is _never
    return events


def _never(event: Any) -> bool:
    return False


def added(kind: str) -> Callable[[Any], bool]:
    """Whether an event tells that an item of this type has begun."""
    return lambda event: event.type == "agent.session.turn.item.added" and event.item.type == kind


def begins_text(event: Any) -> bool:
    return bool(event.type == "agent.session.turn.output_text.delta")


async def shape_of(client: AsyncOpenAI, session: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The items of a session, each with its text or type, by role and status; and the statuses of its turns."""
    items: list[Any] = [item async for item in client.beta.agents.sessions.items.list(session, order="asc")]
    turns = [turn async for turn in client.beta.agents.sessions.turns.list(session, order="asc")]
    said = [
        ("".join(part.text for part in item.content) if item.type == "message" else item.type, item.status)
        for item in items
    ]
    return [(text or "", status or "") for text, status in said], [turn.status for turn in turns]


async def test_codex_takes_messages_behind_a_running_command(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    gate = proxies.home.workdir / "gate"
    run = f"[[model:shell cmd='until test -e {gate}; do sleep 0.05; done; echo done' say=Done.]] Do it."
    stream = await client.beta.agents.sessions.create(
        environment={"type": "self_hosted", "workspace_directory": str(proxies.home.workdir)},
        agent={"model": "codex-5"},
        input=run,
        stream=True,
    )
    events = await steered(
        client,
        stream,
        added("command_execution"),
        "Be brief.",
        f"{plan([say('Yes.')])} Now.",
        then=gate.touch,
    )
    assert told(events) == "Yes."
    assert len(model_server.calls) == 2
    texts = [text_of(item) for item in input_of(model_server.calls[1]) if item.get("role") == "user"]
    assert [text.rpartition("]] ")[2] for text in texts[-3:]] == ["Do it.", "Be brief.", "Now."]
    items, turns = await shape_of(client, events[0].session.id)
    assert [text.rpartition("]] ")[2] for text, _ in items] == [
        *("Do it.", "command_execution", "Be brief.", "Now.", "Yes."),
    ]
    assert turns == ["completed"]
    gate.unlink()
    session = events[0].session.id
    async with await client.beta.agents.sessions.events.stream(session) as again:
        await client.beta.agents.sessions.events.create(session, events=[user_input(run)])
        more = f"{plan([say('Again.')])} More."
        events = await steered(client, again, added("command_execution"), more, then=gate.touch)
    assert told(events) == "Again."
    assert (await shape_of(client, session))[1] == ["completed", "completed"]
    said = str(input_of(model_server.calls[-1]))
    assert [said.count(text) for text in ("Be brief.", "Now.", "More.")] == [1, 1, 1]


async def test_codex_cuts_its_text_for_a_message(proxies: Proxies, model_server: ModelServer) -> None:
    client = (await proxies.of()).client
    stream = await client.beta.agents.sessions.create(
        environment={"type": "none"},
        agent={"model": "codex-5"},
        input="[[model:stall n=1 gate=never]] Tell me.",
        stream=True,
    )
    events = await steered(client, stream, begins_text, f"{plan([say('Two.')])} Shorter.")
    assert told(events) == "word0 Two."
    items, turns = await shape_of(client, events[0].session.id)
    assert [(text.rpartition("]] ")[2], status) for text, status in items] == [
        ("Tell me.", "completed"),
        ("word0 ", "incomplete"),
        ("Shorter.", "completed"),
        ("Two.", "completed"),
    ]
    assert turns == ["completed"]


async def test_codex_takes_a_message_behind_the_result_of_a_function(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    session, _ = await new_session(
        client, f"{plan([call(city='Paris')], [say('Sunny.')])} Weather?", tools=[WEATHER]
    )
    await client.beta.agents.sessions.events.create(
        session, events=[user_input(f"{plan([say('Yes.')])} Briefly.")]
    )
    [asked] = (await client.beta.agents.sessions.retrieve(session)).required_actions
    assert asked.type == "function_call"
    result: Any = {"type": "agent.session.input.tool_result", "turn_id": asked.turn_id, "success": True}
    result |= {"call_id": asked.call_id, "output": "sunny"}
    async with await client.beta.agents.sessions.events.stream(session) as stream:
        await client.beta.agents.sessions.events.create(session, events=[result])
        async for event in stream:
            if event.type == "agent.session.idle":
                break
    items, turns = await shape_of(client, session)
    assert [text.rpartition("]] ")[2] for text, _ in items][-2:] == ["Briefly.", "Yes."]
    assert turns == ["completed"]


@living_on()
async def everything_allowed(tmp_path: Path) -> AsyncIterator[tuple[AsyncOpenAI, AnthropicModel]]:
    """Claude Code where it may run commands."""
    async with (
        anthropic_model() as model,
        claude_proxy(tmp_path, model, sandbox="danger-full-access") as (client, _),
    ):
        yield client, model


@pytest.mark.exhaustive
async def test_claude_code_takes_messages_behind_a_running_command(
    everything_allowed: tuple[AsyncOpenAI, AnthropicModel], tmp_path: Path
) -> None:
    client, model = everything_allowed
    gate = tmp_path / "work" / "gate"
    command = f"until test -e {gate}; do sleep 0.05; done; echo done"
    steps = script(
        {"tools": [{"name": "Bash", "args": {"command": command, "description": "x"}}]}, {"text": "Yes."}
    )
    stream = await client.beta.agents.sessions.create(
        environment={"type": "self_hosted", "workspace_directory": str(tmp_path / "work")},
        agent={"model": "default"},
        input=f"Do it. {steps}",
        stream=True,
    )
    events = await steered(client, stream, added("command_execution"), "Be brief.", "Now.", then=gate.touch)
    assert told(events) == "Yes."
    assert len(model.requests) == 2
    said = json.dumps(model.requests[1]["messages"])
    assert said.index("Be brief.") < said.index("Now.")
    items, turns = await shape_of(client, events[0].session.id)
    assert [text.partition(" SCRIPT")[0] for text, _ in items] == [
        *("Do it.", "command_execution", "Be brief.", "Now.", "Yes."),
    ]
    assert turns == ["completed"]
    gate.unlink()
    session = events[0].session.id
    async with await client.beta.agents.sessions.events.stream(session) as again:
        await client.beta.agents.sessions.events.create(session, events=[user_input(f"Again. {steps}")])
        await steered(client, again, added("command_execution"), "More.", then=gate.touch)
    said = json.dumps(model.requests[-1]["messages"])
    assert [said.count(text) for text in ("Be brief.", "Now.", "More.")] == [1, 1, 1]
    assert (await shape_of(client, session))[1] == ["completed", "completed"]


@pytest.mark.exhaustive
async def test_claude_code_begins_a_turn_with_a_message_that_came_during_its_text(
    claude: tuple[AsyncOpenAI, AnthropicModel],
) -> None:
    client, model = claude
    stream = await client.beta.agents.sessions.create(
        environment={"type": "none"},
        agent={"model": "default"},
        input=f"Tell me. {script({'text': 'One two.', 'hold': 'go'})}",
        stream=True,
    )
    events = await steered(
        client, stream, begins_text, f"Shorter. {script({'text': 'Three.'})}", then=model.gate("go").set
    )
    assert told(events) == "One two.Three."
    items, turns = await shape_of(client, events[0].session.id)
    assert [text.partition(" SCRIPT")[0] for text, _ in items] == [
        "Tell me.",
        "One two.",
        "Shorter.",
        "Three.",
    ]
    assert turns == ["completed", "completed"]
    assert len(model.requests) == 2
