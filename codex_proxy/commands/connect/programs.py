"""The programs that `codex-proxy run` can start, as data of `programs.toml`: the environment and the arguments with
which each uses this server. What a program's settings file would have is in its `ClientSetup`, as for `connect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from codex_proxy.commands.connect.table import BY_NAME


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that is a client. `name` is the argument of `codex-proxy run`, and that of its file."""

    name: str
    setup: str = ""
    """The name of its `ClientSetup`; empty if none is used."""
    environment: Mapping[str, str] = {}
    """Its variables; in the file by default those of the `ClientSetup`, else those that SDKs read."""
    removed: tuple[str, ...] = ()
    """Variables of the user that would lead it to another server."""
    arguments: tuple[str, ...] = ()
    """The arguments before those of the user."""
    home: str = ""
    """Where it keeps its own files, if it was ever used."""
    fresh: Mapping[str, str] = {}
    """The variables that put its own files into the temporary folder. They are set if `home` does not exist: a program
    that was never set up leaves nothing behind."""
    install: str = ""
    """How to get it."""
    unserved: str = ""
    """Why it cannot use this server; empty if it can."""


class _Document(msgspec.Struct, frozen=True):
    """The content of `programs.toml`."""

    sdk_environment: dict[str, str]
    programs: tuple[Program, ...]


_document = msgspec.toml.decode(Path(__file__).with_name("programs.toml").read_bytes(), type=_Document)

SDK_ENVIRONMENT: Mapping[str, str] = _document.sdk_environment
"""The variables that SDKs and many programs read. A program that is not in the file gets them."""


def _environment_of(program: Program) -> Mapping[str, str]:
    setup = BY_NAME.get(program.setup)
    of_file: Mapping[str, str] = setup.file.values.get("env", {}) if setup and setup.file else {}
    return program.environment or of_file or SDK_ENVIRONMENT


PROGRAMS: Mapping[str, Program] = {
    program.name: msgspec.structs.replace(program, environment=_environment_of(program))
    for program in _document.programs
}
