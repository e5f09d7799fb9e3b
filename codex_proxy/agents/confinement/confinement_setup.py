"""Finds what confines an agent's processes, by its settings, for the agent and for `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from codex_proxy.agents.codex.program import find_codex
from codex_proxy.agents.confinement.confine import FoundConfinement, Mechanism, find_confinement
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.checks import Check, CheckBuilder
from codex_proxy.core.safety import find_endangered
from codex_proxy.files.private import make_folder
from codex_proxy.settings.protected_paths import protected_paths

NO_MECHANISM: Final = (
    "--agent-confinement {} does not work here: {}. Omit it to use the first mechanism that works, or use `none` "
    "to run the agent unconfined."
)


def state_folders(context: AgentContext, home: str, names: Iterable[str]) -> tuple[str, ...]:
    """Creates the folders `names` in `home`, and returns them and `agent_state_folders`. Raises `NoAgentError` if one
    contains files of the server, or `OSError`.
    """
    own = [os.path.join(home, name) for name in names if os.path.isdir(home)]
    for folder in own:
        make_folder(Path(folder))
    named = context.settings.agent_state_folders.split(os.pathsep)
    folders = (*own, *(os.path.abspath(os.path.expanduser(each)) for each in named if each))
    protected = protected_paths(context.settings, context.environ)
    for folder in folders:
        found = find_endangered(os.path.realpath(folder), protected)
        if found is not None:
            raise NoAgentError(
                f"A confined agent may not write to {folder}, where {found.what} is ({found.path}). Change "
                "PROXY_AGENT_STATE_FOLDERS, or move one of the two."
            )
    return folders


async def wanted_confinement(
    context: AgentContext, folder: str, *, reading: bool = False, unusable: Mapping[Mechanism, str] = {}
) -> FoundConfinement:
    """Finds the mechanism of `agent_confinement`, which is not `none`. Raises `OSError`, or `NoAgentError` if a named
    mechanism does not work.
    """
    wanted, path = context.settings.agent_confinement, context.environ.get("PATH", os.defpath)
    assert wanted != "none"
    codex = find_codex(context.settings.codex_bin, path)
    place = context.state_dir / folder
    found = await find_confinement(wanted, place, codex=codex, path=path, reading=reading, unusable=unusable)
    if found.confinement is None and wanted != "auto":
        raise NoAgentError(NO_MECHANISM.format(wanted, found.reasons[wanted]))
    return found


async def plain_confinement(
    context: AgentContext,
    title: str,
    *,
    written: tuple[str, ...],
    read: tuple[str, ...] = (),
    unusable: Mapping[Mechanism, str] = {},
) -> PlainConfinement:
    """Finds what confines plain-model turns. `unusable` are mechanisms that do not fit the program. Raises
    `NoAgentError` or `OSError`.
    """
    wanted = context.settings.agent_confinement
    if wanted == "none":
        advice = "Leave out --agent-confinement none to confine them."
        return PlainConfinement(title, None, why="--agent-confinement none", advice=advice)
    found = await wanted_confinement(context, "plain", reading=True, unusable=unusable)
    why = "" if found.confinement is not None else f"no mechanism works here: {found.why_none()}"
    return PlainConfinement(
        title,
        found.confinement,
        written=written,
        read=read,
        why=why,
        advice="Install bubblewrap, or use Linux 6.2 or newer.",
        required=wanted != "auto",
    )


def confinement_check(confinement: PlainConfinement) -> Check:
    found = confinement.confinement
    checking = CheckBuilder("plain-model turns", confinement="none" if found is None else found.mechanism)
    if found is None:
        advice = confinement.advice
        return checking.warning(confinement.warning.removesuffix(advice).strip(), advice)
    return checking.ok(f"Plain-model turns cannot read your files: {found.title} confines their processes.")
