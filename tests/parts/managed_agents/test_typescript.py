"""Anthropic's SDK for TypeScript as a client of definitions."""

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

PROGRAM = Path(__file__).with_name("anthropic_definitions.mjs")


async def test_the_sdk_for_typescript_keeps_definitions(tmp_path: Path) -> None:
    packages = installed("@anthropic-ai/sdk@1.14.0")
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
    assert json.loads(done.stdout) == {
        "null": [True, True, True],
        "changed": [2, "Be kind."],
        "stale": [True, 409],
        "versions": [2, 1],
        "archived": True,
        "names": ["c", "b", "a"],
    }
