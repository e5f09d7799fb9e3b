"""Whole programs for OpenAI's Agents API on the real Codex, with the SDK for Python without asyncio; every object and
event is held to the SDK's types.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.beta import AgentSession
from openai.types.beta.agent_session_item import AgentSessionItem
from openai.types.beta.agents.sessions.turn import Turn

from tests.parts.sessions.driving import check_event
from tests.parts.sessions.sdk_values import differences
from tests.real.model_plans import call, plan, say
from tests.real.model_server import ModelServer
from tests.real.shared import Proxies
from tests.real.test_agents_api import WEATHER, user_input
from tests.real.test_approvals import patch, shell

pytestmark = [pytest.mark.part("sessions"), pytest.mark.exhaustive]


def raw(value: Any) -> Any:
    """The JSON of which the SDK has made an object."""
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Program:
    """A program that edits a file, runs a command, steers, cancels, and calls a function, as one session."""

    def __init__(self, url: str, folder: Path) -> None:
        self.client = OpenAI(base_url=url, api_key="no key", max_retries=0)
        self.folder = folder
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
        steps = plan([patch("hello.txt")], [shell("cat hello.txt")], [say("It says hello.")])
        environment: Any = {
            "type": "self_hosted",
            "workspace_directory": str(self.folder),
            "remote_url": "",
        }
        agent: Any = {"model": "codex-5", "tools": [WEATHER]}
        with self.client.beta.agents.sessions.create(
            environment=environment, agent=agent, input=f"{steps} Do it.", stream=True
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
        text = f"{plan([shell('sleep 1')], [say('Both.')])} Wait."
        with self.client.beta.agents.sessions.stream(self.id, input=text) as stream:
            for event in stream.with_result_collection():
                self.see(event)
                if event.type == "agent.session.turn.item.added" and event.item.type == "command_execution":
                    sent = user_input("And this.")
                    self.client.beta.agents.sessions.events.create(self.id, events=[sent])
            assert stream.get_final_result().output_text == "Both."

    def cancel(self) -> None:
        cancel: Any = {"type": "agent.session.input.cancel"}
        text = f"{plan([shell('sleep 60')], [say('Never.')])} Wait."
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

        text = f"{plan([call(city='Paris')], [say('It is sunny.')])} Weather?"
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


async def test_a_program_without_asyncio_edits_runs_steers_cancels_and_calls(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy = await proxies.of(sandbox="workspace-write")
    program = Program(str(proxy.client.base_url), Path(proxies.home.workdir))
    await asyncio.to_thread(program.run)
