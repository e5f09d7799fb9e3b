"""The paths that an agent's commands must not change, whatever their sandbox permits, since they decide what runs
outside of it; and the folders that commands may write to.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from codex_proxy.agents.codex.program import find_codex
from codex_proxy.agents.configured.agents import codex_settings, is_plain_only, plugin_references
from codex_proxy.agents.names import code_of
from codex_proxy.agents.registry import plugin_part
from codex_proxy.core.faults import Fault
from codex_proxy.core.safety import ProtectedPath, find_endangered
from codex_proxy.parts import parts
from codex_proxy.settings.fields import Settings

if TYPE_CHECKING:
    from codex_proxy.agents.codex.process_config import WorkspaceWrite

MAX_LINKS = 40
"""Maximum links in one path, as on Linux."""

THREADS = ("sessions", "archived_sessions")
"""The folders of Codex's home with its threads, which may be those of other keys."""

STORE_FILE_ENDINGS = ("-wal", "-shm", "-journal", ".lock")
"""What the names of the files beside the store's file end with."""

OTHER_FOLDER_ADVICE = (
    "Work in another folder (start the server there, or name one with --workdir), "
    "or leave the sandbox read-only."
)


def paths_to(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Returns the paths to protect for one: every symbolic link in it, since a replaced link changes what it refers to,
    and last the path with all links resolved.
    """
    found: list[str] = []
    rest = Path(os.path.abspath(os.path.expanduser(path))).parts[::-1]
    waiting, here, links = list(rest[:-1]), rest[-1], 0
    while waiting:
        name = waiting.pop()
        if name == ".":
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        if os.path.islink(step) and links < MAX_LINKS:
            links += 1
            found.append(step)
            target = os.readlink(step)
            here = "/" if os.path.isabs(target) else here
            waiting += [part for part in target.split("/")[::-1] if part]
            continue
        here = step
    return (*found, here)


def protected_paths(settings: Settings, environ: Mapping[str, str]) -> tuple[ProtectedPath, ...]:
    """Returns settings, state folder, the code of server, Python and plugins, each Codex's program and home, and the
    links in these paths.
    """
    return tuple(
        dict.fromkeys(
            ProtectedPath(what, place, whole)
            for what, path, whole in (*_own_files(settings), *_code(), *_codex(settings, environ))
            for place in paths_to(path)
        )
    )


def _own_files(settings: Settings) -> Iterator[tuple[str, str | Path, bool]]:
    yield "the state folder", settings.state_dir, True
    yield "the keys file", settings.keys_path, True
    yield "the settings file", settings.config_file, True
    if settings.in_file:
        yield "the store", settings.store_file, True
        yield "the uploaded files", settings.uploads_folder, True
    yield from ((what, path, True) for what, path in _files_of_parts(settings))
    for reference in plugin_references(settings):
        part = plugin_part(reference)
        of_part = () if part is None else (*part.agents.values(), part.server, part.checks)
        for path in dict.fromkeys(path for each in (reference, *of_part) if each for path in code_of(each)):
            yield "the agent plugin's code", path, True


def _files_of_parts(settings: Settings) -> Iterator[tuple[str, Path]]:
    for part in parts():
        for name, what in part.files.items():
            if (path := getattr(settings, name)) is not None:
                yield what, path


def _code() -> Iterator[tuple[str, str | Path, bool]]:
    """Yields paths of code: a name for messages, the path, and whether all of the folder is protected (not of a
    checkout on `sys.path`).
    """
    for package in ("codex_proxy", "fake_proto"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield "the server's code", folder, True
    if sys.prefix != sys.base_prefix:
        yield "the Python environment", sys.prefix, True
    yield "the Python interpreter", sys.executable, True
    for folder in (os.path.dirname(os.__file__), *sys.path):
        if os.path.isdir(folder or "."):
            whole = os.path.basename(folder) in ("site-packages", "dist-packages")
            yield "a folder that Python imports from", folder or ".", whole


def _codex(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[str, str | Path, bool]]:
    for each in codex_settings(settings):
        yield "Codex's home", each.codex_home, True
        program = find_codex(each.codex_bin, environ.get("PATH", os.defpath))
        for path in (each.codex_bin, program):
            if path is not None and os.sep in path:
                yield "the Codex program", path, True
        if program is not None:
            package = Path(os.path.realpath(program)).parents[1]
            if (package / "codex-package.json").is_file():
                yield "the Codex program", package, True


def safe_write_policy(
    policy: WorkspaceWrite, settings: Settings, environ: Mapping[str, str]
) -> WorkspaceWrite:
    """Returns the user's policy without folders that contain protected paths: `write_conflict` refuses these only where
    the server's own sandbox is `workspace-write`.
    """
    protected = protected_paths(settings, environ)
    tmpdir = environ.get("TMPDIR", "")

    def is_safe(folder: str) -> bool:
        return find_endangered(os.path.realpath(folder), protected) is None

    return msgspec.structs.replace(
        policy,
        # A server without a sandbox starts with any roots; a key or a request may still narrow it to this one.
        writable_roots=tuple(filter(is_safe, policy.writable_roots)),
        exclude_slash_tmp=policy.exclude_slash_tmp or not is_safe("/tmp"),
        exclude_tmpdir_env_var=policy.exclude_tmpdir_env_var or not (not tmpdir or is_safe(tmpdir)),
    )


def unreadable_paths(settings: Settings) -> tuple[str, ...]:
    """Returns the paths that commands must not read: what the server stores or is configured by, and each Codex's
    sign-in and threads.
    """
    store = settings.store_file
    homes = dict.fromkeys([settings.codex_home, *(each.codex_home for each in codex_settings(settings))])
    files = [
        settings.keys_path,
        settings.config_file,
        *(home / name for home in homes for name in ("auth.json", *THREADS)),
    ]
    files += [store.with_name(store.name + end) for end in ("", *STORE_FILE_ENDINGS)]
    files += [path.expanduser().absolute() for _, path in _files_of_parts(settings)]
    from codex_proxy.agents.codex.process_config import outermost_paths

    there = [path for path in (settings.state_dir, *files) if path.parent.is_dir()]
    return outermost_paths([os.path.realpath(path) for path in there])


def write_conflict(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Returns why the server must not start, and what to do: with `workspace-write` the agent's commands could change a
    protected path.
    """
    if settings.sandbox != "workspace-write" or settings.builtin_tools == "never" or is_plain_only(settings):
        return None
    protected = protected_paths(settings, environ)
    found = find_endangered(os.path.realpath(settings.workdir), protected)
    if found is not None:
        return (
            f"--sandbox workspace-write would let the agent's commands write to {settings.workdir}, where "
            f"{found.what} is ({found.path}): they could change what runs outside of the sandbox. {OTHER_FOLDER_ADVICE}"
        )
    for each in codex_settings(settings):
        conflict = _root_conflict(each, protected)
        if conflict is not None:
            return conflict
    return None


def _root_conflict(settings: Settings, protected: tuple[ProtectedPath, ...]) -> str | None:
    """Returns a message about one Codex's first `writable_roots` that contains a protected path; None also if the file
    cannot be read.
    """
    from codex_proxy.agents.codex.plain_home import user_config

    try:
        roots = user_config(settings.codex_home).write_policy.writable_roots
    except Fault:
        return None  # the agent's own start says what is wrong with the file
    for root in roots:
        found = find_endangered(os.path.realpath(root), protected)
        if found is not None:
            return (
                f"{settings.codex_home / 'config.toml'} names {root} in sandbox_workspace_write.writable_roots, where "
                f"{found.what} is ({found.path}): with --sandbox workspace-write the agent's commands could change "
                "what runs outside of the sandbox. Take it out, or leave the sandbox read-only."
            )
    return None
