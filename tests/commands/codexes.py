"""Programs that stand for Codex, and the command line as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.codex_schemas import NEWEST, schema_file, speaks
from tests.forking import run_command

CODEX = """#!/bin/sh
{before}
case "$1" in
  --version) echo "codex-cli {version}"; exit ;;
  sandbox) exit {sandbox} ;;
  proto) echo "Usage: codex proto [OPTIONS]"; exit {proto} ;;
esac
{speaks}exec {python} -m fake_proto "$@"
"""


def codex(
    folder: Path,
    version: str = "0.163.0",
    sandbox: int = 0,
    *,
    schema: str | None = NEWEST,
    proto: bool = False,
    before: str = "",
) -> Path:
    """A Codex of this release, that is the fake agent inside. Its app-server speaks as that of the release `schema`
    does, and with None it cannot say how; `proto`: it has `codex proto`; `before`: lines of its
    script."""
    program = folder / "codex"
    script = CODEX.format(
        version=version,
        sandbox=sandbox,
        before=before,
        proto=0 if proto else 2,
        speaks="" if schema is None else speaks(schema_file(schema)),
        python=shlex.quote(sys.executable),
    )
    program.write_text(script)
    program.chmod(0o755)
    return program


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.out, f"exit status {self.status}: {self.err}"
        body: dict[str, Any] = json.loads(self.out)
        return body

    def check(self, name: str) -> dict[str, Any]:
        """The check of this name in the JSON of a doctor."""
        [found] = [check for check in self.json["checks"] if check["name"] == name]
        return dict(found)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a user whose home is this folder, and who has set nothing."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"} | dict(more or {})


async def command(
    home: Path,
    *arguments: str,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> CommandResult:
    """`codex-proxy` with these arguments, in a process of its own, in the home of this user."""
    done = await asyncio.to_thread(
        run_command, arguments, env=environment(home, more), cwd=cwd or home, stdin=stdin
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())
