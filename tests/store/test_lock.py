"""One server at a time keeps a store, and whoever died has let go of it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from codex_proxy.store.sqlite.opening import StoreLock
from codex_proxy.store.values import StoreInUse, StoreRefused
from tests.waiting import PATIENCE

HOLDER = """
import asyncio, sys
from pathlib import Path
from codex_proxy.store.sqlite.opening import StoreLock
lock = asyncio.run(StoreLock.take(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_second_server_is_refused_and_told_who_has_the_file(path: Path) -> None:
    lock = await StoreLock.take(path)
    with pytest.raises(StoreInUse) as refused:
        await StoreLock.take(path, within=0)
    assert f"another server (process {os.getpid()}) keeps its responses in {path}" in str(refused.value)
    lock.write_address("http://127.0.0.1:11435")
    with pytest.raises(StoreRefused, match=rf"\(process {os.getpid()}, http://127.0.0.1:11435\)"):
        await StoreLock.take(path, within=0)
    lock.release()
    (await StoreLock.take(path)).release()


async def test_a_link_to_the_store_is_the_store(path: Path, tmp_path: Path) -> None:
    lock = await StoreLock.take(path)
    path.touch()
    (tmp_path / "file.db").symlink_to(path)
    (tmp_path / "folder").symlink_to(path.parent)
    for link in (tmp_path / "file.db", tmp_path / "folder" / path.name):
        with pytest.raises(StoreRefused, match=f"process {os.getpid()}"):
            await StoreLock.take(link, within=0)
    lock.release()


@pytest.mark.parametrize("kind", ["link", "hard link"])
async def test_what_lies_in_the_place_of_the_lock_is_not_written_to(
    path: Path, tmp_path: Path, kind: str
) -> None:
    path.parent.mkdir()
    (tmp_path / "precious").write_text("mine")
    make = os.symlink if kind == "link" else os.link
    make(tmp_path / "precious", path.with_name(path.name + ".lock"))
    with pytest.raises(
        StoreRefused, match=r"the lock .* of the store (is a symbolic link|has a second name)"
    ):
        await StoreLock.take(path)
    assert (tmp_path / "precious").read_text() == "mine"


async def test_a_server_that_was_killed_holds_nothing(path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreRefused, match=f"process {other.pid}"):
            await StoreLock.take(path, within=0)
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE)
        (await StoreLock.take(path)).release()


async def test_children_do_not_inherit_the_lock(path: Path) -> None:
    lock = await StoreLock.take(path)
    with subprocess.Popen(["sleep", "60"]) as child:
        lock.release()
        (await StoreLock.take(path)).release()
        child.kill()


async def test_only_its_owner_may_read_the_file_of_the_lock(path: Path) -> None:
    lock = await StoreLock.take(path)
    modes = [stat.S_IMODE(file.stat().st_mode) for file in (path.parent, *path.parent.iterdir())]
    lock.release()
    assert modes == [0o700, 0o600]


async def test_a_place_where_no_file_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="cannot be opened"):
        await StoreLock.take(tmp_path / "file" / "store.db")


async def test_a_server_that_starts_while_another_ends_waits_for_it(path: Path) -> None:
    ending = await StoreLock.take(path)
    starting = asyncio.create_task(StoreLock.take(path, within=PATIENCE))
    await asyncio.sleep(0)
    assert not starting.done()
    ending.release()
    (await starting).release()
