"""Git repositories that are not the server's own: the one that a worktree gets, and a branch in that of a user. Only
plumbing is run there, without hooks, filters and signatures, and never git in a folder of files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from codex_proxy.files.placed import opened_below
from codex_proxy.files.private import make_folder, replace_file, temporary_folder
from codex_proxy.parts.snapshots.difference import Difference
from codex_proxy.parts.snapshots.git import ATTRIBUTES, GitDirectory, GitError
from codex_proxy.parts.snapshots.ignored import read_content, up_to_repository
from codex_proxy.parts.snapshots.objects import TreeEntry

BRANCH: Final = "worktree"
"""The branch of a worktree's repository."""
NO_OBJECT: Final = "0" * 40
_CONFIG: Final = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
_AUTHOR: Final = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "codex-proxy"), ("EMAIL", "codex-proxy@localhost"))
}
_SECONDS: Final = 10.0
"""What a command may take in a user's repository, whose configuration can name a pipe that git would wait for."""
_READ: Final = (
    *("HEAD", "config", "config.worktree", "packed-refs", "shallow"),
    *("info/attributes", "info/exclude", "objects/info/alternates"),
)
"""Files that git reads in a repository."""
_BRANCH_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")


class NoRepositoryError(Exception):
    """The folder is not the root of a repository in which a branch can be made."""


class UnusableRepositoryError(Exception):
    """Git cannot make a branch in the repository, such as a damaged one. The text says why."""


class BranchExistsError(Exception):
    """The repository has a branch of this name, or will have it with its first commit."""


def make_repository(program: str, source: GitDirectory, tree: str, folder: str, exclude: bytes) -> None:
    """Makes a folder, which has the files of a tree, a repository with one commit of them. `source`: has the tree;
    `exclude`: patterns of files that are ignored there. Raises `GitError`, and `OSError`.
    """
    path = Path(folder) / ".git"
    make_folder(path)
    git = GitDirectory(program, path, _AUTHOR)
    git.run("init", "--bare", "-q", "--template=", ".")
    git.run("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    source.copy_objects([tree], git)
    git.run("read-tree", tree)
    whole = git.run("write-tree").decode().strip()  # with git's own modes
    commit = git.run("commit-tree", whole, "-m", "The files of the folder that this worktree was made of")
    git.run("update-ref", f"refs/heads/{BRANCH}", commit.decode().strip())
    make_folder(path / "info")
    for name, text in (("config", _CONFIG), ("info/attributes", ATTRIBUTES), ("info/exclude", exclude)):
        with replace_file(path / name) as file:
            file.write(text)


def exclusions_of(folder: str) -> bytes:
    """Returns the patterns from outside of a folder's files by which some of them are ignored, as far as they mean the
    same in another folder: the exclusions of its repository, and names in the `.gitignore` of the folders above it.
    """
    above = [*up_to_repository(folder)]
    if not above:
        return b""
    files = [(*Path(above[-1]).parts[1:], ".git", "info", "exclude")]
    files += [(*Path(each).parts[1:], ".gitignore") for each in above[:0:-1]]
    lines = [line for file in files for line in _read(file).splitlines()]
    return b"".join(line + b"\n" for line in lines if len(above) == 1 or b"/" not in line.rstrip(b"/ "))


def _read(names: Sequence[str]) -> bytes:
    """Returns the beginning of a file, given by the names of its path; nothing where it cannot be read, or a link leads
    to it.
    """
    with contextlib.suppress(OSError), opened_below("/", names[:-1]) as place:
        return read_content(place, names[-1]) or b""
    return b""


def is_branch_name(name: str) -> bool:
    """Whether a branch of this name can be made: of the names that git allows, those that need no quotes in a shell."""
    parts = name.split("/")
    wrong = any(
        not part or part.startswith((".", "-")) or part.endswith((".", ".lock")) or ".." in part
        for part in parts
    )
    return _BRANCH_NAME.fullmatch(name) is not None and not wrong and name != "HEAD"


def commit_to_branch(
    program: str, folder: str, objects: GitDirectory, changes: Sequence[Difference], branch: str, message: str
) -> str:
    """Makes a branch in the repository of a folder: a commit on what is checked out there, with what changes have left.
    Neither the folder's files nor its index are changed. `objects`: has the files' contents. Returns the commit's id.
    Raises `NoRepositoryError`, `BranchExistsError`, `UnusableRepositoryError`, and, for what is not the repository's
    fault, `GitError` and `OSError`.
    """
    try:
        return _commit_to_branch(program, folder, objects, changes, branch, message)
    except GitError as error:
        if error.place != _git_of(folder) or error.of_disk:
            raise  # a disk has failed, or it is of the server's own objects
        raise UnusableRepositoryError(str(error)) from error


def _git_of(folder: str) -> Path:
    return Path(folder) / ".git"


def _commit_to_branch(
    program: str, folder: str, objects: GitDirectory, changes: Sequence[Difference], branch: str, message: str
) -> str:
    path = _git_of(folder)
    if not _is_whole_repository(path, branch):
        raise NoRepositoryError
    if pipe := _pipe_in(path):
        raise UnusableRepositoryError(f"its {pipe} is no file")
    with temporary_folder("index", objects.path) as (own, _):
        more = {**_AUTHOR, "GIT_INDEX_FILE": os.path.join(own, "index")}
        git = GitDirectory(program, path, more, seconds=_SECONDS)
        ref = f"refs/heads/{branch}"
        if _told(git, "symbolic-ref", "-q", "HEAD") == ref or _is_taken(git, ref):
            raise BranchExistsError
        if not _names_as_here(git):
            raise UnusableRepositoryError("its objects have other names than SHA-1")
        head = _head_of(git)
        contents = {each.after.digest.hex() for each in changes if each.after is not None}
        if contents:
            objects.copy_objects(contents, git)
        git.run("read-tree", *([head] if head else ["--empty"]))
        removed_first = sorted(changes, key=lambda each: each.after is not None)
        git.run("update-index", "-z", "--index-info", given=b"".join(map(_index_line, removed_first)))
        tree = git.run("write-tree").decode().strip()
        parents = ["-p", head] if head else []
        commit = git.run("commit-tree", tree, *parents, given=message.encode() + b"\n").decode().strip()
        git.run("update-ref", "--no-deref", ref, commit, NO_OBJECT)
    return commit


def can_take_branches(program: str, folder: str) -> bool:
    """Whether a folder is the root of a repository of which git can read the configuration and take objects here."""
    path = _git_of(folder)
    try:
        git = GitDirectory(program, path, seconds=_SECONDS)
        return path.is_dir() and not _pipe_in(path) and _names_as_here(git)
    except (GitError, OSError):
        return False


def _names_as_here(git: GitDirectory) -> bool:
    """Whether a repository names its objects as the snapshots do."""
    return git.run("rev-parse", "--show-object-format").decode().strip() == "sha1"


def _is_whole_repository(path: Path, branch: str) -> bool:
    """Whether all that a branch needs is in this folder: neither it nor a part of it leads to another one."""
    written = [path / name for name in (f"refs/heads/{branch}", "logs/HEAD", f"logs/refs/heads/{branch}")]
    written += [path / "objects", *path.glob("objects/??"), path / "objects/pack"]
    leads_away = any(os.path.realpath(each) != str(each) for each in written)
    return path.is_dir() and not leads_away and not os.path.lexists(path / "commondir")


def _pipe_in(path: Path) -> str:
    """Returns which file that git reads in a repository is none, so that git would wait for it; else nothing."""
    for name in _READ:
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.stat(path / name).st_mode):
                return name
    return ""


def _is_taken(git: GitDirectory, ref: str) -> bool:
    """Whether there is a ref of this name, below it, or with the name of a folder in which it would be."""
    parts = ref.split("/")
    above = ["/".join(parts[:count]) for count in range(3, len(parts))]
    return bool(git.refs(ref)) or any(each in git.refs(each) for each in above)


def _head_of(git: GitDirectory) -> str:
    """Returns the commit that is checked out; empty if there is none yet. Raises `GitError` if it is missing."""
    head = _told(git, "rev-parse", "--verify", "-q", "HEAD")
    return head and git.run("rev-parse", "--verify", f"{head}^{{commit}}").decode().strip()


def _told(git: GitDirectory, *arguments: str) -> str:
    """Returns what a git command tells; empty if it ends with 1, which says that there is nothing."""
    try:
        return git.run(*arguments).decode().strip()
    except GitError as error:
        if error.status != 1:
            raise
        return ""


def _index_line(change: Difference) -> bytes:
    if change.after is None:
        return b"0 %s\t%s\0" % (NO_OBJECT.encode(), change.path)
    return b"%o %s\t%s\0" % (_mode_of(change.after), change.after.digest.hex().encode(), change.path)


def _mode_of(entry: TreeEntry) -> int:
    if entry.is_link:
        return entry.mode
    return stat.S_IFREG | (0o755 if entry.mode & stat.S_IXUSR else 0o644)
