"""Homes for one question: gone behind their use, and removed by the next start where somebody was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from codex_proxy.agents.codex.private_home import private_home, remove_left_homes
from tests.waiting import PATIENCE

KILLED = """
import os, signal, sys
from codex_proxy.agents.codex.private_home import private_home
with private_home(sys.argv[1]) as home:
    open(os.path.join(home, "file"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_home_is_empty_for_its_owner_alone_and_gone_afterwards(tmp_path: Path) -> None:
    with private_home(str(tmp_path)) as home:
        assert list(Path(home).iterdir()) == []
        assert Path(home).stat().st_mode & 0o077 == 0
        (Path(home) / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_one_who_was_killed_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=PATIENCE)
    assert len(list(tmp_path.iterdir())) == 1
    with private_home(str(tmp_path)) as home:
        remove_left_homes(str(tmp_path))
        assert list(tmp_path.iterdir()) == [Path(home)]


def test_what_only_looks_like_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home-link").symlink_to("elsewhere")
    (tmp_path / "home-file").touch()
    remove_left_homes(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
