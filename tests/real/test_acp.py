"""Real programs that speak ACP behind the whole server, with the official SDK in front and a scripted model behind."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import Server
from codex_proxy.parts.acp.agent import AcpAgent
from codex_proxy.parts.acp.presets import PRESETS
from tests.pictures import PIXEL
from tests.real.acp_proxy import AGENTS, SHELL, acp_proxy, agent_processes
from tests.real.scripted_apis import CACHED, IN, OUT, ScriptedApis, script, scripted_apis
from tests.real.shared import living_on
from tests.waiting import eventually
from tests.weather_tool import CHAT_WEATHER

pytestmark = [pytest.mark.exhaustive, pytest.mark.parametrize("agent", AGENTS, scope="module")]

TAKES_IMAGES = frozenset({"gemini", "qwen", "opencode", "copilot", "claude-acp", "codex-acp", "kimi", "kilo"})
TELLS_NO_CACHE = frozenset({"gemini"})


@living_on(scope="module")
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


@living_on(scope="module")
async def client_and_server(agent: str, apis: ScriptedApis) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    """One server for the tests of an agent: starting some of the programs takes longer than a test."""
    with tempfile.TemporaryDirectory(prefix=f"codex-proxy-{agent}-", ignore_cleanup_errors=True) as folder:
        async with acp_proxy(agent, Path(folder), apis.url) as client_and_server:
            yield client_and_server


def user(text: str, *steps: dict[str, Any]) -> Any:
    return {"role": "user", "content": f"{text} {script(*steps)}"}


async def test_text_comes_in_pieces_with_reasoning_and_usage_as_it_was_counted(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server]
) -> None:
    client, _ = client_and_server
    step = {"think": "let me think it over", "text": "Hello from the model, word by word.", "delay": 0.02}
    stream = await client.chat.completions.create(
        model="codex-5", messages=[user("Hi.", step)], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == step["text"]
    assert sum(1 for piece in pieces if piece) > 3
    usage: Any = chunks[-1].usage
    if PRESETS[agent].usage is None:
        assert usage.model_extra["estimated"] is True
    else:
        assert (usage.prompt_tokens, usage.completion_tokens) == (IN, OUT)
        assert usage.prompt_tokens_details.cached_tokens == (0 if agent in TELLS_NO_CACHE else CACHED)
    thoughts = "".join(
        getattr(chunk.choices[0].delta, "reasoning_content", "") or "" for chunk in chunks if chunk.choices
    )
    assert "think it over" in thoughts


async def test_responses_are_served_as_chat_is(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server]
) -> None:
    client, _ = client_and_server
    prompt = user("Hi.", {"text": "A response."})["content"]
    response = await client.responses.create(model="codex-5", input=prompt)
    assert response.output_text == "A response."
    again = user("More.", {"text": "Another."})["content"]
    following = await client.responses.create(model="codex-5", input=again, previous_response_id=response.id)
    assert following.output_text == "Another."


async def test_a_clients_tool_is_called_and_its_output_comes_in_a_later_request(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server], apis: ScriptedApis
) -> None:
    client, _ = client_and_server
    call = {"name": "get_weather", "args": {"city": "Oslo"}}
    messages: list[Any] = [user("Weather?", {"text": "I ask.", "tools": [call]}, {"text": "It is cold."})]
    first = await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
    assert first.choices[0].finish_reason == "tool_calls"
    calls: Any = first.choices[0].message.tool_calls
    assert [json.loads(each.function.arguments) for each in calls] == [{"city": "Oslo"}]
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": "minus 5 degrees"})
    second = await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
    assert second.choices[0].message.content == "It is cold."
    assert any("minus 5 degrees" in json.dumps(body) for body in apis.bodies)
    assert sum("SCRIPT" in json.dumps(body) for body in apis.bodies) >= 2


async def test_a_client_gets_the_arguments_that_its_tool_declares_and_no_others(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server], apis: ScriptedApis
) -> None:
    client, _ = client_and_server
    added = PRESETS[agent].added_arguments
    args = {"city": "Oslo", **dict.fromkeys(added, True)}
    messages: list[Any] = [
        user("Weather?", {"text": "I ask.", "tools": [{"name": "get_weather", "args": args}]})
    ]
    tool: Any = {**CHAT_WEATHER, "function": {**CHAT_WEATHER["function"], "strict": True}}
    apis.bodies.clear()
    answer = await client.chat.completions.create(model="codex-5", messages=messages, tools=[tool])
    calls: Any = answer.choices[0].message.tool_calls
    assert [json.loads(each.function.arguments) for each in calls] == [{"city": "Oslo"}]
    offered = json.dumps(apis.bodies)
    assert "get_weather" in offered
    assert all(f'"{name}"' in offered for name in added), "the program no longer adds it"


TELLS_PARTS: dict[str, list[bool]] = {
    "qwen": [True, True, True],
    "opencode": [False, False, True],
    "kilo": [False, False, True],
}
"""Which parts of a turn of three requests an agent tells the tokens of: of each model call, or of the last one."""


async def test_the_tokens_of_a_part_of_a_turn_are_those_of_its_model_call_or_a_marked_estimate(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server]
) -> None:
    client, _ = client_and_server
    steps = [
        {"text": "I ask.", "tools": [{"name": "get_weather", "args": {"city": c}}]} for c in ("Oslo", "Rome")
    ]
    messages: list[Any] = [user("Weather of both?", *steps, {"text": "Both are cold."})]
    exact = []
    for number in range(4):
        answer: Any = await client.chat.completions.create(
            model="codex-5", messages=messages, tools=[CHAT_WEATHER]
        )
        said, usage = answer.choices[0].message, answer.usage
        exact.append("estimated" not in usage.model_extra)
        if exact[-1]:
            assert (usage.prompt_tokens, usage.completion_tokens) == (IN, OUT)
        else:
            assert usage.model_extra["estimated"] is True
            assert usage.prompt_tokens < IN, "the turn's total is not told as a part's"
        messages.append(said.model_dump(exclude_none=True))
        outputs = [
            {"role": "tool", "tool_call_id": call.id, "content": "cold"} for call in said.tool_calls or ()
        ]
        messages += outputs or [user("And now?", {"text": "As before."})]
        assert bool(outputs) == (number < 2)
    assert exact[:3] == TELLS_PARTS.get(agent, [False] * 3)
    assert exact[3] == (PRESETS[agent].usage is not None), "the turn behind it is told by itself"


CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def test_an_answer_under_a_schema_is_checked_whole_and_streamed(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server]
) -> None:
    client, _ = client_and_server
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    rome = json.dumps({"city": "Rome"})
    fits: Any = {"model": "codex-5", "messages": [user("City?", {"text": rome})], "response_format": wanted}
    answer = await client.chat.completions.create(**fits)
    assert answer.choices[0].message.content == rome
    stream = await client.chat.completions.create(**fits, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == rome
    with pytest.raises(openai.InternalServerError) as raised:
        await client.chat.completions.create(**{**fits, "messages": [user("City?", {"text": "It is Rome."})]})
    assert raised.value.code == "invalid_structured_output"


async def test_four_turns_at_once_are_not_mixed(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server]
) -> None:
    client, _ = client_and_server
    said = [f"{letter} " * 20 for letter in "abcd"]
    asked = [
        client.chat.completions.create(
            model="codex-5", messages=[user("Go.", {"text": text.strip(), "delay": 0.02})]
        )
        for text in said
    ]
    answers = await asyncio.gather(*asked)
    assert [answer.choices[0].message.content for answer in answers] == [text.strip() for text in said]


async def test_a_client_that_leaves_stops_the_agent_and_nothing_is_left_after_the_server(
    agent: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    before = {process.pid for process in agent_processes()}
    async with acp_proxy(agent, tmp_path, apis.url) as (client, server):
        step = {"text": "word " * 400, "delay": 0.05}
        stream = await client.chat.completions.create(
            model="codex-5", messages=[user("Go.", step)], stream=True
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        acp = server.agent
        assert isinstance(acp, AcpAgent)
        await eventually(lambda: acp.current is not None and len(acp.current._readers) == 0)
        answer = await client.chat.completions.create(
            model="codex-5", messages=[user("Next.", {"text": "Here."})]
        )
        assert answer.choices[0].message.content == "Here."
        assert acp.processes().restarts == 0
        # The session that is opened ahead may have a process of its own.
        await eventually(lambda: acp.current is not None and acp.current.connection.ahead is not None)
    await eventually(lambda: not {process.pid for process in agent_processes()} - before)


async def test_a_conversation_whose_session_was_closed_or_killed_goes_on_in_it(
    agent: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    async with acp_proxy(agent, tmp_path, apis.url, kept_threads=1) as (client, server):
        acp = server.agent
        assert isinstance(acp, AcpAgent)

        async def complete(messages: list[Any]) -> Any:
            raw = await client.chat.completions.with_raw_response.create(model="codex-5", messages=messages)
            return raw.parse(), raw.headers.get("x-codex-history")

        messages: list[Any] = [user("First question.", {"think": "hm", "text": "First answer."})]
        instructed = "system_prompt" in acp.capabilities
        if instructed:
            messages.insert(0, {"role": "system", "content": "Say it in Ruritanian."})
        answer, _ = await complete(messages)
        for what in ("closed", "killed"):
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            for number in range(2):  # by the second one the agent has closed the session
                await complete([user(f"Another conversation, {number}.", {"text": "Yes."})])
            process = acp.current
            assert process is not None
            if what == "killed":
                process.kill()
                await eventually(partial(lambda process: process.exit is not None, process))
            messages.append(user(f"Now it is {what}.", {"text": f"It was {what}."}))
            answer, history = await complete(messages)
            assert answer.choices[0].message.content == f"It was {what}."
            assert history == (None if PRESETS[agent].reopens else "flattened")
            if PRESETS[agent].usage is not None:
                assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (IN, OUT)
            told = next(
                body for body in map(json.dumps, reversed(apis.bodies)) if f"Now it is {what}." in body
            )
            assert (told.count("First question."), told.count('"First answer."')) == (1, 1) or history
            assert ("Ruritanian" in told) == instructed


async def test_a_model_that_tries_to_run_a_command_runs_none(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server]
) -> None:
    client, server = client_and_server
    name, arguments = SHELL[agent]
    steps = {"text": "I run it.", "tools": [{"name": name, "args": arguments}]}, {"text": "Done."}
    await client.chat.completions.create(model="codex-5", messages=[user("Run.", *steps)])
    assert not (server.settings.workdir / "made.txt").exists()


async def test_a_declined_command_ends_no_turn_with_an_empty_answer(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server], apis: ScriptedApis
) -> None:
    client, _ = client_and_server
    name, arguments = SHELL[agent]
    steps = {"text": "", "tools": [{"name": name, "args": arguments}]}, {"text": "It may not be run."}
    apis.bodies.clear()
    asked: Any = {"model": "codex-5", "messages": [user("Run.", *steps)]}
    answer = await client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "It may not be run."
    if agent == "opencode":
        assert apis.bodies
        assert not any(f'"name": "{name}"' in json.dumps(body["tools"]) for body in apis.bodies)


async def test_a_confined_program_serves_as_before(agent: str, apis: ScriptedApis, tmp_path: Path) -> None:
    if PRESETS[agent].sandboxed:
        pytest.skip("it has a sandbox of its own")
    own: dict[str, Any] = {"acp": {"env": "MOCK_KEY", "unconfined": True}, "sandbox": "workspace-write"}
    async with acp_proxy(agent, tmp_path, apis.url, **own) as (client, server):
        acp = server.agent
        assert isinstance(acp, AcpAgent)
        if "sandbox" not in acp.capabilities:
            pytest.skip(f"nothing confines it here: {acp.warning}")
        answer = await client.chat.completions.create(
            model="codex-5", messages=[user("Hi.", {"text": "Confined."})]
        )
        assert answer.choices[0].message.content == "Confined."


READ: dict[str, tuple[str, str]] = {
    "gemini": ("read_file", "file_path"),
    "qwen": ("read_file", "file_path"),
    "opencode": ("read", "filePath"),
    "copilot": ("view", "path"),
    "claude-acp": ("Read", "file_path"),
    "codex-acp": ("exec_command", "cmd"),
    "kilo": ("read", "filePath"),
    "kimi": ("Read", "path"),
}
"""What a model of each agent calls to read a file, and the argument with its path."""


async def test_a_plain_turn_answers_and_neither_its_text_nor_its_model_gets_a_file_of_the_user(
    agent: str, apis: ScriptedApis, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("plain")
    planted = folder / "home" / "notes.txt"
    planted.parent.mkdir()
    planted.write_text("planted words")
    name, argument = READ[agent]
    call = {"name": name, "args": {argument: f"cat {planted}" if argument == "cmd" else str(planted)}}
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    text = user(
        f"Look at @{planted} and @~/notes.txt.", {"text": "I look.", "tools": [call]}, {"text": "Seen."}
    )
    parts = [{"type": "text", "text": text["content"]}, *([image] if agent in TAKES_IMAGES else [])]
    before = len(apis.bodies)
    async with acp_proxy(agent, folder, apis.url) as (client, server):
        if "Nothing keeps" in server.agent.warning:
            assert "no mechanism works here" in server.agent.warning
            pytest.skip(server.agent.warning)
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
        said = "I look."
        try:
            first = await client.chat.completions.create(model="codex-5", messages=messages)
            said = first.choices[0].message.content or ""
            assert said
        except openai.PermissionDeniedError:
            # It asks for permission to read there, and ends its turn when that is declined.
            assert agent == "qwen"
        messages += [{"role": "assistant", "content": said}]
        messages += [user("And now?", {"text": "The same."})]
        second = await client.chat.completions.create(model="codex-5", messages=messages)
        assert second.choices[0].message.content == "The same."
    bodies = json.dumps(apis.bodies[before:])
    assert "notes.txt" in bodies
    assert "planted words" not in bodies
