"""The command line: `python -m fake_proto proto|app-server|acp|claude [-c key=value ...]` and `--version`."""

from __future__ import annotations

import os
import sys

from fake_proto.faults import Faults, note_pid
from fake_proto.loop import Loop
from fake_proto.marker import read_options
from fake_proto.settings import Settings
from fake_proto.wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from fake_proto.agent import Agent

COMMANDS = frozenset(("--version", "proto", "app-server", "acp", "debug"))
VERSION = "codex-cli 0.0.0-fake"
USAGE = (
    "usage: fake_proto proto|app-server|acp|claude [-c key=value ...] | --version | debug models --bundled\n"
)


def main(arguments: list[str]) -> int:
    """Runs the subcommand in `arguments`, and returns the exit status."""
    if arguments[:1] == ["claude"]:
        return serve("claude", arguments[1:])
    command = next((a for a in arguments if a in COMMANDS), "")
    if command == "--version":
        sys.stdout.write(VERSION + "\n")
        return 0
    if command == "debug":
        from fake_proto.models import catalog_text

        sys.stdout.write(catalog_text())
        return 0
    if command:
        return serve(command, arguments)
    sys.stderr.write(USAGE)
    return 2


def serve(command: str, arguments: list[str]) -> int:
    """Serves a subcommand's protocol on stdin and stdout, importing only its modules. Returns the exit status."""
    if command == "claude" and "--version" in arguments:
        from fake_proto.claude import VERSION as CLAUDE_VERSION

        sys.stdout.write(CLAUDE_VERSION + "\n")
        return 0
    settings = Settings(dict(os.environ), arguments)
    faults, wire = faults_and_stdout(settings)
    loop = Loop(wire)
    return loop.run(_agent_class(command)(settings, wire, loop, faults))


def _agent_class(command: str) -> type[Agent]:
    if command == "proto":
        from fake_proto.proto import ProtoAgent

        return ProtoAgent
    if command == "app-server":
        from fake_proto.app_server import AppServerAgent

        return AppServerAgent
    if command == "acp":
        from fake_proto.acp import AcpAgent

        return AcpAgent
    from fake_proto.claude import ClaudeAgent

    return ClaudeAgent


def faults_and_stdout(settings: Settings) -> tuple[Faults, Wire]:
    """Returns the faults of the process, which are active from now on, and stdout."""
    pid_file = settings.text("PID_FILE")
    note_pid(pid_file, os.getpid())
    names, _, options = settings.text("MISBEHAVE").partition(" ")
    faults = Faults(names, read_options(options) if options else {})
    faults.begin(pid_file, settings.text("SILENT_FILE"))
    wire = Wire()
    wire.muted = faults.has("hang_start")
    return faults, wire


def run() -> NoReturn:
    """Runs the command line, and exits without the interpreter's teardown, which takes a tenth of a short turn."""
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
