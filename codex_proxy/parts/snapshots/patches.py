"""What makes the files of one tree those of another one, for `git apply`."""

from __future__ import annotations

from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.git import GitDirectory
from codex_proxy.parts.snapshots.objects import NewObjects, add_tree


def patch(git: GitDirectory, before: str, after: str, limit: int) -> bytes:
    """Returns the patch of what is kept in both trees. Raises `OverflowError` if it has more than `limit` bytes,
    `GitError`, and `OSError`.
    """
    with git.reader() as reader:
        found = differences(reader, before, after)
    with git.beside() as own:
        objects = NewObjects(git.path)
        try:
            old = add_tree(objects, [(each.path, each.before) for each in found if each.before is not None])
            new = add_tree(objects, [(each.path, each.after) for each in found if each.after is not None])
            objects.save(own)
        finally:
            objects.close()
        return own.patch(old, new, limit)
