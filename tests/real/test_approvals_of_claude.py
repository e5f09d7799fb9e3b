"""Approvals in sessions on the real Claude Code, which has no sandbox: changes of files in the folder are asked for,
and all else only where everything is allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.test_approvals import KEY, WAITS

pytestmark = [pytest.mark.part("sessions"), pytest.mark.exhaustive]


def tool(name: str, **args: Any) -> dict[str, Any]:
    return {"tools": [{"name": name, "args": args}]}


async def asked_in(
    folder: Path, sandbox: str, decision: str, *steps: dict[str, Any]
) -> tuple[list[Any], list[str]]:
    """Runs a turn whose questions get the decision. Returns these, and the statuses of commands and changes."""
    async with (
        anthropic_model() as model,
        claude_proxy(folder, model, sandbox=sandbox, approvals="ask", api_key=KEY) as (client, server),
    ):
        sessions = client.with_options(api_key=KEY).beta.agents.sessions
        workdir = str(server.settings.workdir)
        environment: Any = {"type": "self_hosted", "workspace_directory": workdir, "remote_url": ""}
        agent: Any = {"model": "codex-5"}
        text = f"Do it. {script(*steps, {'text': 'Done.'})}"
        stream: Any = await sessions.create(environment=environment, agent=agent, input=text, stream=True)
        actions, events = list[Any](), list[Any]()
        async for event in stream:
            events.append(event)
            if event.type == WAITS:
                (action,) = event.session.required_actions
                actions.append(action)
                answer: Any = {
                    "type": "agent.session.input.mcp_approval_request_result",
                    "request_id": action.request_id,
                    "response": {"type": "mcp_tool_call", "decision": decision},
                }
                await sessions.events.create(event.session.id, events=[answer])
        assert events[-2].type == "agent.session.turn.completed"
        done = [event.item for event in events if event.type == "agent.session.turn.item.done"]
        return actions, [item.status for item in done if item.type == "command_execution"]


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_change_of_a_file_in_the_folder_is_asked_for(tmp_path: Path, decision: str) -> None:
    path, outside = tmp_path / "work" / "new.txt", tmp_path / "outside.txt"
    actions, statuses = await asked_in(
        *(tmp_path, "workspace-write", decision),
        tool("Write", file_path=str(path), content="hello\n"),
        tool("Write", file_path=str(outside), content="hello\n"),
        tool("Bash", command="touch made", description="x"),
    )
    assert [action.request.name for action in actions] == ["apply_patch"]
    assert actions[0].request.arguments["changes"] == [{"path": str(path), "kind": None, "diff": "+hello\n"}]
    assert path.exists() is (decision == "approve")
    assert not outside.exists()
    assert not (tmp_path / "work" / "made").exists()
    assert statuses == ["completed" if decision == "approve" else "failed", "failed", "failed"]


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_without_a_sandbox_a_command_is_asked_for(tmp_path: Path, decision: str) -> None:
    actions, statuses = await asked_in(
        *(tmp_path, "danger-full-access", decision),
        tool("Bash", command="touch made", description="Makes it."),
    )
    (action,) = actions
    assert action.request.name == "run_command"
    assert action.request.arguments == {
        "command": "touch made",
        "cwd": str(tmp_path / "work"),
        "reason": "Makes it.",
    }
    assert (tmp_path / "work" / "made").exists() is (decision == "approve")
    assert statuses == ["completed" if decision == "approve" else "failed"]
