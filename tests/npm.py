"""Packages of npm for tests: clients that there are for JavaScript alone."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


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
