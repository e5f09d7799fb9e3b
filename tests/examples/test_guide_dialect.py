"""The dialect that docs/adding-an-agent.md prints, as the agent of a whole server, asked by the official SDK."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import make_server
from codex_proxy.commands.serve import banner
from tests.examples.test_adding_an_agent import EXAMPLE, PAGE
from tests.http.serving import ENVIRONMENT, running_proxy, settings_of
from tests.waiting import PATIENCE

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
USAGE = {"input_tokens": 11, "output_tokens": 7}
CALL = {"call": "look", "id": "call_1", "arguments": "{}"}

HEAD = """
import json
from collections.abc import Sequence
from codex_proxy.agent_plugin import *
from codex_proxy.core.events import *
from codex_proxy.core.events import (
    Event, ItemEnded, ItemStarted, ReasoningDelta, StepCompleted, Stop, TextDelta, ToolCallRequested, TurnEnded,
    TurnStarted, Usage,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Item, Message, Reasoning
from codex_proxy.core.turn import Turn
from oneshot_agent.dialect import prompt_of
"""

SPEC = """
def command_of(context, workdir):
    return Command(PROGRAM, context.child_environment(), workdir)

async def make(context):
    return ChildPerTurnAgent(ChildSpec(
        name="guide", version="1.0", command=lambda turn: command_of(context, turn.workdir), dialect=JsonLinesTurn,
        capabilities=SPEC.capabilities, models=(), any_model=True,
    ))

async def check(context):
    return []

SPEC = AgentSpec(
    name="guide", summary="the guide's", make=make, check=check,
    capabilities=frozenset({"client_tools", "model_choice", "effort", "exact_usage"}),
)
"""

PROGRAM = """
import json, sys
asked = json.loads(sys.stdin.read())
for line in json.loads(asked["prompt"]):
    if isinstance(line, int):
        sys.exit(f"exit {line}")
    print(line if isinstance(line, str) else json.dumps(line), flush=True)
"""


def block_of(begin: str) -> str:
    """The code of the page that begins like this."""
    block = re.search(rf"```python\n({begin}.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return block[1]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The reference of an installed plug-in with the page's dialect. Its program prints the lines of the prompt."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = f"PROGRAM = {(sys.executable, '-P', str(program))!r}\n"
    (tmp_path / "guide_plugin.py").write_text(HEAD + command + block_of("class JsonLinesTurn") + SPEC)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "guide_plugin:SPEC"
    for name in ("guide_plugin", *(name for name in sys.modules if name.startswith("oneshot_agent"))):
        sys.modules.pop(name, None)


@pytest.fixture
async def client(plugin: str, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    server = await make_server(settings_of(tmp_path, agent="auto", agent_plugin=plugin), ENVIRONMENT)
    async with running_proxy(server) as proxy:
        assert "TROUBLE" not in banner(server), "the turn's folder is not known before a turn"
        async with AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
        ) as client:
            yield client


def asking(*lines: object) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": json.dumps(lines)}], "tools": [TOOL]}


THOUGHT = ({"thinking": "Well"}, {"thinking": "..."}, {"text": "Hel"}, {"text": "lo"})


def test_the_test_on_the_page_passes(plugin: str) -> None:
    test = block_of("def test_a_thought")
    module = vars(importlib.import_module(plugin.partition(":")[0]))
    exec(test, module)
    [name] = re.findall(r"def (test_\w+)", test)
    module[name]()


async def test_text_reasoning_and_usage_reach_the_client(client: AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(**asking(*THOUGHT, USAGE, {"end": "stop"}))
    answer = raw.parse()
    message = answer.choices[0].message.model_dump()
    assert (message["reasoning_content"], message["content"]) == ("Well...", "Hello")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    assert "x-codex-ignored-params" not in raw.headers


async def test_text_and_reasoning_are_streamed(client: AsyncOpenAI) -> None:
    deltas = []
    async for chunk in await client.chat.completions.create(**asking(*THOUGHT, {"end": "stop"}), stream=True):
        deltas += [choice.delta.model_dump(exclude_none=True) for choice in chunk.choices]
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["Well", "..."]
    assert [delta["content"] for delta in deltas if delta.get("content")] == ["Hel", "lo"]


async def test_an_answer_that_was_cut_says_so(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asking(*THOUGHT, {"end": "length"}))
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("ends_step", [True, False])
async def test_a_call_of_a_tool_reaches_the_client(client: AsyncOpenAI, *, ends_step: bool) -> None:
    usage = (USAGE,) if ends_step else ()
    answer = await client.chat.completions.create(**asking(*THOUGHT, CALL, *usage, {"end": "tool_calls"}))
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "look", "{}")


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ({"error": "Rate limit reached, try again in 7 seconds"}, 429, "Rate limit reached"),
        ({"error": "You are not logged in"}, 401, "not signed in"),
        (3, 500, "exit 3"),
        ("{nonsense", 500, "Update the plug-in"),
        ("[" * 100_000, 500, "Update the plug-in"),
    ],
)
async def test_a_failure_of_the_program_has_its_status_and_a_sentence(
    client: AsyncOpenAI, line: object, status: int, told: str
) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        await client.chat.completions.create(**asking(line))
    assert error.value.status_code == status
    assert told in error.value.message
