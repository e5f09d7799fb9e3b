"""The toolset of a session on the real Codex: what it asks before, what it is without, and what a denial says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.items import ToolName
from codex_proxy.core.turn import Toolset
from tests.parts.sessions.toolsets import answer, calls, give_toolset
from tests.real.model_plans import PutOut, plan, say
from tests.real.model_scenarios import items_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy
from tests.real.release import needs
from tests.real.shared import Proxies
from tests.real.test_approvals import AGENT, KEY, WAITS, outputs_of, patch, shell
from tests.real.tool_loop import input_of

pytestmark = [pytest.mark.part("sessions"), needs("confined_reads")]

READS: tuple[ToolName, ...] = ("read", "glob", "grep", "web_fetch")


class Driven:
    """A session on the real Codex, with this toolset."""

    def __init__(self, proxy: Proxy, model: ModelServer) -> None:
        self.proxy, self.model = proxy, model
        self.sessions = proxy.client.with_options(api_key=KEY).beta.agents.sessions
        self.id = ""
        self.events: list[Any] = []

    async def begin(self, toolset: Toolset) -> None:
        folder = str(self.proxy.server.settings.workdir)
        environment: Any = {"type": "self_hosted", "workspace_directory": folder, "remote_url": ""}
        created = await self.sessions.create(environment=environment, agent=AGENT)
        self.id = created.id
        await give_toolset(self.proxy.server, self.id, toolset)

    async def answered(self, *steps: list[PutOut], says: str = "") -> list[str]:
        """A turn whose questions are denied with these words, or approved without. Returns what was asked for."""
        asked: dict[str, str] = {}
        self.events = []
        async with self.sessions.stream(self.id, input=f"{plan(*steps, [say('Done.')])} Do it.") as stream:
            async for event in stream:
                self.events.append(event)
                if event.type != WAITS:
                    continue
                waiting: Any = event
                for action in waiting.session.required_actions:
                    if action.request_id not in asked:
                        asked[action.request_id] = action.request.name
                        choice: Any = "deny" if says else "approve"
                        await answer(self.proxy.server, self.id, action.request_id, choice, says)
        return list(asked.values())

    async def uses(self) -> list[tuple[str, Mapping[str, Any], str | None]]:
        found = await calls(self.proxy.server, self.id)
        used = [events[0].item.details.use for _, events in found]
        assert all(
            events[-1].details.use is not None for _, events in found if events[-1].details is not None
        )
        return [(use.name, json.loads(use.input), use.permission) for use in used]


async def driven(
    proxies: Proxies, model: ModelServer, toolset: Toolset, sandbox: str = "workspace-write"
) -> Driven:
    session = Driven(await proxies.of(sandbox=sandbox, api_key=KEY), model)
    await session.begin(toolset)
    return session


def said_to_model(model: ModelServer) -> str:
    return json.dumps(input_of(model.calls[-1]))


def offered(model: ModelServer) -> set[str]:
    """The names of the tools that the model was offered."""
    body = model.calls[-1].body
    inserted = (tool for item in items_of(body) for tool in item.get("tools", ()))
    return {tool.get("name") for tool in (*body.get("tools", ()), *inserted)}


async def test_what_is_allowed_runs_without_a_question_and_commands_are_asked_about(
    proxies: Proxies, model_server: ModelServer
) -> None:
    session = await driven(proxies, model_server, Toolset((*READS, "write", "edit"), ("bash",)))
    asked = await session.answered([shell("touch one")], [patch("two.txt")])
    folder = Path(session.proxy.server.settings.workdir)
    assert asked == ["run_command"]
    assert {each.name for each in folder.glob("*o*")} >= {"one", "two.txt"}
    path = str(folder / "two.txt")
    assert await session.uses() == [
        ("bash", {"command": "touch one"}, "always_ask"),
        ("write", {"file_path": path, "content": "hello\n"}, "always_allow"),
    ]


async def test_only_changes_are_asked_about_where_commands_are_allowed(
    proxies: Proxies, model_server: ModelServer
) -> None:
    session = await driven(proxies, model_server, Toolset((*READS, "bash"), ("write", "edit")))
    assert await session.answered([shell("touch one")], [patch("two.txt")]) == ["apply_patch"]
    assert [each[2] for each in await session.uses()] == ["always_allow", "always_ask"]


async def test_the_words_of_a_denial_reach_the_model_and_nothing_has_run(
    proxies: Proxies, model_server: ModelServer
) -> None:
    session = await driven(proxies, model_server, Toolset(READS, ("bash", "write", "edit")))
    says = "Ask me tomorrow."
    assert await session.answered([shell("touch one")], says=says) == ["run_command"]
    assert not (Path(session.proxy.server.settings.workdir) / "one").exists()
    assert says in said_to_model(model_server)
    assert session.events[-2].type == "agent.session.turn.completed"
    assert await session.answered([shell("touch one")]) == ["run_command"]
    assert (Path(session.proxy.server.settings.workdir) / "one").exists()


async def test_without_bash_the_model_has_no_shell_and_without_write_nothing_is_written(
    proxies: Proxies, model_server: ModelServer
) -> None:
    session = await driven(proxies, model_server, Toolset(READS))
    assert await session.answered([shell("touch one")]) == []
    assert not offered(model_server) & {"exec_command", "shell", "shell_command", "local_shell"}
    assert not (Path(session.proxy.server.settings.workdir) / "one").exists()
    session = await driven(proxies, model_server, Toolset((*READS, "bash")))
    assert await session.answered([shell("touch one || echo STOPPED")]) == []
    assert "exec_command" in offered(model_server)
    assert "STOPPED" in outputs_of(model_server)[-1]
    assert not (Path(session.proxy.server.settings.workdir) / "one").exists()
