"""Sessions of the Agents API on stored threads of the real Codex: what goes on after a restart, and in a terminal."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

from codex_proxy.agents.codex_app_server.connection import initialize_params
from tests.real.codex_home import CodexHome, run_exec
from tests.real.codex_terminal import codex_terminal
from tests.real.driver import Codex, codex
from tests.real.model_plans import call, plan, say, wait
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import proxy, proxy_process
from tests.real.shared import Proxies
from tests.real.tool_loop import input_of

pytestmark = pytest.mark.part("sessions")

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HELLO = f"{plan([say('Hello.')])} I am Rumpel."
WHO = f"{plan([say('Rumpel.')])} Who am I?"
IN_TERMINAL = f"{plan([say('Noted.')])} I moved to Rome."


def settings_of(home: CodexHome, input: str, **agent: Any) -> dict[str, Any]:
    """The body of a new session in the home's folder."""
    return {
        "environment": {
            "type": "self_hosted",
            "workspace_directory": str(home.workdir),
            "remote_url": "",
        },
        "agent": {"model": "codex-5", **agent},
        "input": input,
    }


async def new_session(client: AsyncOpenAI, home: CodexHome, input: str = HELLO, **agent: Any) -> str:
    """Creates a session, and waits for the end of its first turn; returns its id."""
    body = settings_of(home, input, **agent)
    stream = await client.beta.agents.sessions.create(**body, stream=True)
    id: str = (await stream.get_final_result()).session_id
    return id


async def run(client: AsyncOpenAI, session: str, input: str, **handlers: Any) -> str:
    """Runs a turn of a session; returns the text of its answer."""
    async with client.beta.agents.sessions.stream(session, input=input, tool_handlers=handlers) as stream:
        answer: str = (await stream.get_final_result()).output_text
        return answer


async def failed(client: AsyncOpenAI, session: str, input: str) -> Any:
    """Runs a turn that fails; returns its error."""
    async with client.beta.agents.sessions.stream(session, input=input) as stream:
        async for event in stream:
            if event.type == "agent.session.turn.failed":
                return event.turn.error
    raise AssertionError("the turn did not fail")


async def thread_of(client: AsyncOpenAI, session: str) -> str | None:
    answer = await client.beta.agents.sessions.with_raw_response.retrieve(session)
    return answer.headers.get("x-codex-thread")


async def resume_command(client: AsyncOpenAI, session: str) -> str:
    """The command that opens the session in a terminal, as its summary has it."""
    summary = await client.get(
        f"/agents/sessions/{session}/summary",
        cast_to=dict[str, Any],
        options={"headers": {"OpenAI-Beta": "agents=v1"}},
    )
    command: str = summary["resume"]
    return command


def spoken(call: Request) -> list[tuple[str, str]]:
    """The messages of a request to the model, but for those of Codex itself."""
    found = []
    for item in input_of(call):
        if item.get("type") == "message":
            text = "".join(part["text"] for part in item["content"])
            if item["role"] != "developer" and not text.startswith("<"):
                found.append((item["role"], text))
    return found


@asynccontextmanager
async def terminal(home: CodexHome) -> AsyncIterator[Codex]:
    """Another process of Codex on the same home."""
    initialize = initialize_params("terminal", "1")
    async with codex(
        home.agent_argv(), home.environment(), str(home.workdir), initialize=initialize
    ) as other:
        yield other


async def test_a_second_turn_goes_on_with_the_thread_of_the_first(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    session = await new_session(client, proxies.home, instructions="Be brief.")
    thread = await thread_of(client, session)
    assert thread
    assert await run(client, session, WHO) == "Rumpel."
    assert await thread_of(client, session) == thread
    first, second = model_server.calls
    assert spoken(second) == [*spoken(first), ("assistant", "Hello."), ("user", WHO)]
    assert input_of(second)[: len(input_of(first))] == input_of(first)  # by the ids that Codex gave them
    turns = [turn async for turn in client.beta.agents.sessions.turns.list(session)]
    assert [turn.usage and turn.usage.total_tokens for turn in turns] == [120, 120]


async def test_a_conversation_without_a_folder_has_no_thread(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    stream = await client.beta.agents.sessions.create(
        environment={"type": "none"}, agent={"model": "codex-5"}, input=HELLO, stream=True
    )
    session = (await stream.get_final_result()).session_id
    assert await thread_of(client, session) is None


async def test_other_instructions_begin_another_thread_with_the_whole_conversation(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    session = await new_session(client, proxies.home)
    thread = await thread_of(client, session)
    await client.beta.agents.sessions.update(session, agent={"tools": [WEATHER]})
    assert await run(client, session, WHO) == "Rumpel."
    assert await thread_of(client, session) not in (thread, None)
    assert spoken(model_server.calls[1]) == [("user", HELLO), ("assistant", "Hello."), ("user", WHO)]


async def test_a_thread_that_goes_on_calls_the_clients_functions(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client = (await proxies.of()).client
    session = await new_session(client, proxies.home, tools=[WEATHER])
    thread = await thread_of(client, session)
    asked = []

    async def get_weather(arguments: dict[str, Any]) -> str:
        asked.append(arguments)
        return "sunny"

    steps = plan([call(city="Paris"), call(city="Rome")], [say("Both are sunny.")])
    assert await run(client, session, f"{steps} Weather?", get_weather=get_weather) == "Both are sunny."
    assert asked == [{"city": "Paris"}, {"city": "Rome"}]
    assert await run(client, session, WHO) == "Rumpel."
    assert await thread_of(client, session) == thread
    assert len(model_server.calls) == 4


async def test_a_thread_goes_on_in_a_terminal_and_back(proxies: Proxies, model_server: ModelServer) -> None:
    client, home = (await proxies.of()).client, proxies.home
    session = await new_session(client, home)
    thread = await thread_of(client, session)
    assert thread
    assert b"Noted." in await run_exec(home, "resume", thread, IN_TERMINAL)
    assert await run(client, session, WHO) == "Rumpel."
    assert await thread_of(client, session) == thread
    conversation = [
        *(("user", HELLO), ("assistant", "Hello.")),
        *(("user", IN_TERMINAL), ("assistant", "Noted.")),
        ("user", WHO),
    ]
    assert spoken(model_server.calls[2]) == conversation
    # What was done in the terminal is a turn of its own, with its items, once.
    await run(client, session, WHO)
    turns = [turn async for turn in client.beta.agents.sessions.turns.list(session, order="asc")]
    assert [turn.status for turn in turns] == ["completed"] * 4
    items: list[Any] = [item async for item in client.beta.agents.sessions.items.list(session, order="asc")]
    assert [(item.role, item.content[0].text) for item in items if item.type == "message"][:5] == conversation
    assert [item.turn_id for item in items[2:4]] == [turns[1].id] * 2


async def test_a_person_goes_on_in_the_interactive_terminal_and_the_session_after_it(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client, home = (await proxies.of()).client, proxies.home
    session = await new_session(client, home)
    command = shlex.split(await resume_command(client, session))
    async with codex_terminal(home, *command[1:]) as terminal:
        await terminal.until("I am Rumpel.")
        await terminal.until("Hello.")
        await terminal.say(IN_TERMINAL)
        await terminal.until("Noted.")
        assert (await failed(client, session, WHO)).code == "active_turn_not_steerable"
        await terminal.leave()
    assert await run(client, session, WHO) == "Rumpel."
    conversation = [("user", HELLO), ("assistant", "Hello."), ("user", IN_TERMINAL), ("assistant", "Noted.")]
    assert spoken(model_server.calls[-1])[:4] == conversation
    items: list[Any] = [item async for item in client.beta.agents.sessions.items.list(session, order="asc")]
    said = [(item.role, item.content[0].text) for item in items if item.type == "message"]
    assert said == [
        *conversation[:2],
        ("user", WHO),
        *conversation[2:],
        ("user", WHO),
        ("assistant", "Rumpel."),
    ]


async def test_a_command_of_the_terminal_is_an_item(proxies: Proxies, model_server: ModelServer) -> None:
    client, home = (await proxies.of()).client, proxies.home
    session = await new_session(client, home)
    thread = await thread_of(client, session)
    assert thread
    await run_exec(home, "resume", thread, "[[model:shell cmd='echo hello' say=Done.]] Do it.")
    await run(client, session, WHO)
    items = [item async for item in client.beta.agents.sessions.items.list(session, order="asc")]
    assert [item.type for item in items[2:5]] == ["message", "command_execution", "message"]
    command: Any = items[3]
    assert ("echo hello" in command.command, command.status, command.exit_code) == (True, "completed", 0)


async def test_a_turn_fails_while_a_terminal_has_the_thread(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client, home = (await proxies.of()).client, proxies.home
    session = await new_session(client, home)
    thread = await thread_of(client, session)
    async with terminal(home) as other:
        await other.request("thread/resume", {"threadId": thread, "excludeTurns": True})
        error = await failed(client, session, WHO)
        assert error.code == "active_turn_not_steerable"
        assert error.message.startswith("This conversation is open in a terminal. Close it there,")
    assert await run(client, session, WHO) == "Rumpel."
    assert spoken(model_server.calls[-1])[-2:] == [("user", WHO), ("user", WHO)]
    assert await thread_of(client, session) == thread


async def test_a_deleted_session_takes_its_thread_with_it(
    proxies: Proxies, model_server: ModelServer
) -> None:
    client, home = (await proxies.of()).client, proxies.home
    session = await new_session(client, home)
    await client.beta.agents.sessions.update(session, agent={"tools": [WEATHER]})
    await run(client, session, WHO)
    threads = list(home.path.glob("sessions/**/*.jsonl"))
    assert len(threads) >= 2
    await client.beta.agents.sessions.delete(session)
    left = list(home.path.glob("sessions/**/*.jsonl"))
    assert len(left) == len(threads) - 2


async def test_a_thread_that_is_gone_is_replaced(proxies: Proxies, model_server: ModelServer) -> None:
    client, home = (await proxies.of()).client, proxies.home
    session = await new_session(client, home)
    thread = await thread_of(client, session)
    async with terminal(home) as other:
        await other.request("thread/archive", {"threadId": thread})
    assert await run(client, session, WHO) == "Rumpel."
    assert await thread_of(client, session) not in (thread, None)
    assert spoken(model_server.calls[1]) == [("user", HELLO), ("assistant", "Hello."), ("user", WHO)]


async def test_a_thread_goes_on_after_the_server_was_killed(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    async with proxy_process(codex_home) as server:
        session = await new_session(server.client, codex_home)
        thread = await thread_of(server.client, session)
        os.kill(server.pid, signal.SIGKILL)
        await server.exit()
    begun = f"{plan([say('Begun'), wait('never')])} Work."
    async with proxy_process(codex_home) as server:
        assert await thread_of(server.client, session) == thread
        async with server.client.beta.agents.sessions.stream(session, input=begun) as stream:
            async for event in stream:
                if event.type == "agent.session.turn.output_text.delta":
                    break
            os.kill(server.pid, signal.SIGKILL)
            await server.exit()
    async with proxy_process(codex_home) as server:
        assert await run(server.client, session, WHO) == "Rumpel."
        assert await thread_of(server.client, session) == thread
        turns = [turn async for turn in server.client.beta.agents.sessions.turns.list(session, order="asc")]
        assert [turn.status for turn in turns] == ["completed", "failed", "completed"]
    said = [text for role, text in spoken(model_server.calls[-1]) if role == "user"]
    assert said == [HELLO, begun, WHO]


async def test_a_resumed_thread_obeys_a_narrower_sandbox(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    def write(name: str) -> str:
        return f"[[model:shell cmd='echo {name} > {name}' say=Done.]] Write {name}."

    async with proxy(codex_home, sandbox="workspace-write") as server:
        session = await new_session(server.client, codex_home, write("one"))
        thread = await thread_of(server.client, session)
        assert (codex_home.workdir / "one").exists()
    async with proxy(codex_home, sandbox="read-only") as server:
        await run(server.client, session, write("two"))
        assert await thread_of(server.client, session) == thread
    assert not (codex_home.workdir / "two").exists()
    async with proxy(codex_home, sandbox="workspace-write") as server:
        await run(server.client, session, write("three"))
    assert (codex_home.workdir / "three").exists()
