"""What turns of the real Codex do to the files of a git repository, as people see it and take it back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commands.chatting import terminal
from tests.real.model_plans import call, plan, say
from tests.real.release import needs
from tests.real.shared import Proxies

pytestmark = [pytest.mark.part("snapshots"), pytest.mark.part("terminal"), needs("confined_reads")]


def repository_in(folder: Path) -> None:
    """Makes a folder a repository with a file."""
    (folder / "notes.txt").write_text("one\ntwo\n")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "notes.txt"], ["commit", "-qm", "begin"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)


def status_of(folder: Path) -> str:
    asked = ["git", "-C", str(folder), "status", "--porcelain"]
    return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout


async def test_a_person_sees_what_commands_of_codex_have_changed_and_takes_it_back(
    proxies: Proxies, tmp_path: Path
) -> None:
    proxy = await proxies.of(sandbox="workspace-write", snapshots="sessions")
    folder = proxies.home.workdir
    repository_in(folder)
    steps = [call("exec_command", cmd="sed -i s/two/2/ notes.txt; printf new > made")], [say("All is well.")]
    arguments = "--folder", str(folder), f"{plan(*steps)} Do it."
    async with terminal(proxy.url, tmp_path, *arguments) as chat:
        await chat.shows("2 files changed (+2 -1). /diff shows them.")
        assert status_of(folder) == " M notes.txt\n?? made\n"
        chat.type("/diff")
        await chat.shows("A made (+1 -0)")
        await chat.shows("\x1b[31m-two")
        chat.type("/revert")
        await chat.shows("Revert? y or nothing")
        chat.type("y")
        await chat.shows("2 files are as before that turn.")
        assert status_of(folder) == ""
