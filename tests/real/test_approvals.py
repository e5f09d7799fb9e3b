"""Approvals in sessions on the real Codex: what a client approves stays in the sandbox, and what would leave it is
declined before anybody is asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.real.model_plans import PutOut, call, plan, say
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy
from tests.real.release import needs
from tests.real.shared import Proxies
from tests.real.tool_loop import input_of

pytestmark = [pytest.mark.part("sessions"), needs("confined_reads")]

KEY = "the key of the operator"
AGENT: Any = {"model": "codex-5"}
WAITS = "agent.session.requires_action"


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder as far from the workspace as any other: Codex counts /tmp to what may be written."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def shell(command: str, **more: Any) -> PutOut:
    return call("exec_command", cmd=command, **more)


def patch(path: str, text: str = "hello") -> PutOut:
    return shell(f"apply_patch <<EOF\n*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\nEOF\n")


class Asked:
    """A session of the agent, each of whose questions gets the decision."""

    def __init__(self, proxy: Proxy, decision: str = "approve") -> None:
        self.client: AsyncOpenAI = proxy.client.with_options(api_key=KEY)
        self.proxy = proxy
        self.decision = decision
        self.actions: list[Any] = []
        self.events: list[Any] = []

    def before_answer(self) -> None:
        """Looks around while the question is open."""

    async def run(self, *steps: list[PutOut]) -> None:
        sessions = self.client.beta.agents.sessions
        folder = str(self.proxy.server.settings.workdir)
        environment: Any = {"type": "self_hosted", "workspace_directory": folder, "remote_url": ""}
        stream = await sessions.create(
            environment=environment,
            agent=AGENT,
            input=f"{plan(*steps, [say('Done.')])} Do it.",
            stream=True,
        )
        await self._answer(stream)

    async def run_again(self, *steps: list[PutOut]) -> None:
        """The next turn of the session."""
        id, self.events = self.events[0].session.id, []
        text = f"{plan(*steps, [say('Done.')])} Do it."
        async with self.client.beta.agents.sessions.stream(id, input=text) as stream:
            await self._answer(stream)

    async def _answer(self, stream: Any) -> None:
        sessions = self.client.beta.agents.sessions
        async for event in stream:
            self.events.append(event)
            if event.type != WAITS:
                continue
            known = {each.request_id for each in self.actions}
            for action in event.session.required_actions:
                if action.request_id in known:
                    continue
                self.actions.append(action)
                self.before_answer()
                answer: Any = {
                    "type": "agent.session.input.mcp_approval_request_result",
                    "request_id": action.request_id,
                    "response": {"type": "mcp_tool_call", "decision": self.decision},
                }
                await sessions.events.create(event.session.id, events=[answer])

    @property
    def statuses(self) -> list[str]:
        done = [event.item for event in self.events if event.type == "agent.session.turn.item.done"]
        return [item.status for item in done if item.type == "command_execution"]

    @property
    def ended_well(self) -> bool:
        said = "".join(
            event.delta for event in self.events if event.type == "agent.session.turn.output_text.delta"
        )
        return said == "Done." and self.events[-2].type == "agent.session.turn.completed"


async def proxy_of(proxies: Proxies, sandbox: str) -> Proxy:
    return await proxies.of(sandbox=sandbox, approvals="ask", api_key=KEY)


def outputs_of(model: ModelServer) -> list[str]:
    return [str(item["output"]) for item in input_of(model.calls[-1]) if "output" in item]


async def test_an_approved_command_runs_once_in_the_sandbox_and_not_before(
    proxies: Proxies, model_server: ModelServer, outside: Path
) -> None:
    proxy = await proxy_of(proxies, "workspace-write")
    asked, within = Asked(proxy), proxies.home.workdir / "within"
    asked.before_answer = lambda: seen.append(within.exists())  # type: ignore[method-assign]
    seen: list[bool] = []
    await asked.run([shell(f"echo once >> within; touch {outside}/made")])
    (action,) = asked.actions
    assert action.request.server_label == "agent"
    assert action.request.name == "run_command"
    assert f"touch {outside}/made" in action.request.arguments["command"]
    assert action.request.arguments["cwd"] == str(proxies.home.workdir)
    assert seen == [False]
    assert within.read_text() == "once\n"
    # Without the profile Codex repeats a command that the sandbox has stopped, outside of it, and asks nobody.
    assert not any(outside.iterdir())
    assert "Read-only file system" in outputs_of(model_server)[0]
    assert asked.ended_well


async def test_a_denied_command_does_not_run_and_the_turn_goes_on(proxies: Proxies) -> None:
    asked = Asked(await proxy_of(proxies, "workspace-write"), "deny")
    await asked.run([shell("touch within")])
    assert len(asked.actions) == 1
    assert not (proxies.home.workdir / "within").exists()
    assert asked.statuses == ["failed"]
    assert asked.ended_well


async def test_two_commands_of_one_step_are_asked_for_at_once(proxies: Proxies) -> None:
    asked = Asked(await proxy_of(proxies, "workspace-write"))
    await asked.run([shell("touch one"), shell("touch two")])
    assert len({action.request_id for action in asked.actions}) == 2
    assert {each.name for each in proxies.home.workdir.glob("*")} >= {"one", "two"}
    assert asked.ended_well


async def test_a_command_that_the_model_wants_outside_of_the_sandbox_is_declined_at_once(
    proxies: Proxies, outside: Path
) -> None:
    asked = Asked(await proxy_of(proxies, "workspace-write"))
    escalated = {"sandbox_permissions": "require_escalated", "justification": "I want to."}
    await asked.run([shell(f"touch {outside}/made; touch within", **escalated)])
    assert not asked.actions
    assert not any(outside.iterdir())
    assert not (proxies.home.workdir / "within").exists()
    assert asked.ended_well


async def test_a_later_turn_asks_too_and_declines_the_same(proxies: Proxies, outside: Path) -> None:
    asked = Asked(await proxy_of(proxies, "workspace-write"))
    await asked.run([shell("touch one")])
    escalated = {"sandbox_permissions": "require_escalated", "justification": "I want to."}
    await asked.run_again([shell("touch two")], [shell(f"touch {outside}/made", **escalated)])
    assert len(asked.actions) == 2
    assert {each.name for each in proxies.home.workdir.glob("[ot]*")} == {"one", "two"}
    assert not any(outside.iterdir())
    assert asked.ended_well


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_patch_of_the_folder_is_asked_for(proxies: Proxies, decision: str) -> None:
    asked = Asked(await proxy_of(proxies, "workspace-write"), decision)
    await asked.run([patch("new.txt")])
    (action,) = asked.actions
    path = proxies.home.workdir / "new.txt"
    assert action.request.name == "apply_patch"
    assert action.request.arguments["changes"] == [{"path": str(path), "kind": "add", "diff": "hello\n"}]
    assert path.exists() is (decision == "approve")
    assert asked.statuses == ["completed" if decision == "approve" else "failed"]
    assert asked.ended_well


async def test_a_patch_that_reaches_elsewhere_is_declined_at_once(proxies: Proxies, outside: Path) -> None:
    asked = Asked(await proxy_of(proxies, "workspace-write"))
    (proxies.home.workdir / "link").symlink_to(outside)
    steps = [patch(f"{outside}/new.txt"), patch("link/new.txt"), patch(".git/hooks/post-commit")]
    await asked.run(*([step] for step in steps))
    assert not asked.actions
    assert not any(outside.iterdir())
    assert not (proxies.home.workdir / ".git" / "hooks").exists()
    assert asked.statuses == ["failed"] * 3
    assert asked.ended_well


async def test_a_link_that_comes_before_the_answer_leads_a_patch_nowhere(
    proxies: Proxies, outside: Path
) -> None:
    asked, folder = Asked(await proxy_of(proxies, "workspace-write")), proxies.home.workdir / "later"
    asked.before_answer = lambda: folder.symlink_to(outside)  # type: ignore[method-assign]
    await asked.run([patch("later/new.txt")])
    assert len(asked.actions) == 1
    assert not any(outside.iterdir())
    assert asked.statuses == ["failed"]
    assert asked.ended_well


@pytest.mark.exhaustive
async def test_a_read_only_turn_asks_for_commands_alone(proxies: Proxies) -> None:
    asked = Asked(await proxy_of(proxies, "read-only"))
    await asked.run([shell("touch within || echo STOPPED")], [patch("new.txt")])
    assert [action.request.name for action in asked.actions] == ["run_command"]
    assert not any(proxies.home.workdir.glob("*t*"))
    assert asked.ended_well


async def test_without_a_sandbox_everything_is_asked_for(proxies: Proxies, outside: Path) -> None:
    asked = Asked(await proxy_of(proxies, "danger-full-access"))
    await asked.run([shell(f"touch {outside}/one")], [patch(f"{outside}/two")])
    assert [action.request.name for action in asked.actions] == ["run_command", "apply_patch"]
    assert {each.name for each in outside.iterdir()} == {"one", "two"}
    assert asked.ended_well


async def test_another_api_goes_on_as_if_nobody_could_answer(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy = await proxy_of(proxies, "workspace-write")
    client = proxy.client.with_options(api_key=KEY)
    asked = f"{plan([shell('touch within')], [say('Done.')])} Do it."
    answer = await client.responses.create(model="codex-5", input=asked)
    assert answer.output_text == "Done."
    assert (proxies.home.workdir / "within").exists()
