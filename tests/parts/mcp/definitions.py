"""Definitions of the test server (`tests/mcp/program.py`), and processes under the warden as in production."""

from __future__ import annotations

import os
import sys

import msgspec

from codex_proxy.core.items import TextPart
from codex_proxy.parts.mcp.config import StdioServer
from codex_proxy.parts.mcp.values import McpResult
from codex_proxy.process.launch import Command
from tests.mcp.serving import PROGRAM
from tests.waiting import PATIENCE

LONG = PATIENCE
"""Seconds that no call here takes, however busy the machine."""


def command_of(server: StdioServer) -> Command:
    """The command of a server that is a program."""
    env = {"PATH": os.environ["PATH"], **server.env}
    argv = (server.command, *server.args)
    return Command(argv=argv, env=env, cwd=server.cwd or "/", eof_grace=0.5, term_grace=0.2)


def stdio(label: str, *options: str, env: dict[str, str] | None = None) -> StdioServer:
    """The definition of the test server (`program.py`) over stdio."""
    return StdioServer(label=label, command=sys.executable, args=(PROGRAM, "stdio", *options), env=env or {})


def arguments(**given: object) -> str:
    return msgspec.json.encode(given).decode()


def texts(result: McpResult) -> list[str]:
    return [part.text for part in result.parts if isinstance(part, TextPart)]
