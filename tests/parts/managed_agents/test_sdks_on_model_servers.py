"""A program for Anthropic's service on a model server, with the SDK for Python, with and without asyncio: calls of
an MCP server are denied with words and allowed, a custom tool waits over a restart, a file is read, and a turn is
interrupted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types.beta.sessions import BetaManagedAgentsStreamSessionEvents

from tests.mcp.serving import web_server
from tests.model_server import call, proxy_before, stream, text, upstream
from tests.parts.managed_agents.driving import WEATHER
from tests.parts.managed_agents.following import INTERRUPT, check, check_log, confirm, message, result

pytestmark = pytest.mark.part("upstream")
KEY = "the key of the operator"
DESK: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": "desk"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with web_server("http", "--only", "get_weather") as (port, _):
        yield port


async def done(answer: Any) -> Any:
    """The answer of either client."""
    return await answer if inspect.isawaitable(answer) else answer


async def each_of(found: Any) -> AsyncIterator[Any]:
    """The objects of a list or a stream of either client."""
    if hasattr(found, "__aiter__"):
        async for each in found:
            yield each
    else:
        for each in found:
            yield each


class Program:
    """A program, and what it has seen of its session."""

    beta: Any
    """What its client has for sessions."""

    def __init__(self) -> None:
        self.session = ""
        self.asked: list[str] = []
        """The open calls when the session waited last."""
        self.told: list[dict[str, Any]] = []

    async def create(self, url: str) -> None:
        environment = await done(self.beta.environments.create(name="here"))
        server = {"type": "url", "name": "desk", "url": url}
        agent = await done(
            self.beta.agents.create(name="A", model="small", tools=[DESK, WEATHER], mcp_servers=[server])
        )
        session = await done(self.beta.sessions.create(agent=agent.id, environment_id=environment.id))
        self.session = session.id

    async def send(self, *events: Any) -> None:
        await done(self.beta.sessions.events.send(self.session, events=events))

    async def until_idle(self, *events: Any, act: Callable[[dict[str, Any]], Any] = lambda _: ()) -> str:
        """Sends events, and the events that `act` returns for each that comes. Returns why the session rests."""
        reader = await done(self.beta.sessions.events.stream(self.session))
        await self.send(*events)
        async for each in each_of(reader):
            event = each.to_dict(mode="json")
            check(event, BetaManagedAgentsStreamSessionEvents)
            self.told.append(event)
            if wanted := act(event):
                await self.send(*wanted)
            if event["type"] == "session.status_idle":
                await done(reader.close())
                reason = event["stop_reason"]
                self.asked = reason.get("event_ids", [])
                return str(reason["type"])
        raise AssertionError("the stream has ended")

    async def check(self) -> None:
        found = each_of(self.beta.sessions.events.list(self.session))
        listed = [each.to_dict(mode="json") async for each in found]
        check_log(listed)
        assert listed == self.told


async def ask(program: Program, url: str) -> None:
    """Denies a call with words, allows one, and leaves one of the custom tool open."""
    await program.create(url)
    assert await program.until_idle(message("How is it?")) == "requires_action"
    denied = confirm(program.asked[0], "deny", deny_message="Ask me tomorrow.")
    assert await program.until_idle(denied) == "requires_action"
    assert await program.until_idle(confirm(program.asked[0])) == "requires_action"
    await program.check()


async def go_on(program: Program, interrupts: Callable[[], object]) -> None:
    """Answers the open call, has a file read, and interrupts a turn."""
    await program.check()
    assert await program.until_idle(result(program.asked[0], "It rains.")) == "end_turn"
    file = await done(program.beta.files.upload(file=("notes.txt", b"A blue heron.")))
    document = {"type": "document", "source": {"type": "file", "file_id": file.id}}
    assert await program.until_idle({"type": "user.message", "content": [document]}) == "end_turn"
    interrupts()

    def act(event: dict[str, Any]) -> list[Any]:
        return [INTERRUPT] if event["type"] == "span.model_request_start" else []

    assert await program.until_idle(message("Go on."), act=act) == "end_turn"
    await program.check()
    assert (await done(program.beta.sessions.delete(program.session))).type == "session_deleted"


@pytest.mark.parametrize("kind", [Anthropic, AsyncAnthropic])
async def test_a_whole_program_runs_on_a_model_server(tmp_path: Path, port: int, kind: Any) -> None:
    url = f"http://localhost:{port}/mcp"
    arguments = json.dumps({"city": "Paris"})
    program = Program()
    async with upstream() as server:
        served = partial(proxy_before, server.url, tmp_path, mcp_allowed_urls=url, api_key=KEY)
        store = str(tmp_path / "store.sqlite3")
        server.script = [
            *(stream(call("desk__get_weather", arguments), finish="tool_calls") for _ in range(2)),
            stream(call("get_weather", arguments), finish="tool_calls"),
        ]
        async with served(store=store) as proxy:
            await run(kind, proxy.url, program, partial(ask, url=url))
        denied, allowed = (json.dumps(each.body["messages"][-1]) for each in server.requests[1:3])
        assert "Ask me tomorrow." in denied
        assert "Sunny in Paris." in allowed
        server.script = [text("Rain.")]
        async with served(store=store) as proxy:
            hold = asyncio.get_running_loop().call_soon_threadsafe
            interrupts = partial(hold, server.held.clear)
            await run(kind, proxy.url, program, partial(go_on, interrupts=interrupts))
            server.held.set()
    answered, document, _ = (json.dumps(each.body["messages"][-1]) for each in server.requests[3:])
    assert "It rains." in answered
    assert "A blue heron." in document


async def run(kind: Any, url: str, program: Program, part: Callable[[Program], Any]) -> None:
    """Runs a part of a program in a thread, whose event loop a client without asyncio may hold up."""

    async def work() -> None:
        client = kind(api_key=KEY, base_url=url, max_retries=0)
        program.beta = client.beta
        await part(program)
        await done(client.close())

    await asyncio.to_thread(asyncio.run, work())
