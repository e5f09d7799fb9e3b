"""The files of turns at a terminal and in a pipe: `codex-proxy chat`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.commands.chatting import Terminal, terminal
from tests.commands.codexes import environment
from tests.http.serving import Proxy
from tests.parts.snapshots.working import Worker, snapshot_proxy
from tests.waiting import eventually

pytestmark = pytest.mark.part("terminal")


async def test_a_person_sees_what_a_turn_has_done_and_takes_it_back(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("one\ntwo\n")
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("one\n2\x1b]0;title\x07\n"))
        await worker.turn(lambda: (folder / "b.bin").write_bytes(b"\0\1"))
        async with terminal(client.proxy.url, tmp_path, "--resume", worker.session) as chat:
            await chat.shows("[[fake:tool_call]]")
            chat.type("/diff")
            await chat.shows("1 file changed (+0 -0)")
            await chat.shows("A b.bin (binary, 2 bytes)")
            chat.type("/diff 2")
            await chat.shows("M a (+1 -1)")
            await chat.shows("\x1b[31m-two")
            await chat.shows("\x1b[32m+2\\x1b]0;title\\x07")
            chat.type("/diff 3")
            await chat.shows("The session has 2 turns that have ended.")
            chat.type("/revert 2")
            await chat.shows("Revert? y or nothing")
            chat.type("n")
            await chat.shows("Nothing was changed.")
            (folder / "a").write_text("by its user")
            chat.type("/revert 2")
            await chat.shows("Revert? y or nothing", times=2)
            chat.type("y")
            await chat.shows("Here: /revert 2 force")
            assert (folder / "a").read_text() == "by its user"
            chat.type("/revert 2 --force")
            await chat.shows("Revert? y or nothing", times=3)
            chat.type("y")
            await chat.shows("What was overwritten is kept as")
            assert (folder / "a").read_text() == "one\ntwo\n"


@asynccontextmanager
async def after_two_turns(home: Path) -> AsyncIterator[tuple[Terminal, Path]]:
    """A terminal in a session whose two turns have written the file `a`, and its folder."""
    async with snapshot_proxy(home) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("first"))
        await worker.turn(lambda: (folder / "a").write_text("second"))
        async with terminal(client.proxy.url, folder, "--resume", worker.session) as chat:
            await chat.shows("[[fake:tool_call]]", times=2)
            yield chat, folder


async def test_a_copy_gets_the_files_of_then_in_a_folder_of_its_own(tmp_path: Path) -> None:
    async with after_two_turns(tmp_path) as (chat, folder):
        chat.type("/fork 1 copy")
        await chat.shows(f"It works in {folder / 'copy'}")
        assert (folder / "copy" / "a").read_text() == "first"
        chat.press("\x15")  # the message that was left out
        chat.type("/patch its.patch")
        await chat.shows("Written to ")
        assert "+first" in (folder / "its.patch").read_text()
        chat.type("/patch its.patch")
        await chat.shows("cannot be written: File exists.")


async def test_a_copy_in_a_worktree_is_merged_at_the_terminal(tmp_path: Path) -> None:
    async with after_two_turns(tmp_path) as (chat, folder):
        chat.type("/fork 1 --worktre")
        await chat.shows("then a folder or --worktree.")
        chat.type("/fork 1 --worktree")
        await chat.shows("It works in a worktree")
        [copy] = tmp_path.glob("state-worktrees/*/*/*/a")
        assert copy.read_text() == "first"
        chat.press("\x15")  # the message that was left out
        (copy.parent / "b").write_text("2")
        chat.type("/merge")
        await chat.shows("Merge? y or nothing")
        chat.type("y")
        await eventually((folder / "b").exists)
        assert (folder / "a").read_text() == "second"


async def test_without_snapshots_the_terminal_says_how_to_have_them(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshots="off") as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        async with terminal(client.proxy.url, tmp_path, "--resume", worker.session) as chat:
            await chat.shows("[[fake:tool_call]]")
            chat.type("/diff")
            await chat.shows("PROXY_SNAPSHOTS=sessions")


async def test_a_pipe_is_told_which_files_the_turn_has_changed(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        async with client.following(worker.session) as events:
            chat = await piped(client.proxy, folder, "--resume", worker.session, "[[fake:tool_call]]")
            async for event in events:
                await client.answer_call(event, lambda _: str((folder / "b\x1b").write_text("2\n")))
                if event["type"] == "agent.session.idle":
                    break
        answer, told = await chat.communicate()
        assert (chat.returncode, answer.decode()) == (0, "The tool said: 2\n")
        assert "codex-proxy: 1 file changed (+1 -0)\ncodex-proxy:   A b\\x1b (+1 -0)\n" in told.decode()


async def piped(proxy: Proxy, home: Path, *arguments: str) -> asyncio.subprocess.Process:
    """`codex-proxy chat` with these arguments, in the folder `home`, without a terminal."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "codex_proxy", "chat", "--base-url", f"{proxy.url}/v1", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home,
        env=environment(home, {}),
    )
