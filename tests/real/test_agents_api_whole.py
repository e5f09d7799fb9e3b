"""Whole programs for OpenAI's Agents API on the real Codex and the real Claude Code, with the SDK for Python without
asyncio, all of whose objects and events are held to the SDK's types, and with the SDK for JavaScript.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.beta import AgentSession
from openai.types.beta.agent_session_item import AgentSessionItem
from openai.types.beta.agents.sessions.turn import Turn

from tests.npm import run_beside
from tests.parts.sessions.driving import check_event
from tests.parts.sessions.sdk_values import differences
from tests.parts.sessions.test_openai_javascript import PROGRAM
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.model_plans import call, plan, say
from tests.real.model_server import ModelServer
from tests.real.shared import Proxies
from tests.real.test_agents_api import WEATHER, user_input
from tests.real.test_approvals import patch, shell

pytestmark = [pytest.mark.part("sessions"), pytest.mark.exhaustive]


def raw(value: Any) -> Any:
    """The JSON of which the SDK has made an object."""
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True)


class CodexSteps:
    """What the model is to do, as the scripted model of Codex reads it in a message."""

    model = "codex-5"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str) -> Any:
        return [patch(name)]

    def run(self, command: str) -> Any:
        return [shell(command)]

    def call(self, city: str) -> Any:
        return [call(city=city)]

    def say(self, text: str) -> Any:
        return [say(text)]

    def message(self, text: str, *steps: Any) -> str:
        return f"{plan(*steps)} {text}"


class ClaudeSteps(CodexSteps):
    """The same for Claude Code."""

    model = "default"

    def write(self, name: str) -> Any:
        return _use("Write", file_path=str(self.folder / name), content="hello\n")

    def run(self, command: str) -> Any:
        return _use("Bash", command=command, description="x")

    def call(self, city: str) -> Any:
        return _use("mcp__client__get_weather", city=city)

    def say(self, text: str) -> Any:
        return {"text": text}

    def message(self, text: str, *steps: Any) -> str:
        return f"{text} {script(*steps)}"


def _use(tool: str, **arguments: str) -> Any:
    return {"tools": [{"name": tool, "args": arguments}]}


class Program:
    """A program that edits a file, runs a command, steers, cancels, and calls a function, as one session."""

    def __init__(self, url: str, steps: CodexSteps) -> None:
        self.client = OpenAI(base_url=url, api_key="no key", max_retries=0)
        self.folder, self.steps = steps.folder, steps
        self.events: list[Any] = []
        self.id = ""
        self.asked: list[Any] = []

    def run(self) -> None:
        self.create()
        self.steer()
        self.cancel()
        self.call_function()
        self.check()

    def create(self) -> None:
        do = self.steps
        text = do.message("Do it.", do.write("hello.txt"), do.run("cat hello.txt"), do.say("It says hello."))
        environment: Any = {
            "type": "self_hosted",
            "workspace_directory": str(self.folder),
            "remote_url": "",
        }
        agent: Any = {"model": do.model, "tools": [WEATHER]}
        with self.client.beta.agents.sessions.create(
            environment=environment, agent=agent, input=text, stream=True
        ) as stream:
            for event in stream.with_result_collection():
                self.see(event)
            result = stream.get_final_result()
        self.id = result.session_id
        assert result.output_text == "It says hello."
        assert (self.folder / "hello.txt").read_text() == "hello\n"

    def see(self, event: Any) -> None:
        check_event(raw(event))
        self.events.append(event)

    def steer(self) -> None:
        gate, do = self.folder / "gate", self.steps
        text = do.message("Wait.", do.run(f"until test -e {gate}; do sleep 0.05; done"), do.say("Both."))
        with self.client.beta.agents.sessions.stream(self.id, input=text) as stream:
            for event in stream.with_result_collection():
                self.see(event)
                if event.type == "agent.session.turn.item.added" and event.item.type == "command_execution":
                    sent = user_input("And this.")
                    self.client.beta.agents.sessions.events.create(self.id, events=[sent])
                    gate.touch()
            assert stream.get_final_result().output_text == "Both."

    def cancel(self) -> None:
        cancel: Any = {"type": "agent.session.input.cancel"}
        do = self.steps
        text = do.message("Wait.", do.run(f"until test -e {self.folder}/never; do sleep 0.05; done"))
        with self.client.beta.agents.sessions.stream(self.id, input=text) as stream:
            for event in stream:
                self.see(event)
                if event.type == "agent.session.turn.item.added" and event.item.type == "command_execution":
                    self.client.beta.agents.sessions.events.create(self.id, events=[cancel])
        assert [event.type for event in self.events[-2:]] == [
            "agent.session.turn.cancelled",
            "agent.session.idle",
        ]

    def call_function(self) -> None:
        def get_weather(arguments: dict[str, Any]) -> str:
            self.asked.append(arguments)
            return "sunny"

        text = self.steps.message("Weather?", self.steps.call("Paris"), self.steps.say("It is sunny."))
        handlers: Any = {"get_weather": get_weather}
        with self.client.beta.agents.sessions.stream(self.id, input=text, tool_handlers=handlers) as stream:
            assert stream.get_final_result().output_text == "It is sunny."
        assert self.asked == [{"city": "Paris"}]

    def check(self) -> None:
        sessions = self.client.beta.agents.sessions
        items: list[Any] = [*sessions.items.list(self.id, order="asc")]
        turns = [*sessions.turns.list(self.id, order="asc")]
        for value, wanted in (
            *((each, AgentSessionItem) for each in items),
            *((each, Turn) for each in turns),
            (sessions.retrieve(self.id), AgentSession),
        ):
            assert not differences(raw(value), wanted), value
        assert [turn.status for turn in turns] == ["completed", "completed", "cancelled", "completed"]
        of_second = [item for item in items if item.turn_id == turns[1].id]
        assert [item.type for item in of_second] == ["message", "command_execution", "message", "message"]


async def run_in_javascript(folder: Path, url: str, do: CodexSteps) -> None:
    """A program that creates a session, and goes on with it by the helper, with a function."""
    hello = do.message("Hello.", do.say("Hello to you."))
    weather = do.message("Weather?", do.call("Paris"), do.call("Rome"), do.say("It is sunny."))
    packages, address = ("openai@7.59.0",), url.removesuffix("/").removesuffix("/v1")
    printed = await run_beside(packages, PROGRAM.read_text(), folder, address, do.model, hello, weather)
    told = json.loads(printed)
    assert [told["types"][0], told["types"][-1]] == ["agent.session.created", "agent.session.idle"]
    assert (told["asked"], told["text"]) == ([{"city": "Paris"}, {"city": "Rome"}], "It is sunny.")
    assert told["deleted"] is True


async def test_programs_edit_run_steer_cancel_and_call_on_codex(
    proxies: Proxies, model_server: ModelServer, tmp_path: Path
) -> None:
    proxy = await proxies.of(sandbox="workspace-write")
    steps = CodexSteps(Path(proxies.home.workdir))
    await asyncio.to_thread(Program(str(proxy.client.base_url), steps).run)
    await run_in_javascript(tmp_path, str(proxy.client.base_url), steps)


@pytest.mark.part("claude_code")
async def test_programs_edit_run_steer_cancel_and_call_on_claude_code(
    tmp_path: Path,
) -> None:
    async with (
        anthropic_model() as model,
        claude_proxy(tmp_path, model, sandbox="danger-full-access") as (client, _),
    ):
        steps = ClaudeSteps(tmp_path / "work")
        await asyncio.to_thread(Program(str(client.base_url), steps).run)
        await run_in_javascript(tmp_path, str(client.base_url), steps)
