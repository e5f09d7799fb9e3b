"""The command line: `python -m fake_proto proto|app-server|exec|acp|claude [-c key=value ...]` and `--version`."""

from __future__ import annotations

import os
import sys

from fake_proto.faults import Faults, note_pid
from fake_proto.loop import Loop
from fake_proto.marker import read_options
from fake_proto.settings import Settings
from fake_proto.wire import Wire

VERSION = "codex-cli 0.0.0-fake"
USAGE = (
    "usage: fake_proto proto|app-server|exec|acp|claude [-c key=value ...] | --version | "
    "debug models --bundled\n"
)


def main(arguments: list[str]) -> int:
    """Runs the subcommand that the command line's `arguments` name, and returns the exit status of the process."""
    if arguments[:1] == ["claude"]:
        return serve_claude(arguments[1:])
    command = next(
        (a for a in arguments if a in ("--version", "proto", "app-server", "exec", "acp", "debug")), ""
    )
    if command == "--version":
        sys.stdout.write(VERSION + "\n")
        return 0
    if command == "debug":
        from fake_proto.models import catalog_text

        sys.stdout.write(catalog_text())
        return 0
    if command == "proto":
        return serve_proto(Settings(dict(os.environ), arguments))
    if command == "app-server":
        return serve_app_server(Settings(dict(os.environ), arguments))
    if command == "acp":
        return serve_acp(Settings(dict(os.environ), arguments))
    if command == "exec":
        from fake_proto.exec_turn import serve_exec

        settings = Settings(dict(os.environ), arguments)
        faults, wire = faults_and_stdout(settings)
        return serve_exec(settings, wire, faults, arguments)
    sys.stderr.write(USAGE)
    return 2


def serve_proto(settings: Settings) -> int:
    """Serves `codex proto` on stdin and stdout until a `shutdown` is submitted and stdin ends. Returns the exit
    status.
    """
    from fake_proto.proto import ProtoAgent

    faults, wire = faults_and_stdout(settings)
    loop = Loop(wire)
    agent = ProtoAgent(settings, wire, loop, faults)
    agent.open()
    return loop.run(agent)


def serve_acp(settings: Settings) -> int:
    """Serves the Agent Client Protocol on stdin and stdout until stdin ends. Returns the exit status."""
    from fake_proto.acp import AcpAgent

    faults, wire = faults_and_stdout(settings)
    loop = Loop(wire)
    return loop.run(AcpAgent(settings, wire, loop, faults))


def serve_app_server(settings: Settings) -> int:
    """Serves the JSON-RPC of `codex app-server` on stdin and stdout until stdin ends. Returns the exit status."""
    from fake_proto.app_server import AppServerAgent

    faults, wire = faults_and_stdout(settings)
    loop = Loop(wire)
    return loop.run(AppServerAgent(settings, wire, loop, faults))


def serve_claude(arguments: list[str]) -> int:
    """Serves the JSON lines of `claude -p` on stdin and stdout until stdin ends. Returns the exit status."""
    from fake_proto.claude import VERSION as CLAUDE_VERSION
    from fake_proto.claude import ClaudeAgent

    if "--version" in arguments:
        sys.stdout.write(CLAUDE_VERSION + "\n")
        return 0
    settings = Settings(dict(os.environ), arguments)
    faults, wire = faults_and_stdout(settings)
    loop = Loop(wire)
    return loop.run(ClaudeAgent(settings, wire, loop, faults))


def faults_and_stdout(settings: Settings) -> tuple[Faults, Wire]:
    """Returns the faults of the whole process, of which those that act before the first line have happened, and
    stdout.
    """
    pid_file = settings.text("PID_FILE")
    note_pid(pid_file, os.getpid())
    names, _, options = settings.text("MISBEHAVE").partition(" ")
    faults = Faults(names, read_options(options))
    faults.begin(pid_file, settings.text("SILENT_FILE"))
    wire = Wire()
    wire.muted = faults.has("hang_start")
    return faults, wire


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
