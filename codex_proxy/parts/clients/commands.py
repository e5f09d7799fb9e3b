"""The commands `codex-proxy connect` and `codex-proxy run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

import click

from codex_proxy.core.faults import UserError
from codex_proxy.settings.flags import URL_OPTION

_MODEL_OPTION: Final = click.option(
    "--model", metavar="NAME", default="codex-5", show_default=True, help="Model to use."
)


def commands(say: Callable[..., None], settings_option: Callable[..., Any]) -> list[click.Command]:
    """Returns the commands. `say` prints a text."""
    return [_connect_command(say, settings_option), _run_command(settings_option)]


def _connect_command(say: Callable[..., None], settings_option: Callable[..., Any]) -> click.Command:
    @click.command(short_help="Set up a client (an editor, an SDK) to use this server.")
    @click.argument("client", required=False)
    @click.option(
        "--write",
        is_flag=True,
        help="Change the client's settings file; a copy of the old one is kept beside it.",
    )
    @click.option(
        "--file",
        metavar="FILE",
        default="",
        help="The client's settings file, if it is not in the usual place.",
    )
    @URL_OPTION
    @_MODEL_OPTION
    @click.option("--key", metavar="KEY", help="API key the client sends, if the server needs one.")
    @settings_option
    def connect(
        client: str | None,
        write: bool,
        file: str,
        base_url: str | None,
        model: str,
        key: str | None,
        settings: Any,
    ) -> None:
        """Print the settings with which CLIENT uses this server. Without CLIENT, list the known clients."""
        from codex_proxy.parts.clients import connect as command

        if client is None:
            say(command.listing())
            return
        target = command.access_to(base_url or f"{settings.server_url}/v1", settings, key=key, model=model)
        try:
            found = command.client_named(client)
        except UserError as error:
            raise click.UsageError(str(error)) from error
        if found.file is not None:
            file = file or found.file.path_for(os.environ)
        if not write:
            say(command.instructions(found, target, file))
            return
        try:
            say(command.write_into(found, target, file))
        except UserError as error:
            say(f"codex-proxy: {error}\n", err=True)
            say(command.instructions(found, target, file))
            sys.exit(1)

    return connect


def _run_command(settings_option: Callable[..., Any]) -> click.Command:
    @click.command(
        short_help="Run a client (claude, codex, any program) with this server as its model.",
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.option("--agent", metavar="NAME", help="Start a server with this agent, even if one is running.")
    @_MODEL_OPTION
    @click.option(
        "--key", metavar="KEY", help="API key for the running server (default: that of the settings)."
    )
    @settings_option
    @click.argument("client")
    @click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
    def run(
        agent: str | None,
        model: str,
        key: str | None,
        settings: Any,
        client: str,
        arguments: tuple[str, ...],
    ) -> None:
        """Run CLIENT with this server as its model: claude, codex, aider, opencode, qwen, goose, code, or any program.

        Without a running server, one is started for it. No file of yours is changed, and nothing is left at the end.

        \b
        codex-proxy run claude -- -p "What does this folder hold?"
        codex-proxy run --agent claude-code codex
        """
        from codex_proxy.parts.clients.run import run as run_client

        given = arguments[1:] if arguments[:1] == ("--",) else arguments
        sys.exit(run_client(client, given, settings, os.environ, agent=agent, model=model, key=key))

    return run
