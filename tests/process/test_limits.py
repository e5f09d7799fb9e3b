"""Resource limits hold for children and all that they start, and not for the warden."""

from __future__ import annotations

import json
import resource
import sys

import pytest
from msgspec.structs import replace

from codex_proxy.process.launch import ChildLimits
from codex_proxy.process.warden import parse_limits
from tests.process.children import command, python
from tests.process.conftest import Start

TELLS = "import json, resource as r; print(json.dumps([r.getrlimit(k) for k in {kinds}]))"
MINE = [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]


async def limits_of(start: Start, limits: ChildLimits, *kinds: str) -> list[tuple[int, int]]:
    """Returns the soft and hard limits that a child with these settings sees."""
    names = ",".join(f"r.RLIMIT_{kind}" for kind in kinds)
    _, recorder = await start(replace(python(TELLS.replace("{kinds}", f"({names},)")), limits=limits))
    exit = await recorder.exit()
    assert exit.code == 0, exit
    return [tuple(pair) for pair in json.loads(recorder.data)]


async def test_a_child_dumps_no_core_and_has_the_files_that_it_is_given(start: Start) -> None:
    [core, files] = await limits_of(start, ChildLimits(open_files=300), "CORE", "NOFILE")
    assert core == (0, MINE[0][1]), "it may ask for its own"
    assert files == (300, MINE[1][1])


async def test_limits_of_0_are_the_servers_own(start: Start) -> None:
    limits = ChildLimits(open_files=0)
    kinds = ("NOFILE", "AS", "NPROC")
    assert await limits_of(start, limits, *kinds) == [
        resource.getrlimit(getattr(resource, f"RLIMIT_{kind}")) for kind in kinds
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count them otherwise, or not at all")
async def test_limits_of_memory_and_processes_cannot_be_raised_again(start: Start) -> None:
    limits = ChildLimits(address_space=4 << 30, processes=100_000)
    [space, processes] = await limits_of(start, limits, "AS", "NPROC")
    assert space == (4 << 30, 4 << 30)
    assert processes[0] == processes[1] <= 100_000


async def test_more_than_the_system_allows_is_as_much_as_it_allows(start: Start) -> None:
    hard = MINE[1][1]
    [files] = await limits_of(start, ChildLimits(open_files=1 << 40), "NOFILE")
    assert (
        files == (min(hard, 1 << 40) if hard != resource.RLIM_INFINITY else 1 << 40, hard) or files == MINE[1]
    )


def test_a_limit_that_this_system_does_not_know_is_ignored() -> None:
    limits = parse_limits(["soft:NO_SUCH_LIMIT=1", "soft:NOFILE=20", "AS=30"])
    assert limits == [(resource.RLIMIT_NOFILE, 20, True), (resource.RLIMIT_AS, 30, False)]


async def test_a_child_beyond_its_limit_fails_and_its_warden_does_not(start: Start) -> None:
    opens = "import os\nfor n in range(100): os.open('/', os.O_RDONLY)"
    _, recorder = await start(replace(python(opens), limits=ChildLimits(open_files=20)))
    exit = await recorder.exit()
    assert exit.code == 1
    assert "Too many open files" in exit.stderr_tail


def test_by_default_only_core_dumps_and_open_files_are_limited() -> None:
    assert command("true").limits.warden_arguments() == ["soft:CORE=0", "soft:NOFILE=4096"]
