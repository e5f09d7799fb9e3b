"""The flags of the commands that set settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from codex_proxy.agents import registry

KEYS_OF_TABLES: Final = {
    "agent_command": ("acp", "command"),
    "agent_env": ("acp", "env"),
    "agent_usage": ("acp", "usage"),
    "agent_unconfined": ("acp", "unconfined"),
    "record": ("cassettes", "record"),
    "replay": ("cassettes", "replay"),
    "match": ("cassettes", "match"),
    "pace": ("cassettes", "pace"),
    "scrub": ("cassettes", "scrub"),
}
"""The flags that set a key of a table. Any other flag has the name of its setting."""


def settings_in(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that flags have set, by name. Raises `click.UsageError` for `--record-missing` without
    `--replay`.
    """
    found: dict[str, Any] = {}
    given = dict(flags)
    if given.pop("record_missing", None) and given.get("record") is None:
        given["record"] = given.get("replay")
        if given["record"] is None:
            raise click.UsageError("--record-missing needs --replay FOLDER.")
    for name, value in given.items():
        if value is None:
            continue
        if name in KEYS_OF_TABLES:
            table, key = KEYS_OF_TABLES[name]
            found.setdefault(table, {})[key] = value
        else:
            found[name] = value
    return found


Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


def _switch(name: str, help: str) -> Option:
    """Returns a flag without a value. One that is not given leaves the setting alone."""
    return click.option(name, is_flag=True, default=None, help=help)


def _choice(name: str, values: Sequence[str], help: str) -> Option:
    return click.option(name, type=click.Choice(values), help=help)


CONFIG_OPTION = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with settings.",
)

SETTING_OPTIONS = (
    click.option(
        "--agent",
        metavar=f"[{'|'.join(registry.names())}]",
        help="The agent to use. auto (the default) uses the Codex that it finds.",
    ),
    click.option(
        "--agent-plugin",
        metavar="MODULE:SPEC",
        help="An agent from another Python package; its module is imported.",
    ),
    click.option(
        "--agent-command",
        metavar="COMMAND",
        help='Program and arguments of --agent acp, for example "gemini --acp".',
    ),
    click.option(
        "--agent-env", metavar="NAMES", help="Environment variables for an ACP agent: names, or NAME=value."
    ),
    _choice(
        "--agent-usage",
        ["turn", "last", "session", "chunks"],
        "What an ACP agent's token counts cover (see docs/agents.md).",
    ),
    _switch("--agent-unconfined", "Allow an ACP agent that does not ask for permission before it acts."),
    _choice(
        "--agent-confinement",
        ["auto", "codex", "bubblewrap", "landlock", "none"],
        "How an agent's processes are confined (default: the first mechanism that works).",
    ),
    click.option(
        "--upstream-url",
        metavar="URL",
        help="Address of a model server to serve, for example http://127.0.0.1:11434/v1.",
    ),
    click.option("--codex-bin", metavar="PATH", help="The Codex binary, if it is not on PATH."),
    click.option("--claude-bin", metavar="PATH", help="Claude Code's program, if it is not on PATH."),
    click.option("--codex-home", metavar="DIR", help="Codex's home folder (default: ~/.codex)."),
    click.option(
        "--workdir", metavar="DIR", help="Folder in which agent turns work (default: the current one)."
    ),
    _choice(
        "--sandbox",
        ["read-only", "workspace-write", "danger-full-access"],
        "What the agent's own commands may do (default: read-only).",
    ),
    click.option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1)."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        metavar="N",
        help="Port to listen on (default: 11435); 0 for any free port.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 256),
        metavar="N",
        help="Processes that share the port (default: 1); more than one need a store in PostgreSQL.",
    ),
    _switch("--ollama", "Also listen on 11434, where Ollama's clients look for it."),
    click.option(
        "--api-key",
        metavar="KEY",
        help="API key that clients must send. Set PROXY_API_KEY instead to keep it out of `ps`.",
    ),
    click.option(
        "--mcp-config", metavar="FILE", help="JSON file with `mcpServers`, whose tools every request gets."
    ),
    CONFIG_OPTION,
    _choice(
        "--log-level",
        ["debug", "info", "warning", "error"],
        "The least severe messages to log (default: info).",
    ),
    _choice("--log-format", ["console", "json"], "Format of the log (default: console)."),
    _switch("--log-content", "Log prompts and answers too (default: off, since others may read the log)."),
)
"""Options of every command that reads settings."""


CASSETTE_OPTIONS = (
    click.option("--record", metavar="FOLDER", help="Record every turn in this folder, as a cassette."),
    click.option(
        "--replay",
        metavar="FOLDER",
        help="Answer from the cassettes in this folder, without an agent. With --record, the agent answers what they "
        "lack.",
    ),
    _switch("--record-missing", "The same as --record with the folder of --replay."),
    click.option(
        "--match",
        metavar="NAMES",
        help="Properties of a request that find its cassette (default: messages,tools,format,mode).",
    ),
    click.option(
        "--pace",
        metavar="[none|recorded|FACTOR]",
        help="How fast cassettes are replayed (default: none, without pauses).",
    ),
    click.option(
        "--scrub", metavar="REGEX", help="Regular expression of further text to remove from cassettes."
    ),
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command with `SETTING_OPTIONS`."""
    return _with(SETTING_OPTIONS, command)


def with_cassettes(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command with `CASSETTE_OPTIONS`."""
    return _with(CASSETTE_OPTIONS, command)


def _with(options: Sequence[Option], command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(options):
        command = option(command)
    return command
