"""The memory of a process and its descendants, read from the system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from codex_proxy.process.own_process import descendants_of, resident_bytes, start_time

MIB = 1 << 20
WRAPPED = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
HOLDING = "import sys; held = bytearray(b'x') * (64 << 20); print('ready', flush=True); sys.stdin.read()"

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="nothing is known without /proc")


@pytest.fixture
def wrapped_program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that holds 64 MiB, started through a wrapper."""
    with subprocess.Popen(
        [sys.executable, "-c", WRAPPED, HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        yield child
        child.stdin.close()


def test_a_process_started_through_a_wrapper_counts(wrapped_program: subprocess.Popen[bytes]) -> None:
    family = {wrapped_program.pid: start_time(wrapped_program.pid)} | descendants_of(wrapped_program.pid)
    assert len(family) == 2
    assert 64 * MIB < resident_bytes(family) < 150 * MIB


def test_a_process_that_reuses_the_pid_of_one_that_ended_does_not_count() -> None:
    assert resident_bytes({os.getpid(): start_time(os.getpid())}) > MIB
    assert resident_bytes({os.getpid(): start_time(os.getpid()) - 1}) == 0


def test_a_process_that_has_ended_does_not_count() -> None:
    assert resident_bytes({1 << 30: 0.0}) == 0
    assert descendants_of(1 << 30) == {}
