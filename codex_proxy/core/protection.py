"""What the commands of an agent turn must not be able to write: the server's own files, and what runs it.

In: resolved paths as text. Out: the first protected place that a writable folder holds, or lies in. Pure: whoever
calls has resolved the links.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Protected(msgspec.Struct, frozen=True):
    """One place, with what it is for a message ("the state folder")."""

    what: str
    path: str
    whole: bool = True
    """Whether it is a folder in which nothing may be written either. If not, only who holds it can harm it."""


def is_inside(path: str, folder: str) -> bool:
    """Whether a resolved path is this folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def endangered(root: str, protected: Sequence[Protected]) -> Protected | None:
    """The first protected place that somebody can change who may write to `root`."""
    for each in protected:
        if is_inside(each.path, root) or (each.whole and is_inside(root, each.path)):
            return each
    return None
