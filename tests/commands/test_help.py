"""What `--help` says about the commands."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from codex_proxy.cli import main
from codex_proxy.settings.flags import SETTING_OPTIONS

SERVING = {"serve", "doctor"}
"""The commands that start a server, or check whether one can start."""


def _commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def test_no_summary_in_a_list_of_commands_is_cut() -> None:
    groups = [(), *(path for path, command in _commands(main) if isinstance(command, click.Group))]
    for path in groups:
        listed = CliRunner().invoke(main, [*path, "--help"]).output.partition("Commands:")[2]
        assert listed
        assert "..." not in listed, f"{path}: {listed}"


def test_only_commands_that_serve_have_the_flags_of_serving() -> None:
    for path, command in _commands(main):
        flags = {option for each in command.params for option in each.opts}
        if path[0] in SERVING:
            assert len(flags) >= len(SETTING_OPTIONS)
        else:
            assert not flags & {"--workers", "--log-content", "--sandbox"} or path in (
                ("keys", "add"),
                ("chat",),
            ), path
