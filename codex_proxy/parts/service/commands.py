"""The command `codex-proxy service`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def commands(say: Callable[..., None], _settings_option: Callable[..., Any]) -> list[click.Command]:
    """Returns the command. `say` prints a text."""

    @click.group(short_help="Start the server at login, with systemd or launchd.")
    def service() -> None:
        """Run the server as a service of the user: it starts at login, and again after a crash."""

    @service.command()
    @click.option(
        "--workdir",
        type=click.Path(path_type=Path),
        help="Folder in which agent turns work (default: the current one).",
    )
    @click.argument("flags", nargs=-1, type=click.UNPROCESSED)
    def install(workdir: Path | None, flags: tuple[str, ...]) -> None:
        """Install and start the service. FLAGS, after `--`, are those of `codex-proxy serve`.

        \b
        codex-proxy service install --workdir ~/projects -- --agent claude-code
        """
        from codex_proxy.parts.service import login_service

        command = (sys.executable, "-P", "-m", "codex_proxy", "serve", *flags)
        folder = (workdir or Path.cwd()).absolute()
        say(login_service.install(_service(), command, folder, os.environ))

    @service.command()
    def uninstall() -> None:
        """Stop the service and remove its file."""
        from codex_proxy.parts.service import login_service

        say(login_service.uninstall(_service()))

    @service.command()
    def status() -> None:
        """Show what systemd or launchd says about the service."""
        from codex_proxy.parts.service import login_service

        sys.exit(login_service.status(_service()))

    return [service]


def _service() -> Any:
    from codex_proxy.parts.service.login_service import service_of

    return service_of(sys.platform, Path.home(), os.getuid())
