"""Installs the programs of agents by npm, each release into a folder of its own, for the tests and the benchmark that
drive the real ones. The release of each is the one with which its preset was tested.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codex_proxy.parts.acp.presets import PRESETS
from codex_proxy.parts.claude_code.claude_spec import NAME as CLAUDE_CODE
from codex_proxy.parts.claude_code.launch import NEWEST_TESTED, version_text

CACHE: Final = Path(__file__).resolve().parent.parent / ".cache" / "agents"
AT_ONCE: Final = 3
SECONDS: Final = 240.0
"""Maximum seconds of one installation: usually 10 to 40."""


@dataclass(frozen=True)
class Program:
    """The npm package of an agent's program."""

    agent: str
    package: str
    release: str
    command: str

    @property
    def bin(self) -> Path:
        """The folder for PATH, after the installation."""
        return CACHE / f"{self.agent}-{self.release}" / "node_modules" / ".bin"

    @property
    def is_installed(self) -> bool:
        return (self.bin / self.command).exists() and (self.bin.parent.parent / "done").exists()


PROGRAMS: Final = {
    CLAUDE_CODE: Program(CLAUDE_CODE, "@anthropic-ai/claude-code", version_text(NEWEST_TESTED), "claude"),
    **{
        name: Program(name, each.package, each.tested_release, each.argv[0]) for name, each in PRESETS.items()
    },
}
"""Programs by the agent's name."""


def install(program: Program, npm: str) -> str:
    """Installs a program unless the cache has it. Returns why that is not possible; empty if it is installed."""
    if program.is_installed:
        return ""
    folder = program.bin.parent.parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package = f"{program.package}@{program.release}"
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        "--prefix",
        str(folder),
        package,
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"npm did not install {package} within {SECONDS:g} s"
    if run.returncode != 0 or not (program.bin / program.command).exists():
        said = run.stderr.strip().splitlines()[-1:] or ["it has no such program"]
        return f"npm cannot install {package}: {said[0][:200]}"
    if trouble := _node_trouble(program):
        return trouble
    (folder / "done").touch()
    return ""


def _node_trouble(program: Program) -> str:
    """Returns why the machine's Node cannot run an installed program; empty if it can."""
    described = json.loads((program.bin.parent / program.package / "package.json").read_text("utf-8"))
    wanted = re.search(r">=\s*(\d+)(?:\.(\d+))?", described.get("engines", {}).get("node", ""))
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True, timeout=SECONDS)
    has = re.match(r"v(\d+)\.(\d+)", node.stdout)
    if wanted is None or has is None or tuple(map(int, has.groups())) >= _numbers(wanted):
        return ""
    return f"{program.package} needs Node {wanted[0]}, and this one is {node.stdout.strip()}"


def _numbers(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(number or 0) for number in found.groups())


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/agent-programs", description=__doc__)
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"default: all of {', '.join(PROGRAMS)}")
    names = parser.parse_args().agents or list(PROGRAMS)
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    npm = shutil.which("npm")
    if npm is None:
        sys.stderr.write("there is no npm: no agent's program can be installed\n")
        return 1
    programs = [PROGRAMS[name] for name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        troubles = list(pool.map(lambda program: install(program, npm), programs))
    for program, trouble in zip(programs, troubles, strict=True):
        sys.stderr.write(f"{program.agent}: {trouble or program.release}\n")
    there = [str(program.bin) for program in programs if program.is_installed]
    if there:
        sys.stdout.write(os.pathsep.join(there) + "\n")
    return 0 if there else 1


if __name__ == "__main__":
    sys.exit(main())
