"""Random changes of files, and what a folder has, bit by bit."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

NAMES = [b"a", b"b.txt", b"\xff", b"new\nline", b"sub", b"deep", b"-x", b"z z"]


def change(folder: bytes, choose: random.Random) -> None:
    """Makes, changes and removes files, folders and links."""
    for _ in range(choose.randrange(1, 12)):
        path = folder
        for name in choose.choices(NAMES, k=choose.randrange(3)):
            if os.path.isdir(path + b"/" + name) and not os.path.islink(path + b"/" + name):
                path += b"/" + name
        path += b"/" + choose.choice(NAMES)
        remove(path)
        match choose.randrange(5):
            case 0:
                os.symlink(choose.choice(NAMES), path)
            case 1:
                os.mkdir(path)
                Path(os.fsdecode(path), "inner").write_bytes(choose.randbytes(3))
            case 2 | 3:
                Path(os.fsdecode(path)).write_bytes(choose.randbytes(choose.choice([0, 1, 5000])))
                os.chmod(path, choose.choice([0o600, 0o644, 0o664, 0o755, 0o700]))


def remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def files_in(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    """Returns the files and links with modes and contents."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = place + b"/" + name
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[os.path.relpath(path, os.fsencode(folder))] = (0, os.readlink(path))
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(path)).read_bytes()
                found[os.path.relpath(path, os.fsencode(folder))] = (stat.S_IMODE(mode), content)
    return found


def command(choose: random.Random) -> str:
    """Returns a command of a shell that makes, changes and removes files, folders and links."""
    lines = []
    for _ in range(choose.randrange(1, 6)):
        above = choose.choice([".", "./sub", "./sub/deep folder"])
        path = f'"{above}/{choose.choice(["a", "b.txt", "-x", "z z"])}"'
        lines += [f'mkdir -p "{above}"', f"rm -r {path}"]
        match choose.randrange(4):
            case 0:
                lines.append(f"ln -s {choose.choice(['a', '../gone'])} {path}")
            case 1 | 2:
                lines.append(f"seq {choose.randrange(900)} > {path}")
                lines.append(f"chmod {choose.choice(['600', '644', '664', '755', '700'])} {path}")
    return "; ".join(lines)
