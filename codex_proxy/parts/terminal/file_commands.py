"""The commands about the files of turns: `/diff`, `/revert`, `/merge` and `/patch`."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from rich.text import Text

from codex_proxy.commands.running_server import RefusedError
from codex_proxy.core.faults import UserError
from codex_proxy.files.private import create
from codex_proxy.parts.terminal.conversation import Conversation
from codex_proxy.parts.terminal.turn_files import diff_lines, headline, named, whole_diff, why_nothing
from codex_proxy.parts.terminal.view import MORE

FORCE: Final = ("force", "--force")
"""The words that overwrite what was changed since."""


class FilesChat(Protocol):
    """What these commands use of the terminal."""

    conversation: Conversation

    def say(self, text: str) -> None:
        """Prints a text."""

    def show_lines(self, lines: Iterable[Text], whole: str) -> None:
        """Prints lines, and keeps the whole text of which they may be a part."""

    async def read_line(self, label: str, *, hidden: bool = False) -> str:
        """Asks the user for one line."""


async def show_diff(chat: FilesChat, which: str) -> None:
    """Shows what a turn has done to the files."""
    changes = await chat.conversation.changes(await chat.conversation.ended_turn(which))
    if nothing := why_nothing(changes):
        chat.say(nothing)
        return
    chat.show_lines(diff_lines(changes, MORE), whole_diff(changes))


async def revert(chat: FilesChat, arguments: str) -> None:
    """Makes the files that a turn has changed what they were before it, if the user wants that."""
    words = arguments.split()
    which = next((word for word in words if word not in FORCE), "")
    conversation, force = chat.conversation, any(word in FORCE for word in words)
    turn = await conversation.ended_turn(which)
    changes = await conversation.changes(turn)
    if nothing := why_nothing(changes):
        raise UserError(f"There is nothing to take back. {nothing}")
    chat.say(f"{headline(changes)}: {named([change['path'] for change in changes['data']])}")
    chat.say("They become what they were before that turn. What was said stays.")
    if (await chat.read_line("Revert? y or nothing: ")).strip().lower() not in ("y", "yes"):
        chat.say("Nothing was changed.")
        return
    try:
        done = await conversation.revert(turn, force=force)
    except RefusedError as error:
        if error.param != "force":
            raise
        again = " ".join(["/revert", *([which] if which else []), FORCE[0]])
        raise UserError(f"{error} Here: {again}") from error
    kept = f" What was overwritten is kept as {done['kept']}." if done["kept"] else ""
    count = len(done["paths"])
    chat.say(f"{'One file is' if count == 1 else f'{count} files are'} as before that turn.{kept}")


async def merge(chat: FilesChat, words: str) -> None:
    """Brings what was done in the session's worktree into its folder, if the user wants that, or into a new branch, of
    which the first word is the name and the others are the commit's message.
    """
    branch, _, message = words.partition(" ")
    worktree = await chat.conversation.worktree()
    if worktree is None:
        raise UserError(
            "This session works in the folder itself. One that is begun with --worktree has a copy of it."
        )
    if not branch:
        chat.say(f"The work in {worktree['folder']} goes into {worktree['source']}.")
        if (await chat.read_line("Merge? y or nothing: ")).strip().lower() not in ("y", "yes"):
            chat.say("Nothing was changed.")
            return
    done = await chat.conversation.merge(branch, message.strip())
    paths, place = done["paths"], done["source"]
    if done["branch"]:
        place = f"the branch {done['branch']} of {place}"
    count = "One file is" if len(paths) == 1 else f"{len(paths)} files are"
    chat.say(f"{count} merged into {place}: {named(paths)}" if paths else "There is nothing to merge.")
    if done["left_out"]:
        chat.say(f"Not merged, only in {worktree['folder']}: {named(done['left_out'])}")


def absolute(folder: str) -> str:
    """Returns the path of a folder as the user names it; empty for none."""
    return str(Path(folder).expanduser().absolute()) if folder else ""


async def save_patch(chat: FilesChat, file: str) -> None:
    """Writes all that the turns of the session have done to the files to a new file."""
    if not file:
        raise UserError("/patch takes the name of a new file.")
    path = absolute(file)
    patch = await chat.conversation.patch()
    try:
        await asyncio.to_thread(_write_new, path, patch)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error
    chat.say(f"Written to {path}. Where the changes are wanted: git apply --3way {shlex.quote(path)}")


def _write_new(path: str, content: bytes) -> None:
    with os.fdopen(create(path), "wb") as file:
        file.write(content)
