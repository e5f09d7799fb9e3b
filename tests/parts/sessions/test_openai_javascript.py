"""OpenAI's SDK for JavaScript, whose types tell which fields may be absent, as a client of sessions."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.npm import installed
from tests.waiting import PATIENCE

pytestmark = pytest.mark.exhaustive
"""npm has to install it first."""

PROGRAM = Path(__file__).with_name("openai_sessions.mjs")


async def test_the_sdk_for_javascript_runs_a_session_with_a_function(tmp_path: Path) -> None:
    packages = installed("openai@7.59.0")
    folder = tmp_path / "program"
    folder.mkdir()
    file = folder / PROGRAM.name
    file.write_text(PROGRAM.read_text())
    (folder / "node_modules").symlink_to(packages / "node_modules")
    node = shutil.which("node")
    assert node is not None, "npm comes with node"
    async with fake_proxy(tmp_path) as proxy:
        done = await asyncio.to_thread(
            subprocess.run,
            [node, str(file), proxy.url],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [told["types"][0], *told["types"][-2:]] == [
        "agent.session.created",
        "agent.session.turn.completed",
        "agent.session.idle",
    ]
    assert told["asked"] == [{"city": "Paris"}, {"city": "Rome"}]
    assert told["text"] == "It is sunny."
    assert told["items"] == [
        *("message", "message", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    assert told["deleted"] is True
