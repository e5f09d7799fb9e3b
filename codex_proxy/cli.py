"""The command line: `codex-proxy serve` and the other commands."""

from __future__ import annotations

import asyncio
import codecs
import errno
import gc
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from codex_proxy import __version__
from codex_proxy.commands.lean_imports import import_aiohttp, import_structlog
from codex_proxy.core.faults import UserError, shortage_of
from codex_proxy.core.shown_text import escape_json, escape_lines, json_escapes
from codex_proxy.parts import absent_part_text, absent_parts, declared
from codex_proxy.settings.flags import (
    URL_OPTION,
    config_option,
    with_serve_settings,
    with_settings,
)


def _print(text: str, *, err: bool = False, as_json: bool = False) -> None:
    """Prints a text (`as_json`: JSON) to stdout or stderr. Control characters are escaped, because others choose names
    and paths in it.
    """
    click.echo(escape_json(text) if as_json else escape_lines(text), err=err)


class _Commands(click.Group):
    """Prints the message of a `UserError`, or what the machine lacks, and ends with the exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise click.ClickException(escape_lines(str(error))) from error
        except (OSError, RuntimeError, MemoryError) as error:
            if isinstance(error, FileNotFoundError):
                from codex_proxy.process.launch import FOLDER_REMOVED, is_folder_removed

                if is_folder_removed():
                    raise click.ClickException(FOLDER_REMOVED) from error
            if shortage := shortage_of(error):
                raise click.ClickException(f"cannot run: {shortage}.") from error
            if not isinstance(error, OSError) or not error.strerror or error.errno == errno.EPIPE:
                raise  # a reader that has left is no error: click ends the program
            place = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(escape_lines(f"{place}{error.strerror}.")) from error


def load_settings(flags: dict[str, Any], config_file: Path | None) -> Any:
    """Returns the `Settings`. Raises `click.UsageError`, which names the invalid setting."""
    from codex_proxy.settings.load import load

    try:
        return load(flags, config_file)
    except UserError as error:
        raise click.UsageError(escape_lines(str(error))) from error


SETTINGS_OPTION = config_option("settings", lambda _context, _option, file: load_settings({}, file))
"""The option for the settings file; the command gets the `Settings`."""
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="codex-proxy")
def main() -> None:
    """Local coding agents behind the APIs of OpenAI, Anthropic and Ollama."""
    # The program that has started this one may leave it otherwise: then no child's end would be seen, or no SIGTERM.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # So may it have closed these. A file would get the number of one, and children need all three.
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(null, True)
    os.close(null)
    sys.stdin = sys.stdin or open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("json_escapes", _with_escapes)
        sys.stdout.reconfigure(errors="json_escapes")


def _with_escapes(error: UnicodeError) -> tuple[str, int]:
    """Writes what the locale's coding does not have, so that JSON stays JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return json_escapes(error.object[error.start : error.end]), error.end


@main.command(short_help="Serve the agent through the HTTP APIs.")
@with_serve_settings
@click.option("--worker", type=int, default=0, hidden=True)
def serve(config_file: Path | None, worker: int, **flags: Any) -> None:
    """Serve the agent on http://127.0.0.1:11435/v1 until Ctrl-C.

    Settings are read from these flags, else from PROXY_* and CODEX_* variables, else from the file of --config.
    docs/configuration.md lists all settings.
    """
    # `worker` is this process's number among several, which a part has started (`Part.serve`); 0 for none of them.
    gc.disable()  # until it serves: what is imported stays, and looking at it again and again takes a fifth of the time
    import_structlog()
    import_aiohttp()
    from codex_proxy.app.logs import LogStream, capture_other_logs, configure
    from codex_proxy.process.own_process import (
        EventLoop,
        adopt_orphans,
        make_undumpable,
        return_large_buffers,
    )

    make_undumpable()
    settings = load_settings(flags, config_file)
    sys.stdout, sys.stderr = LogStream(1), LogStream(2)
    configure(
        settings.log_level, settings.log_format, content=settings.log_content, worker=worker, for_good=True
    )
    capture_other_logs()
    for serves in declared("serve") if not worker else ():
        if (status := serves(settings, sys.argv[1:], _print)) is not None:
            sys.exit(status)
    return_large_buffers()
    adopt_orphans()
    from codex_proxy.commands.serve import serve_to_the_end

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        sys.exit(runner.run(serve_to_the_end(settings, _print, worker=worker)))


@main.command(short_help="Check everything a server needs, and report what is missing.")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/operations.md describes it.")
@click.option(
    "--all", "every_setting", is_flag=True, help="Also show settings that have their default value."
)
def doctor(config_file: Path | None, as_json: bool, every_setting: bool, **flags: Any) -> None:
    """Check the agent, its sign-in, the port, the folders and the settings, and say what to do next.

    No turn is run. The exit status is 0 if a server can start, else 1.
    """
    from codex_proxy.commands.doctor import as_text, examine

    checkup = asyncio.run(examine(flags, config_file, os.environ))
    _print(checkup.as_json() if as_json else as_text(checkup, every_setting=every_setting), as_json=as_json)
    sys.exit(0 if checkup.ok else 1)


@main.command(short_help="List the agents by name: installed, signed in, and how to get them.")
@JSON_OPTION
@SETTINGS_OPTION
def agents(as_json: bool, settings: Any) -> None:
    """List the agents that this server knows by name, what is installed and signed in, and how to get the others.

    Nothing is started but a program for its release, and nobody is asked over a network: `?` is what only a start
    would tell. docs/agents.md explains what each agent can do.
    """
    from codex_proxy.commands import agents as command

    found = asyncio.run(command.known_agents(settings, os.environ))
    _print(command.as_json(found) if as_json else command.as_text(found), as_json=as_json)


@main.group(name="store", short_help="Inspect, export and clean up stored responses and conversations.")
def store_group() -> None:
    """Inspect, export and clean up the responses and conversations that a server has stored. The server may be
    running.
    """


@store_group.command(name="stats")
@SETTINGS_OPTION
@JSON_OPTION
def store_stats(settings: Any, as_json: bool) -> None:
    """Print how many objects of each kind are stored."""
    from codex_proxy.commands.store import show_stats

    _print(asyncio.run(show_stats(settings, as_json=as_json)), as_json=as_json)


@store_group.command(name="prune")
@SETTINGS_OPTION
def store_prune(settings: Any) -> None:
    """Remove what exceeds the PROXY_STORE_* settings."""
    from codex_proxy.commands.store import prune

    _print(asyncio.run(prune(settings)))


@store_group.command(name="check")
@SETTINGS_OPTION
def store_check(settings: Any) -> None:
    """Compare everything that is stored with its checksum. The exit status is 0 if all is well, else 1."""
    from codex_proxy.commands.store import check

    _print(asyncio.run(check(settings)))


@store_group.command(name="export")
@SETTINGS_OPTION
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default="-",
    help="File to write, readable by its owner alone (default: standard output).",
)
def store_export(settings: Any, output: Path) -> None:
    """Write every response and conversation as one line of JSON each."""
    from codex_proxy.commands.store import export, export_to

    if str(output) == "-":
        if sys.stdout.name == os.devnull:
            raise UserError("standard output is closed: name a file with --output.")
        count = asyncio.run(export(settings, sys.stdout.buffer.write, os.environ))
    else:
        count = asyncio.run(export_to(settings, output, os.environ))
    _print(f"{count} objects", err=True)


STORE_OPTION = click.option(
    "--store",
    "in_store",
    is_flag=True,
    help="Use the keys in the store, which all servers of the store share.",
)


@main.group(name="keys", short_help="Create, list and remove API keys for clients.")
def keys_group() -> None:
    """Create, list and remove the API keys of clients. A running server notices changes within a second."""


@keys_group.command(name="add")
@click.argument("name")
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model it may use. Can be repeated.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="An agent or upstream whose models it may use. Can be repeated.",
)
@click.option(
    "--sandbox",
    type=click.Choice(["read-only", "workspace-write", "danger-full-access"]),
    help="The least restrictive sandbox that its agent turns may have.",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="DIR",
    help="A folder its agent turns may work in. Can be repeated.",
)
@click.option("--rpm", type=click.IntRange(1), help="Maximum number of requests per minute.")
@click.option("--concurrency", type=click.IntRange(1), help="Maximum number of requests at the same time.")
@click.option("--plain-model", is_flag=True, help="Refuse agent turns: the key can use only plain models.")
@click.option("--no-mcp", is_flag=True, help="Offer its requests no tools of MCP servers.")
@click.option(
    "--approvals",
    type=click.Choice(["decline", "ask"]),
    help="What becomes of agents' questions for permission in its sessions, in place of the server's setting.",
)
@click.option("--may-approve", is_flag=True, help="Let it answer such questions.")
@click.option("--replace", is_flag=True, help="Replace the key of this name, if there is one.")
@STORE_OPTION
@SETTINGS_OPTION
def keys_add(name: str, no_mcp: bool, replace: bool, in_store: bool, settings: Any, **limits: Any) -> None:
    """Create the API key NAME and print it. It cannot be shown again.

    Responses and conversations created with it belong to NAME.
    """
    from codex_proxy.commands.keys import add, add_to_store, remove, remove_from_store

    if sys.stdout.name == os.devnull:
        raise UserError("standard output is closed: the key could not be printed, and was not made.")
    wanted = {**limits, "mcp": not no_mcp}
    if in_store:
        key, note = asyncio.run(add_to_store(settings, name, wanted, replace=replace))
    else:
        key, note = add(settings, name, wanted, replace=replace)
    try:
        _print(key)
    except OSError as error:
        if in_store:
            asyncio.run(remove_from_store(settings, name))
        else:
            remove(settings, name)
        raise UserError(f"the key could not be printed, and was removed again: {error.strerror}.") from error
    _print(note, err=True)


@keys_group.command(name="list")
@JSON_OPTION
@STORE_OPTION
@SETTINGS_OPTION
def keys_list(as_json: bool, in_store: bool, settings: Any) -> None:
    """List the names and limits of the keys."""
    from codex_proxy.commands.keys import listing, stored_keys

    stored = asyncio.run(stored_keys(settings)) if in_store else None
    _print(listing(settings, stored, as_json=as_json), as_json=as_json)


@keys_group.command(name="remove")
@click.argument("name")
@STORE_OPTION
@SETTINGS_OPTION
def keys_remove(name: str, in_store: bool, settings: Any) -> None:
    """Remove the key NAME.

    Requests with it are refused from then on; the responses and conversations created with it are kept.
    """
    from codex_proxy.commands.keys import remove, remove_from_store

    _print(asyncio.run(remove_from_store(settings, name)) if in_store else remove(settings, name))


@main.command(short_help="Show the tokens that turns have used, day by day.")
@click.option(
    "--days", type=click.IntRange(1, 31), default=7, show_default=True, help="Number of days to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
@URL_OPTION
@click.option("--key", metavar="KEY", help="API key whose usage is shown (default: that of the settings).")
@click.option(
    "--all-keys", is_flag=True, help="Show the usage of all keys, read from the store instead of the server."
)
@SETTINGS_OPTION
def usage(
    days: int, as_json: bool, base_url: str | None, key: str | None, all_keys: bool, settings: Any
) -> None:
    """Show the tokens used with an API key, day by day, and how much of the agent account's limits is left."""
    from codex_proxy.commands.running_server import address_and_key
    from codex_proxy.commands.usage import print_rows, run, usage_of_all_keys

    if all_keys:
        print_rows(asyncio.run(usage_of_all_keys(settings, days)), as_json=as_json)
        return
    run(*address_and_key(base_url, key, settings), days=days, as_json=as_json)


def _command_of_absent_part(name: str, part: str) -> click.Command:
    """Returns a command that is not shown, and raises `click.UsageError` whatever follows it."""

    def refuse(**_: Any) -> None:
        raise click.UsageError(f"`codex-proxy {name}` belongs to {absent_part_text(part)}.")

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )


def _add(command: click.Command) -> None:
    """Adds a part's command to the group that its name begins with, or to `main`."""
    group, _, name = (command.name or "").rpartition(" ")
    parent = main.commands[group] if group else main
    assert isinstance(parent, click.Group)
    parent.add_command(command, name)


for _commands_of in declared("commands"):
    for _command in _commands_of(_print, SETTINGS_OPTION):
        _add(_command)
for _part, _known in absent_parts().items():
    for _name in _known.commands:
        _add(_command_of_absent_part(_name, _part))
