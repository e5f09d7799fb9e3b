"""Sessions of programs that speak ACP: what they ask permission for is asked of the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.parts.sessions.approving import ASKING, KEY, answer_to
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.test_approvals import WAITS
from tests.parts.sessions.test_folders import hosted


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_command_waits_for_the_answer(tmp_path: Path, decision: str) -> None:
    async with fake_proxy(tmp_path, **{**ASKING, "fake_dialect": "acp"}) as proxy:
        client, folder = AgentsClient(proxy, KEY), str(proxy.server.settings.workdir)
        async with client.creation("[[fake:approval]]", **hosted(Path(folder))) as reader:
            session = (await reader.until(WAITS))["session"]
            (action,) = session["required_actions"]
            assert action["request"]["name"] == "run_command"
            assert action["request"]["arguments"] == {
                "command": "rm -rf build",
                "cwd": folder,
                "reason": None,
            }
            await client.send(session["id"], answer_to(action, decision))
            told = await reader.rest()
        done = [event["item"] for event in told if event["type"].endswith("item.done")]
        commands = [item["status"] for item in done if item["type"] == "command_execution"]
        assert commands == ["completed" if decision == "approve" else "failed"]


async def test_without_a_sandbox_of_its_own_a_program_changes_files_of_the_folder_alone(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    settings = {**ASKING, "fake_dialect": "acp", "sandbox": "workspace-write", "workdir": work}
    async with fake_proxy(tmp_path, **settings) as proxy:
        client, folder = AgentsClient(proxy, KEY), Path(proxy.server.settings.workdir)
        async with client.creation("[[fake:activity]]", **hosted(folder)) as reader:
            session = (await reader.until(WAITS))["session"]
            (action,) = session["required_actions"]
            changes = [{"path": str(folder / "new.txt"), "kind": "add", "diff": "hello\n"}]
            assert action["request"]["arguments"] == {"changes": changes, "reason": None}
            done = [event["item"] for event in reader.events if event["type"].endswith("item.done")]
            statuses = [item["status"] for item in done if item["type"] == "command_execution"]
            assert statuses == ["failed"], "the command was declined at once"
            await client.send(session["id"], answer_to(action))
            await reader.rest()
