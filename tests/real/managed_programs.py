"""Servers of the Managed Agents API on a real program, Codex or Claude Code, each with a scripted model; and what the
real SDK sees of their sessions. A server is a process of its own, so that it can be killed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
from anthropic import AsyncAnthropic
from anthropic.types.beta.sessions import BetaManagedAgentsStreamSessionEvents

from tests.parts.managed_agents.driving import TOOLSET
from tests.parts.managed_agents.following import IDLE, check, check_log, confirm, message, result
from tests.real.anthropic_model import AnthropicModel, script
from tests.real.claude_code import claude_path
from tests.real.claude_proxy import environment_of
from tests.real.codex_home import CodexHome
from tests.real.model_plans import call, plan, say
from tests.real.model_server import ModelServer
from tests.real.proxy import ProxyProcess, proxy_process, server_process
from tests.real.tool_loop import input_of
from tests.waiting import PATIENCE

Step: TypeAlias = Any
"""What the model puts out in one call."""
KEY: Final = "the key of the operator"
ASK_FOR_COMMANDS: Final = TOOLSET | {
    "configs": [{"name": "bash", "enabled": True, "permission_policy": {"type": "always_ask"}}],
}


class Program:
    """A server on a real program. It can be killed, and started again on the same store."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self._running = AsyncExitStack()
        self._server: ProxyProcess | None = None
        self._client: AsyncAnthropic | None = None

    def _serving(self) -> Any:
        raise NotImplementedError

    def prompt(self, *steps: Step) -> str:
        """A message for which the model takes these steps."""
        raise NotImplementedError

    def runs(self, command: str) -> Step:
        raise NotImplementedError

    def reads(self, path: str) -> Step:
        """A call that reads a file of the folder, in the way of the program."""
        raise NotImplementedError

    def calls(self, **arguments: Any) -> Step:
        """A call of the custom tool."""
        raise NotImplementedError

    def delegates(self, task: str) -> Step:
        raise NotImplementedError

    def says(self, text: str) -> Step:
        raise NotImplementedError

    def told_to_model(self) -> str:
        """What the model was told last, as JSON."""
        raise NotImplementedError

    @property
    def client(self) -> AsyncAnthropic:
        assert self._client is not None
        return self._client

    @property
    def url(self) -> str:
        assert self._server is not None
        return self._server.url

    async def start(self) -> None:
        self._server = await self._running.enter_async_context(self._serving())
        client = AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0, timeout=PATIENCE)
        self._client = await self._running.enter_async_context(client)

    async def kill(self) -> None:
        """Does what `kill -9` does."""
        assert self._server is not None
        self._server.process.kill()
        await self._running.aclose()

    async def close(self) -> None:
        await self._running.aclose()


class OnCodex(Program):
    def __init__(self, home: CodexHome, model: ModelServer) -> None:
        super().__init__(home.workdir)
        self._home, self._model = home, model

    def _serving(self) -> Any:
        return proxy_process(
            self._home, "--sandbox", "danger-full-access", environment={"PROXY_API_KEY": KEY}
        )

    def prompt(self, *steps: Step) -> str:
        return f"{plan(*([each] for each in steps))} Do it."

    def runs(self, command: str) -> Step:
        return call("exec_command", cmd=command)

    def reads(self, path: str) -> Step:
        return self.runs(f"cat {path}")

    def calls(self, **arguments: Any) -> Step:
        return call(**arguments)

    def delegates(self, task: str) -> Step:
        arguments = json.dumps({"message": f"{task} [[model:text]]"})
        return {"call": "spawn_agent", "text": arguments, "namespace": "multi_agent_v1"}

    def says(self, text: str) -> Step:
        return say(text)

    def told_to_model(self) -> str:
        return json.dumps(input_of(self._model.calls[-1]))


class OnClaudeCode(Program):
    def __init__(self, folder: Path, model: AnthropicModel) -> None:
        super().__init__(folder / "work")
        self.workdir.mkdir(exist_ok=True)
        self._folder, self._model = folder, model

    def _serving(self) -> Any:
        environment = environment_of(self._folder, self._model) | {
            "PROXY_STATE_DIR": str(self._folder / "state"),
            "PROXY_API_KEY": KEY,
            "PROXY_CHILD_ENV": "ANTHROPIC_API_KEY",
            "CLAUDE_BIN": str(claude_path()),
        }
        arguments = ("--agent", "claude-code", "--sandbox", "danger-full-access", "--workdir")
        return server_process(environment, *arguments, str(self.workdir))

    def prompt(self, *steps: Step) -> str:
        return f"Do it. {script(*steps)}"

    def runs(self, command: str) -> Step:
        return {"tools": [{"name": "Bash", "args": {"command": command, "description": "x"}}]}

    def reads(self, path: str) -> Step:
        return {"tools": [{"name": "Read", "args": {"file_path": str(self.workdir / path)}}]}

    def calls(self, **arguments: Any) -> Step:
        return {"tools": [{"name": "mcp__client__get_weather", "args": arguments}]}

    def delegates(self, task: str) -> Step:
        asked = {"description": "look", "prompt": task, "subagent_type": "general-purpose"}
        return {"tools": [{"name": "Agent", "args": asked}]}

    def says(self, text: str) -> Step:
        return {"text": text}

    def told_to_model(self) -> str:
        return json.dumps(self._model.last["messages"])


def is_running(command: str) -> bool:
    """Whether a process has this in its command line."""
    for each in psutil.process_iter(["cmdline", "status"]):
        if each.info["status"] != psutil.STATUS_ZOMBIE and command in " ".join(each.info["cmdline"] or ()):
            return True
    return False


class Session:
    """A session of a program, and all events that its streams have had."""

    def __init__(self, program: Program, id: str) -> None:
        self.program, self.id = program, id
        self.events: list[dict[str, Any]] = []
        self._stream: Any = None

    @classmethod
    async def create(
        cls, program: Program, *tools: Any, resources: Iterable[Any] = (), **more: Any
    ) -> Session:
        beta = program.client.beta
        environment = await beta.environments.create(name="this machine")
        agent = await beta.agents.create(name="Helper", model="codex-5", tools=list(tools), **more)
        session = await beta.sessions.create(
            agent=agent.id, environment_id=environment.id, resources=list(resources)
        )
        await beta.environments.delete(environment.id)
        return cls(program, session.id)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads a stream while the block runs."""
        async with await self.program.client.beta.sessions.events.stream(self.id) as self._stream:
            yield

    async def send(self, *events: Any) -> None:
        await self.program.client.beta.sessions.events.send(self.id, events=list(events))

    async def say(self, *steps: Step) -> None:
        await self.send(message(self.program.prompt(*steps)))

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Reads on to an event like this."""
        async for each in self._stream:
            event: dict[str, Any] = each.to_dict(mode="json")
            check(event, BetaManagedAgentsStreamSessionEvents)
            self.events.append(event)
            if wanted(event):
                return event
        raise AssertionError("the stream has ended")

    async def until_asked(self) -> str:
        """The call for which the session waits."""
        (use,) = (await self.until(_waits))["stop_reason"]["event_ids"]
        return str(use)

    async def until_rest(self) -> str:
        """Why the session rests."""
        event = await self.until(lambda event: event["type"] == IDLE and not _waits(event))
        return str(event["stop_reason"]["type"])

    async def catch_up(self) -> None:
        """Lists what was missed, behind a stream that is open and has had nothing."""
        listed = await self.listed()
        assert listed[: len(self.events)] == self.events
        self.events = listed

    async def confirm(self, use: str, decision: str = "allow", **more: Any) -> None:
        await self.send(confirm(use, decision, **more))

    async def answer(self, use: str, text: str) -> None:
        await self.send(result(use, text))

    async def listed(self) -> list[dict[str, Any]]:
        """All events of the session, whose order is checked."""
        found = [
            event.to_dict(mode="json")
            async for event in self.program.client.beta.sessions.events.list(self.id)
        ]
        check_log(found)
        return found

    def results(self) -> list[tuple[str, bool]]:
        """The texts of the results of calls, and whether each is an error."""
        return [
            ("".join(block["text"] for block in event["content"]), event["is_error"])
            for event in self.events
            if event["type"] == "agent.tool_result"
        ]


def _waits(event: dict[str, Any]) -> bool:
    return event["type"] == IDLE and bool(event["stop_reason"]["type"] == "requires_action")
