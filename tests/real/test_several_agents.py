"""Codex, Claude Code, an agent that speaks ACP and a model server in one server, each the real program."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import Server, make_server
from codex_proxy.core.keys import digest_of
from codex_proxy.parts.acp.presets import GEMINI
from codex_proxy.settings.load import load
from tests.real.acp_proxy import environment_of
from tests.real.claude_code import claude_path
from tests.real.codex_home import make_codex_home
from tests.real.release import codex_path
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on
from tests.waiting import PATIENCE, eventually
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.xdist_group("gemini"),
    pytest.mark.skipif(
        shutil.which("gemini") is None, reason=f"{GEMINI.title} is not installed: scripts/agent-programs"
    ),
]

NAMES = ("codex", "claude-code", "gemini", "mock")


@dataclass(frozen=True)
class Several:
    """The server, and what its clients know."""

    server: Server
    apis: ScriptedApis
    client: AsyncOpenAI
    models: dict[str, str]
    """The first model of each agent that lists any, by its whole name."""

    def with_key(self, key: str) -> AsyncOpenAI:
        """A client that has this key."""
        return self.client.with_options(api_key=key)

    def processes_of(self, word: str) -> list[psutil.Process]:
        """The processes whose command has this word in it."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if any(word in part for part in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@asynccontextmanager
async def several(folder: Path, apis: ScriptedApis) -> AsyncIterator[Several]:
    home = make_codex_home(folder / "codex", f"{apis.url}/v1")
    keys = folder / "keys.toml"
    table = '[keys.{}]\nsha256 = "{}"\nagents = {}\n'
    every = json.dumps([*NAMES, "missing"])
    keys.write_text(
        table.format("all", digest_of("key-all"), every)
        + table.format("one", digest_of("key-one"), json.dumps(["gemini"]))
    )
    settings = folder / "codex-proxy.toml"
    settings.write_text(
        f'''
agent = "codex"
workdir = "{home.workdir}"
state_dir = "{folder / "state"}"
keys_file = "{keys}"
port = 0
drain_ms = 0
metrics = true

[agents.codex]
agent = "codex-app-server"
codex_bin = "{codex_path()}"
codex_home = "{home.path}"

[agents.claude-code]
claude_bin = "{claude_path()}"
child_env = "ANTHROPIC_API_KEY"

[agents.gemini]

[agents.missing]
agent = "acp"
acp.command = "{folder / "nothing-here"} --acp"

[upstreams.mock]
url = "{apis.url}/v1"
'''
    )
    environment = {
        **home.environment(),
        **environment_of("gemini", folder, apis.url),
        "ANTHROPIC_BASE_URL": apis.url,
        "ANTHROPIC_API_KEY": "sk-ant-test",
        "IS_SANDBOX": "1",
    }
    server = await make_server(load({}, settings), environment)
    try:
        await server.start()
        url = f"http://127.0.0.1:{server.port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="key-all", max_retries=0, timeout=PATIENCE) as client:
            listed = [model.id async for model in client.models.list()]
            models = {name: next(id for id in listed if id.startswith(f"{name}/")) for name in NAMES}
            assert not any(id.startswith("missing/") for id in listed)
            yield Several(server, apis, client, models)
    finally:
        await server.stop()


@living_on()
async def several_agents(tmp_path: Path) -> AsyncIterator[Several]:
    async with scripted_apis() as apis, several(tmp_path, apis) as found:
        yield found


def prompt(text: str, *steps: dict[str, Any]) -> str:
    return f"{text} {script(*steps)}"


async def chat(several_agents: Several, name: str) -> str:
    """Asks an agent for a call of the client's tool, gives the output, and returns the answer."""
    call = {"name": "get_weather", "args": {"city": name}}
    steps = {"text": "I ask.", "tools": [call]}, {"text": f"It is cold in {name}."}
    messages: list[Any] = [{"role": "user", "content": prompt(f"Weather of {name}?", *steps)}]
    asked: Any = {"model": several_agents.models[name], "tools": [CHAT_WEATHER]}
    first = await several_agents.client.chat.completions.with_raw_response.create(**asked, messages=messages)
    assert first.headers["x-codex-agent"] == name
    said: Any = first.parse().choices[0].message
    assert [json.loads(each.function.arguments) for each in said.tool_calls] == [{"city": name}]
    messages.append(said.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": f"minus 5 in {name}"})
    second = await several_agents.client.chat.completions.create(**asked, messages=messages)
    return str(second.choices[0].message.content)


async def respond(several_agents: Several, name: str) -> str:
    """The answer of an agent to a request of the Responses API."""
    step = {"text": f"A response of {name}."}
    response = await several_agents.client.responses.create(
        model=several_agents.models[name], tools=[RESPONSES_WEATHER], input=prompt(f"Hi, {name}.", step)
    )
    return response.output_text


async def test_each_agent_is_asked_by_its_name_in_both_apis_at_the_same_time_with_tools(
    several_agents: Several,
) -> None:
    chats = [chat(several_agents, name) for name in NAMES]
    responses = [respond(several_agents, name) for name in NAMES]
    answers = await asyncio.gather(*chats, *responses)
    assert answers == [
        *(f"It is cold in {name}." for name in NAMES),
        *(f"A response of {name}." for name in NAMES),
    ]
    for name in NAMES:
        assert any(f"minus 5 in {name}" in json.dumps(body) for body in several_agents.apis.bodies)
    metrics = await several_agents.client.get("/../metrics", cast_to=str)
    for name in NAMES:
        assert f'codex_proxy_agents_ready{{agent="{name}"}} 1.0' in metrics
        assert f'codex_proxy_agent_requests_total{{agent="{name}"' in metrics
    assert 'codex_proxy_agents_ready{agent="missing"} 0.0' in metrics


async def test_a_key_for_one_of_them_finds_and_asks_no_other(several_agents: Several) -> None:
    limited = several_agents.with_key("key-one")
    listed = [model.id async for model in limited.models.list()]
    assert listed
    assert not [id for id in listed if id.startswith(("codex/", "claude-code/", "mock/"))]
    messages: Any = [{"role": "user", "content": prompt("Hi.", {"text": "Hello."})}]
    answer = await limited.chat.completions.create(model=several_agents.models["gemini"], messages=messages)
    assert answer.choices[0].message.content == "Hello."
    with pytest.raises(openai.NotFoundError):
        await limited.chat.completions.create(model=several_agents.models["claude-code"], messages=messages)


async def test_an_agent_that_is_not_installed_or_is_killed_leaves_the_others_alone(
    several_agents: Several,
) -> None:
    messages: Any = [{"role": "user", "content": "Hi."}]
    with pytest.raises(openai.InternalServerError, match="nothing-here") as raised:
        await several_agents.client.chat.completions.create(model="missing/default", messages=messages)
    assert raised.value.status_code == 503
    slow = {"text": "word " * 400, "delay": 0.05}
    talking: Any = [{"role": "user", "content": prompt("Talk.", slow)}]
    stream = await several_agents.client.chat.completions.create(
        model=several_agents.models["gemini"], messages=talking, stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    for process in several_agents.processes_of("gemini"):
        process.kill()
    with pytest.raises(openai.APIError, match="process ended"):
        async for _ in stream:
            pass
    assert await asyncio.gather(*(respond(several_agents, name) for name in NAMES)) == [
        f"A response of {name}." for name in NAMES
    ]


@pytest.mark.parametrize(
    ("one", "other"), [("claude-code", "codex"), ("codex", "claude-code"), ("codex", "gemini")]
)
async def test_a_conversation_goes_on_with_another_agent_without_what_only_the_first_can_read(
    several_agents: Several, one: str, other: str
) -> None:
    step = {"think": "hm", "signature": "OnlyForItsMaker", "text": "Noted, Rumpel."}
    first = await several_agents.client.responses.create(
        model=several_agents.models[one], tools=[RESPONSES_WEATHER], input=prompt("I am Rumpel.", step)
    )
    again = await several_agents.client.responses.create(
        model=several_agents.models[one],
        tools=[RESPONSES_WEATHER],
        previous_response_id=first.id,
        input=prompt("Once more.", {"text": "Rumpel."}),
    )
    several_agents.apis.bodies.clear()
    second = await several_agents.client.responses.create(
        model=several_agents.models[other],
        tools=[RESPONSES_WEATHER],
        previous_response_id=again.id,
        input=prompt("Who am I?", {"text": "You are Rumpel."}),
    )
    assert second.output_text == "You are Rumpel."
    await eventually(lambda: several_agents.apis.bodies)
    body = json.dumps([each for each in several_agents.apis.bodies if "Who am I?" in json.dumps(each)])
    assert "Noted, Rumpel." in body
    # The prompts script the model, and so hold the word themselves: it must not be in a place of its own.
    assert 'OnlyForItsMaker"' not in body
    assert "claude-thinking" not in body
