"""Other processes cannot read the environment of the proxy, which holds keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no such thing elsewhere")

NOBODY = 65534
SCRIPT = """
import ctypes, os, sys
from codex_proxy.process.own_process import make_undumpable
if os.getuid() == 0:  # root sees everything
    os.setgroups([])
    os.setgid({nobody})
    os.setuid({nobody})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # which a change of the user has switched off
if sys.argv[1] == "undumpable":
    assert make_undumpable()
if os.fork() == 0:
    os.execv("/bin/sh", ["sh", "-c", f"cat /proc/{{os.getppid()}}/environ; cat /proc/self/environ >/dev/null"])
pid, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def neighbour(how: str) -> str:
    """Returns what a child of a process can read of that process's environment."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(nobody=NOBODY), how],
        env={"SECRET": "planted", "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, "the child itself is dumpable: " + done.stderr
    return done.stdout


def test_a_child_reads_the_environment_of_an_ordinary_parent_and_not_that_of_an_undumpable_one() -> None:
    assert "planted" in neighbour("ordinary")
    assert neighbour("undumpable") == ""


SERVING = """
import ctypes
from codex_proxy.cli import main
try:
    main(["serve", "--agent", "fake", "--host", "192.0.2.1"])  # which is refused without a key
except SystemExit:
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def test_a_server_is_undumpable_before_it_reads_its_settings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVING],
        env={"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "0\n", done.stderr
