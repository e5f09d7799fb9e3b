"""Packages of npm for tests: clients that there are for JavaScript alone."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.waiting import PATIENCE


@cache
def installed(*packages: str) -> Path:
    """A folder with these packages (``name@version``), which npm installs once, among the temporary files. Skips the
    test, with the reason, where there is no npm or it cannot install them."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm, which could install " + ", ".join(packages))
    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"codex-proxy-npm-{os.getuid()}-{digest}"
    done = folder / "installed"
    if not done.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            pytest.skip(f"npm cannot install {', '.join(packages)}: {run.stderr.strip()[-300:]}")
        done.touch()
    return folder


async def run_beside(packages: Sequence[str], program: str, folder: Path, *arguments: str) -> str:
    """What this program for node prints, run in a folder of its own beside these packages."""
    modules = installed(*packages) / "node_modules"
    folder = folder / "program"
    folder.mkdir()
    file = folder / "program.mjs"
    file.write_text(program)
    (folder / "node_modules").symlink_to(modules)
    node = shutil.which("node")
    assert node is not None, "npm comes with node"
    done = await asyncio.to_thread(
        subprocess.run,
        [node, str(file), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
