"""The commands `codex-proxy cassettes ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from codex_proxy.parts.cassettes.settings import CassetteError

FOLDER = click.Path(path_type=Path)


def _folder(path: Path) -> Any:
    from codex_proxy.parts.cassettes.replay import Folder

    return Folder(path)


def _chain(path: Path) -> Any:
    from codex_proxy.parts.cassettes.format import SUFFIX

    file = path if path.suffix == SUFFIX else path.parent / f"{path.name}{SUFFIX}"
    if not file.is_file():
        raise CassetteError(f"There is no cassette {file}.")
    folder = _folder(file.parent)
    return folder.chain(folder.cassettes[file.name.removesuffix(SUFFIX)])


def commands(say: Callable[..., None], _settings_option: object) -> list[click.Command]:
    """Returns the group of commands. `say` prints a text."""

    @click.group(name="cassettes", cls=_Group, short_help="Check, show and compare recordings of turns.")
    def cassettes() -> None:
        """Check, show and compare cassettes: recordings of turns, made with `serve --record`."""

    @cassettes.command()
    @click.argument("folder", type=FOLDER)
    def check(folder: Path) -> None:
        """Render every answer in FOLDER anew, and show what differs. The exit status is 1 if one does."""
        from codex_proxy.parts.cassettes.check import check_folder, report, run

        results = run(check_folder(found := _folder(folder)))
        say(report(results, left_out=len(found.cassettes) - len(results)))
        sys.exit(0 if all(each.same for each in results) else 1)

    @cassettes.command()
    @click.argument("folder", type=FOLDER)
    def update(folder: Path) -> None:
        """Write today's answers into the cassettes in FOLDER."""
        from codex_proxy.parts.cassettes.check import check_folder, run
        from codex_proxy.parts.cassettes.check import update as write_anew

        found = _folder(folder)
        changed = [each for each in run(check_folder(found)) if not each.same]
        for each in changed:
            write_anew(found, each)
            say(f"updated {each.cassette.name}")
        say(f"{len(found.cassettes)} cassettes, {len(changed)} updated.")

    @cassettes.command()
    @click.argument("file", type=FOLDER)
    def show(file: Path) -> None:
        """Print the cassette FILE as a conversation."""
        from codex_proxy.parts.cassettes.views import as_conversation

        say(as_conversation(_chain(file)[-1]))

    @cassettes.command(name="to-scenario")
    @click.argument("file", type=FOLDER)
    def to_scenario(file: Path) -> None:
        """Print FILE as a scenario of the fake agent. It begins with the cassettes that FILE continues."""
        from codex_proxy.parts.cassettes.views import scenario

        say(scenario(_chain(file)))

    @cassettes.command()
    @click.argument("old", type=FOLDER)
    @click.argument("new", type=FOLDER)
    def diff(old: Path, new: Path) -> None:
        """Compare two recordings of the same requests. OLD and NEW are folders."""
        from codex_proxy.parts.cassettes.check import compare

        say(compare(_folder(old), _folder(new)))

    return [cassettes]


class _Group(click.Group):
    """Converts an `OSError` to an error of the command line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            raise click.ClickException(str(error)) from error
