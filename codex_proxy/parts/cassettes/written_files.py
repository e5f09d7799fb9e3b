"""What a replayed turn writes: the changes that its cassette has, in the folder in which the turn works, where an agent
might write, too. Whether they fit is looked at before the turn begins, so that a folder that differs is an error of the
request; they are written right before the last of what the agent said.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.safety import ProtectedPath, find_endangered
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes.file_changes import FolderChanges, WorkspaceError
from codex_proxy.parts.cassettes.folder_files import is_within
from codex_proxy.parts.cassettes.format import Cassette
from codex_proxy.parts.cassettes.player import WriteFiles


async def prepare_files(
    cassette: Cassette, turn: Turn, protected: Sequence[ProtectedPath], cassettes: Path
) -> WriteFiles | None:
    """Returns a function that writes the files which the recorded turn changed; None if it changed none. Nothing is
    written in the folders of `protected` paths, or in `cassettes`, the folder or file of the cassettes. Raises `Fault`:
    NOT_ALLOWED where the turn's agent may not write; CONFLICT if a file differs from what it was before the recorded
    turn.
    """
    if not cassette.file_lines:
        return None
    if turn.mode != "agent" or turn.sandbox == "read-only":
        raise _not_allowed(
            cassette,
            "this turn may not write: its sandbox is read-only. Allow it with --sandbox workspace-write",
        )
    try:
        changes = await beside_the_loop(
            partial(_changes, cassette, turn.workdir, protected, cassettes), long=True
        )
    except WorkspaceError as error:
        raise Fault(_differs(cassette, error)) from error

    async def write() -> Failure | None:
        try:
            await beside_the_loop(changes.write, long=True)
        except WorkspaceError as error:
            return _differs(cassette, error)
        return None

    return write


def _changes(
    cassette: Cassette, workdir: str, protected: Sequence[ProtectedPath], cassettes: Path
) -> FolderChanges:
    folder, own = os.path.realpath(workdir), os.path.realpath(cassettes)
    if any(is_within(os.path.join(folder, os.fsdecode(line.path)), own) for line in cassette.file_lines):
        raise _not_allowed(cassette, "one of them would be a cassette. Work in another folder")
    found = find_endangered(folder, protected)
    if found is not None:
        raise _not_allowed(cassette, f"in its folder is {found.what}. Work in another folder")
    return FolderChanges(folder, cassette.file_lines)


def _not_allowed(cassette: Cassette, why: str) -> Fault:
    message = (
        f"The cassette {cassette.name} changes files, and {why}; or replay only what the agent says "
        "(cassettes.files = false)."
    )
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, code="cassette_files_not_allowed", message=message))


def _differs(cassette: Cassette, error: WorkspaceError) -> Failure:
    message = (
        f"The cassette {cassette.name} changes files, and does not fit the folder of this turn: {error}. Make the "
        "folder what it was when the turn was recorded, or record it anew."
    )
    return Failure(kind=FaultKind.CONFLICT, code="cassette_files_differ", message=message)
