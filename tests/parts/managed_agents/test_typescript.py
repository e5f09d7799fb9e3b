"""Anthropic's SDK for TypeScript as a client of definitions, and of whole sessions on the fake agent and a model
server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy
from tests.mcp.serving import web_server
from tests.model_server import call, proxy_before, stream, text, upstream
from tests.npm import run_beside
from tests.parts.sessions.approving import ASKING, KEY

pytestmark = pytest.mark.exhaustive
"""npm has to install it first."""

SDK = ("@anthropic-ai/sdk@1.14.0",)


def program(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


async def test_the_sdk_for_typescript_keeps_definitions(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        printed = await run_beside(SDK, program("anthropic_definitions.mjs"), tmp_path, proxy.url)
    assert json.loads(printed) == {
        "null": [True, True, True],
        "changed": [2, "Be kind."],
        "stale": [True, 409],
        "versions": [2, 1],
        "archived": True,
        "names": ["c", "b", "a"],
    }


async def test_the_sdk_for_typescript_confirms_denies_and_answers_in_a_session(tmp_path: Path) -> None:
    prompts = "[[fake:approvals]]", "[[fake:tool_call say='It is {outputs}.']]"
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        given = (proxy.url, KEY, *prompts)
        printed = await run_beside(SDK, program("anthropic_session.mjs"), tmp_path, *given)
    printed = json.loads(printed)
    assert printed == {
        "said": ["Hello from the deterministic fake agent.", "It is sunny."],
        "results": [["Not this one.", True], ["ok\n", False]],
        "custom": ["get_weather"],
        "same": True,
        "found": ["A session", "idle"],
        "refused": 409,
        "deleted": "session_deleted",
    }


@pytest.mark.part("upstream")
async def test_the_sdk_for_typescript_confirms_and_denies_on_a_model_server(tmp_path: Path) -> None:
    with web_server("http", "--only", "get_weather") as (port, _):
        url = f"http://localhost:{port}/mcp"
        given: Any = {"mcp_allowed_urls": url, "api_key": KEY}
        async with upstream() as server, proxy_before(server.url, tmp_path, **given) as proxy:
            wanted = stream(call("desk__get_weather", '{"city":"Paris"}'), finish="tool_calls")
            own = stream(call("get_weather", '{"city":"Paris"}'), finish="tool_calls")
            server.script = [wanted, wanted, text("It is asked."), own, text("It is sunny.")]
            arguments = (proxy.url, KEY, "How is it?", "And now?", url)
            printed = await run_beside(SDK, program("anthropic_session.mjs"), tmp_path, *arguments)
    printed = json.loads(printed)
    (denied, failed), (allowed, _) = printed.pop("results")
    assert ("Not this one." in denied, failed) == (True, True)
    assert "Sunny in Paris." in allowed
    assert printed == {
        "said": ["It is asked.", "It is sunny."],
        "custom": ["get_weather"],
        "same": True,
        "found": ["A session", "idle"],
        "refused": 409,
        "deleted": "session_deleted",
    }


WORK = {
    "dispatched": [["get_weather", True, False]] * 2,
    "asked": ["Paris", "Rome"],
    "answered": ["sunny", "sunny"],
    "readsTheFile": True,
    "previews": True,
    "interrupted": ["end_turn", False],
    "threads": 1,
    "childHasEvents": False,
    "system": "Be brief.",
    "messages": 3,
    "deleted": "session_deleted",
}
"""What `anthropic_work.mjs` prints for an agent without a folder."""


async def test_the_sdk_for_typescript_runs_tools_reads_previews_and_threads(tmp_path: Path) -> None:
    prompts = "[[fake:tool_calls]]", "[[fake:echo]]", "[[fake:count n=1000 delay=10]]", "[[fake:subagent]]"
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        given = (proxy.url, KEY, "codex-5", "yes", *prompts)
        printed = await run_beside(SDK, program("anthropic_work.mjs"), tmp_path, *given)
    assert json.loads(printed) == WORK | {"threads": 2, "childHasEvents": True, "messages": 4}


@pytest.mark.part("upstream")
async def test_the_sdk_for_typescript_works_with_a_model_server(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [
            stream(
                call("get_weather", '{"city":"Paris"}'),
                call("get_weather", '{"city":"Rome"}', "call_b", 1),
                finish="tool_calls",
            ),
            text("Sunny."),
        ]
        server.echoes = True
        given = (proxy.url, "any", "small", "no", "How is it?", "Read this.", "Count.", "")
        printed = await run_beside(SDK, program("anthropic_work.mjs"), tmp_path, *given)
    assert json.loads(printed) == WORK
