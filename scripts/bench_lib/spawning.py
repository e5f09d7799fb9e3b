"""Row 14: the CPU time that a child costs besides its own: in the server, in the spawner and in the child's warden."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from codex_proxy.process.launch import Command
from codex_proxy.process.spawner import call_at_exit, launch_under_warden, use_spawner
from scripts.bench_lib.figures import Figure

PROGRAM = "/bin/cat"
"""A program that takes next to no time, and ends with its stdin."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    children, rounds = (5, 1) if quick else (300, 5)
    alone: list[float] = []
    added: list[float] = []
    for _ in range(rounds):
        alone.append(_alone(children))
        added.append(asyncio.run(_under_wardens(children, str(folder.parent))) - alone[-1])
    yield Figure(
        row="14",
        what="CPU of server, spawner and warden for a child",
        against="the CPU of `cat`, started by posix_spawn",
        ratio=median(added) / median(alone),
        goal="<= 2 ms",
        samples=children * rounds,
        value=f"{median(added) * 1000:.2f} ms",
    )


def _alone(children: int) -> float:
    """Returns the CPU seconds of a child without a warden."""
    before = _cpu(resource.RUSAGE_CHILDREN)
    for _ in range(children):
        read_end, write_end = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_CLOSE, write_end)]
        pid = os.posix_spawn(PROGRAM, [PROGRAM], os.environ, file_actions=actions)
        os.close(read_end)
        os.close(write_end)
        os.waitpid(pid, 0)
    return (_cpu(resource.RUSAGE_CHILDREN) - before) / children


async def _under_wardens(children: int, folder: str) -> float:
    """Returns the CPU seconds of a child and of all that this server does for it."""
    command = Command((PROGRAM,), dict(os.environ), folder)
    spawner = use_spawner()
    try:
        await _run(command)  # starts the spawner
        assert spawner.process is not None
        pid = spawner.process.pid
        before = _server_side(pid)
        for _ in range(children):
            await _run(command)
        return (_server_side(pid) - before) / children
    finally:
        await spawner.close()


async def _run(command: Command) -> None:
    loop = asyncio.get_running_loop()
    launched = await launch_under_warden(command)
    exited: asyncio.Future[int] = loop.create_future()
    call_at_exit(loop, launched.warden, exited.set_result)
    os.close(launched.stdin)
    await exited
    for descriptor in (launched.stdout, launched.stderr, launched.lifeline):
        os.close(descriptor)
    if launched.slot is not None:
        launched.slot.free()


def _server_side(spawner: int) -> float:
    """Returns the CPU seconds so far of this process, of its ended wardens with their children, and of the spawner."""
    nanoseconds = int(Path(f"/proc/{spawner}/schedstat").read_text().split()[0])
    return _cpu(resource.RUSAGE_SELF) + _cpu(resource.RUSAGE_CHILDREN) + nanoseconds / 1e9


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
