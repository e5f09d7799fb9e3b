"""Real programs offer their model each tool, in whatever form a client describes it: some would hide a tool with an
odd schema, all tools, or fail the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import Server
from tests.real.acp_proxy import AGENTS, acp_proxy
from tests.real.anthropic_model import AnthropicModel
from tests.real.claude_proxy import environment_of, settings_of
from tests.real.codex_home import make_codex_home
from tests.real.proxy import serve
from tests.real.proxy import settings_of as codex_settings
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on
from tests.schema_forms import schemas

AT_ONCE = 120
"""Tools of a request."""
EVERY = 19
"""Of so many schemas one is offered; no divisor of what repeats in their order."""


@living_on()
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


def server_of(agent: str, folder: Path, url: str) -> AbstractAsyncContextManager[tuple[AsyncOpenAI, Server]]:
    if agent == "codex-app-server":
        home = make_codex_home(folder, f"{url}/v1")
        return serve(codex_settings(home), home.environment())
    if agent == "claude-code":
        return serve(settings_of(folder), environment_of(folder, AnthropicModel(url)))
    return acp_proxy(agent, folder, url)


async def missing(client: AsyncOpenAI, apis: ScriptedApis, given: list[Any]) -> list[str]:
    """Which of these schemas a model is not offered."""
    tools: list[Any] = [
        {"type": "function", "function": {"name": f"numbered_{place}", "parameters": schema}}
        for place, schema in enumerate(given)
    ]
    apis.bodies.clear()
    prompt = f"Hi. {script({'text': 'Seen.'})}"
    answer = await client.chat.completions.create(
        model="codex-5", messages=[{"role": "user", "content": prompt}], tools=tools
    )
    assert answer.choices[0].message.content == "Seen."
    seen = set(re.findall(r"numbered_(\d+)", json.dumps(apis.bodies)))
    return [json.dumps(schema)[:200] for place, schema in enumerate(given) if str(place) not in seen]


@pytest.mark.parametrize(
    ("agent", "every"),
    [
        ("codex-app-server", 51),
        pytest.param("codex-app-server", EVERY, marks=pytest.mark.exhaustive),
        pytest.param("claude-code", EVERY, marks=pytest.mark.exhaustive),
        *(pytest.param(*each.values, EVERY, marks=[*each.marks, pytest.mark.exhaustive]) for each in AGENTS),
    ],
)
async def test_a_model_is_offered_tools_with_schemas_of_every_form(
    agent: str, every: int, apis: ScriptedApis, tmp_path: Path
) -> None:
    # An API refuses a root of another type by the name of its tool.
    roots = ("object", ["object", "null"])
    given = [schema for schema in schemas() if schema.get("type", "object") in roots][::every]
    async with server_of(agent, tmp_path, apis.url) as (client, _):
        found = [
            each
            for begin in range(0, len(given), AT_ONCE)
            for each in await missing(client, apis, given[begin : begin + AT_ONCE])
        ]
    assert found == []
