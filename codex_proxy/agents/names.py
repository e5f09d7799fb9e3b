"""The names of agents. A built-in agent is one line (`name: "module:attribute"`, an `AgentSpec`). A plugin's name is
that of an entry point in the group `codex_proxy.agents`.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import Final

from codex_proxy.parts import absent_part, absent_part_text, parts

BUILT_IN: Final[Mapping[str, str]] = {
    "codex-app-server": "codex_proxy.agents.codex.codex_specs:APP_SERVER",
    "codex-proto": "codex_proxy.agents.codex.codex_specs:PROTO",
    "codex-exec": "codex_proxy.agents.codex.codex_specs:EXEC",
    **{name: line for part in parts() for name, line in part.agents.items()},
    "fake": "codex_proxy.agents.fake.fake_spec:SPEC",
}

DEFAULT_AGENT: Final = "auto"
"""The default agent: the plugin's if there is one, else Codex."""
GROUP: Final = "codex_proxy.agents"


def names() -> tuple[str, ...]:
    """Returns what `--agent` accepts if there is no plugin."""
    return (DEFAULT_AGENT, *BUILT_IN)


def check_name(agent: str, plugin: str | None) -> None:
    """Raises `ValueError`, which lists the known agents, if there is no `plugin` and no agent of that name."""
    if agent not in names() and plugin is None and agent not in entry_points():
        if part := absent_part("agents", agent):
            raise ValueError(f"the agent {agent} belongs to {absent_part_text(part)}")
        known = (*names(), *sorted(entry_points()))
        close = difflib.get_close_matches(agent, known, n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(
            f"there is no agent {agent!r}.{meant} The agents are {', '.join(known)}; an agent "
            "from another package is given with --agent-plugin MODULE:SPEC"
        )


def entry_points() -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}


def code_of(reference: str) -> tuple[str, ...]:
    """Returns the folders (or file) of the plugin's top-level package, which it does not import. No turn may write
    there.
    """
    top = reference.partition(":")[0].partition(".")[0]
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ()
    if found is None:
        return ()
    return tuple(found.submodule_search_locations or ((found.origin,) if found.origin else ()))
