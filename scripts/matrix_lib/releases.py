"""The releases of Codex to test, and how each is installed into a cache folder of its own.

From 0.136.0 to 0.163.0 PyPI has the native binary as `openai-codex-cli-bin`; npm's `@openai/codex` has the others. Only
the packages' ordinary clients are used, for the releases that are named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from codex_proxy.agents.codex.program import Version, find_native_binary

PYPI: Final = (
    *("0.136.0", "0.144.4", "0.147.0", "0.149.0", "0.153.4", "0.154.0"),
    *("0.155.1", "0.156.1", "0.157.1", "0.158.0", "0.159.3", "0.160.1", "0.161.0", "0.162.1", "0.163.0"),
)
"""The last patch of each minor release of `openai-codex-cli-bin`."""

NPM: Final = ("0.42.0", "0.169.0", "0.171.0")
"""The last release with `codex proto`, and those later than PyPI's."""

FIRST_OF_PYPI: Final = Version(0, 136, 0)
LAST_OF_PYPI: Final = Version(0, 163, 0)


def version_of(release: str) -> Version:
    """Returns the release as numbers. Raises `ValueError` unless it is three numbers."""
    return Version(*(int(number) for number in release.split(".")))


RELEASES: Final = tuple(sorted((*PYPI, *NPM), key=version_of))
"""The releases that a run without arguments tests."""


def source_of(release: str) -> str:
    """Returns the registry that has the release: `pypi` or `npm`."""
    return "pypi" if FIRST_OF_PYPI <= version_of(release) <= LAST_OF_PYPI else "npm"


def install(release: str, cache: Path) -> Path:
    """Installs the release, unless the cache has it, and returns its native binary. Raises
    `subprocess.CalledProcessError` or `FileNotFoundError` if that is not possible.
    """
    folder = cache / f"{source_of(release)}-{release}"
    found = _binary(release, folder)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    if source_of(release) == "pypi":
        package = f"openai-codex-cli-bin=={release}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        command.append(package)
    else:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
        command.append(f"@openai/codex@{release}")
    subprocess.run(command, check=True, stdout=sys.stderr)
    found = _binary(release, folder)
    if found is None:
        raise FileNotFoundError(f"{command[-1]} brought no binary for this machine into {folder}")
    return found


def _binary(release: str, folder: Path) -> Path | None:
    """Returns the native binary of an installed release, if there is one."""
    if source_of(release) == "pypi":
        binary = folder / "codex_cli_bin" / "bin" / "codex"
    else:
        binary = Path(find_native_binary(str(folder / "node_modules" / ".bin" / "codex")))
    return binary if binary.is_file() and binary.suffix != ".js" and os.access(binary, os.X_OK) else None
