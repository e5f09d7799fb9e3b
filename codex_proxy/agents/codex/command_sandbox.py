"""The sandbox of the agent's commands: whether it works here, and what of this server's files they cannot read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.codex.process_config import Profiles, arguments_of
from codex_proxy.agents.codex.program import output_of
from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import make_folder, temporary_folder
from codex_proxy.process.child import Command, run_to_end
from codex_proxy.process.launch import child_environment

SANDBOX_SECONDS: Final = 20.0
"""Maximum seconds for the command `true` in Codex's sandbox."""

HOME_WITHOUT_LINKS: Final = (
    "Codex's home {home} is below the temporary folder {temporary}. Codex makes no links to its helpers there, and "
    "cannot confine commands without them, so the agent's commands fail: {why}."
)
HOME_ADVICE: Final = "Move Codex's home (CODEX_HOME) elsewhere, or install bubblewrap 0.9 or newer."


@contextmanager
def sandbox_variables(*, links: bool = True) -> Iterator[dict[str, str]]:
    """Yields CODEX_HOME and TMPDIR for a Codex in a new, empty home with links to its helpers (or without), and removes
    the folders."""
    with temporary_folder("check") as (folder, _):
        home, temporary = os.path.join(folder, "home"), os.path.join(folder, "tmp")
        for each in (home, temporary):
            make_folder(Path(each))
        yield {"CODEX_HOME": home, "TMPDIR": temporary if links else folder}


def home_has_links(codex_home: Path, environ: Mapping[str, str]) -> bool:
    """Whether Codex makes links to its helpers in this home: it is not below the temporary folder."""
    return not Path(os.path.realpath(codex_home)).is_relative_to(_temporary(environ))


def _temporary(environ: Mapping[str, str]) -> str:
    return environ.get("TMPDIR") or "/tmp"


async def confine_fault(program: str, environ: Mapping[str, str], *, links: bool = True) -> str:
    """Returns why Codex cannot confine a command here, in a home with links to its helpers or without; empty if it
    can."""
    with sandbox_variables(links=links) as variables:
        env = child_environment(environ) | variables
        exit = await run_to_end(
            Command((program, "sandbox", "--", "true"), env, env["CODEX_HOME"]), SANDBOX_SECONDS
        )
    if exit is None:
        return "it did not end in time"
    if exit.code == 0:
        return ""
    said = exit.stderr_tail.strip().splitlines()[-1:]
    return said[0][:200] if said else f"exit status {exit.code}"


async def home_fault(program: str, home: Path, environ: Mapping[str, str]) -> str:
    """Returns why Codex cannot confine commands only because of the place of its home; empty if this is not so."""
    if home_has_links(home, environ):
        return ""
    why = await confine_fault(program, environ, links=False)
    if not why or await confine_fault(program, environ):
        return ""
    return HOME_WITHOUT_LINKS.format(home=home, temporary=_temporary(environ), why=why)


log = structlog.get_logger(__name__)


class ConfinedReads:
    """Gives agent turns that must not read protected paths a permission profile. Asks Codex once whether it can limit
    reading; after a no, asks again for the next turn.
    """

    def __init__(self, program: str, profiles: Profiles, environment: Mapping[str, str]) -> None:
        self._profiles = profiles
        self._program = program
        self._environment = environment
        self._asked: asyncio.Task[bool] | None = None

    async def limit(self, turn: Turn) -> Turn:
        """Returns the turn, with a profile if it is an agent turn that must not read protected paths."""
        if turn.mode == "model" or not turn.confine_reads:
            return turn
        if self._asked is None or (self._asked.done() and not self._asked.result()):
            self._asked = asyncio.ensure_future(self.can_confine())
        if not await asyncio.shield(self._asked):
            return turn
        return msgspec.structs.replace(turn, permissions=self._profiles.of(turn.sandbox))

    async def can_confine(self) -> bool:
        """Whether Codex can (bubblewrap and user namespaces, or macOS): runs `true`, in 0.1 s. Logs why not."""
        name, switches = str(self._profiles.of("read-only")), arguments_of(self._profiles.pairs())
        try:
            with sandbox_variables() as variables:
                command = (self._program, "sandbox", *switches, "-P", name, "-C", "/", "--", "true")
                await output_of(command, child_environment(self._environment) | variables)
        except (Fault, OSError) as fault:
            log.warning("agent_reads_not_confined", reason=str(fault))
            return False
        return True

    def close(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
