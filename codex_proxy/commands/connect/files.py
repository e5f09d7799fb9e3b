"""Changing a file of another program: what changes is shown, the old one is kept, the new one comes as a whole."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from pathlib import Path

PRIVATE = 0o600
"""Of a file that we make: a key may be in it."""


def difference(before: str, after: str, name: str) -> str:
    """A unified diff."""
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"{name} (now)",
            f"{name} (new)",
        )
    )


def write(file: Path, text: str) -> Path | None:
    """Puts the text into the file in one step. Gives the backup of the old one, or None where there was none.

    A link stays a link: what it leads to is changed. Raises `OSError`, and then the file is as it was.
    """
    target = Path(os.path.realpath(file))
    target.parent.mkdir(parents=True, exist_ok=True)
    backup = _kept(target) if target.exists() else None
    mode = target.stat().st_mode & 0o777 if backup else PRIVATE
    descriptor, new = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(new, mode)
        os.replace(new, target)
    except BaseException:
        os.unlink(new)
        raise
    return backup


def _kept(file: Path) -> Path:
    """A copy beside the file, under a name that no earlier copy has."""
    number = 0
    while True:
        backup = file.with_name(f"{file.name}.bak{number or ''}")
        try:
            with open(backup, "xb"):
                pass
        except FileExistsError:
            number += 1
            continue
        shutil.copy2(file, backup)
        return backup
