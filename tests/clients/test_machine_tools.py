"""OpenAI's Agents SDK works in a folder with its own `ShellTool` and `ApplyPatchTool`, which it runs itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.clients.running import CLIENTS, HERE, output_of
from tests.model_server import Model, proxy_before, upstream

pytestmark = [pytest.mark.exhaustive, pytest.mark.part("upstream")]
"""The SDK has to be installed first."""

(SDK,) = [client for client in CLIENTS if client.name == "openai-agents-responses"]
STEPS = [
    ("apply_patch", {"type": "create_file", "path": "a.py", "diff": "+def one():\n+    return 2\n"}),
    (
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": "@@ def one():\n-    return 2\n+    return 1\n"},
    ),
    ("shell", {"commands": ["cat a.py", "exit 3"]}),
    ("apply_patch", {"type": "delete_file", "path": "a.py"}),
]


@pytest.mark.parametrize("mode", ["whole", "streamed"])
@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses"])
async def test_the_agents_sdk_runs_commands_and_applies_patches(wire: str, mode: str, tmp_path: Path) -> None:
    if SDK.missing:
        pytest.skip(SDK.missing)
    folder, own = tmp_path / "work", tmp_path / "proxy"
    folder.mkdir()
    own.mkdir()
    async with upstream() as server, proxy_before(server.url, own, agent=wire) as proxy:
        model = Model(wire, server)
        model.calls(
            "apply_patch", '{"operation": {"type": "update_file", "path": "a.py", "diff": ""}}', "wrong"
        )
        for number, (name, step) in enumerate(STEPS):
            arguments = {"operation": step} if name == "apply_patch" else step
            model.calls(name, json.dumps(arguments), f"call_{number}")
        model.says("Done.")
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "BASE_URL": f"{proxy.url}/v1"}
        program = str(HERE / "programs" / "openai-agents-machine.py")
        said = await output_of(
            [str(SDK.python), program], {**environment, "MODEL": "small", "MODE": mode}, folder
        )
        await proxy.settled()
    assert json.loads(said.splitlines()[-1]) == {"answer": "Done."}
    created, updated, printed, deleted = model.told[-4:]
    assert (created, updated, deleted) == ("completed: Created a.py.", "completed", "completed")
    assert [(part["stdout"], part["outcome"].get("exit_code")) for part in json.loads(printed)] == [
        ("def one():\n    return 1", 0),
        ("", 3),
    ]
    assert not list(folder.iterdir())
