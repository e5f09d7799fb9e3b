"""Sessions that work in folders of their own, and how their work comes back."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import UserError
from codex_proxy.files.writing import write_changes
from codex_proxy.parts.sessions.files_of_turns import WORKTREES
from codex_proxy.parts.snapshots import handlers, merging, worktree_handlers
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.worktrees import SessionWorktrees
from tests.access.keyed import key_of, write_keys
from tests.commands.chatting import terminal
from tests.http.serving import Answer
from tests.parts.sessions.driving import AGENT, AgentsClient
from tests.parts.snapshots.working import Worker, snapshot_proxy
from tests.waiting import PATIENCE, eventually

ON = {"X-Codex-Worktree": "true"}
TEN = "".join(f"line {number}\n" for number in range(10))


def hosted(folder: Path | str) -> dict[str, str]:
    return {"type": "self_hosted", "workspace_directory": str(folder), "remote_url": ""}


async def create(client: AgentsClient, folder: Path | str, **headers: str) -> Answer:
    body = {"environment": hosted(folder), "agent": AGENT}
    return await client.ask("POST", "/sessions", body, headers={**ON, **headers})


async def in_worktree(client: AgentsClient, folder: Path) -> Worker:
    """Returns what works in a new session with a worktree of a folder."""
    answer = await create(client, folder)
    assert answer.status == 201, answer.text
    worker = Worker(client, Path(answer.body["environment"]["workspace_directory"]))
    worker.session = answer.body["id"]
    return worker


async def merge(worker: Worker, **body: Any) -> Answer:
    return await worker.client.ask("POST", f"/sessions/{worker.session}/merge", body)


def files_in(folder: Path) -> dict[str, str]:
    found = (each for each in folder.rglob("*") if each.is_file() and ".git" not in each.parts)
    return {str(each.relative_to(folder)): each.read_text() for each in found}


def git(folder: Path, *arguments: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}
    user = ("-c", "user.name=U", "-c", "user.email=u@localhost")
    done = subprocess.run(
        ["git", *user, *arguments], cwd=folder, env=own, capture_output=True, text=True, check=True
    )
    return done.stdout


def everything_in(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All files below a folder, with those of its repository: modes, times and contents."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


async def test_a_session_works_in_a_folder_of_its_own_with_the_files_of_the_workspace(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        git(folder, "init", "-q")
        (folder / "run").write_text("#!")
        (folder / "run").chmod(0o755)
        (folder / "link").symlink_to("run")
        (folder / ".gitignore").write_text("built\n")
        (folder / ".git" / "info" / "exclude").write_text("*.mine\n")
        (folder / "built").write_text("x")
        (folder / "a.mine").write_text("x")
        before = everything_in(folder)
        worker = await in_worktree(client, folder)
        assert not worker.folder.is_relative_to(folder)
        assert not worker.folder.is_relative_to(tmp_path / "state")
        assert files_in(worker.folder) == {"run": "#!", "link": "#!", ".gitignore": "built\n"}
        assert (worker.folder / "run").stat().st_mode & 0o777 == 0o755
        assert os.readlink(worker.folder / "link") == "run"

        def work() -> None:
            (worker.folder / "run").write_text("#!!")
            for ignored in ("built", "b.mine"):
                (worker.folder / ignored).write_text("y")

        turn = await worker.turn(work)
        assert [each["path"] for each in (await worker.changes(turn))["data"]] == ["run"]
        assert git(worker.folder, "status", "--porcelain") == " M run\n"
        assert everything_in(folder) == before


async def test_the_work_in_a_worktree_comes_back_into_the_workspace(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        (folder / "gone").write_text("1")
        worker = await in_worktree(client, folder)

        def work() -> None:
            (worker.folder / "a").write_text("2")
            (worker.folder / "gone").unlink()
            (worker.folder / "new").mkdir()
            (worker.folder / "new" / "b").write_text("3")

        await worker.turn(work)
        merged = await merge(worker)
        assert (merged.status, merged.body["paths"]) == (200, ["a", "gone", "new/b"]), merged.text
        assert files_in(folder) == {"a": "2", "new/b": "3"}
        assert (await merge(worker)).body["paths"] == []
        (folder / "a").write_text("by its user")
        await worker.turn(lambda: (worker.folder / "c").write_text("4"))
        assert (await merge(worker)).body["paths"] == ["c"]
        assert files_in(folder) == {"a": "by its user", "new/b": "3", "c": "4"}


async def test_a_file_whose_name_is_ignored_by_now_is_merged_and_not_deleted(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "built").mkdir()
        for name in ("config", "built/kept", "built/gone"):
            (folder / name).write_text("1")
        worker = await in_worktree(client, folder)

        def work() -> None:
            (worker.folder / ".gitignore").write_text("config\nbuilt\n")
            (worker.folder / "config").write_text("2")
            (worker.folder / "built" / "gone").unlink()
            (worker.folder / "built" / "new").write_text("3")

        await worker.turn(work)
        assert (await merge(worker)).body["paths"] == [".gitignore", "built/gone", "config"]
        assert files_in(folder) == {".gitignore": "config\nbuilt\n", "config": "2", "built/kept": "1"}
        await worker.turn(lambda: (worker.folder / "config").write_text("3"))
        assert (await merge(worker)).body["paths"] == ["config"]


@pytest.mark.part("terminal")
async def test_files_that_are_too_large_are_named_where_they_are_missing(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_file_bytes=100) as (client, folder):
        for name in ("large", "a"):
            (folder / name).write_text("1" * (101 if name == "large" else 1))
        worker = await in_worktree(client, folder)
        worktree = await client.ask("GET", f"/sessions/{worker.session}/worktree")
        assert (worktree.body["left_out"], worktree.body["truncated"]) == (["large"], False)
        await worker.turn(lambda: (worker.folder / "made").write_text("2" * 101))
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
        merged = await merge(worker)
        assert (merged.body["paths"], merged.body["left_out"]) == (["a"], ["made"])
        async with terminal(client.proxy.url, tmp_path, "--resume", worker.session) as chat:
            await chat.shows("[[fake:tool_call]]")
            chat.type("/merge")
            await chat.shows("Merge? y or nothing")
            chat.type("y")
            await chat.shows("Not merged, only in")


async def test_a_list_of_paths_that_is_cut_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MAX_REVERTED", 1)
    monkeypatch.setattr(worktree_handlers, "MAX_REVERTED", 1)
    async with snapshot_proxy(tmp_path, snapshot_max_file_bytes=100) as (client, folder):
        for number in range(101):
            (folder / f"large{number}").write_text("1" * 101)
        worker = await in_worktree(client, folder)
        worktree = await client.ask("GET", f"/sessions/{worker.session}/worktree")
        assert (len(worktree.body["left_out"]), worktree.body["truncated"]) == (100, True)

        def work() -> None:
            for name in "ab":
                (worker.folder / name).write_text("1")

        turn = await worker.turn(work)
        for done in (await merge(worker), await worker.revert(turn)):
            assert (len(done.body["paths"]), done.body["truncated"]) == (1, True), done.text
        again = await merge(worker, branch=None)
        assert again.body["truncated"] is True  # the two files are removed again


async def test_two_sessions_at_once_change_one_file_in_other_lines(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "f").write_text(TEN)
        one, two = await asyncio.gather(in_worktree(client, folder), in_worktree(client, folder))

        def change(worker: Worker, old: str, new: str) -> None:
            file = worker.folder / "f"
            file.write_text(file.read_text().replace(old, new))

        turns = await asyncio.gather(
            one.turn(lambda: change(one, "line 1\n", "by one\n")),
            two.turn(lambda: change(two, "line 8\n", "by two\n")),
        )
        assert not (await one.changes(turns[0]))["others_wrote"]
        assert [(await merge(each)).status for each in (one, two)] == [200, 200]
        both = TEN.replace("line 1\n", "by one\n").replace("line 8\n", "by two\n")
        assert (folder / "f").read_text() == both


async def test_a_conflict_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        for name in ("same", "deleted", "binary"):
            (folder / name).write_text(TEN)
        worker = await in_worktree(client, folder)

        def work() -> None:
            for name in ("same", "deleted", "new", "taken", "well"):
                (worker.folder / name).write_text("by the agent\n")
            (worker.folder / "binary").write_bytes(TEN.encode() + b"\0")

        await worker.turn(work)
        (folder / "same").write_text("by the user\n")
        (folder / "new").write_text("by the user\n")
        (folder / "deleted").unlink()
        (folder / "taken").mkdir()
        (folder / "taken" / "f").write_text("1")
        (folder / "binary").write_text("0\n" + TEN)
        before = everything_in(folder)
        answer = await merge(worker)
        assert answer.status == 409, answer.text
        assert "binary, deleted, new, same" in answer.error["message"]
        assert everything_in(folder) == before
        (folder / "taken" / "f").unlink()
        for name in ("same", "new", "deleted"):
            (worker.folder / name).write_text("by both\n")
            (folder / name).write_text("by both\n")
        (folder / "binary").write_text(TEN)
        assert (await merge(worker)).status == 200
        assert (folder / "well").read_text() == "by the agent\n"


async def test_a_file_that_changes_while_it_is_merged_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))

        def write(*given: Any) -> list[bytes]:
            (folder / "a").write_text("by its user")
            return write_changes(*given)

        monkeypatch.setattr(merging, "write_changes", write)
        answer = await merge(worker)
        assert (answer.status, (folder / "a").read_text()) == (409, "by its user")


async def test_a_client_that_leaves_does_not_end_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
        began, going = threading.Event(), threading.Event()

        def write(*given: Any) -> list[bytes]:
            began.set()
            going.wait(PATIENCE)
            return write_changes(*given)

        monkeypatch.setattr(merging, "write_changes", write)
        leaving = asyncio.create_task(merge(worker))
        await eventually(began.is_set)
        leaving.cancel()
        keeper = client.proxy.app[KEEPER]
        assert keeper.is_working_in(str(folder))
        assert keeper.is_working_in(str(worker.folder))
        assert (await client.ask("GET", f"/sessions/{worker.session}/worktree")).status == 200
        going.set()
        assert (await merge(worker)).body["paths"] == []
        assert (folder / "a").read_text() == "2"


async def test_work_becomes_a_branch_of_the_repository_and_nothing_else_there_changes(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        git(folder, "init", "-q", "-b", "main")
        for name in ("a", "gone", "kept.log"):
            (folder / name).write_text("1")
        (folder / ".gitignore").write_text("*.log\n")
        git(folder, "add", "-f", ".")
        git(folder, "commit", "-q", "-m", "first")
        ran = tmp_path / "ran"
        hook = folder / ".git" / "hooks" / "reference-transaction"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
        hook.chmod(0o755)
        git(folder, "config", "core.fsmonitor", f"touch {ran}; false")
        git(folder, "config", "commit.gpgSign", "true")
        git(folder, "config", "gpg.program", str(hook))
        git(folder, "config", "core.splitIndex", "true")
        ran.unlink(missing_ok=True)
        worker = await in_worktree(client, folder)

        def work() -> None:
            (worker.folder / "a").write_text("2")
            (worker.folder / "gone").unlink()
            (worker.folder / "b").write_text("3")
            (worker.folder / "b").chmod(0o700)

        await worker.turn(work)
        before = everything_in(folder)
        answer = await merge(worker, branch="by/agent", message="What the agent did")
        assert (answer.status, answer.body["paths"]) == (200, ["a", "b", "gone"]), answer.text
        assert not ran.exists()
        told = git(folder, "log", "--format=%H %s", "by/agent").splitlines()
        assert told[0] == f"{answer.body['commit']} What the agent did"
        assert told[1].endswith("first")
        listed = git(folder, "ls-tree", "-r", "by/agent")
        assert [line.split()[0] + line.split("\t")[1] for line in listed.splitlines()] == [
            *("100644.gitignore", "100644a", "100755b", "100644kept.log")
        ]
        assert git(folder, "fsck", "--strict") == ""
        after = everything_in(folder)
        new = {name.removeprefix(f"{folder}/.git/") for name in after.keys() - before.keys()}
        assert {name.split("/")[0] for name in new} <= {"objects", "refs", "logs"}
        assert {name for name in before if after[name][2] != before[name][2]} == set()
        for taken in ("by/agent", "by", "by/agent/two"):
            again = await merge(worker, branch=taken)
            assert (again.status, again.error["param"]) == (409, "branch"), taken
        for wrong in ("-f", "a..b", "a/", "x.lock", "a b", ".a", "@{1}"):
            assert (await merge(worker, branch=wrong)).error["param"] == "branch", wrong
        # The folder itself gets it all the same.
        assert (await merge(worker)).body["paths"] == ["a", "b", "gone"]


async def test_a_branch_is_made_in_no_other_repository(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init", "-q")
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
        refused = [await merge(worker, branch="b")]
        (folder / ".git").symlink_to(other / ".git")
        refused.append(await merge(worker, branch="b"))
        (folder / ".git").unlink()
        (folder / ".git").write_text(f"gitdir: {other}/.git\n")
        refused.append(await merge(worker, branch="b"))
        (folder / ".git").unlink()
        git(folder, "init", "-q")
        (folder / ".git" / "commondir").write_text(f"{other}/.git\n")
        refused.append(await merge(worker, branch="b"))
        (folder / ".git" / "commondir").unlink()
        (folder / ".git" / "refs" / "heads").rmdir()
        (folder / ".git" / "refs" / "heads").symlink_to(other / ".git" / "refs" / "heads")
        refused.append(await merge(worker, branch="b"))
        (folder / ".git" / "refs" / "heads").unlink()
        (folder / ".git" / "refs" / "heads").mkdir()
        for name in ("logs/HEAD", "objects/ab"):
            link = folder / ".git" / name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(other)
            refused.append(await merge(worker, branch="b"))
            link.unlink()
        git(folder, "symbolic-ref", "HEAD", "refs/heads/b")
        refused.append(await merge(worker, branch="b"))
        assert [(each.status, each.error["param"]) for each in refused] == [(409, "branch")] * 8
        assert git(other, "branch") == git(folder, "branch") == ""


async def test_a_repository_that_git_cannot_use_takes_no_branch_and_stays_as_it_is(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
        nul = await merge(worker, branch="b", message="a\0b")
        assert (nul.status, nul.error["param"]) == (400, "message")
        damages = [("HEAD", "x"), ("config", "[core"), ("", "")]
        damages += [(path, "a pipe") for path in ("HEAD", "packed-refs", "objects/info/alternates")]
        for path, content in damages:
            git(folder, "init", "-q", *(() if path else ("--object-format=sha256",)))
            if content == "a pipe":
                (folder / ".git" / path).unlink(missing_ok=True)
                os.mkfifo(folder / ".git" / path)
            elif path:
                (folder / ".git" / path).write_text(content)
            answer = await merge(worker, branch="b")
            assert (answer.status, answer.error["param"]) == (409, "branch"), (path, answer.text)
            found = await client.ask("GET", f"/sessions/{worker.session}/worktree")
            assert found.body["repository"] is False, path
            shutil.rmtree(folder / ".git")
        answer = await merge(worker, message="not used")
        assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, "message")


async def test_a_folder_of_worktrees_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "in"):
        with pytest.raises(UserError, match="PROXY_WORKTREES"):
            async with snapshot_proxy(tmp_path, worktrees=place):
                pass


async def test_a_folder_of_worktrees_that_is_lost_later_is_no_fault_of_the_client(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, worktrees=tmp_path / "trees") as (client, folder):
        shutil.rmtree(tmp_path / "trees")
        (tmp_path / "trees").write_text("")
        answer = await create(client, folder)
        assert (answer.status, answer.error["param"]) == (503, None), answer.text
        assert str(tmp_path) not in answer.error["message"]
        read = await create(client, folder, **{"X-Codex-Sandbox": "read-only"})
        assert (read.status, read.error["param"]) == (403, "X-Codex-Worktree")


async def test_no_program_that_a_repository_names_for_its_missing_objects_runs(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        git(folder, "init", "-q", "-b", "main")
        ran = tmp_path / "ran"
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
        git(folder, "config", "core.repositoryFormatVersion", "1")
        git(folder, "config", "extensions.partialClone", "origin")
        git(folder, "config", "remote.origin.promisor", "true")
        git(folder, "config", "remote.origin.url", f"ext::touch {ran}")
        git(folder, "config", "protocol.ext.allow", "always")
        (folder / ".git" / "refs" / "heads" / "main").write_text("1" * 40 + "\n")
        answer = await merge(worker, branch="x")
        assert (answer.status, ran.exists()) == (409, False), answer.text
        assert not (folder / ".git" / "refs" / "heads" / "x").exists()


async def test_a_key_without_the_right_makes_no_worktree_and_merges_nothing(tmp_path: Path) -> None:
    (tmp_path / "work" / "one").mkdir(parents=True)
    (tmp_path / "work" / "two").mkdir()
    roots = [str(tmp_path / "work" / "one")]
    write_keys(tmp_path, one={"roots": roots}, reader={"roots": roots, "sandbox": "read-only"})
    async with snapshot_proxy(tmp_path) as (client, folder):
        one = AgentsClient(client.proxy, key_of("one"))
        reader = AgentsClient(client.proxy, key_of("reader"))
        assert (await create(one, folder / "two")).error["param"] == "environment.workspace_directory"
        assert (await create(reader, folder / "one")).status == 403
        assert (await create(one, folder / "one", **{"X-Codex-Sandbox": "read-only"})).status == 403
        assert not [*tmp_path.glob("state-worktrees/*/*/*")]
        worker = await in_worktree(one, folder / "one")
        await worker.turn(lambda: (worker.folder / "a").write_text("1"))
        for path, method in (("worktree", "GET"), ("merge", "POST")):
            assert (await reader.ask(method, f"/sessions/{worker.session}/{path}")).status == 404
        # Nor does another key work in that folder.
        other = await reader.ask("POST", "/sessions", {"environment": hosted(worker.folder), "agent": AGENT})
        assert (other.status, other.error["param"]) == (400, "environment.workspace_directory")
    write_keys(tmp_path, one={"roots": [str(folder / "two")]}, reader={})
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker.client = AgentsClient(client.proxy, key_of("one"))
        narrowed = await merge(worker)
        assert (narrowed.status, narrowed.error["param"]) == (400, "environment.workspace_directory")
        assert files_in(folder) == {}


async def test_no_key_works_in_the_worktrees_of_another_one_whatever_its_roots_are(tmp_path: Path) -> None:
    (tmp_path / "work" / "in").mkdir(parents=True)
    write_keys(tmp_path, one={}, other={})
    worktrees = tmp_path / "work" / "trees"
    async with snapshot_proxy(tmp_path, worktrees=worktrees) as (client, folder):
        one, other = (AgentsClient(client.proxy, key_of(name)) for name in ("one", "other"))
        worker = await in_worktree(one, folder / "in")
        assert worker.folder.is_relative_to(worktrees)
        await worker.turn(lambda: (worker.folder / "a").write_text("1"))
        for asked, sandbox in (
            (worker.folder, "workspace-write"),
            (worker.folder, "read-only"),
            (worker.folder.parent.parent, "read-only"),
            (folder, "workspace-write"),
        ):
            body = {"environment": hosted(asked), "agent": AGENT, "input": "Hello."}
            answer = await other.ask("POST", "/sessions", body, headers={"X-Codex-Sandbox": sandbox})
            assert (answer.status, answer.error["param"]) == (400, "environment.workspace_directory"), asked


async def test_a_fork_shares_the_worktree_until_both_are_deleted(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
        forked = await client.ask("POST", f"/sessions/{worker.session}/fork", {})
        fork = Worker(client, worker.folder)
        fork.session = forked.body["id"]
        keeper, worktrees = client.proxy.app[KEEPER], client.proxy.app[WORKTREES]
        assert isinstance(worktrees, SessionWorktrees)

        async def prune() -> None:
            for _ in range(2):
                await keeper.prune()
                await worktrees.prune()

        assert (await merge(worker)).body["paths"] == ["a"]
        assert (await merge(fork)).body["paths"] == []
        await fork.turn(lambda: (worker.folder / "a").write_text("3"))
        await client.delete(f"/sessions/{worker.session}")
        await prune()
        assert (await merge(fork)).body["paths"] == ["a"]
        assert (folder / "a").read_text() == "3"
        await client.delete(f"/sessions/{fork.session}")
        await prune()
        assert not worker.folder.exists()
        assert files_in(folder) == {"a": "3"}


async def test_worktrees_push_out_no_snapshots_of_other_folders(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_total_bytes=50_000) as (client, folder):
        for name in ("plain", "copied"):
            (folder / name).mkdir()
        (folder / "copied" / "large").write_bytes(random.Random(1).randbytes(40_000))
        plain = Worker(client, folder / "plain")
        turn = await plain.turn(lambda: (folder / "plain" / "a").write_text("1"))
        worker = await in_worktree(client, folder / "copied")
        await client.proxy.app[KEEPER].prune()
        assert (await plain.changes(turn))["state"] == "kept"
        refused = await create(client, folder / "copied")
        assert (refused.status, "PROXY_SNAPSHOT_MAX_TOTAL_BYTES" in refused.error["message"]) == (409, True)
        await worker.turn(lambda: (worker.folder / "b").write_text("1"))
        assert (await merge(worker)).body["paths"] == ["b"]


async def test_a_worktree_lives_on_after_a_restart(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("2"))
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker.client = client
        worktrees = client.proxy.app[WORKTREES]
        assert isinstance(worktrees, SessionWorktrees)
        for _ in range(2):
            await client.proxy.app[KEEPER].prune()
            await worktrees.prune()
        await worker.turn(lambda: (worker.folder / "b").write_text("3"))
        told = await client.ask("GET", f"/sessions/{worker.session}/worktree")
        assert (told.body["folder"], told.body["source"]) == (str(worker.folder), str(folder))
        assert (await merge(worker)).body["paths"] == ["a", "b"]


async def test_another_machine_with_the_same_store_leaves_a_worktree_alone(tmp_path: Path) -> None:
    shared = {"store": str(tmp_path / "store" / "s.sqlite3"), "worktrees": tmp_path / "trees"}
    (tmp_path / "store").mkdir()
    async with snapshot_proxy(tmp_path, **shared) as (client, folder):
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "a").write_text("1"))
    async with snapshot_proxy(tmp_path, **shared, state_dir=tmp_path / "other") as (client, _):
        worker.client = client
        answer = await merge(worker)
        assert (answer.status, "another machine" in answer.error["message"]) == (409, True)
        worktrees = client.proxy.app[WORKTREES]
        assert isinstance(worktrees, SessionWorktrees)
        for _ in range(3):
            await worktrees.prune()
        assert files_in(worker.folder) == {"a": "1"}
    async with snapshot_proxy(tmp_path, **shared) as (client, folder):
        worker.client = client
        assert (await merge(worker)).body["paths"] == ["a"]


async def test_a_workspace_that_is_gone_is_told_and_the_work_stays(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        inner = folder / "inner"
        inner.mkdir()
        worker = await in_worktree(client, inner)
        await worker.turn(lambda: (worker.folder / "a").write_text("1"))
        inner.rmdir()
        answer = await merge(worker)
        assert (answer.status, f"{inner} is gone" in answer.error["message"]) == (409, True)
        await worker.turn(lambda: (worker.folder / "b").write_text("2"))
        inner.mkdir()
        assert (await merge(worker)).body["paths"] == ["a", "b"]


async def test_nothing_is_written_for_an_archived_session(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = await in_worktree(client, folder)
        turn = await worker.turn(lambda: (worker.folder / "a").write_text("1"))
        await client.ask("POST", f"/sessions/{worker.session}/summary", {"archived": True})
        for answer in (await merge(worker), await worker.revert(turn)):
            assert (answer.status, "archived" in answer.error["message"]) == (409, True), answer.text
        assert files_in(folder) == {}
        assert files_in(worker.folder) == {"a": "1"}


async def test_nothing_is_merged_while_a_turn_is_at_work(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        worker = await in_worktree(client, folder)
        keeper = client.proxy.app[KEEPER]
        async with client.creation("[[fake:text misbehave=hang]]", environment=hosted(folder)) as reader:
            await reader.until("agent.session.turn.created")
            await eventually(lambda: keeper.is_working_in(str(folder)))
            # The worktree is another folder: its turns go on.
            await worker.turn(lambda: (worker.folder / "a").write_text("2"))
            answer = await merge(worker)
            assert (answer.status, str(folder) in answer.error["message"]) == (409, True)


async def test_what_has_no_worktree_says_so(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: None)
        assert (await merge(worker)).status == 404
        for header in ("yes", "1"):
            answer = await create(client, folder, **{"X-Codex-Worktree": header})
            assert (answer.status, answer.error["param"]) == (400, "X-Codex-Worktree")
    async with snapshot_proxy(tmp_path, snapshots="off") as (client, folder):
        answer = await create(client, folder)
        assert (answer.status, answer.error["param"]) == (400, "X-Codex-Worktree")
        assert "PROXY_SNAPSHOTS" in answer.error["message"]


async def test_no_request_goes_on_without_the_worktree_that_it_asks_for(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        for path in (
            "/v1/responses/resp_1/session",
            *("/v1/sessions", "/v1/responses", "/v1/chat/completions", "/v1/messages"),
        ):
            beta = {} if path == "/v1/sessions" else {"OpenAI-Beta": "agents=v1"}
            answer = await client.proxy.send("POST", path, {}, headers={**ON, **beta, "x-api-key": "k"})
            assert (answer.status, "No worktree is made here" in answer.text) == (400, True), (path, answer)
        choices = {"X-Codex-Mode": "model", "X-Codex-Workdir": "/etc", "X-Codex-Sandbox": "read-only"}
        made = await create(client, folder, **choices, **{"X-Codex-Worktree": "false"})
        named = made.headers["x-codex-ignored-params"]
        assert (made.status, named) == (201, "X-Codex-Mode, X-Codex-Workdir"), made.text


@pytest.mark.part("terminal")
async def test_a_person_at_a_terminal_merges_what_a_session_has_done(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        git(folder, "init", "-q")
        (folder / "a").write_text("1")
        asked = ("--worktree", "--folder", str(folder))
        async with terminal(client.proxy.url, tmp_path, *asked) as chat:
            await chat.shows("/help")
            chat.type("Hello.")

            def made() -> list[Path]:
                return [*tmp_path.glob("state-worktrees/*/*/*")]

            [worktree] = await eventually(made)
            await chat.shows("Hello from the deterministic fake agent.")
            chat.type("/status")
            await chat.shows(str(worktree))
            (worktree / "a").write_text("2")
            chat.type("/merge by-agent What it did")
            await chat.shows(f"One file is merged into the branch by-agent of {folder}: a")
            assert git(folder, "log", "-1", "--format=%B", "by-agent").strip() == "What it did"
            chat.type("/merge")
            await chat.shows("Merge? y or nothing")
            chat.type("y")
            await chat.shows(f"One file is merged into {folder}: a")
            assert (folder / "a").read_text() == "2"
        worker = Worker(client, folder)
        await worker.turn(lambda: None)
        async with terminal(client.proxy.url, tmp_path, "--resume", worker.session) as chat:
            await chat.shows("[[fake:tool_call]]")
            chat.type("/merge")
            await chat.shows("One that is begun with --worktree has a copy of it.")


async def fork_in_worktree(worker: Worker, **body: Any) -> Answer:
    return await worker.client.ask("POST", f"/sessions/{worker.session}/fork", body, headers=ON)


async def test_a_fork_works_in_a_worktree_with_the_files_of_its_point_and_is_merged(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        git(folder, "init", "-q")
        (folder / "a").write_text("0")
        worker = Worker(client, folder)
        first = await worker.turn(lambda: (folder / "a").write_text("1"))
        second = await worker.turn(lambda: (folder / "b").write_text("2"))
        items = await client.all(f"/sessions/{worker.session}/turns/{second}/items")
        before = everything_in(folder)
        answer = await fork_in_worktree(worker, before_item=items[0]["id"])
        assert answer.status == 201, answer.text
        copy = Worker(client, Path(answer.body["environment"]["workspace_directory"]))
        copy.session = answer.body["id"]
        assert not copy.folder.is_relative_to(folder)
        assert files_in(copy.folder) == {"a": "1"}
        assert git(copy.folder, "status", "--porcelain") == ""
        assert everything_in(folder) == before

        [turn] = await client.all(f"/sessions/{copy.session}/turns")
        assert [each["path"] for each in (await copy.changes(turn["id"]))["data"]] == ["a"]
        assert turn["id"] != first
        await copy.turn(lambda: (copy.folder / "c").write_text("3"))
        merged = await merge(copy)
        assert (merged.status, merged.body["paths"], merged.body["source"]) == (200, ["c"], str(folder))
        assert files_in(folder) == {"a": "1", "b": "2", "c": "3"}


async def test_a_fork_of_a_session_in_a_worktree_gets_another_one_of_the_same_folder(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("0")
        worker = await in_worktree(client, folder)
        await worker.turn(lambda: (worker.folder / "b").write_text("1"))
        answer = await fork_in_worktree(worker)
        assert answer.status == 201, answer.text
        copy = Path(answer.body["environment"]["workspace_directory"])
        assert copy != worker.folder
        assert files_in(copy) == {"a": "0", "b": "1"}
        found = await client.ask("GET", f"/sessions/{answer.body['id']}/worktree")
        assert (found.body["folder"], found.body["source"]) == (str(copy), str(folder))
        await merge(worker)
        assert (await client.ask("POST", f"/sessions/{answer.body['id']}/merge", {})).body["paths"] == []


@pytest.mark.parametrize(
    ("turns", "body", "param"), [(0, {}, "X-Codex-Worktree"), (1, {"folder": "/tmp/forked"}, "folder")]
)
async def test_a_fork_without_kept_files_or_with_a_folder_gets_no_worktree(
    tmp_path: Path, turns: int, body: dict[str, str], param: str
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        opened = await client.ask("POST", "/sessions", {"environment": hosted(folder), "agent": AGENT})
        worker.session = opened.body["id"]
        for _ in range(turns):
            await worker.turn(lambda: (folder / "a").write_text("1"))
        answer = await fork_in_worktree(worker, **body)
        assert (answer.status, answer.error["param"]) == (400, param), answer.text
        assert not [*tmp_path.glob("state-worktrees/*/*/*")]
