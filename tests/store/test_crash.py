"""What was acknowledged survives SIGKILL at any moment, and the file opens clean.

A nursery imports the store once and forks a child for each life: a kill takes some milliseconds. A child writes
turns with several callers at once, and prints each id when its write has returned.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_proxy.store.sqlite.opening import connect
from codex_proxy.store.sqlite.store import SqliteStore
from tests.store.stored import Hands, context_ids, whole_turns
from tests.waiting import PATIENCE

MAX_LIFE = 0.04
"""Seconds from the fork: from before the file is opened until long after the first commits, as a rule."""

_NURSERY = """
import asyncio, os, sys
from pathlib import Path
from codex_proxy.store.values import StoreConflict
from codex_proxy.store.sqlite.store import SqliteStore
from tests.store.stored import Hands, conversation, turn

async def caller(store, life, number):
    before = None
    for step in range(1000):
        id = f"resp_{life}_{number}_{step}"
        await turn(store, id, after=before, append="conv_1", size=300 * number)
        before = id
        os.write(1, id.encode() + b"\\n")

async def live(path, life):
    store = await SqliteStore.open(Path(path), clock=Hands())
    try:
        await store.add_conversation(conversation("conv_1"))
    except StoreConflict:
        pass
    await asyncio.gather(*(caller(store, life, number) for number in range(6)))

life = 0
while sys.stdin.readline():
    life += 1
    child = os.fork()
    if not child:
        asyncio.run(live(sys.argv[1], life))
        os._exit(0)
    os.write(1, b"born %d\\n" % child)
    _, status = os.waitpid(child, 0)
    os.write(1, b"dead %d\\n" % status)
"""


class Nursery:
    """Lets one child after the other live, and collects what they acknowledged."""

    def __init__(self, path: Path) -> None:
        self.acknowledged: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def one_life(self, seconds: float, writes: int) -> None:
        """Forks a child and kills it after so long, and not before so many writes were acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        child = int(self._next("born"))
        wanted = len(self.acknowledged) + writes
        while len(self.acknowledged) < wanted:
            assert self._readable(30)
            self._read_line()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._readable(left):
            self._read_line()
        os.kill(child, signal.SIGKILL)
        assert int(self._next("dead")) == signal.SIGKILL, "the child ended by itself"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _readable(self, seconds: float) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().rstrip("\n")
        assert line, "the nursery has ended"
        if line.startswith("resp_"):
            self.acknowledged.append(line)
        return line

    def _next(self, word: str) -> str:
        while not (line := self._read_line()).startswith(word):
            assert self._readable(30)
        return line.partition(" ")[2]


@pytest.fixture
def nursery(path: Path) -> Iterator[Nursery]:
    nursery = Nursery(path)
    yield nursery
    nursery.close()


async def chained_turns(path: Path, acknowledged: list[str]) -> None:
    """Everything acknowledged is there, as whole turns, chained, and in the conversation."""
    store = await SqliteStore.open(path, clock=Hands())
    for id in (await whole_turns(store, acknowledged))[-20:]:
        steps = int(id.rpartition("_")[2]) + 1
        assert len(await context_ids(store, id)) == 2 * steps
    await store.close()


@pytest.mark.parametrize("kills", [25, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_every_acknowledged_write_survives_many_kills(nursery: Nursery, path: Path, kills: int) -> None:
    chance = random.Random(5)
    for life in range(kills):
        # On a busy machine time alone may pass before anything is written.
        nursery.one_life(chance.uniform(0, MAX_LIFE), writes=life % 2)
    assert len(nursery.acknowledged) >= kills // 2
    connection = connect(str(path), 0.0)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA foreign_key_check").fetchone() is None
    connection.close()
    asyncio.run(chained_turns(path, nursery.acknowledged))
