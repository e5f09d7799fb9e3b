"""The release of an installed program: of the package that it is from, or as the program prints it."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from codex_proxy.core.faults import misconfigured
from codex_proxy.process.child import Command, run_short

PRINT_SECONDS: Final = 10.0
"""Seconds in which a program has to print its release; most take 0.1 to 1."""
_FOLDERS: Final = 6
"""The number of folders above a program's file in which its package is looked for."""
_MAX_BYTES: Final = 1 << 20
_RELEASE: Final = re.compile(
    r"(?<![\w.])v?(\d{1,6}\.\d{1,6}(?:\.\d{1,6})?(?:[-+.]?[a-zA-Z]\w{0,20})?)(?![\w.])"
)
_PYTHON_NAME: Final = re.compile(r"[-_.]+")


class _Package(msgspec.Struct):
    """Of a `package.json`."""

    name: str = ""
    version: str = ""


def release_of_package(program: str, package: str) -> str:
    """Returns the release of the npm or PyPI package `package` that the file `program` is from; empty if it is from no
    such package.
    """
    path = Path(os.path.realpath(program))
    for folder in tuple(path.parents)[:_FOLDERS]:
        if found := _npm_release(folder / "package.json", package):
            return found
    return _python_release(path.parent.parent, package)


def _npm_release(file: Path, package: str) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            return ""
        read = msgspec.json.decode(file.read_bytes(), type=_Package)
    except (OSError, msgspec.MsgspecError):  # another file of this name
        return ""
    return read.version if read.name == package else ""


def _python_release(prefix: Path, package: str) -> str:
    """`prefix`: the folder with `bin` and `lib`."""
    wanted = _PYTHON_NAME.sub("_", package).lower()
    for found in sorted(prefix.glob("lib/python3*/*-packages/*.dist-info")):
        name, _, release = found.name.removesuffix(".dist-info").partition("-")
        if _PYTHON_NAME.sub("_", name).lower() == wanted:
            return release
    return ""


async def printed_release(command: Command) -> str:
    """Returns the release in what a command prints. Raises `Fault` if it prints none, fails or takes too long."""
    shown = " ".join(command.argv)
    try:
        async with asyncio.timeout(PRINT_SECONDS):
            said = (await run_short(command)).decode("utf-8", "replace")
    except TimeoutError:
        raise misconfigured(f"{shown} did not answer within {PRINT_SECONDS:g} s") from None
    found = _RELEASE.search(said[:_MAX_BYTES])
    if found is None:
        raise misconfigured(f"{shown} printed no release")
    return found[1]
