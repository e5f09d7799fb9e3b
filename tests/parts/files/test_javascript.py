"""The vendors' SDKs for TypeScript as clients of files."""

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
"""npm has to install them first."""

PROGRAM = Path(__file__).with_name("sdks.mjs")


async def test_both_sdks_for_typescript_keep_files(tmp_path: Path) -> None:
    packages = installed("openai@7.59.0", "@anthropic-ai/sdk@1.14.0")
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
        "openai": ["file", "a.txt", 6, 3600],
        "anthropic": ["file", "b.txt", 6, None],
        "texts": ["Hello.", "Hello."],
        "listed": [["b.txt", "a.txt"]] * 2,
        "deleted": [True, "file_deleted"],
        "missing": [404, 404],
    }
