"""Decides in which folder an agent turn works, and refuses folders that are not allowed.

The allowed root folders are resolved once, symbolic links included; the folder that a request names is resolved
before it is compared with them. A turn whose commands may write is refused in a folder from which they could change
the server itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.safety import Protected, endangered, is_inside
from codex_proxy.core.turn import Turn


class Workspace(msgspec.Struct, frozen=True):
    """The folders in which a client's turns may work: the default one (`folder`), and all that lie in one of the
    `roots`, whose paths are resolved. `protected` are paths that no turn may be able to write to; with
    `confine_reads` its commands must not read what the server stores.
    """

    folder: str
    roots: tuple[str, ...]
    protected: tuple[Protected, ...] = ()
    """Paths that a folder in which commands may write must not contain."""
    confine_reads: bool = False
    """Whether commands must not read what the server stores."""


def workspace_of(folder: str, roots: Sequence[str], protected: tuple[Protected, ...] = ()) -> Workspace:
    """Returns the workspace with this default folder, in which requests may choose any folder in `roots` or in the
    default folder. `protected` are paths that no agent may write to.
    """
    return Workspace(folder, tuple(dict.fromkeys(map(os.path.realpath, (folder, *roots)))), protected)


def narrowed_to(workspace: Workspace, roots: Sequence[str]) -> Workspace:
    """Returns the workspace for a key that has its own `roots`. Its default folder is the one of `workspace` if
    that lies in one of them, else the first root.
    """
    resolved = tuple(dict.fromkeys(map(os.path.realpath, roots)))
    inside = _is_inside(os.path.realpath(workspace.folder), resolved)
    folder = workspace.folder if inside else resolved[0]
    return msgspec.structs.replace(workspace, folder=folder, roots=resolved)


def in_workspace(turn: Turn, field: str | None, workspace: Workspace) -> Turn:
    """Returns the turn with the absolute path of its working folder: the folder that the request names, or the
    default one. `field` is the request's field that names it; None if the request names none. Raises `Fault` if the
    folder is not in the workspace, does not exist, or must not be written to although the turn may write.
    """
    if field is None:
        return _confined(msgspec.structs.replace(turn, workdir=workspace.folder), None, workspace)
    try:
        folder = os.path.realpath(os.path.join(workspace.folder, os.path.expanduser(turn.workdir)))
    except ValueError:  # a NUL, or half of a surrogate pair
        raise _no_folder(field) from None
    if not _is_inside(folder, workspace.roots):
        raise bad_request(
            f"{field} names a folder outside of this server's workspaces; the operator allows more with "
            "PROXY_WORKDIR_ROOTS.",
            field,
        )
    if not os.path.isdir(folder):
        raise _no_folder(field)
    return _confined(msgspec.structs.replace(turn, workdir=folder), field, workspace)


def _confined(turn: Turn, field: str | None, workspace: Workspace) -> Turn:
    """Returns the turn with the workspace's `confine_reads`. Raises `Fault`, with `field` as its `param`, if the
    turn's commands could write to a protected path.
    """
    turn = msgspec.structs.replace(turn, confine_reads=workspace.confine_reads)
    if turn.mode != "agent" or turn.sandbox != "workspace-write":
        return turn
    found = endangered(os.path.realpath(turn.workdir), workspace.protected)
    if found is None:
        return turn
    message = (
        f"An agent that may write cannot work in {turn.workdir}, where {found.what} is ({found.path}): its commands "
        "could change this server. Name another folder, or ask for a turn that only reads "
        "(`X-Codex-Sandbox: read-only`)."
    )
    if field is not None:
        raise bad_request(message, field)
    raise Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))


def _is_inside(folder: str, roots: Sequence[str]) -> bool:
    return any(is_inside(folder, root) for root in roots)


def _no_folder(field: str) -> Fault:
    return bad_request(f"{field} does not name a folder.", field)
