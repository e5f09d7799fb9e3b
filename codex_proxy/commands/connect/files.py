"""Changing a file of another program: what changes is shown, the old one is kept, the new one comes as a whole."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path

from codex_proxy.files.private import FILE_MODE, create, make_folder, replacing


def difference(before: str, after: str, name: str) -> str:
    """Returns a unified diff."""
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
    make_folder(target.parent)
    backup = _kept(target) if target.exists() else None
    mode = target.stat().st_mode & 0o777 if backup else FILE_MODE
    with replacing(target, mode=mode) as out:
        out.write(text.encode())
    return backup


def _kept(file: Path) -> Path:
    """Copies the file to a new name beside it, and returns the copy's path."""
    number = 0
    while True:
        backup = file.with_name(f"{file.name}.bak{number or ''}")
        try:
            os.close(create(backup))  # closed, before there is anything in it
        except FileExistsError:
            number += 1
            continue
        shutil.copy2(file, backup)
        return backup
