"""A proxy on a real port, in this process, whose agent is the fake one: every request goes through a socket."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import psutil
from aiohttp import web
from pydantic import BaseModel

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.fake.fake_spec import PROTO_CAPABILITIES
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.app.server import Server, make_server
from codex_proxy.commands.serve import page_of
from codex_proxy.core.turn import Turn
from codex_proxy.http.sse import STREAM_SLOTS
from codex_proxy.process.child import Command
from codex_proxy.settings.fields import Settings
from tests.waiting import PATIENCE, eventually

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
"""What the fake agent's children get: nothing of the machine that could change an answer."""


@dataclass(frozen=True)
class Answer:
    """A reply, read to its end."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        """It as JSON."""
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        """The error that it is."""
        error: dict[str, Any] = self.body["error"]
        return error

    @property
    def frames(self) -> list[Any]:
        """The data of a stream: JSON values, and `[DONE]` as it is."""
        return frames_of(self.text)


def frames_of(text: str) -> list[Any]:
    """The frames of a whole stream. Comments are left out; anything else that is not one data line is a fault."""
    assert text.endswith("\n\n")
    frames: list[Any] = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block, block
        data = block.removeprefix("data: ")
        frames.append(data if data == "[DONE]" else json.loads(data))
    return frames


@dataclass(frozen=True)
class Proxy:
    """A server in this process, and a plain HTTP client of it."""

    server: Server
    session: aiohttp.ClientSession
    url: str

    async def ask(self, body: Any, **more: Any) -> Answer:
        """POST /v1/chat/completions. `body` may be bytes."""
        return await self.send("POST", "/v1/chat/completions", body, **more)

    async def send(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Any request; the whole reply."""
        headers = dict(more.pop("headers", {}))
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            more["data"] = body if isinstance(body, bytes) else json.dumps(body)
        async with self.session.request(method, self.url + path, headers=headers, **more) as reply:
            return Answer(reply.status, reply.headers, await reply.text())

    def open(self, body: Any, **more: Any) -> Any:
        """POST /v1/chat/completions, to be read piece by piece inside an `async with`."""
        return self.session.post(f"{self.url}/v1/chat/completions", json=body, **more)

    async def settled(self) -> None:
        """No turn runs, no stream is open, and no response is being saved."""
        server = self.server
        await until(
            lambda: server.runs.running == 0 and self.streams == 0 and not server.background.tasks.running
        )

    @property
    def streams(self) -> int:
        """How many streams hold a place."""
        return self.app[STREAM_SLOTS].active

    @property
    def app(self) -> web.Application:
        """The application, which has the server's parts."""
        assert self.server.app is not None
        return self.server.app


until = eventually
"""By the name that most tests of servers use."""


class GivenSettings(Settings):
    """Settings of the arguments alone: to look for each in the environment and in a file takes longer than a turn."""

    def __init__(self, **given: Any) -> None:
        BaseModel.__init__(self, **given)


def settings_of(folder: Path, **more: Any) -> Settings:
    """Settings of a fake proxy that keeps no file outside of `folder`."""
    given: dict[str, Any] = {
        "agent": "fake",
        "port": 0,
        "workdir": folder,
        "state_dir": folder / "state",
        "drain_ms": 0,
        "ui": False,
        "agent_confinement": "none",  # programs of the tests lie among the files of the tests
        "queue_wait": PATIENCE,
    }
    return GivenSettings(**(given | more))


@asynccontextmanager
async def running_proxy(server: Server) -> AsyncIterator[Proxy]:
    """The server, started and reachable; stopped at the end."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    try:
        await server.start()
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield Proxy(server, session, f"http://127.0.0.1:{server.port}")
    finally:
        await server.stop()


@asynccontextmanager
async def fake_proxy(
    folder: Path, environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A proxy on the fake agent, whose children get `environment` too."""
    given = {**ENVIRONMENT, **(environment or {})}
    server = await make_server(settings_of(folder, **settings), given, page_of)
    async with running_proxy(server) as proxy:
        yield proxy


@asynccontextmanager
async def worker_proxy(folder: Path, number: int) -> AsyncIterator[Proxy]:
    """A proxy on the fake agent, with a page, that is this worker of several."""
    server = await make_server(settings_of(folder, ui=True), ENVIRONMENT, page_of, number)
    async with running_proxy(server) as proxy:
        yield proxy


@asynccontextmanager
async def proxy_of(agent: Agent, folder: Path, **settings: Any) -> AsyncIterator[Proxy]:
    """A proxy on any agent."""
    given = settings_of(folder, **settings)
    page = page_of(given, ENVIRONMENT) if given.ui else None
    async with running_proxy(Server(given, agent, page=page)) as proxy:
        yield proxy


Mode: TypeAlias = str | dict[str, str]
"""A scenario's name, or variables for the child."""


def fake_agent(
    *modes: Mode, program: tuple[str, ...] = (sys.executable, "-m", "fake_proto")
) -> ChildPerTurnAgent:
    """The fake agent, whose children behave by turns as these modes say, where no marker says otherwise."""
    modes_in_turn = itertools.cycle(modes or ("text",))

    def command(turn: Turn) -> Command:
        mode = next(modes_in_turn)
        environment = {**ENVIRONMENT, **({"FAKE_CODEX_MODE": mode} if isinstance(mode, str) else mode)}
        return Command((*program, "proto"), environment, turn.workdir)

    return ChildPerTurnAgent(
        ChildSpec(
            name="fake",
            version="test",
            command=command,
            dialect=lambda: CodexProto(extended=True),
            capabilities=PROTO_CAPABILITIES,
            models=(),
            any_model=True,
        )
    )


def user(text: str = "Hello.", **fields: Any) -> dict[str, Any]:
    """A request with one message of the user's."""
    return {"model": "codex-5", "messages": [{"role": "user", "content": text}], **fields}


class Hands:
    """A clock whose hands a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return 1_700_000_000 + self.now


async def model_input(proxy: Proxy, body: dict[str, Any]) -> dict[str, Any]:
    """What the agent was given for a request with the scenario `echo`."""
    answer = await proxy.ask(body)
    assert answer.status == 200, answer.text
    told: dict[str, Any] = json.loads(answer.body["choices"][0]["message"]["content"])
    return told


def alive(pids: Path) -> list[int]:
    """The processes that have put themselves down in the file and still run."""
    noted = pids.read_text().split() if pids.exists() else []
    return [int(pid) for pid in noted if psutil.pid_exists(int(pid))]
