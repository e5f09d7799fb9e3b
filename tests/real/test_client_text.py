"""What a client writes is data: no real program obeys it, wherever it stands (see `client_text`)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import make_server
from codex_proxy.parts.acp.presets import PRESETS
from codex_proxy.settings.fields import Settings
from tests.every_agent import OF_MODEL_SERVERS, OF_TESTS, with_every_agent
from tests.real import claude_proxy, proxy
from tests.real.acp_proxy import AGENTS, acp_proxy
from tests.real.client_text import QUIET, REMEMBER, SECRET, ClientText, memories_in, plant, strings
from tests.real.codex_home import make_codex_home
from tests.real.proxy import client_of
from tests.real.scripted_apis import ScriptedApis, scripted_apis
from tests.real.shared import living_on

pytestmark = pytest.mark.exhaustive

NATIVE = (
    *(("claude-code", "plain"), ("claude-code", "agent")),
    *(("codex-app-server", "plain"), ("codex-app-server", "agent"), ("codex-exec", "plain")),
)
"""The agents that do not speak ACP, and the modes of their turns."""
with_every_agent(
    {name for name, _ in NATIVE} | PRESETS.keys(),
    but={
        **OF_TESTS,
        **OF_MODEL_SERVERS,
        "acp": "a program of the operator's: each preset is one",
        "codex-proto": "its release knows no model server with a key of its own",
    },
)
KINDS = [
    *(pytest.param(name, mode, id=f"{name} {mode}") for name, mode in NATIVE),
    *(pytest.param(*each.values, "agent", marks=each.marks, id=str(each.values[0])) for each in AGENTS),
]


@living_on()
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


@asynccontextmanager
async def serving(agent: str, folder: Path, url: str, **more: Any) -> AsyncIterator[AsyncOpenAI]:
    """A client of a server whose agent is this real program, with its home in `folder/home`."""
    if agent in PRESETS:
        async with acp_proxy(agent, folder, url, **more) as (client, _):
            yield client
        return
    home = folder / "home"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    settings: Settings
    if agent.startswith("codex"):
        codex = make_codex_home(folder / "codex", f"{url}/v1")
        (codex.path / "skills" / "planted").mkdir(parents=True)
        (codex.path / "skills" / "planted" / "SKILL.md").write_text(SKILL)
        environment = codex.environment() | environment
        settings = proxy.settings_of(codex, agent=agent, workdir=folder / "work", **more)
    else:
        environment |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-test"}
        settings = claude_proxy.settings_of(folder, **more)
    server = await make_server(settings, environment)
    try:
        await server.start()
        async with client_of(f"http://127.0.0.1:{server.port}") as client:
            yield client
    finally:
        await server.stop()


SKILL = f"---\nname: planted\ndescription: A skill of the operator's.\n---\n{SECRET}\n"


@pytest.mark.parametrize(("agent", "mode"), KINDS)
async def test_what_a_client_writes_reaches_the_model_as_it_is_and_does_nothing(
    agent: str, mode: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    plant(tmp_path / "home", tmp_path / "work", outside=tmp_path / "outside")
    before = sorted((tmp_path / "work").rglob("*"))
    builtin_tools: Any = "auto" if agent in PRESETS else {"plain": "never", "agent": "always"}[mode]
    async with serving(agent, tmp_path, apis.url, builtin_tools=builtin_tools) as client:
        text = ClientText(client, apis, tmp_path / "outside")
        text.relabels = agent in PRESETS  # which are given a conversation as one labelled text
        await text.check_all()
        await text.check("first", REMEMBER + " So much is to be said about it." * 40)
        await text.check("first", QUIET)
        if any("wombat" in each for each in strings(apis.calls[-1])):
            text.wrong.append("what one client has said is told to another")
    if len(apis.calls) != text.turns:
        text.wrong.append(f"{len(apis.calls)} model calls for {text.turns} turns")
    text.wrong += [str(each) for each in sorted((tmp_path / "work").rglob("*")) if each not in before]
    text.wrong += memories_in(tmp_path / "home")
    assert not text.wrong, "\n".join(text.wrong)
    assert not any(SECRET in each for body in apis.calls for each in strings(body))
