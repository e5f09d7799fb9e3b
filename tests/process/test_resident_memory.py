"""What a process and those it came up with hold in memory, read off the system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from codex_proxy.process.descendants import family_of, resident_bytes, started

MIB = 1 << 20
WRAPPED = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
HOLDING = "import sys; held = bytearray(b'x') * (64 << 20); print('ready', flush=True); sys.stdin.read()"

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="nothing is known without /proc")


@pytest.fixture
def wrapped() -> Iterator[subprocess.Popen[bytes]]:
    """A program with 64 MiB, started through another one."""
    with subprocess.Popen(
        [sys.executable, "-c", WRAPPED, HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        yield child
        child.stdin.close()


def test_what_came_up_through_a_wrapper_counts(wrapped: subprocess.Popen[bytes]) -> None:
    family = {wrapped.pid: started(wrapped.pid)} | family_of(wrapped.pid)
    assert len(family) == 2
    assert 64 * MIB < resident_bytes(family) < 150 * MIB


def test_a_process_that_took_over_the_number_of_one_that_ended_does_not_count() -> None:
    assert resident_bytes({os.getpid(): started(os.getpid())}) > MIB
    assert resident_bytes({os.getpid(): started(os.getpid()) - 1}) == 0


def test_what_has_ended_does_not_count() -> None:
    assert resident_bytes({1 << 30: 0.0}) == 0
    assert family_of(1 << 30) == {}
