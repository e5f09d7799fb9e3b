"""The unit of deploy/, and the one that is installed, are ones that systemd takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.examples import example
from tests.waiting import PATIENCE

ANALYZE = shutil.which("systemd-analyze")
pytestmark = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed (Debian: systemd)")


def systemd_complaints(home: Path, unit: str) -> str:
    """What systemd says of a user's unit; nothing where it has nothing to say."""
    script = home / "codex-proxy" / "scripts" / "start"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (home / "projects").mkdir()
    file = home / "codex-proxy.service"
    file.write_text(unit)
    environment = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PATH": "/usr/bin:/bin"}
    assert ANALYZE is not None
    said = subprocess.run(
        [ANALYZE, "--user", "--man=no", "verify", str(file)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE,
    )
    found = said.stdout + said.stderr
    return "\n".join(line for line in found.splitlines() if "codex-proxy" in line)


def test_systemd_takes_the_unit_as_it_stands(tmp_path: Path) -> None:
    assert systemd_complaints(tmp_path, example("codex-proxy.service")) == ""


def test_systemd_would_say_what_is_wrong(tmp_path: Path) -> None:
    wrong = example("codex-proxy.service").replace("KillMode=mixed", "KillMode=mixt")
    assert "kill mode" in systemd_complaints(tmp_path, wrong)


@pytest.mark.part("service")
@pytest.mark.parametrize("flags", [(), ("--port", "8080"), ("--upstream-url", 'http://127.0.0.1/a b"c$d%e;')])
def test_systemd_takes_the_unit_that_is_installed(tmp_path: Path, flags: tuple[str, ...]) -> None:
    from codex_proxy.parts.service.login_service import unit_text  # it needs the part

    command = (sys.executable, "-P", "-m", "codex_proxy", "serve", *flags)
    assert systemd_complaints(tmp_path, unit_text(command, tmp_path / "projects", "/usr/bin:/bin")) == ""
