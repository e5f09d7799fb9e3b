"""A server whose agent is `claude-code`, with the fake agent in the place of Claude Code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from codex_proxy.app.server import make_server
from tests.http.serving import ENVIRONMENT, Proxy, running_proxy, settings_of

SCRIPT = """#!/bin/sh
env > {env}.$$ && mv {env}.$$ {env}
echo "$@" >> {args}
exec {python} -P -m fake_proto claude "$@"
"""


def claude(folder: Path) -> Path:
    """A Claude Code that is the fake agent inside. It writes down its environment and its arguments."""
    program = folder / "claude"
    python = shlex.quote(sys.executable)
    program.write_text(SCRIPT.format(env=folder / "env", args=folder / "args", python=python))
    program.chmod(0o755)
    return program


@asynccontextmanager
async def claude_proxy(
    folder: Path, environment: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[Proxy]:
    settings = settings_of(folder, agent="claude-code", claude_bin=str(claude(folder)), **more)
    async with running_proxy(await make_server(settings, ENVIRONMENT | (environment or {}))) as proxy:
        yield proxy
